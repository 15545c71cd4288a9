"""A state dict and what belongs to it as one string of bytes, and back.

checksum (16 bytes of SHA-256 over version and rest) | entropy-coded words | index, deflated | plain bytes

The words come first, so that the coder can read them in place, without a copy. The index holds a JSON head (tensor names,
zoo network, edits, summary), then dtype and shape of every tensor, then the coding of every tensor and its tables. In
version 1 the index came first, each tensor's entries stood together, and the checksum did not cover the version. Version 3
added the coding `affine` and classes of blocks.
Everything read is checked before it is used; nothing read is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paretorch.deploy.codec.container import VERSION
from paretorch.deploy.codec.entropy import Decoder
from paretorch.deploy.codec.sizes import TensorSize
from paretorch.deploy.codec.streams import ByteReader, ByteWriter, PartsReader, PartsWriter
from paretorch.deploy.codec.tensors import decode_tensor, encode_tensor
from paretorch.deploy.codec.words import DTYPES, dtype_number
from paretorch.errors import ArtefactError, ConfigError

_CHECKSUM = 16
_INDEX_LIMIT = 1 << 24  # bytes, inflated; ResNet-50 needs 30 kB
_INDEX_GROWTH = 64  # at most this many times the deflated index, beyond 1 MiB
_MOST_NUMBERS = 1 << 40  # in one tensor
_MOST_DIMS = 16
_ALIAS = 0  # in the place of a dtype: the tensor is an earlier one again

Declared = tuple[torch.dtype, tuple[int, ...]] | str  # dtype and shape, or the earlier name that the tensor is tied to


def write_blob(state: Mapping[str, Tensor], head: Mapping[str, Any]) -> tuple[bytes, dict[str, TensorSize]]:
    """Return the bytes and the size of each tensor; a tied tensor is stored and counted once."""
    writer = PartsWriter()
    seen: dict[Any, int] = {}
    stored: list[str] = []
    try:
        text = json.dumps({**head, "names": list(state)}, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"summary and zoo_options must be plain JSON values: {error}") from error
    writer.index.block(text.encode())
    for position, (name, tensor) in enumerate(state.items()):
        if not isinstance(tensor, Tensor):
            raise ConfigError(f"{name} is a {type(tensor).__name__}; an artefact holds tensors only")
        if tensor.layout != torch.strided or tensor.is_meta:
            raise ConfigError(
                f"{name} has no plain values ({tensor.layout}, {tensor.device}); give it some before saving"
            )
        if tensor.dim() > _MOST_DIMS:
            raise ConfigError(
                f"{name} has {tensor.dim()} dimensions, and an artefact holds up to {_MOST_DIMS}: reshape it"
            )
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
    if len(writer.index.data) > _index_limit(len(deflated)):  # no reader would accept it
        raise ConfigError(
            f"Summary, names and tables come to {len(writer.index.data):,} bytes, more than an artefact holds beside its "
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


def checksum(body: bytes | memoryview, version: int) -> bytes:
    """Return the checksum that a blob must begin with."""
    digest = hashlib.sha256() if version == 1 else hashlib.sha256(f"pare {version}".encode())
    digest.update(body)
    return digest.digest()[:_CHECKSUM]


def storage_key(tensor: Tensor) -> tuple[Any, ...] | None:
    """Return a key that is equal for all names of one tensor; None for a tensor without elements."""
    if tensor.numel() == 0:
        return None
    shape = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
    return (
        (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), *shape) if not tensor.is_meta else (id(tensor),)
    )


class BlobReader:
    """Checks the bytes and reads the head at once; `tensors` then yields one tensor after another."""

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
            plain = memoryview(bytes(plain))  # a copy, so that the whole file need not stay in memory
        self._source = PartsReader(index, Decoder(words), ByteReader(plain))
        self.head = _read_head(index)
        self.names: list[str] = self.head.pop("names")
        self.limit = (1 << 26) + 1024 * len(blob)  # bytes that may be produced if there is no module to compare with

        self._ahead = None if version == 1 else [self._declaration(i) for i in range(len(self.names))]

    def tensors(
        self, expect: Mapping[str, Tensor] | None, most: int, into: Callable[[str], Tensor] | None = None
    ) -> Iterator[tuple[str, Tensor | str]]:
        """Yield name and tensor, or name and the earlier name that it is tied to.

        Args:
            expect: Tensors whose dtypes and shapes the file must have.
            most: Bytes that may be produced in all. Like `expect`, checked before the first tensor is yielded (in version 1:
                before each tensor).
            into: Returns the tensor to fill, by name.
        """
        if self._ahead is not None:
            for name, declared in zip(self.names, self._ahead, strict=True):
                most = _admit(name, declared, expect, most)
        for position, name in enumerate(self.names):
            if self._ahead is not None:
                declared = self._ahead[position]
            else:
                declared = self._declaration(position)
                most = _admit(name, declared, expect, most)
            if isinstance(declared, str):
                yield name, declared
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
        return DTYPES[number - 1], tuple(index.number() for _ in range(index.number(_MOST_DIMS)))


def _admit(name: str, declared: Declared, expect: Mapping[str, Tensor] | None, most: int) -> int:
    """Raise for a tensor that is not the expected one, or too large; return how many bytes are left."""
    if isinstance(declared, str):
        if expect is not None and _kind(expect[name]) != _kind(expect[declared]):
            kinds = f"{_kind(expect[name])} and {_kind(expect[declared])}"
            raise ArtefactError(f"{name} and {declared} are tied in the file; in the module they are {kinds}")
        return most
    dtype, shape = declared
    if expect is not None and (shape != tuple(expect[name].shape) or dtype != expect[name].dtype):
        wanted = _kind(expect[name])
        what = "; load it into a module of the file's dtype and convert that" if dtype != expect[name].dtype else ""
        raise ArtefactError(f"{name} is {dtype} {shape} in the file and {wanted} in the module{what}")
    most -= math.prod(shape) * dtype.itemsize
    if most < 0 or math.prod(max(length, 1) for length in shape) > _MOST_NUMBERS:
        raise ArtefactError(f"A tensor of shape {shape} is larger than a file of this size may declare")
    return most


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _index_limit(deflated: int) -> int:
    """Return how many bytes an index may inflate to, from the bytes it takes in the file."""
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
        json.dumps(head, allow_nan=False)  # what could not have been written, such as 1e999, is refused here
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
