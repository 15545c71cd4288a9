"""Whole-epoch augmentation against a loop over single images."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.zoo.data import Augment, augment, normalise


def _images(count: int, channels: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(1, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


def _one_by_one(images: Tensor, how: Augment, seed: int) -> Tensor:
    """The same transformation, an image and a pixel at a time."""
    count, _, height, width = images.shape
    generator = torch.Generator().manual_seed(seed)
    tops, lefts, flips, rows, columns = (
        torch.randint(high, (count,), generator=generator).tolist()
        for high in (2 * how.pad + 1, 2 * how.pad + 1, 2, height, width)
    )
    out = torch.zeros_like(images)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                source_y = y + tops[n] - how.pad
                source_x = (width - 1 - x if how.flip and flips[n] else x) + lefts[n] - how.pad
                first_y, first_x = rows[n] - how.cutout // 2, columns[n] - how.cutout // 2
                cut = first_y <= y < first_y + how.cutout and first_x <= x < first_x + how.cutout
                if 0 <= source_y < height and 0 <= source_x < width and not cut:
                    out[n, :, y, x] = images[n, :, source_y, source_x]
    return out


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    pad=st.integers(0, 4),
    flip=st.booleans(),
    cutout=st.integers(0, 5),
    seed=st.integers(0, 2**31),
)
def test_equals_the_loop(shape: tuple[int, int, int, int], pad: int, flip: bool, cutout: int, seed: int) -> None:
    images, how = _images(*shape), Augment(min(pad, max(shape[2:])), flip, cutout)
    untouched = images.clone()
    assert torch.equal(augment(images, how, seed), _one_by_one(images, how, seed))
    assert torch.equal(images, untouched)


def test_the_number_of_images_at_once_does_not_change_the_result(monkeypatch) -> None:
    images, how = _images(50, 3, 8, 8), Augment(cutout=3)
    whole = augment(images, how, 5)
    # By sys.modules: the package has the function under the name of the module.
    monkeypatch.setattr(sys.modules[augment.__module__], "_MAX_PIXELS", 7 * 3 * 8 * 8)
    assert torch.equal(augment(images, how, 5), whole)


def test_every_crop_and_both_orientations_occur() -> None:
    image = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4)
    seen = {tuple(row.tolist()) for row in augment(image.expand(2000, 1, 4, 4), Augment(pad=1), 0).flatten(1)}
    assert len(seen) == 3 * 3 * 2


def test_nothing_to_do_is_the_identity() -> None:
    images = _images(6, 3, 5, 5)
    assert torch.equal(augment(images, Augment(pad=0, flip=False), 1), images)
    assert augment(images[:0], Augment(), 1).shape == (0, 3, 5, 5)


def test_seeds_differ() -> None:
    images = _images(20, 1, 8, 8)
    assert not torch.equal(augment(images, Augment(), 1), augment(images, Augment(), 2))


@pytest.mark.parametrize("wrong", [{"pad": -1}, {"cutout": -2}])
def test_negative_sizes(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 0"):
        Augment(**wrong)


def test_more_padding_than_the_image_has_pixels() -> None:
    with pytest.raises(ConfigError, match="pad=7 is more than the 6 pixels of an image: give 6 at most"):
        augment(_images(2, 1, 4, 6), Augment(pad=7), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalise(dtype: torch.dtype) -> None:
    images = _images(4, 3, 5, 5)
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.3, 0.4)
    expected = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    out = normalise(images, mean, std, dtype)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected.to(dtype))


def test_padding_is_black_before_normalisation() -> None:
    white = torch.full((64, 1, 4, 4), 255, dtype=torch.uint8)
    out = normalise(augment(white, Augment(pad=2, flip=False), 0), (0.5,), (0.5,), torch.float32)
    assert sorted(set(out.flatten().tolist())) == [-1.0, 1.0]
