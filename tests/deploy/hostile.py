"""Hostile artefacts: mutations of a small valid file, and the one outcome that is allowed.

Run as a script for a long run: python tests/deploy/hostile.py 100000
"""

from __future__ import annotations

import contextlib
import resource
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.deploy import load, save
from paretorch.deploy.codec.container import VERSION, checksum, pack, read_file
from paretorch.errors import ArtefactError
from paretorch.report import report


class Mixed(nn.Module):
    """A little of every way to store a tensor that the version knows."""

    def __init__(self, version: int = VERSION) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.norm = nn.BatchNorm1d(9)
        self.rows = nn.Parameter(
            torch.randint(-3, 4, (24, 60), generator=generator) * (torch.arange(24) % 3)[:, None] / 4
        )
        self.book = nn.Parameter(torch.tensor([0.1, 0.7, -0.3])[torch.randint(0, 3, (20, 10), generator=generator)])
        self.sparse = nn.Parameter(
            torch.randn(40, 20, generator=generator) * (torch.rand(40, 20, generator=generator) > 0.9)
        )
        self.dense = nn.Parameter(torch.randn(7, 8, generator=generator))
        self.tied = self.dense
        wide = torch.randn(30, 30, generator=generator) * 2.0 ** torch.randint(0, 7, (30, 30), generator=generator)
        self.wide = nn.Parameter((2 * torch.floor(wide) + 1) / 64)
        self.register_buffer("counts", torch.tensor([3, 70_000, -1]))
        self.register_buffer("flags", torch.rand(50, generator=generator) > 0.5)
        if version > 1:
            codes = torch.randint(-1, 3, (12, 40), generator=generator)
            self.steps = nn.Parameter(codes * (torch.rand(12, 1, generator=generator) + 0.1))
        if version > 2:
            self._add_groups()

    def _add_groups(self) -> None:
        """Steps of groups, of which one row has zeros, outliers and values that were rounded twice; offsets; blocks of bits."""
        generator = torch.Generator().manual_seed(2)

        def codes(low: int, high: int, *shape: int) -> Tensor:
            return torch.randint(low, high, shape, generator=generator).float()

        def numbers(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator) + 0.1

        grouped = (codes(-8, 8, 9, 3, 32) * numbers(9, 3, 1)).flatten(1)
        grouped[4] = grouped[4] * 1.7 * (torch.arange(96) % 3 > 0)
        grouped[5, 7] = grouped[6, 70] = 0.123456789
        self.grouped = nn.Parameter(grouped)
        self.columns = nn.Parameter((codes(0, 16, 40, 6) - codes(6, 10, 1, 6)) * numbers(1, 6))
        self.shifted = nn.Parameter((codes(0, 8, 12, 2, 40) * numbers(12, 2, 1) + numbers(12, 2, 1)).flatten(1))
        self.positive = nn.Parameter((codes(0, 8, 30, 64) + codes(0, 90, 30, 1)) * numbers(30, 1))
        bits = torch.randint(1, 5, (32, 6, 1), generator=generator)
        odd = 2 * torch.floor(torch.rand(32, 6, 16, generator=generator) * 2.0**bits) + 1 - 2.0**bits
        self.blocks = nn.Parameter((odd * 2.0**-bits).flatten(1))


class MixedNow(Mixed):
    """And what came later within the version: files of before do not have it."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        codes = torch.randint(-9, 10, (12, 40), generator=generator)
        self.rounded = nn.Parameter((codes * (torch.rand(12, 1, generator=generator) + 0.1)).bfloat16())


def valid_blob() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        model = MixedNow()
        model.paretorch_edits = [{"kind": "scale", "weight": "rows", "exponent": 0}]  # type: ignore[assignment]
        save(model, Path(folder) / "x.pare", summary={"accuracy": 0.9})
        return bytes(read_file(Path(folder) / "x.pare")[0])


def reseal(body: bytes) -> bytes:
    """A blob with the right checksum."""
    return checksum(body, VERSION) + body


def split(blob: bytes) -> tuple[bytes, bytes]:
    """The inflated index, and the rest: coded words, after their length, and plain bytes."""
    end = 20 + 4 * int.from_bytes(blob[16:20], "little")
    deflated, rest = read_block(blob[end:])
    return zlib.decompress(deflated, -15), blob[16:end] + rest


def join(index: bytes, rest: bytes) -> bytes:
    """A blob of both with the right checksum; a wrong length stays wrong."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    end = 4 + 4 * int.from_bytes(rest[:4], "little")
    return reseal(rest[:end] + as_block(deflater.compress(index) + deflater.flush()) + rest[end:])


def read_block(data: bytes) -> tuple[bytes, bytes]:
    """The bytes after a length of seven bits per byte, and what follows them."""
    length, at = 0, 0
    while data[at] > 127:
        length |= (data[at] & 127) << 7 * at
        at += 1
    length |= data[at] << 7 * at
    return data[at + 1 : at + 1 + length], data[at + 1 + length :]


def as_block(data: bytes) -> bytes:
    """The bytes after their length: the inverse of `read_block`."""
    prefix, length = bytearray(), len(data)
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes(prefix) + bytes([length]) + data


def _mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Flip, overwrite, cut, insert or repeat a few bytes."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(out)))
        match int(rng.integers(0, 5)):
            case 0:
                out[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                out[at] = int(rng.choice([0, 1, 127, 128, 255]))
            case 2:
                del out[at : at + int(rng.integers(1, 9))]
            case 3:
                out[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case _:
                out[at:at] = b"\xff" * int(rng.integers(1, 11))
        if not out:
            out.append(0)
    return bytes(out)


def mutations(count: int, seed: int = 0) -> Iterator[bytes]:
    """Files: half are mutated as they lie on disk, half deeper, with a checksum that is right again."""
    rng = np.random.default_rng(seed)
    blob = valid_blob()
    index, rest = split(blob)
    for i in range(count):
        match i % 4:
            case 0:
                yield _mutate(pack(blob), rng)
            case 1:
                yield pack(reseal(_mutate(blob[16:], rng)))
            case 2:
                yield pack(join(_mutate(index, rng), rest))
            case _:
                yield pack(join(index, _mutate(rest, rng)))


def survive(files: Iterator[bytes], folder: Path) -> tuple[int, int]:
    """Load each file, and report on it; returns how many were refused and how many passed. Anything but ArtefactError escapes."""
    refused = passed = 0
    path = folder / "x.pare"
    for data in files:
        path.write_bytes(data)
        try:
            load(path, into=MixedNow())
            passed += 1
        except ArtefactError as error:
            if "\n" in str(error):
                raise RuntimeError("an error of several lines") from error
            refused += 1
        with contextlib.suppress(ArtefactError):
            str(report(path)).encode()
    return refused, passed


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as scratch:
        refused, passed = survive(mutations(count, seed=int(sys.argv[2]) if len(sys.argv) > 2 else 1), Path(scratch))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{count} mutated files: {refused} refused, {passed} still valid, no crash; peak memory {peak:.0f} MiB")
