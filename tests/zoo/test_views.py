"""What is made of a photograph: crops within it, colours as a matrix against the literal sequence of changes."""

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paretorch.errors import ConfigError
from paretorch.zoo.data.views import View, colours, for_evaluation, for_training

WIDE, HIGH = 200, 120


def _file(image: Image.Image, kind: str = "png") -> bytes:
    file = io.BytesIO()
    image.save(file, kind, quality=95)
    return file.getvalue()


def _ramps() -> bytes:
    """Red says how far right a pixel is, green how far down."""
    across, down = np.meshgrid(np.arange(WIDE), np.arange(HIGH))
    return _file(Image.fromarray(np.stack([across, down, 0 * down], 2).astype(np.uint8)))


def _span(values: np.ndarray[Any, Any]) -> float:
    """How many pixels of the photograph lie between the middles of the outermost pixels of a crop, and beyond."""
    size = len(values)
    return abs(float(values[-2]) - float(values[1])) * size / (size - 3)


def test_random_crops_have_the_area_and_the_ratio_that_are_asked_for() -> None:
    data, view = _ramps(), View(size=40, min_area=25)
    areas, ratios, mirrored = [], [], 0
    for number in range(150):
        pixels, matrix = for_training(data, view, f"0/0/{number}")
        assert matrix is None
        assert pixels.shape == (3, 40, 40)
        assert pixels.dtype == np.uint8
        across, down = _span(pixels[0].mean(0)), _span(pixels[1].mean(1))
        areas.append(across * down / (WIDE * HIGH))
        ratios.append(across / down)
        mirrored += bool(pixels[0, 0, 0] > pixels[0, 0, -1])
    assert 0.22 < min(areas) < 0.35
    assert 0.6 < max(areas) < 1.03
    assert min(ratios) == pytest.approx(3 / 4, abs=0.08)
    assert max(ratios) == pytest.approx(4 / 3, abs=0.12)
    assert 50 < mirrored < 100


def test_a_key_decides_everything() -> None:
    data, view = _ramps(), View(size=8, jitter=True)
    (first, matrix), (again, same) = for_training(data, view, "1/2/3"), for_training(data, view, "1/2/3")
    other, _ = for_training(data, view, "1/2/4")
    assert (first == again).all()
    assert matrix is not None
    assert same is not None
    assert (matrix == same).all()
    assert not (first == other).all()


def test_nothing_is_mirrored_unless_asked_for() -> None:
    view = View(size=8, flip=False)
    for number in range(20):
        pixels, _ = for_training(_ramps(), view, str(number))
        assert pixels[0, 0, 0] < pixels[0, 0, -1]


def test_a_photograph_that_no_crop_fits_into_gives_its_middle() -> None:
    strip = np.zeros((10, 400, 3), np.uint8)
    strip[:, 195:205] = 200
    pixels, _ = for_training(_file(Image.fromarray(strip)), View(size=8, min_area=100), "0")
    assert pixels[0].min() > 190


def test_evaluation_takes_the_middle() -> None:
    pixels = for_evaluation(_ramps(), View(size=30, resize=60))
    assert pixels.shape == (3, 30, 30)
    assert pixels[0].mean() == pytest.approx(WIDE / 2 - 0.5, abs=0.6)
    assert _span(pixels[0].mean(0)) == pytest.approx(60, abs=2), "half of the shorter side"
    assert View(size=224).zoom == 256


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "CMYK"])
def test_other_kinds_of_images_have_three_channels_too(mode: str) -> None:
    image = Image.new("RGB", (20, 20), (200, 200, 200)).convert(mode)
    pixels = for_evaluation(_file(image, "jpeg" if mode == "CMYK" else "png"), View(size=8))
    assert pixels.shape == (3, 8, 8)
    assert pixels.mean() == pytest.approx(255 if mode == "1" else 200, abs=60)


def test_a_large_jpeg_is_decoded_small_and_looks_the_same() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8))
    large = noise.resize((800, 600), Image.Resampling.BICUBIC)
    for view in (View(size=32), View(size=32, resize=100)):
        small, whole = for_evaluation(_file(large, "jpeg"), view), for_evaluation(_file(large), view)
        assert np.abs(small.astype(int) - whole.astype(int)).mean() < 3


def test_the_colours_matrix_is_the_sequence_of_changes() -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (3, 6, 6), dtype=np.uint8)
    for seed in range(5):
        found = colours(pixels, random.Random(seed))
        expected, chance = pixels / 255, random.Random(seed)
        grey = np.array([0.299, 0.587, 0.114])
        order = [0, 1, 2]
        chance.shuffle(order)
        for change in order:
            share = 1 + chance.uniform(-0.4, 0.4)
            greys = np.tensordot(grey, expected, 1)
            other = [np.zeros_like(expected), np.full_like(expected, greys.mean()), np.stack([greys] * 3)][change]
            expected = share * expected + (1 - share) * other
        noise = [chance.gauss(0, 0.1) for _ in range(3)]
        vectors = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
        for channel in range(3):
            lights = zip(vectors[channel], noise, (0.2175, 0.0188, 0.0045), strict=True)
            expected[channel] += sum(vector * alpha * value for vector, alpha, value in lights)
        ours = np.tensordot(found[:, :3], pixels / 255, 1) + found[:, 3][:, None, None]
        assert np.allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_area": 101}, "min_area must be from 1 to 100 per cent, not 101"),
        ({"size": 0}, "size must be at least 1 pixel, not 0"),
        ({"size": 64, "resize": 32}, "resize=32 is less than the 64 pixels that are cropped from it"),
    ],
)
def test_views_that_cannot_be_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        View(**values)  # type: ignore[arg-type]
