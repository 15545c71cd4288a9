"""Sentence pairs for translation, chapter 5, cut into pieces by byte-pair encoding with one joint vocabulary.

The thesis trains on IWSLT'14; any folder of parallel lines will do, such as Multi30k. The encoding is learned by the
`tokenizers` package from the training part, over bytes, so that no text is unknown; it is kept beside the data.
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
    """Padded pairs, source [N, S] and target [N, T], and which pairs of the list they are."""

    source: Tensor
    target: Tensor
    rows: list[int]


@dataclass(frozen=True, eq=False)
class Translation:
    """Encoded pairs of the three parts, and the encoding."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    tokenizer: Any

    @property
    def vocabulary(self) -> int:
        """The number of tokens, those three for padding, begin and end included."""
        return int(self.tokenizer.get_vocab_size())

    def text(self, tokens: Sequence[int]) -> str:
        """The sentence that tokens up to the first EOS stand for."""
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
    """Read folder/{part}.{language} for the training, validation and test `parts`; by default those of Multi30k."""
    folder = Path(folder)
    lines = {part: tuple(_read(folder / f"{part}.{language}") for language in (source, target)) for part in parts}
    for part, (sources, targets) in lines.items():
        if len(sources) != len(targets) or not sources:
            raise DataError(f"{folder}/{part}.{source} and .{target} have {len(sources)} and {len(targets)} lines.")
    tokenizer = _tokenizer(folder, [*lines[parts[0]][0], *lines[parts[0]][1]], vocabulary)
    train, valid, test = (_encode(tokenizer, *lines[part]) for part in parts)
    return Translation(train, valid, test, tokenizer)


def batches(pairs: Sequence[Pair], tokens: int, seed: int | None = None) -> Iterator[Batch]:
    """Batches of pairs of like length, each of at most `tokens` tokens a side when padded (or one long pair).

    With a seed, pairs of equal length and the batches come in a random order, a pure function of the seed; without, in
    order of length.
    """
    if tokens < 1:
        raise ConfigError(f"A batch holds at least one token, not {tokens}.")
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
        # Not str.splitlines, which cuts at rarer separators within a sentence, too.
        with path.open(encoding="utf-8") as lines:
            return [line.removesuffix("\n") for line in lines]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read; it should hold one sentence a line, in UTF-8.") from error


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
            f"A vocabulary over bytes has at least {len(alphabet) + len(_SPECIAL)} tokens, not {vocabulary}."
        )
    # the name says what the encoding was learned from, so that a kept one is never stale
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    kept = folder / f"bpe-{vocabulary}-{digest}.json"
    if kept.exists():
        try:
            return Tokenizer.from_file(str(kept))
        except Exception as error:  # the package raises bare Exceptions
            raise DataError(f"{kept} is damaged; delete it and it will be made again.") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    # in a folder that cannot be written, it is learned again each time
    with contextlib.suppress(OSError):
        scratch = kept.with_suffix(f".{os.getpid()}")
        scratch.write_text(tokenizer.to_str(), encoding="utf-8")
        scratch.replace(kept)
    return tokenizer
