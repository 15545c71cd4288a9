"""Image sets in memory: splits and statistics."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.errors import ConfigError, DataError
from paretorch.zoo.data import Images, digits, load
from paretorch.zoo.data.images import statistics


def _numbered(count: int) -> Images:
    pixels = torch.arange(count, dtype=torch.uint8).view(count, 1, 1, 1).expand(count, 1, 2, 2).contiguous()
    labels = torch.arange(count)
    return Images("numbered", (pixels, labels), (pixels[:3], labels[:3]), count, (0.5,), (0.1,))


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 39), seed=st.integers(0, 2**31))
def test_validation_is_a_partition_of_the_training_set(count: int, seed: int) -> None:
    split = _numbered(40).validation(count, seed)
    assert len(split.test[1]) == count
    assert sorted(torch.cat([split.train[1], split.test[1]]).tolist()) == list(range(40))
    for pixels, labels in (split.train, split.test):
        assert torch.equal(pixels[:, 0, 0, 0].long(), labels)
    assert (split.mean, split.std) == ((0.5,), (0.1,))


def test_validation_depends_on_the_seed_alone() -> None:
    images = _numbered(40)
    assert torch.equal(images.validation(10, 3).test[1], images.validation(10, 3).test[1])
    assert not torch.equal(images.validation(10, 3).test[1], images.validation(10, 4).test[1])


@pytest.mark.parametrize("count", [0, -1, 40, 41])
def test_validation_of_an_impossible_size(count: int) -> None:
    with pytest.raises(ConfigError, match="40 training images"):
        _numbered(40).validation(count, 0)


def test_statistics_are_those_of_the_float_pixels() -> None:
    pixels = torch.randint(256, (7, 3, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = statistics(pixels)
    scaled = pixels.double() / 255
    torch.testing.assert_close(torch.tensor(mean).double(), scaled.mean((0, 2, 3)))
    torch.testing.assert_close(torch.tensor(std).double(), scaled.permute(1, 0, 2, 3).flatten(1).std(1, correction=0))


def test_to_moves_both_parts() -> None:
    moved = _numbered(5).to("meta")
    assert {tensor.device.type for tensor in (*moved.train, *moved.test)} == {"meta"}


def test_digits() -> None:
    images = load("digits")
    assert images.train[0].shape == (1437, 1, 8, 8)
    assert images.test[0].shape == (360, 1, 8, 8)
    assert images.train[0].dtype == torch.uint8
    assert images.train[1].dtype == torch.int64
    assert int(images.train[0].max()) == 255
    everything = torch.cat([images.train[1], images.test[1]])
    assert everything.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert torch.all((images.test[1].bincount() - everything.bincount() / 5).abs() <= 1), "stratified"
    # the first image of the UCI file is a zero with these counts in its second row
    assert images.test[0][0, 0, 1].tolist() == [value * 255 // 16 for value in (0, 0, 13, 15, 10, 15, 5, 0)]


def test_damaged_digits(tmp_path, monkeypatch) -> None:
    (tmp_path / "digits.npz").write_bytes(b"no archive")
    monkeypatch.setattr(digits, "_FILE", tmp_path / "digits.npz")
    with pytest.raises(DataError, match="reinstall"):
        digits.load()


def test_unknown_set() -> None:
    with pytest.raises(ConfigError, match="digits, cifar10, cifar100"):
        load("mnist")
