"""Sentence pairs for translation, chapter 5, as tokens of a byte-pair encoding with one joint vocabulary.

The thesis trains on IWSLT'14; any folder of parallel lines can be used, such as Multi30k. The package `tokenizers` learns
the encoding from the training part, over bytes, so that every text can be encoded. It is stored beside the data.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from paretorch.errors import ConfigError, DataError, MissingExtraError

PAD, BOS, EOS = 0, 1, 2
_SPECIAL = ("<pad>", "<s>", "</s>")

Pair = tuple[list[int], list[int]]  # source ending in EOS; target from BOS to EOS


class Batch(NamedTuple):
    """Padded pairs, source [N, S] and target [N, T], and their indices in the list of pairs."""

    source: Tensor
    target: Tensor
    rows: list[int]


@dataclass(frozen=True, eq=False)
class Translation:
    """The encoded pairs of the three parts, and the encoding."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    tokenizer: Any

    @property
    def vocabulary(self) -> int:
        """The number of tokens, including those for padding, begin and end."""
        return int(self.tokenizer.get_vocab_size())

    def text(self, tokens: Sequence[int]) -> str:
        """Decode the tokens before the first EOS."""
        tokens = list(tokens)
        end = tokens.index(EOS) if EOS in tokens else len(tokens)
        return str(self.tokenizer.decode(tokens[:end])).strip()


def load(
    folder: str | Path,
    source: str = "de",
    target: str = "en",
    vocabulary: int = 10000,
    parts: tuple[str, str, str] = ("train", "val", "test_2016_flickr"),
) -> Translation:
    """Read and encode sentence pairs.

    Args:
        folder: holds files {part}.{language} with one sentence per line.
        source: the language to translate from.
        target: the language to translate into.
        vocabulary: the number of tokens of the encoding.
        parts: names of the training, validation and test part; by default those of Multi30k.
    """
    folder = Path(folder)
    lines = {part: tuple(_read(folder / f"{part}.{language}") for language in (source, target)) for part in parts}
    for part, (sources, targets) in lines.items():
        if len(sources) != len(targets) or not sources:
            raise DataError(
                f"{folder}/{part}.{source} and .{target} have {len(sources)} and {len(targets)} lines; they should have equally many, at least one"
            )
    tokenizer = _tokenizer(folder, [*lines[parts[0]][0], *lines[parts[0]][1]], vocabulary)
    train, valid, test = (_encode(tokenizer, *lines[part]) for part in parts)
    return Translation(train, valid, test, tokenizer)


def batches(pairs: Sequence[Pair], tokens: int, seed: int | None = None) -> Iterator[Batch]:
    """Yield batches of pairs of similar length.

    Args:
        pairs: encoded pairs.
        tokens: the most tokens per side of a padded batch; a pair that has more is a batch of its own.
        seed: of the order of the batches and of pairs of equal length. Without a seed, they are in order of length.
    """
    if tokens < 1:
        raise ConfigError(f"A batch holds at least one token, not {tokens}")
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    order = list(range(len(pairs)))
    if generator is not None:
        order = torch.randperm(len(pairs), generator=generator).tolist()
    order.sort(key=lambda index: (len(pairs[index][0]), len(pairs[index][1])))
    groups: list[list[int]] = []
    longest = 0
    for index in order:
        longest = max(longest, *map(len, pairs[index]))
        if not groups or longest * (len(groups[-1]) + 1) > tokens:
            groups.append([])
            longest = max(map(len, pairs[index]))
        groups[-1].append(index)
    if generator is not None:
        groups = [groups[position] for position in torch.randperm(len(groups), generator=generator).tolist()]
    for group in groups:
        yield Batch(_pad([pairs[index][0] for index in group]), _pad([pairs[index][1] for index in group]), group)


def _pad(rows: list[list[int]]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def _read(path: Path) -> list[str]:
    try:
        # Not str.splitlines, which also splits at rare separators within a sentence.
        with path.open(encoding="utf-8") as lines:
            return [line.removesuffix("\n") for line in lines]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read; it should hold one sentence per line, in UTF-8") from error


def _encode(tokenizer: Any, sources: list[str], targets: list[str]) -> list[Pair]:
    encoded = [tokenizer.encode_batch(lines) for lines in (sources, targets)]
    return [([*a.ids, EOS], [BOS, *b.ids, EOS]) for a, b in zip(*encoded, strict=True)]


def _tokenizer(folder: Path, lines: list[str], vocabulary: int) -> Any:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingExtraError("Translation data needs the package tokenizers: pip install paretorch[text]") from error
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocabulary < len(alphabet) + len(_SPECIAL):
        raise ConfigError(
            f"A vocabulary over bytes has at least {len(alphabet) + len(_SPECIAL)} tokens, not {vocabulary}"
        )
    # the name has a digest of the training text, so that a stored encoding is never out of date
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    stored = folder / f"bpe-{vocabulary}-{digest}.json"
    if stored.exists():
        try:
            return Tokenizer.from_file(str(stored))
        except Exception as error:  # the package raises bare Exceptions
            raise DataError(f"{stored} is damaged; delete it and it will be made again") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    # if the folder cannot be written, the encoding is learned again each time
    with contextlib.suppress(OSError):
        scratch = stored.with_suffix(f".{os.getpid()}")
        scratch.write_text(tokenizer.to_str(), encoding="utf-8")
        scratch.replace(stored)
    return tokenizer
