"""Image folders, from tiny pictures."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from paretorch.errors import DataError, MissingExtraError
from paretorch.zoo.data.folder import MEAN, STD, ImageFolder

Image = pytest.importorskip("PIL.Image")


def _write(root: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, sizes in (("b-cat", [(40, 30), (16, 50)]), ("a-dog", [(33, 33), (90, 5), (20, 24)])):
        (root / name).mkdir()
        for number, (width, height) in enumerate(sizes):
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
        (root / name / "notes.txt").write_text("no image")
    return root


def test_classes_and_labels(tmp_path: Path) -> None:
    images = ImageFolder(_write(tmp_path), train=False, size=14)
    assert images.classes == ("a-dog", "b-cat")
    assert [label for _, label in (images[i] for i in range(len(images)))] == [0, 0, 0, 1, 1]
    assert images[0][0].shape == (3, 14, 14)
    assert images[0][0].dtype == torch.float32


def test_evaluation_is_the_middle(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[4:60, 20:76] = (255, 0, 128)  # exactly the middle 7/8 of the shorter side
    Image.fromarray(pixels).save(tmp_path / "class" / "one.png")
    image, _ = ImageFolder(tmp_path, train=False, size=56)[0]
    colour = (torch.tensor([255, 0, 128]) / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(image, colour.view(3, 1, 1).expand(3, 56, 56))


def test_training_samples_depend_on_seed_epoch_and_index_alone(tmp_path: Path) -> None:
    images = ImageFolder(_write(tmp_path), train=True, seed=1, size=8)
    first = images[2][0]
    assert first.isfinite().all()
    assert first.shape == (3, 8, 8)
    assert torch.equal(images[2][0], first)
    images.set_epoch(1)
    assert not torch.equal(images[2][0], first)
    images.set_epoch(0)
    assert torch.equal(images[2][0], first)
    assert not torch.equal(ImageFolder(tmp_path, train=True, seed=2, size=8)[2][0], first)


def test_training_varies_crop_colour_and_side(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    halves = np.zeros((32, 32, 3), np.uint8)
    halves[:, 16:] = 255
    Image.fromarray(halves).save(tmp_path / "class" / "one.png")
    images = ImageFolder(tmp_path, train=True, size=8)
    brighter_side, means = [], set()
    for epoch in range(40):
        images.set_epoch(epoch)
        image = images[0][0]
        brighter_side.append(bool(image[:, :, 0].mean() > image[:, :, -1].mean()))
        means.add(round(float(image.mean()), 3))
    assert 5 < sum(brighter_side) < 35, "about half are mirrored"
    assert len(means) > 30


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_see_the_epoch(tmp_path: Path, persistent: bool) -> None:
    images = ImageFolder(_write(tmp_path), train=True, size=8)
    loader = DataLoader(images, batch_size=5, num_workers=1, persistent_workers=persistent)
    for epoch in range(2):
        images.set_epoch(epoch)
        (batch, labels), *_ = list(loader)
        assert torch.equal(batch, torch.stack([images[i][0] for i in range(5)]))
        assert labels.tolist() == [0, 0, 0, 1, 1]


def test_missing_empty_and_damaged(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        ImageFolder(tmp_path / "nowhere", train=False)
    with pytest.raises(DataError, match="no images"):
        ImageFolder(tmp_path, train=False)
    _write(tmp_path)
    for content in (
        b"\x89PNG no more",
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\x04IHDR\x00\x00\x00\x01\xe2\xe4\xa9\xe7",  # a header that is too short
        b"P6 3x 40 255 ",  # of another format, with a size that is no number
        b"P6 100000 100000 255 ",  # more pixels than any photograph
    ):
        (tmp_path / "a-dog" / "0.png").write_bytes(content)
        with pytest.raises(DataError, match=r"0\.png is not a readable image"):
            ImageFolder(tmp_path, train=False)[0]


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"paretorch\[images\]"):
        ImageFolder(tmp_path, train=False)
