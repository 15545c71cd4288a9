"""What can be trained: a `Task` has batches, a loss and an evaluation. The loop knows nothing else about the data."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from paretorch.training.runtime import Runtime

Batch = tuple[Tensor, ...]


class Stream(Protocol):
    """The batches of an epoch that are not in memory, all of the same shapes: a pure function of the epoch, and of the step."""

    def begin(self, step: int) -> Iterator[Batch]:
        """The batches from a step on, on the host; of several ranks, the part of this one."""
        ...

    def first(self, count: int) -> Batch:
        """Up to `count` batches at the start, whole on every rank, as rows of tensors on the device."""
        ...


class Task(Protocol):
    """A thing to learn.

    An epoch comes as a whole: tensors of shape [steps, ...] on the device, of which the loop takes row i at step i. So
    a captured step finds its batch by a counter on the device and waits for nothing. What does not fit comes as a `Stream`. `epoch` must
    be a pure function of its argument (and the task's seed), with the same shapes every time; `loss` must not look at values on the host.

    Three attributes may be there too. Two are True where they are not: `fixed_shapes` is False where `loss` does look at
    values on the host, to find the shape of its batch, so that a step cannot be replayed from a CUDA graph; `compiles`
    is False where `torch.compile` would not pay. One is False where it is not: `splits` is True where every tensor of a
    batch has a row for each example, so that a step may take the batch in parts. A method `inputs(number, count)` may be
    there: up to `count` training batches of an epoch as the model sees them, to estimate statistics with. A task with an
    attribute `teacher`, None or a `Teacher`, can be distilled: `loss` mixes in the teacher's, run on the same batch.
    """

    tallies: tuple[str, ...]
    """Names of what `loss` reports beside the loss, such as ("accuracy",)."""
    steps: int
    """Steps per epoch."""

    def epoch(self, number: int) -> "Batch | Stream":
        """All batches of an epoch, in training order."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss to minimise and the tallies, 0-dim tensors, means over the batch."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on held-out data; `model` is in eval mode."""
        ...

    def example(self) -> Tensor:
        """A small input as the model sees it, for tracing shapes and timing."""
        ...


@runtime_checkable
class StatefulTask(Protocol):
    """A task that keeps something on the model from step to step."""

    def attach(self, model: nn.Module) -> None:
        """Before training, and before a checkpoint is loaded."""
        ...

    def release(self, model: nn.Module) -> None:
        """After training."""
        ...


@runtime_checkable
class ImageTask(Protocol):
    """A task whose network makes images."""

    def draw(self, model: nn.Module) -> Tensor:
        """What a network on the CPU makes, as one picture: bytes [channels, height, width], the same every time."""
        ...


@runtime_checkable
class SharedTask(Protocol):
    """A task whose ranks read their parts of a batch only, and evaluate a part each."""

    def share(self, rank: int, count: int, parts: int, mean: Callable[[Tensor], Tensor]) -> None:
        """Before training: which of how many ranks this is, in how many parts one after another it takes a batch, and means over ranks."""
        ...


def first_batches(task: Task, number: int, count: int) -> Batch:
    """Up to `count` batches at the start of an epoch, as rows of tensors."""
    found = task.epoch(number)
    return tuple(part[:count] for part in found) if isinstance(found, tuple) else found.first(count)


def runtime_for(runtime: Runtime, task: Task) -> Runtime:
    """The runtime without what the task cannot have: see `fixed_shapes` and `compiles` in `Task`."""
    fixed, compiles = getattr(task, "fixed_shapes", True), getattr(task, "compiles", True)
    return replace(runtime, graph=runtime.graph and fixed, compile=runtime.compile if compiles else False)


def derive_seed(*parts: int) -> int:
    """One seed from several integers, far apart for neighbours, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def shuffled(count: int, seed: int) -> Tensor:
    """A permutation of 0 .. count - 1, drawn on the CPU so that every device sees the same order."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
