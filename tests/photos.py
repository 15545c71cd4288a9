"""Tiny photographs on the disk: class folders, and tar files of them."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def photo(label: int, number: int, size: tuple[int, int] = (20, 16)) -> Image.Image:
    """Smooth noise whose brightness says the label."""
    pixels = np.random.default_rng([label, number]).integers(0, 60, (4, 5, 3), dtype=np.uint8) + np.uint8(60 * label)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def write_folders(root: Path, *, classes: int = 3, train: int = 8, test: int = 3) -> Path:
    """PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg."""
    for part, count in (("train", train), ("val", test)):
        for label in range(classes):
            folder = root / part / f"n{label:02d}"
            folder.mkdir(parents=True)
            for number in range(count):
                photo(label, 100 * (part == "val") + number).save(folder / f"{number}.jpg", quality=95)
    return root


def encoded(label: int, number: int) -> bytes:
    """The content of a PNG file."""
    file = io.BytesIO()
    photo(label, number).save(file, "png")
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    """A plain tar file of these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_shards(root: Path, *, shards: int = 3, count: int = 5, classes: int = 3) -> Path:
    """Files train-0.tar … and val-0.tar, with `count` images each; images of the training part are numbered through."""
    for part, files in (("train", shards), ("val", 1)):
        for shard in range(files):
            members: dict[str, bytes] = {}
            for place in range(count):
                number = shard * count + place
                label = number % classes
                members[f"a/{number:04d}.png"] = encoded(label, number)
                members[f"a/{number:04d}.cls"] = f"{label}\n".encode()
            write_tar(root / f"{part}-{shard}.tar", members)
    return root
