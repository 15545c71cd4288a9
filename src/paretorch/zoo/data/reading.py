"""Worker processes that read and decode images, by torch's DataLoader, in an order that can begin anywhere.

A worker is told what to read: (part, epoch, number). What it makes of an image depends on (seed, epoch, number) alone, so the number
of workers changes nothing, and what a resumed run need not see again is neither read nor decoded.
"""

import ctypes
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from paretorch.errors import DataError, PareError
from paretorch.zoo.data.on_disk import DiskImages
from paretorch.zoo.data.views import View, for_evaluation, for_training, pillow

TRAIN, TEST = 0, 1
Item = tuple[int, int, int]
"""Part, epoch, number of the image in its part."""
Arrays = tuple[Tensor, ...]
"""Pixels [rows, 3, size, size] as bytes, labels [rows], and with jitter the colours' matrices [rows, 3, 4]."""
_DEATHS = 3  # of worker processes, within one epoch
_AHEAD = 2  # batches per worker
_DIED = "DataLoader worker"  # how torch's errors begin
_KILL_WITH_PARENT = 1  # of prctl


class Views(Dataset[Any]):
    """The images of a set as a network sees them."""

    def __init__(self, images: DiskImages, view: View, seed: int) -> None:
        self._parts, self._view, self._seed = (images.train, images.test), view, seed

    def __getitems__(self, items: list[Item]) -> Arrays | str:
        """A batch of one part, or what is wrong with it."""
        part, size = self._parts[items[0][0]], self._view.size
        pixels = np.empty((len(items), 3, size, size), np.uint8)
        jittered = self._view.jitter and items[0][0] == TRAIN
        colours = np.empty((len(items) if jittered else 0, 3, 4), np.float32)
        numbers, place = [number for _, _, number in items], -1
        try:
            for place, data in part.read(numbers):
                which, epoch, number = items[place]
                if which == TEST:
                    pixels[place] = for_evaluation(data, self._view)
                    continue
                pixels[place], matrix = for_training(data, self._view, f"{self._seed}/{epoch}/{number}")
                if matrix is not None:
                    colours[place] = matrix
        except PareError:
            raise
        except Exception as error:  # a damaged file can make pillow raise anything
            return _complaint(part, numbers, place, error)
        labels = part.labels[numbers]
        return (torch.from_numpy(pixels), labels, *([torch.from_numpy(colours)] if jittered else []))


def _complaint(part: Any, numbers: list[int], place: int, error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:  # of opening a file
        return f"{error.filename} cannot be read ({error.strerror}); put it back"
    return f"{part.name(numbers[place])} is not a readable image; replace it"


class Reader:
    """Reads batches ahead, in processes that stay.

    Args:
        images: What to read.
        view: What to make of it.
        seed: Of the random crops.
        workers: How many processes; 0: this one.
        pinned: Whether batches go into memory that a GPU can copy from at once.
    """

    def __init__(self, images: DiskImages, view: View, *, seed: int, workers: int, pinned: bool = False) -> None:
        pillow()  # raises, or is there for all workers
        self._name, self._views = images.name, Views(images, view, seed)
        self._workers, self._pinned = workers, pinned
        self._wanted = _Wanted()
        self._reading: object = None

    def read(self, batch: Callable[[int], list[Item]], start: int, stop: int) -> Iterator[Arrays]:
        """The batches `start` to `stop`, one after another. Of several calls the last one reads ahead; another begins again where it is.

        Args:
            batch: What is in a batch; called shortly before it is read.
            start, stop: As of `range`.
        """
        deaths, own = 0, object()
        iterator: Iterator[Any] = iter(())
        while start < stop:
            try:
                if self._reading is not own:
                    self._reading, iterator = own, self._begin(batch, range(start, stop))
                found = next(iterator)
            except RuntimeError as error:
                if not str(error).startswith(_DIED):
                    raise
                deaths += 1
                self.close()
                if deaths > _DEATHS:
                    raise DataError(
                        f"{self._name}: processes that read images were killed {deaths} times in one epoch, the last time so: "
                        f"{str(error).splitlines()[0]} Give fewer --workers, or more (shared) memory"
                    ) from error
                continue
            if isinstance(found, str):
                self.close()
                raise DataError(found)
            start += 1
            yield found

    def close(self) -> None:
        """End the processes; the next batch starts new ones."""
        self._reading = None
        _loaders.pop(self, None)

    def _begin(self, batch: Callable[[int], list[Item]], steps: range) -> Iterator[Any]:
        self._wanted.batch, self._wanted.steps = weakref.ref(batch), steps
        if self not in _loaders:
            _loaders[self] = make_loader(
                self._views, self._workers, batch_sampler=self._wanted, pin_memory=self._pinned
            )
        return keeping_sigchld(lambda: iter(_loaders[self]))


# Readers are in cycles with those who train. In a cycle the garbage collector would end the queues of a loader before its workers, which
# notice that after five seconds each: so loaders are kept here, and know nothing of their readers.
_loaders: "weakref.WeakKeyDictionary[Reader, DataLoader[Any]]" = weakref.WeakKeyDictionary()


class _Wanted:
    """What the workers are to read next, as a DataLoader asks for it."""

    def __init__(self) -> None:
        self.batch: Callable[[], Callable[[int], list[Item]] | None] = lambda: None
        self.steps = range(0)

    def __iter__(self) -> Iterator[list[Item]]:
        for step in self.steps:
            batch = self.batch()
            if batch is None:  # nobody reads any more
                return
            yield batch(step)
            del batch


def make_loader(dataset: Dataset[Any], workers: int, **options: Any) -> "DataLoader[Any]":
    """A DataLoader that hands on what the dataset returns, and draws nothing from torch's generators."""
    ahead: dict[str, Any] = {"prefetch_factor": _AHEAD, "persistent_workers": True} if workers else {}
    return DataLoader(
        dataset,
        num_workers=workers,
        collate_fn=_as_it_is,
        worker_init_fn=_end_with_parent,
        generator=torch.Generator(),
        **ahead,
        **options,
    )


def _as_it_is(found: Any) -> Any:
    return found


def _end_with_parent(_: int) -> None:
    """Let the kernel end this process with the one that trains, whose locks it would keep for seconds after a kill."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)


def keeping_sigchld(start: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Start workers, and put back the handler of SIGCHLD: torch's raises an error in the middle of a step if a worker dies."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return start()
    before = signal.getsignal(signal.SIGCHLD)
    found = start()
    signal.signal(signal.SIGCHLD, before)
    return found


def in_processes(workers: int) -> Callable[[Callable[[str], Any], Sequence[str]], list[Any]]:
    """A function that calls another one for each path, in so many processes if there are several paths."""

    def run(function: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
        count = min(workers, len(paths) // 2)
        found = list(keeping_sigchld(lambda: iter(make_loader(_Calls(function, paths), count, batch_size=None))))
        if wrong := [one for one in found if isinstance(one, str)]:
            raise DataError(wrong[0])
        return found

    return run


class _Calls(Dataset[Any]):
    """What a function returns for each path, or its error in words."""

    def __init__(self, function: Callable[[str], Any], paths: Sequence[str]) -> None:
        self._function, self._paths = function, paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        try:
            return self._function(self._paths[number])
        except DataError as error:
            return str(error)


def usual_workers() -> int:
    """$PARE_WORKERS, or else a process per core that this process may use, shared out among the ranks of the machine."""
    asked = os.environ.get("PARE_WORKERS", "")
    if asked.isdecimal():
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, cores // max(1, int(ranks) if ranks.isdecimal() else 1))
