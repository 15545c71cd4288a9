"""Sets of photographs that stay on the disk: folders of images, and tar files. Nothing but names, places and labels is in memory.

The order of an epoch is a pure function of (seed, epoch). Images of a folder are shuffled as a whole. Of tar files, the files are
shuffled, and the images among some thousands that come one after another, so that a disk or a network reads a few files at a time.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paretorch.errors import ConfigError, DataError
from paretorch.zoo.data import tar_shards
from paretorch.zoo.data.class_folders import Files, find_files
from paretorch.zoo.data.tar_shards import Members, Run

_WINDOW = 16384  # images of tar files that are shuffled among each other


class Part(Protocol):
    """The images of a training or test part, by number."""

    labels: Tensor

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The content of image files, each with its place in `numbers`, in the order that is best to read."""
        ...

    def name(self, number: int) -> str:
        """What errors call an image."""
        ...

    def order(self, generator: torch.Generator) -> Tensor:
        """All numbers, in the order of an epoch."""
        ...

    def only(self, numbers: Tensor) -> "Part":
        """Some of the images."""
        ...


class FolderPart:
    """Files, one per image."""

    def __init__(self, files: Files) -> None:
        self.names = _Names(name for name, _ in files)
        self.labels = torch.tensor([label for _, label in files])

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        for place, number in enumerate(numbers):
            with open(self.names[number], "rb") as file:
                yield place, file.read()

    def name(self, number: int) -> str:
        return self.names[number]

    def order(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(self.labels), generator=generator)

    def only(self, numbers: Tensor) -> "FolderPart":
        return FolderPart([(self.names[int(number)], int(self.labels[number])) for number in numbers])


class ShardPart:
    """Images in tar files."""

    def __init__(self, shards: Sequence[str], members: Members) -> None:
        self._shards, self._members = list(shards), members
        self.labels = torch.from_numpy(members.label)

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        shards, offsets, lengths = (part[np.array(numbers, np.int64)] for part in self._members[:3])
        places = np.lexsort((offsets, shards)).tolist()  # each file is opened once, and read forwards
        for shard in np.unique(shards).tolist():
            with open(self._shards[shard], "rb") as file:
                for place in (one for one in places if shards[one] == shard):
                    file.seek(offsets[place])
                    yield place, file.read(int(lengths[place]))

    def name(self, number: int) -> str:
        shard, offset = self._shards[self._members.shard[number]], int(self._members.offset[number])
        return f"{shard}: {tar_shards.name_of(shard, offset)}"

    def order(self, generator: torch.Generator) -> Tensor:
        shards = torch.from_numpy(self._members.shard).long()
        rank = torch.randperm(len(self._shards), generator=generator)
        order = rank[shards].argsort(stable=True)
        windows = order.split(_WINDOW)
        return torch.cat([own[torch.randperm(len(own), generator=generator)] for own in windows])

    def only(self, numbers: Tensor) -> "ShardPart":
        kept = numbers.numpy()
        return ShardPart(self._shards, Members(*(part[kept] for part in self._members)))


@dataclass(frozen=True, eq=False)
class DiskImages:
    """A training and a test set on the disk.

    Args:
        name: As the user gave it.
        train: The training images.
        test: Those to evaluate on.
        classes: How many.
    """

    name: str
    train: Part
    test: Part
    classes: int

    def validation(self, count: int, seed: int) -> "DiskImages":
        """A set whose test part is `count` random training images: a pure function of (count, seed)."""
        total = len(self.train.labels)
        if not 0 < count < total:
            raise ConfigError(f"A validation set of {count} images cannot be split off {total} training images")
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        held, kept = order[:count].sort().values, order[count:].sort().values
        return replace(self, train=self.train.only(kept), test=self.train.only(held))


def open_folder(
    path: str | Path, *, test_percent: int = 20, split_seed: int = 1, said: str | None = None
) -> DiskImages:
    """Class folders, as `paretorch.zoo.data.class_folders` finds them."""
    said = said or f"--data folder:{path}"
    found = find_files(path, said, test_percent=test_percent, split_seed=split_seed)
    return DiskImages(said.removeprefix("--data "), FolderPart(found.train), FolderPart(found.test), len(found.classes))


def open_shards(pattern: str, test: str, run: Run, *, classes: int = 0, said: str | None = None) -> DiskImages:
    """Tar files.

    Args:
        pattern: Of the training files, or a folder that has both parts.
        test: Pattern of the files to evaluate on; empty if `pattern` is a folder.
        run: Calls a function for each file.
        classes: How many there are; 0: as many as the labels of the training part say.
        said: How the user named it, for errors.
    """
    said = said or f"--data webdataset:{pattern}"
    if os.path.isdir(pattern):
        if test:
            raise ConfigError(f"{said} is a folder with both parts: leave data.options.test out")
        train_shards, test_shards = tar_shards.shards_of_folder(Path(pattern), said)
    elif not test:
        raise ConfigError(f"{said}: name the files to evaluate on: --set data.options.test=val-{{0000..0009}}.tar, say")
    else:
        train_shards = tar_shards.find_shards(pattern, said)
        test_shards = tar_shards.find_shards(test, "data.options.test")
    parts = [ShardPart(shards, tar_shards.index_shards(shards, run)) for shards in (train_shards, test_shards)]
    count = classes or int(parts[0].labels.max()) + 1
    if count < 2:
        raise DataError(f"{said}: all labels are 0; two or more classes are needed")
    for part in parts:
        wrong = (part.labels >= count).nonzero().flatten()
        if len(wrong):
            first, label = part.name(int(wrong[0])), int(part.labels[wrong[0]])
            raise DataError(f"{first} has the label {label}, and there are {count} classes, 0 to {count - 1}")
    return DiskImages(said.removeprefix("--data "), parts[0], parts[1], count)


def open_imagenet(folder: Path, run: Run) -> DiskImages:
    """ImageNet in a folder: train and val with a folder per class, or tar files of both parts."""
    said = "--data imagenet"
    if folder.is_dir() and any(one.suffix == ".tar" for one in folder.iterdir()):
        return open_shards(str(folder), "", run, said=said)
    if not (folder / "train").is_dir():
        raise DataError(
            f"{said}: put the classes of ImageNet (ILSVRC 2012) into {folder}/train and {folder}/val, a folder of images each, or "
            f"tar files of both into {folder}"
        )
    return open_folder(folder, said=said)


class _Names:
    """Many names as one array of bytes, which worker processes share; a list of strings they would copy."""

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)

    def __getitem__(self, number: int) -> str:
        start = 0 if number == 0 else int(self._ends[number - 1])
        return os.fsdecode(self._bytes[start : int(self._ends[number])].tobytes())
