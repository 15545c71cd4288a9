"""Pictures of pixels as PNG files (RFC 2083), without a library: one compressed block, no filter."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

_COLOURS = {1: 0, 3: 2}  # grey, RGB


def png(pixels: Tensor) -> bytes:
    """Bytes [channels, height, width], grey or RGB, as a file; nothing but the pixels is in it, no date and no name."""
    channels, height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    rows = F.pad(pixels.permute(1, 2, 0).reshape(height, -1), (1, 0))  # the byte before a row names its filter: none
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.cpu().numpy().tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
