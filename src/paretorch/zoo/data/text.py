"""The Penn Treebank (Marcus et al., 1993) as prepared by Mikolov et al. (2010), by words or by characters, chapter 6.

Each line ends with the token "<eos>". The vocabulary is that of the training part, in order of first appearance.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paretorch.errors import ConfigError, DataError
from paretorch.zoo.data.registry import data_root

_FILES = {"word": "ptb.{}.txt", "char": "ptb.char.{}.txt"}
_EOS, _UNKNOWN = "<eos>", "<unk>"


@dataclass(frozen=True, eq=False)
class Text:
    """Three streams of tokens (int64, one dimension) and the vocabulary: token i is vocabulary[i]."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]


def load(level: str, root: str | Path | None = None) -> Text:
    """Read the treebank from root/ptb.

    Args:
        level: "word" (from ptb.train.txt, ptb.valid.txt, ptb.test.txt) or "char" (from ptb.char.train.txt and so on).
        root: the folder of the data, by default that of `data_root`.
    """
    if level not in _FILES:
        raise ConfigError(f"The Penn Treebank comes at level 'word' or 'char', not {level!r}")
    folder = data_root(root) / "ptb"
    tokens = {}
    for part in ("train", "valid", "test"):
        path = folder / _FILES[level].format(part)
        try:
            tokens[part] = _read(path)
        except (OSError, UnicodeDecodeError) as error:
            names = _FILES[level].format("{train,valid,test}")
            raise DataError(f"{path} cannot be read; put Mikolov's files {names} into {folder}") from error
    vocabulary = tuple(dict.fromkeys(tokens["train"]))
    numbers = {token: number for number, token in enumerate(vocabulary)}
    streams = {}
    for part, words in tokens.items():
        unknown = set(words) - numbers.keys()
        if not words or (unknown and _UNKNOWN not in numbers):
            raise DataError(f"The {part} part in {folder} is empty or does not belong to the training part")
        numbers.update(dict.fromkeys(unknown, numbers.get(_UNKNOWN, 0)))
        streams[part] = torch.from_numpy(np.fromiter(map(numbers.__getitem__, words), np.int64, len(words)))
    return Text(**streams, vocabulary=vocabulary)


def batchify(stream: Tensor, batch: int) -> Tensor:
    """Cut a stream into `batch` columns of equal length: [length, batch]. What remains is dropped."""
    length = len(stream) // batch
    if length < 2:
        raise ConfigError(f"A stream of {len(stream)} tokens is too short for a batch of {batch}")
    return stream[: length * batch].view(batch, length).t().contiguous()


def chunks(columns: Tensor, bptt: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input, target) of at most `bptt` steps, in order; the target is the input one step later."""
    last = len(columns) - 1
    for start in range(0, last, bptt):
        end = min(start + bptt, last)
        yield columns[start:end], columns[start + 1 : end + 1]


def _read(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        return [token for line in lines for token in (*line.split(), _EOS)]
