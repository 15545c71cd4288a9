"""The three parts of a file: the index, the entropy-coded symbols, and bytes that no model shrinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from paretorch.deploy.codec.entropy import Decoder, Encoder
from paretorch.deploy.codec.wire import ByteReader, ByteWriter


@dataclass
class Sink:
    """The parts being written."""

    index: ByteWriter = field(default_factory=ByteWriter)
    coded: Encoder = field(default_factory=Encoder)
    plain: bytearray = field(default_factory=bytearray)


@dataclass
class Source:
    """The parts being read."""

    index: ByteReader
    coded: Decoder
    plain: ByteReader


class Spent(NamedTuple):
    """Bits outside the index, by what they say."""

    codes: float = 0.0
    masks: float = 0.0
    maps: float = 0.0
