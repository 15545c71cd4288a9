"""The Penn Treebank, from tiny files."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.errors import ConfigError, DataError
from paretorch.zoo.data import text


def _write(root: Path, level: str = "word", **parts: str) -> None:
    (root / "ptb").mkdir(exist_ok=True)
    content = {"train": " the cat <unk> \n a cat \n", "valid": " a the \n", "test": " cat \n"} | parts
    for part, lines in content.items():
        (root / "ptb" / f"ptb.{'char.' if level == 'char' else ''}{part}.txt").write_text(lines, encoding="utf-8")


def test_words(tmp_path: Path) -> None:
    _write(tmp_path)
    corpus = text.load("word", tmp_path)
    assert corpus.vocabulary == ("the", "cat", "<unk>", "<eos>", "a")
    assert corpus.train.tolist() == [0, 1, 2, 3, 4, 1, 3]
    assert corpus.valid.tolist() == [4, 0, 3]
    assert corpus.test.tolist() == [1, 3]
    assert corpus.train.dtype == torch.int64


def test_characters_are_other_files(tmp_path: Path) -> None:
    _write(tmp_path, "char", train="a _ b\n", valid="b\n", test="a\n")
    assert text.load("char", tmp_path).vocabulary == ("a", "_", "b", "<eos>")
    with pytest.raises(DataError, match=r"ptb\.train\.txt"):
        text.load("word", tmp_path)


def test_words_the_training_part_lacks_are_unknown(tmp_path: Path) -> None:
    _write(tmp_path, test="dog cat\n")
    assert text.load("word", tmp_path).test.tolist() == [2, 1, 3]
    _write(tmp_path, train="the cat\n", test="dog\n")
    with pytest.raises(DataError, match="does not belong"):
        text.load("word", tmp_path)


def test_missing_empty_or_binary_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="put Mikolov's files"):
        text.load("word", tmp_path)
    _write(tmp_path, valid="")
    with pytest.raises(DataError, match="valid part"):
        text.load("word", tmp_path)
    (tmp_path / "ptb" / "ptb.test.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"ptb\.test\.txt cannot be read"):
        text.load("word", tmp_path)


def test_unknown_level() -> None:
    with pytest.raises(ConfigError, match="'word' or 'char'"):
        text.load("byte")


@settings(max_examples=30, deadline=None)
@given(length=st.integers(2, 60), batch=st.integers(1, 7), bptt=st.integers(1, 9))
def test_chunks_cover_every_column_in_order(length: int, batch: int, bptt: int) -> None:
    stream = torch.arange(length)
    if length // batch < 2:
        with pytest.raises(ConfigError, match="too short"):
            text.batchify(stream, batch)
        return
    columns = text.batchify(stream, batch)
    assert columns.t().flatten().tolist() == list(range(length // batch * batch))
    pieces = list(text.chunks(columns, bptt))
    assert torch.equal(torch.cat([inputs for inputs, _ in pieces]), columns[:-1])
    assert torch.equal(torch.cat([targets for _, targets in pieces]), columns[1:])
    assert all(len(inputs) == len(targets) <= bptt for inputs, targets in pieces)


@pytest.mark.skipif(
    not (Path(os.environ.get("PARETORCH_DATA") or "/nowhere") / "ptb").is_dir(), reason="no real treebank"
)
def test_the_real_treebank() -> None:
    corpus = text.load("word")
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (929_589, 73_760, 82_430)
    assert len(corpus.vocabulary) == 10_000
    assert len(text.load("char").vocabulary) == 50
