"""The artefact: a finalized network as one small file. `save`, `load`, and the sizes of files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.deploy.codec.container import BlobReader, pack, read_file, write_blob
from paretorch.deploy.codec.integers import Integers
from paretorch.deploy.codec.sizes import Sizes, on_their_grids
from paretorch.deploy.filling import build, fill, replayed
from paretorch.deploy.norms import prepared_state
from paretorch.deploy.plain import plain
from paretorch.edits import Edit, edits_of, read_edits, write_edits
from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.files import write_file
from paretorch.support.memory import release_free_memory

StrPath = str | os.PathLike[str]


def save(
    model: nn.Module,
    path: StrPath,
    *,
    norms: torch.dtype = torch.float32,
    fold_norms: bool = False,
    summary: Mapping[str, Any] | None = None,
) -> Sizes:
    """Write the module's state as an artefact (`.pare`) and return where its bytes went.

    Zeros, ties, scales and precisions are read off the values, so any module can be saved, and compressed ones are small.
    `load` returns every bit, except that -0.0 becomes 0.0. The attributes `zoo_name`, `zoo_options` and `paretorch_edits`
    are stored too. The same module gives the same bytes. If writing fails, an existing file does not change.

    Args:
        norms: torch.bfloat16 or torch.float16 rounds the vectors of norm layers (weight, bias, running statistics) to this
            dtype: half the bytes, and no longer exact.
        fold_norms: Store a batch norm as the two vectors that eval mode needs: half the bytes, equal outputs up to rounding,
            and not for further training.
        summary: Plain JSON values to store in the file.

    Example:
        >>> import tempfile, torch, paretorch as pt
        >>> network = torch.nn.Linear(100, 100, bias=False)
        >>> _ = network.weight.data.mul_(40.0).round_().clamp_(-4, 4)  # whole numbers: 9 values
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sizes = pt.save(network, folder + "/network.pare")
        >>> sizes.total < 5_000  # of 40,000 bytes
        True
    """
    data, sizes = _encode(model, norms, fold_norms, summary)
    write_file(Path(path), data)
    return sizes


def sizes(
    model: nn.Module | Mapping[str, Tensor],
    *,
    norms: torch.dtype = torch.float32,
    fold_norms: bool = False,
    summary: Mapping[str, Any] | None = None,
) -> Sizes:
    """What `save` would return, without writing. A plain state dict is taken as a module without a name."""
    return _encode(model, norms, fold_norms, summary)[1]


def encoded_size(
    state: Mapping[str, Tensor],
    module: nn.Module | None = None,
    edits: Sequence[Edit | Mapping[str, Any]] | None = None,
) -> int:
    """Return the exact bytes of the artefact of a state dict, by encoding it.

    Args:
        module: The module of the state dict, whose zoo name the file would hold.
        edits: The edits that the file would hold. Default: those of the module.
    """
    head = {} if module is None else _name_of(module)
    if edits is None and module is not None:
        edits = edits_of(module)
    if edits:
        head["edits"] = write_edits(edits)
    return len(pack(write_blob(state, head)[0]))


def sizes_in_file(path: StrPath, source: nn.Module | Mapping[str, Tensor], head: Mapping[str, Any]) -> Sizes:
    """Return where the bytes of a file go, given what `open_artefact` returned; parts are counted as they would be coded now."""
    found = _encode_state(source.state_dict() if isinstance(source, nn.Module) else source, head)[1]
    length = Path(path).stat().st_size
    return replace(found, total=length, rest=found.rest + length - found.total)


def load(path: StrPath, into: nn.Module | None = None, *, packed: bool = False) -> nn.Module:
    """Fill `into` from an artefact, in place, and return it; without `into`, build the zoo network that the file names.

    The file must name exactly the tensors of the module, with their shapes. A module of another floating-point dtype stays so: the
    values are rounded to it. Tensors on the meta device get memory on the CPU. Tied tensors are tied again. A network
    that is built is in eval mode, and may be 1024 times as large as the file, or 64 MiB if that is more. Nothing in the file
    is executed, and little more memory is used than the module has. A damaged file, or a tensor of another shape,
    raises before the module changes.

    Args:
        packed: Keep weights of 2, 4 and 8 bits packed in the memory of the CPU: linear layers, embeddings and large convolutions are
            replaced by layers that compute with them, in fp32 and for inference only. A module on the meta device is never dense.

    Example:
        >>> import tempfile, torch, paretorch as pt
        >>> network = torch.nn.Linear(4, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sizes = pt.save(network, folder + "/network.pare")
        ...     copy = pt.load(folder + "/network.pare", into=torch.nn.Linear(4, 2))
        >>> torch.equal(copy.weight, network.weight)
        True
    """
    own = None if into is None else plain(into, "load(path, into=…)")
    reader = _reader(path, None if own is None else _max_bytes(own))
    edits = read_edits(reader.head.get("edits", []))
    if sum(edit.added_bytes() for edit in edits) > reader.limit:
        raise ArtefactError("The artefact has maps of activations too large for a file of this size")
    module = build(reader, edits) if own is None else own
    with replayed(module, edits):
        filled = fill(module, reader, packed)
    if packed:
        del reader
        release_free_memory()
    return filled if into is None or filled is not own else into


def open_artefact(path: StrPath) -> tuple[nn.Module | dict[str, Tensor], dict[str, Any]]:
    """Return the zoo network in a file, or a plain state dict if it names none, and the head of the file.

    The result may take 1024 bytes per byte of file, or 64 MiB if that is more.
    """
    reader = _reader(path)
    read_edits(reader.head.get("edits", []))
    if "zoo" in reader.head:
        return load(path), reader.head
    state: dict[str, Tensor] = {}
    for name, tensor in reader.tensors(None, reader.limit):
        assert not isinstance(tensor, Integers)
        state[name] = state[tensor] if isinstance(tensor, str) else tensor
    return state, reader.head


def _reader(path: StrPath, most: int | None = None) -> BlobReader:
    blob, version = read_file(Path(path), most)  # freed on return: the reader keeps what it needs
    return BlobReader(blob, version)


def _max_bytes(module: nn.Module) -> int:
    """Return the most bytes of a file for the module: no tensor takes more than its plain bytes, and the index is small."""
    state: Mapping[str, Tensor] = module.state_dict()
    return (1 << 26) + 2 * sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def _name_of(model: nn.Module) -> dict[str, Any]:
    # Not getattr: wrappers such as PEFT's forward it to the network inside, and are not that network.
    name, options = (inspect.getattr_static(model, one, None) for one in ("zoo_name", "zoo_options"))
    options = options or {}
    if not isinstance(name, str):
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"zoo_options={options!r}: the options of a zoo network are a dict")
    return {"zoo": [name, dict(options)]}


def _encode(
    model: nn.Module | Mapping[str, Tensor], norms: torch.dtype, fold_norms: bool, summary: Mapping[str, Any] | None
) -> tuple[bytes, Sizes]:
    head: dict[str, Any] = {}
    if summary is not None and not isinstance(summary, Mapping):
        raise ConfigError(f'summary={summary!r}: give plain JSON values by name, such as {{"accuracy": 0.91}}')
    if isinstance(model, Mapping):
        state = model
    else:
        model = plain(model, "an artefact")
        state = prepared_state(model, norms, fold_norms)
        head = _name_of(model)
        if edits := edits_of(model):
            head["edits"] = write_edits(edits)
    if summary:
        head["summary"] = dict(summary)
    return _encode_state(state, head)


def _encode_state(state: Mapping[str, Tensor], head: Mapping[str, Any]) -> tuple[bytes, Sizes]:
    blob, tensors = write_blob(state, head)
    tensors = on_their_grids(tensors, read_edits(head.get("edits", [])))
    data = pack(blob)
    codes, masks, maps = (sum(getattr(size, kind) for size in tensors.values()) for kind in ("codes", "masks", "maps"))
    dense = sum(size.dense for size in tensors.values())
    return data, Sizes(len(data), codes, masks, maps, len(data) - codes - masks - maps, dense, tensors)
