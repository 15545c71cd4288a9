"""Images of a user: class folders that are split already or not, scaled if they differ, and refused by name if they are wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paretorch.errors import ConfigError, DataError
from paretorch.zoo.data import load


def _write(
    folder: Path, classes: str = "ab", count: int = 10, size: tuple[int, int] = (8, 6), mode: str = "RGB"
) -> Path:
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new(mode, size, (40 * label + i,) * len(mode) if mode == "RGB" else 40 * label + i).save(
                folder / name / f"{i}.png"
            )
    return folder


def test_parts_that_are_there_are_taken_as_they_are(tmp_path: Path) -> None:
    _write(tmp_path / "train", count=4)
    _write(tmp_path / "val", count=3)
    images = load(f"folder:{tmp_path}")
    assert images.train[0].shape == (8, 3, 6, 8)
    assert images.test[0].shape == (6, 3, 6, 8)
    assert images.train[1].tolist() == [0] * 4 + [1] * 4
    assert images.classes == 2
    assert images.train[0][5].unique().tolist() == [41]


def test_a_share_of_each_class_is_held_out_the_same_each_time(tmp_path: Path) -> None:
    place = f"folder:{_write(tmp_path)}"
    images, again, other = load(place), load(place), load(place, split_seed=2)
    assert [int((part[1] == 0).sum()) for part in (images.train, images.test)] == [8, 2]
    assert torch.equal(images.test[0], again.test[0])
    assert not torch.equal(images.test[0], other.test[0])
    assert len(load(place, test_percent=50).test[1]) == 10


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    assert load(f"folder:{_write(tmp_path, mode='L')}").train[0].shape == (16, 1, 6, 8)


def test_a_size_scales_and_crops_the_middle(tmp_path: Path) -> None:
    pixels = np.zeros((4, 12, 3), np.uint8)
    pixels[:, 4:8] = 200
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    assert load(f"folder:{tmp_path}", size=4).train[0].unique().tolist() == [200]


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    _write(tmp_path, "ab")
    _write(tmp_path, "c", size=(5, 5))
    with pytest.raises(DataError, match=r"several sizes .* add --set data\.options\.size=64"):
        load(f"folder:{tmp_path}")
    assert load(f"folder:{tmp_path}", size=5).train[0].shape[1:] == (3, 5, 5)


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        load(f"folder:{tmp_path}/none")
    with pytest.raises(DataError, match="has no classes"):
        load(f"folder:{tmp_path}")
    _write(tmp_path, "a")
    with pytest.raises(DataError, match="there is one class, 'a'"):
        load(f"folder:{tmp_path}")
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="b has no images"):
        load(f"folder:{tmp_path}")
    (tmp_path / "b" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1\.png is not a readable image"):
        load(f"folder:{tmp_path}")
    with pytest.raises(ConfigError, match="test_percent must be from 1 to 99"):
        load(f"folder:{tmp_path}", test_percent=0)


def test_parts_must_have_the_same_classes(tmp_path: Path) -> None:
    _write(tmp_path / "train", "ab")
    _write(tmp_path / "val", "ac")
    with pytest.raises(DataError, match="the class 'b' is not in both train and val"):
        load(f"folder:{tmp_path}")
