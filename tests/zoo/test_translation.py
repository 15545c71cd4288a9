"""Sentence pairs and their byte-pair encoding, from tiny files."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.errors import ConfigError, DataError, MissingExtraError
from paretorch.zoo.data import translation
from paretorch.zoo.data.translation import BOS, EOS, PAD, batches

pytest.importorskip("tokenizers")

_GERMAN = ["ein großer Hund", "zwei Hunde laufen", "ein Mann", "die Straße ist naß"]
_ENGLISH = ["a big dog", "two dogs run", "a man", "the street is wet"]


def _write(folder: Path) -> Path:
    for part in ("train", "val", "test_2016_flickr"):
        (folder / f"{part}.de").write_text("\n".join(_GERMAN) + "\n", encoding="utf-8")
        (folder / f"{part}.en").write_text("\n".join(_ENGLISH) + "\n", encoding="utf-8")
    return folder


def test_pairs_read_back(tmp_path: Path) -> None:
    corpus = translation.load(_write(tmp_path), vocabulary=280)
    assert len(corpus.train) == len(corpus.valid) == len(corpus.test) == 4
    for (source, target), german, english in zip(corpus.test, _GERMAN, _ENGLISH, strict=True):
        assert source[-1] == EOS
        assert (target[0], target[-1]) == (BOS, EOS)
        assert corpus.text(source) == german
        assert corpus.text([*target[1:], 99, 99]) == english
        assert max(source + target) < corpus.vocabulary <= 280


def test_a_sentence_may_hold_the_rarer_separators(tmp_path: Path) -> None:
    """Crawled text has some; a cut there would give every later sentence another translation."""
    _write(tmp_path)
    odd = "zwei\u2028Hunde\x0blaufen\x85"
    (tmp_path / "test_2016_flickr.de").write_text("\r\n".join([_GERMAN[0], odd, *_GERMAN[2:]]), encoding="utf-8")
    corpus = translation.load(tmp_path, vocabulary=280)
    found = [corpus.text(source) for source, _ in corpus.test]
    assert found == [_GERMAN[0], odd.strip(), *_GERMAN[2:]]


def test_the_encoding_is_stored_and_never_out_of_date(tmp_path: Path) -> None:
    first = translation.load(_write(tmp_path), vocabulary=280)
    kept = list(tmp_path.glob("bpe-280-*.json"))
    assert len(kept) == 1
    assert translation.load(tmp_path, vocabulary=280).train == first.train
    kept[0].write_text("{")
    with pytest.raises(DataError, match="delete it"):
        translation.load(tmp_path, vocabulary=280)
    (tmp_path / "train.en").write_text("\n".join(reversed(_ENGLISH)), encoding="utf-8")
    translation.load(tmp_path, vocabulary=280)
    assert len(list(tmp_path.glob("bpe-280-*"))) == 2, "other text, another encoding; no scratch file is left"


def test_wrong_folders_and_sizes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.de cannot be read"):
        translation.load(tmp_path)
    _write(tmp_path)
    with pytest.raises(ConfigError, match="at least 259"):
        translation.load(tmp_path, vocabulary=100)
    (tmp_path / "val.en").write_text("a line\n", encoding="utf-8")
    with pytest.raises(DataError, match="4 and 1 lines"):
        translation.load(tmp_path)


_PAIRS = st.lists(st.tuples(st.integers(1, 12), st.integers(2, 12)), max_size=40).map(
    lambda sizes: [([3 + n] * (a - 1) + [EOS], [BOS] + [3 + n] * (b - 2) + [EOS]) for n, (a, b) in enumerate(sizes)]
)


@settings(max_examples=30, deadline=None)
@given(pairs=_PAIRS, tokens=st.integers(1, 60), seed=st.one_of(st.none(), st.integers(0, 99)))
def test_batches_hold_every_pair_once_and_keep_the_budget(pairs: list, tokens: int, seed: int | None) -> None:
    produced = list(batches(pairs, tokens, seed))
    assert sorted(row for batch in produced for row in batch.rows) == list(range(len(pairs)))
    for batch in produced:
        assert len(batch.rows) == 1 or max(batch.source.numel(), batch.target.numel()) <= tokens
        for place, row in enumerate(batch.rows):
            for tensor, sentence in zip((batch.source, batch.target), pairs[row], strict=True):
                padding = [PAD] * (tensor.shape[1] - len(sentence))
                assert tensor[place].tolist() == sentence + padding


def test_batches_are_a_function_of_the_seed() -> None:
    pairs = [([3] * (n % 5) + [EOS], [BOS, EOS]) for n in range(60)]
    orders = [[batch.rows for batch in batches(pairs, 20, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    lengths = [batch.source.shape[1] for batch in batches(pairs, 20)]
    assert lengths == sorted(lengths)
    with pytest.raises(ConfigError, match="at least one token"):
        next(batches(pairs, 0))


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"paretorch\[text\]"):
        translation.load(_write(tmp_path))


def test_batches_feed_the_transformer(tmp_path: Path) -> None:
    from paretorch.zoo import build

    corpus = translation.load(_write(tmp_path), vocabulary=280)
    network = build("transformer", vocabulary=280, units=8, inner=8, heads=2, layers=1)
    assert (network.pad, network.bos, network.eos) == (PAD, BOS, EOS)
    batch = next(batches(corpus.train, 100))
    assert network(batch.source, batch.target[:, :-1]).shape == (*batch.target[:, 1:].shape, 280)
    assert isinstance(corpus.text(network.eval().greedy(batch.source, 4)[0].tolist()), str)
    assert torch.equal(batch.target[:, 0], torch.full((len(batch.rows),), BOS))
