"""Sizes as text, and the same text in `compress`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import paretorch as pt
from paretorch.errors import ConfigError
from paretorch.support.text import dense_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500 kB", 500_000),
        ("1.3 MB", 1_300_000),
        ("1.001MB", 1_001_000),
        ("2 MiB", 2 * 1024**2),
        (".5 KiB", 512),
        ("1 GB", 10**9),
        (" 7 b ", 7),
        (123, 123),
        ("1/10", 400),
        ("3 / 4", 3000),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_bytes(text, lambda: 4000) == size


@pytest.mark.parametrize("text", ["", "MB", "4 TB", "-1", "1e6", "4 M B", "1/0", "3/2", "nan", 1.5, True, None, -3])
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(ConfigError, match=r"not a size|not a share"):
        parse_bytes(text, lambda: 4000)


def test_a_share_needs_a_dense_network() -> None:
    with pytest.raises(ConfigError, match="none is known here"):
        parse_bytes("1/10")


@given(st.integers(0, 10**15))
def test_whole_numbers_are_themselves(size: int) -> None:
    assert parse_bytes(size) == parse_bytes(str(size)) == size


@given(st.integers(0, 10**7), st.sampled_from([("kB", 1000), ("MiB", 1024**2)]))
def test_units_multiply(count: int, unit: tuple[str, int]) -> None:
    assert parse_bytes(f"{count} {unit[0]}") == count * unit[1]


def test_tied_weights_count_once() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)})
    model["head"].weight = model["embedding"].weight  # type: ignore[assignment]
    assert dense_bytes(model) == 160


def test_compress_takes_the_same_text() -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    text = pt.compress(network(), pt.SMOL(group="layer"), steps=3, budget="4 kB")
    number = pt.compress(network(), pt.SMOL(group="layer"), steps=3, budget=4000)
    share = pt.compress(network(), pt.SMOL(group="layer"), steps=3, budget="4000/33280")
    assert text.metrics() == number.metrics() == share.metrics()
    with pytest.raises(ConfigError, match="not a size"):
        pt.compress(network(), pt.SMOL(), steps=3, budget="4 apples")
