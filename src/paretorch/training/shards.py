"""Checkpoints of several ranks, by torch.distributed.checkpoint: each rank writes its part, and any number of ranks reads them.

    checkpoint.ranks/3/   one checkpoint; the two newest are kept
        __0_0.distcp      the tensors that rank 0 wrote, and so on
        .metadata         where each tensor is
        state.json        what is no tensor, and the checksum of every other file

A checkpoint is written in checkpoint.ranks/new, flushed, and renamed by the first rank once all ranks are done. So a kill at any
moment leaves the one before it. The index is a pickle: it is refused if it names anything but torch's own records.
"""

import hashlib
import json
import os
import pickle
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paretorch.errors import ArtefactError, warn
from paretorch.support import checked_files
from paretorch.support.files import read_json
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.files import write_atomically, write_error
from paretorch.training.ranks import Ranks

_FORMAT = 1
_KEPT = 2
_STATE, _INDEX, _NEW = "state.json", ".metadata", "new"
_CHUNK = 1 << 20
_NAMES: dict[str, set[str]] = {
    "torch.distributed.checkpoint.metadata": set(),
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "StorageMeta"},
    "torch.distributed.checkpoint.storage": {"StorageMeta"},
    "torch.serialization": {"_get_layout"},
    "torch": set(),
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}
"""What an index may name, beside the classes of torch's records, sizes and types."""


def exists(run: Path) -> bool:
    """Whether the folder of a run has a checkpoint of several ranks."""
    return bool(_numbers(run))


def remove(run: Path) -> None:
    """Remove them; a checkpoint of one process has taken their place."""
    shutil.rmtree(run / "checkpoint.ranks", ignore_errors=True)


@dataclass(frozen=True)
class Parts:
    """A checkpoint as one rank writes it.

    Args:
        tensors: All tensors, by the path to them; of sharded ones this rank's part is written.
        plain: Everything else, as JSON.
        random: The shape of each generator's state.
    """

    tensors: dict[str, Tensor]
    plain: dict[str, Any]
    random: dict[str, list[int]]


def take_apart(content: Checkpoint, ranks: Ranks) -> Parts:
    """What this rank has to write of a checkpoint; its tensors are those that training goes on with."""
    tensors: dict[str, Tensor] = {}
    plain = _split({**content.__dict__, "random": {}}, "", tensors)
    _split({f"random/{ranks.rank}": content.random}, "", tensors)
    return Parts(tensors, plain, {name: list(state.shape) for name, state in content.random.items()})


def write(run: Path, parts: Parts, ranks: Ranks) -> None:
    """Write a checkpoint, all ranks together."""
    folder = run / "checkpoint.ranks" / _NEW

    def begin() -> None:
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise write_error(folder, error) from error

    def checksums() -> dict[str, str]:
        own = [path for path in folder.iterdir() if path.name.startswith(f"__{ranks.rank}_")]
        return {path.name: _checksum(path) for path in [*own, *([folder / _INDEX] if ranks.is_first else [])]}

    def publish() -> None:
        sums = {name: one for each in found for name, one in each.items()}
        state = {"format": _FORMAT, "ranks": ranks.count, "sums": sums, "random": parts.random, "content": parts.plain}
        write_atomically(folder / _STATE, json.dumps(state).encode())
        try:
            os.replace(folder, run / "checkpoint.ranks" / str(max(_numbers(run), default=0) + 1))
        except OSError as error:
            raise write_error(folder, error) from error
        for number in sorted(_numbers(run))[:-_KEPT]:
            shutil.rmtree(run / "checkpoint.ranks" / str(number), ignore_errors=True)
        checked_files.remove(run / "checkpoint.pt")

    ranks.from_first(begin)
    _write_tensors(parts.tensors, folder, ranks)
    found = ranks.each(ranks.together(checksums))
    ranks.from_first(publish)


def _write_tensors(tensors: dict[str, Tensor], folder: Path, ranks: Ranks) -> None:
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        state_dict_saver.save(tensors, checkpoint_id=folder, process_group=ranks.group)
    except CheckpointException as error:
        for reason, _ in error.failures.values():
            if isinstance(reason, OSError):
                raise write_error(folder, reason) from error
        raise


def find(run: Path) -> Path:
    """The newest checkpoint whose files are as they were written; warns if that is not the newest of all."""
    numbers = sorted(_numbers(run), reverse=True)
    for number in numbers:
        folder = run / "checkpoint.ranks" / str(number)
        if _is_whole(folder):
            if number != numbers[0]:
                warn(
                    f"{run / 'checkpoint.ranks' / str(numbers[0])} is damaged; continuing from the previous checkpoint"
                )
            return folder
    raise ArtefactError(f"{run / 'checkpoint.ranks'} holds no undamaged checkpoint; remove it to begin the run again")


def load(folder: Path, rank: int = 0) -> Checkpoint:
    """Read a checkpoint that `find` has found, with whole tensors on the CPU, and the random state of this rank."""
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    state = read_json(folder / _STATE)
    plain, own = state["content"], rank % state["ranks"]
    tensors: dict[str, Tensor] = {}
    _templates(plain, tensors)
    randoms = {f"random/{own}/{name}": torch.empty(shape, dtype=torch.uint8) for name, shape in state["random"].items()}
    tensors |= randoms
    try:
        reader = FileSystemReader(folder)
        index = reader.read_metadata().state_dict_metadata
        if not all(isinstance(index.get(name), TensorStorageMetadata) for name in tensors):
            raise ValueError("a tensor that is not there")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=True)
        content: dict[str, Any] = _joined(plain, tensors)
    except Exception as error:  # files that somebody has made can raise anything
        raise ArtefactError(f"{folder} is no checkpoint of ours; remove it to begin the run again") from error
    content["random"] = {name.rpartition("/")[2]: tensors[name] for name in randoms}
    return Checkpoint.checked(content, folder)


def _numbers(run: Path) -> list[int]:
    try:
        return [int(path.name) for path in (run / "checkpoint.ranks").iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def _is_whole(folder: Path) -> bool:
    try:
        state = read_json(folder / _STATE)
        sums = dict(state["sums"])
        plain = state["format"] == _FORMAT and isinstance(state["content"], dict) and state["ranks"] >= 1
        names = _INDEX in sums and all(Path(name).name == name for name in sums)
        return (
            plain and names and all(_checksum(folder / name) == one for name, one in sums.items()) and _is_plain(folder)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


class _Index(pickle.Unpickler):
    """Reads an index that names only what torch writes there: a pickle could name any function."""

    def find_class(self, module: str, name: str) -> Any:
        from torch.distributed.checkpoint import metadata

        found = super().find_class(module, name) if module in _NAMES else None
        known = _NAMES.get(module)
        if known is not None and name in known:
            return found
        if module == torch.__name__ and (found is torch.Size or isinstance(found, torch.dtype)):
            return found
        if module == metadata.__name__ and isinstance(found, type):
            return found
        raise pickle.UnpicklingError(f"{module}.{name}")


def _is_plain(folder: Path) -> bool:
    try:
        with open(folder / _INDEX, "rb") as file:
            _Index(file).load()
    except Exception:  # a pickle that somebody has made can raise anything
        return False
    return True


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON, with its tensors taken out under the path to them."""
    if isinstance(value, Tensor):
        form = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        if value.numel() == 0:
            return {"empty": "", **form}
        tensors[path] = value.detach()
        return {"tensor": path, **form}
    if isinstance(value, Mapping):
        return {
            "items": [[key, _split(one, f"{path}/{key}" if path else str(key), tensors)] for key, one in value.items()]
        }
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_split(one, f"{path}/{index}", tensors) for index, one in enumerate(value)]}
    if not isinstance(value, bool | int | float | str | None):
        raise ArtefactError(f"A {type(value).__name__} cannot be kept in a checkpoint of several ranks: {path}")
    return {"value": value}


def _templates(plain: Any, tensors: dict[str, Tensor]) -> None:
    """An empty tensor for each one that was taken out."""
    ((kind, inner), *rest) = plain.items()
    if kind == "tensor":
        tensors[inner] = torch.empty(plain["shape"], dtype=getattr(torch, plain["dtype"]))
    elif not rest and kind == "items":
        for _, one in inner:
            _templates(one, tensors)
    elif not rest and kind in ("list", "tuple"):
        for one in inner:
            _templates(one, tensors)


def _joined(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    ((kind, inner), *_) = plain.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "empty":
        return torch.empty(plain["shape"], dtype=getattr(torch, plain["dtype"]))
    if kind == "items":
        return {key: _joined(one, tensors) for key, one in inner}
    if kind in ("list", "tuple"):
        found = [_joined(one, tensors) for one in inner]
        return found if kind == "list" else tuple(found)
    return inner
