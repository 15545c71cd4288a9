"""The file: one safetensors container with one tensor of bytes, the blob, which holds a state dict and a JSON head.

    checksum (16 bytes of SHA-256 over version and rest) | entropy-coded words | index, deflated | plain bytes

The words come first, so that the coder can read them in place. The index holds the JSON head (tensor names, zoo network, edits,
summary), then dtype and shape of every tensor, then the coding of every tensor and its tables. In version 1 the index came
first, the entries of each tensor were together, and the checksum did not cover the version. Version 3 added the coding
`affine` and classes of blocks.
Everything is checked before it is used, and nothing in the file is executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretorch.deploy.codec.integers import Integers
from paretorch.deploy.codec.sizes import TensorSize
from paretorch.deploy.codec.streams import ByteReader, ByteWriter, Decoder, PartsReader, PartsWriter
from paretorch.deploy.codec.tensors import decode_integers, decode_tensor, encode_tensor
from paretorch.deploy.codec.words import DTYPES, dtype_number
from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.files import error_reason
from paretorch.support.sharded import is_sharded

VERSION = 3
_KEY = "pare"
_CHECKSUM = 16
_INDEX_LIMIT = 1 << 24  # bytes; ResNet-50 needs 30 kB
_INDEX_GROWTH = 64  # beyond 1 MiB, at most this many times the deflated bytes
_MAX_NUMBERS = 1 << 40  # in one tensor
_MAX_DIMS = 16
_ALIAS = 0  # in place of a dtype: the tensor is tied to an earlier one

Declared = tuple[torch.dtype, tuple[int, ...]] | str  # dtype and shape, or the earlier name that the tensor is tied to


def pack(blob: bytes) -> bytes:
    """Return the bytes of the file with this blob. (One safetensors entry per tensor would take 10 kB for ResNet-20.)"""
    from safetensors.numpy import save

    return save({_KEY: np.frombuffer(blob, dtype=np.uint8)}, metadata={_KEY: str(VERSION)})


def read_file(path: Path, most: int | None = None) -> tuple[memoryview, int]:
    """Return the blob and its format version, this or an older one; raise if the file has more than `most` bytes."""
    from safetensors import SafetensorError, safe_open

    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ArtefactError(f"{path} is a folder: give the file in it, such as {path / 'model.pare'}")
        if not stat.S_ISREG(status.st_mode):
            raise ArtefactError(f"{path} is not a file but a pipe or a device; copy its content into a file")
        if most is not None and status.st_size > most:
            raise ArtefactError(f"{path} has {status.st_size:,} bytes, more than a file for this module can have")
        with safe_open(str(path), framework="np") as file:
            version = (file.metadata() or {}).get(_KEY)
            if version is None or list(file.keys()) != [_KEY]:
                raise ArtefactError(f"{path} is a safetensors file, but not an artefact of paretorch")
            if version not in {str(known) for known in range(1, VERSION + 1)}:
                raise ArtefactError(f"{path} has format version {version[:20]!r}; this paretorch reads up to {VERSION}")
            if file.get_slice(_KEY).get_dtype() != "U8":
                raise ArtefactError(f"{path} does not hold bytes")
        return _read_blob(path), int(version)
    except FileNotFoundError as error:
        raise ArtefactError(f"There is no file {path}") from error
    except MemoryError as error:
        raise ArtefactError(f"{path} is larger than the memory that is free") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise ArtefactError(f"{path} is not a readable artefact: {error_reason(error)}") from error


def _read_blob(path: Path) -> memoryview:
    """Read the bytes of the only tensor, which follow the header. (safetensors would map the file and copy them.)"""
    with path.open("rb") as file:
        file.seek(int.from_bytes(file.read(8), "little"), os.SEEK_CUR)
        return np.fromfile(file, dtype=np.uint8).data


def write_blob(state: Mapping[str, Tensor], head: Mapping[str, Any]) -> tuple[bytes, dict[str, TensorSize]]:
    """Return the blob and the size of each tensor; a tied tensor is stored and counted once."""
    require_plain_values(state)
    writer = PartsWriter()
    seen: dict[Any, int] = {}
    stored: list[str] = []
    try:
        text = json.dumps({**head, "names": list(state)}, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"summary and zoo_options must be plain JSON values: {error}") from error
    writer.index.block(text.encode())
    for position, (name, tensor) in enumerate(state.items()):
        key = storage_key(tensor)
        if key is not None and key in seen:
            writer.index.number(_ALIAS)
            writer.index.number(seen[key])
            continue
        if key is not None:
            seen[key] = position
        writer.index.number(1 + dtype_number(name, tensor.dtype))
        writer.index.number(tensor.dim())
        for length in tensor.shape:
            writer.index.number(length)
        stored.append(name)
    sizes = {name: encode_tensor(state[name], writer) for name in stored}
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    deflated = deflater.compress(bytes(writer.index.data)) + deflater.flush()
    if len(writer.index.data) > _index_limit(len(deflated)):  # which no reader accepts
        raise ConfigError(
            f"Summary, names and tables take {len(writer.index.data):,} bytes, more than an artefact holds beside its "
            "tensors: give a smaller summary"
        )
    gain = len(deflated) / len(writer.index.data)
    words = writer.coded.finish()
    out = ByteWriter()
    out.data += (len(words) // 4).to_bytes(4, "little") + words
    out.block(deflated)
    out.data += writer.plain
    body = bytes(out.data)
    return checksum(body, VERSION) + body, {name: replace(size, rest=size.rest * gain) for name, size in sizes.items()}


def require_plain_values(state: Mapping[str, Tensor]) -> None:
    """Raise unless every value is a tensor with memory of its own that the file can hold."""
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise ConfigError(f"{name} is a {type(tensor).__name__}; an artefact holds tensors only")
        if hasattr(tensor, "__tensor_flatten__"):
            # Inner tensors hold the values, after torchao's `quantize_` for example, or in a sharded tensor.
            values = "full_tensor()" if is_sharded(tensor) else "dequantize()"
            raise ConfigError(
                f"{name} is a {type(tensor).__name__}, and a file holds plain tensors only: put its values, as {values} returns "
                "them, in its place before saving"
            )
        if tensor.layout != torch.strided or tensor.is_meta:
            raise ConfigError(
                f"{name} has no plain values ({tensor.layout}, {tensor.device}); load the values before saving"
            )
        if tensor.dim() > _MAX_DIMS:
            raise ConfigError(
                f"{name} has {tensor.dim()} dimensions, and an artefact holds up to {_MAX_DIMS}: reshape it"
            )


def checksum(body: bytes | memoryview, version: int) -> bytes:
    """Return the checksum at the beginning of a blob."""
    digest = hashlib.sha256() if version == 1 else hashlib.sha256(f"pare {version}".encode())
    digest.update(body)
    return digest.digest()[:_CHECKSUM]


def storage_key(tensor: Tensor) -> tuple[Any, ...] | None:
    """Return a key that is equal for tied tensors only; None for a tensor without elements."""
    if tensor.numel() == 0:
        return None
    shape = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
    return (
        (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), *shape) if not tensor.is_meta else (id(tensor),)
    )


class BlobReader:
    """Checks a blob and reads its head; `tensors` then yields one tensor after another."""

    def __init__(self, blob: bytes | memoryview, version: int) -> None:
        blob = memoryview(blob)
        if checksum(blob[_CHECKSUM:], version) != bytes(blob[:_CHECKSUM]):
            raise ArtefactError("The artefact is damaged: its checksum does not match; get a fresh copy")
        body = ByteReader(blob[_CHECKSUM:])
        if version == 1:
            index, words = ByteReader(_inflate(bytes(body.block()))), body.block()
        else:
            words = body.take(4 * int.from_bytes(body.take(4), "little"))
            index = ByteReader(_inflate(bytes(body.block())))
        if len(words) % 4:
            raise ArtefactError("The artefact's coded part is not made of whole words")
        plain = body.take(body.left)
        if len(plain) < len(words):
            plain = memoryview(bytes(plain))  # a copy, so that the memory of the file can be freed
        self._source = PartsReader(index, Decoder(words), ByteReader(plain))
        self.head = _read_head(index)
        self.names: list[str] = self.head.pop("names")
        self.limit = (1 << 26) + 1024 * len(blob)  # bytes of all tensors, if there is no module to compare with

        self._declared = None if version == 1 else [self._declaration(i) for i in range(len(self.names))]

    def tensors(
        self,
        expect: Mapping[str, Tensor] | None,
        most: int,
        into: Callable[[str], Tensor] | None = None,
        as_integers: Container[str] = (),
    ) -> Iterator[tuple[str, Tensor | Integers | str]]:
        """Yield name and tensor, or name and the earlier name that the tensor is tied to.

        Args:
            expect: Tensors whose shapes, and dtypes up to their precision, the file must have.
            most: The most bytes of all tensors. Like `expect`, checked before the first tensor is yielded (in version 1: before
                each tensor).
            into: Returns the tensor to fill, by name.
            as_integers: Names of tensors to yield as whole numbers and steps, or dense if they are not stored so.
        """
        if self._declared is not None:
            for name, declared in zip(self.names, self._declared, strict=True):
                most = _admit(name, declared, expect, most)
        for position, name in enumerate(self.names):
            if self._declared is not None:
                declared = self._declared[position]
            else:
                declared = self._declaration(position)
                most = _admit(name, declared, expect, most)
            if isinstance(declared, str):
                yield name, declared
            elif name in as_integers:
                yield name, decode_integers(self._source, declared[1], declared[0])
            else:
                dtype, shape = declared
                yield name, decode_tensor(self._source, shape, dtype, into(name) if into else None)
        self._source.index.finish("the index")
        self._source.coded.finish()
        self._source.plain.finish("the plain part")

    def _declaration(self, position: int) -> Declared:
        index = self._source.index
        number = index.number(len(DTYPES))
        if number == _ALIAS:
            if position == 0:
                raise ArtefactError("The artefact's first tensor refers to an earlier one")
            return self.names[index.number(position - 1)]
        return DTYPES[number - 1], tuple(index.number() for _ in range(index.number(_MAX_DIMS)))


def _admit(name: str, declared: Declared, expect: Mapping[str, Tensor] | None, most: int) -> int:
    """Raise for a tensor that is not the expected one, or too large; return how many bytes are left for others."""
    if isinstance(declared, str):
        if expect is not None and _kind(expect[name]) != _kind(expect[declared]):
            kinds = f"{_kind(expect[name])} and {_kind(expect[declared])}"
            raise ArtefactError(f"{name} and {declared} are tied in the file; in the module they are {kinds}")
        return most
    dtype, shape = declared
    if expect is not None and (shape != tuple(expect[name].shape) or not _converts(dtype, expect[name].dtype)):
        raise ArtefactError(f"{name} is {dtype} {shape} in the file and {_kind(expect[name])} in the module")
    most -= math.prod(shape) * (dtype if expect is None else expect[name].dtype).itemsize
    if most < 0 or math.prod(max(length, 1) for length in shape) > _MAX_NUMBERS:
        raise ArtefactError(f"A tensor of shape {shape} is larger than a file of this size may declare")
    return most


def _converts(dtype: torch.dtype, into: torch.dtype) -> bool:
    """Whether values may be rounded to another dtype: from real to real, or from complex to complex numbers."""
    kinds = [(one.is_floating_point, one.is_complex) for one in (dtype, into)]
    return dtype == into or (kinds[0] == kinds[1] and any(kinds[0]))


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _index_limit(deflated: int) -> int:
    """Return how many bytes an index may inflate to, given its deflated bytes."""
    return min(_INDEX_LIMIT, (1 << 20) + _INDEX_GROWTH * deflated)


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj(-15)
    try:
        index = inflater.decompress(data, _index_limit(len(data)))
    except zlib.error as error:
        raise ArtefactError("The artefact's index cannot be inflated") from error
    if not inflater.eof or inflater.unused_data:
        raise ArtefactError("The artefact's index is cut, or larger than any index")
    return index


def _read_head(index: ByteReader) -> dict[str, Any]:
    try:
        head: dict[str, Any] = json.loads(bytes(index.block()).decode(), object_pairs_hook=_unique)
        json.dumps(head, allow_nan=False)  # refuses what could not have been written, such as 1e999
    except (ValueError, RecursionError) as error:
        raise ArtefactError("The artefact's head is not valid JSON") from error
    if not isinstance(head, dict) or not isinstance(head.get("summary", {}), dict):
        raise ArtefactError("The artefact's head is not made of names and values")
    names = head.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArtefactError("The artefact's head lists no tensor names")
    if len(set(names)) != len(names):
        raise ArtefactError("The artefact names a tensor twice")
    return head


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found
