"""The ranks: processes that train one network together. `torchrun` starts them; here they meet, and agree.

What is said to the user is said by one of them: an error that one rank meets is told by the first, and all end.
"""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paretorch.errors import ConfigError, DivergenceError, PareError

T = TypeVar("T")
_MEET = 600.0  # seconds for all ranks to arrive
_TELL = 2.0  # seconds in which the first rank says what went wrong, before torchrun ends it because of another one
_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_LOST = ("gloo", "nccl", "connection", "peer", "socket", "timed out", "broken pipe")


@dataclass(frozen=True)
class Ranks:
    """Which of how many ranks this process is.

    Args:
        rank: Its number, from 0.
        count: How many there are; 1 alone needs no group of processes.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the ranks, of a tensor with the same shape on all of them."""
        if self.count == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.count

    def any(self, value: bool) -> bool:
        """Whether it is true on any rank."""
        if self.count == 1:
            return value
        flag = torch.tensor([int(value)])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def wait(self) -> None:
        """Return when all ranks are here."""
        if self.count > 1:
            dist.all_reduce(torch.zeros(1))

    def each(self, value: T) -> list[T]:
        """What every rank has, by rank; plain values."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def together(self, function: Callable[[], T]) -> T:
        """Call a function that no rank waits in; if it fails on any rank, all of them raise that error."""
        error: PareError | None = None
        result: Any = None
        try:
            result = function()
        except PareError as raised:
            error = raised
        for rank, other in enumerate(self.each(error)):
            if other is not None and error is None and rank != self.rank:
                raise type(other)(f"Rank {rank}: {other}")
            if other is not None:
                raise other
        return result  # type: ignore[no-any-return]

    def from_first(self, function: Callable[[], T]) -> T:
        """Call a function on the first rank; all get what it returns, or raise what it raises."""
        result = self.together(lambda: function() if self.is_first else None)
        return self.each(result)[0]  # type: ignore[return-value]


def launched() -> int:
    """How many ranks a launcher such as torchrun has started; 1 without one."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"WORLD_SIZE={text!r} is no number of ranks: start with torchrun, or unset it")
    return int(text)


def device_of_rank(name: str) -> str:
    """The device of this rank, where each rank of a machine has a GPU of its own."""
    if launched() == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= count:
        raise ConfigError(f"There are more ranks than the {count} GPUs of this machine: use --nproc-per-node {count}")
    return f"cuda:{index}"


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Meet the other ranks, and leave them at the end; gloo on CPUs, NCCL on GPUs."""
    count = launched()
    if count == 1:
        yield Ranks()
        return
    if missing := [name for name in _VARIABLES if name not in os.environ]:
        raise ConfigError(f"WORLD_SIZE is {count} and {missing[0]} is not set: start the ranks with torchrun")
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    # Flags and objects go over gloo on the CPU, whatever the network is on.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=_MEET))
    except (RuntimeError, ValueError) as error:
        raise PareError(f"The {count} ranks did not meet at {where}: {_first_line(error)}") from error
    ranks = Ranks(dist.get_rank(), count)
    try:
        yield ranks
    except PareError as error:
        if ranks.is_first:
            raise
        time.sleep(_TELL)
        raise SystemExit(_code(error)) from None
    except RuntimeError as error:
        if any(word in str(error).lower() for word in _LOST):
            raise PareError(
                f"Rank {ranks.rank} lost another rank, which has ended: continue with --resume, on any number of ranks"
            ) from error
        raise
    finally:
        gc.collect()  # whatever holds on to the group must be gone before the group is
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _code(error: PareError) -> int:
    return 2 if isinstance(error, ConfigError) else 3 if isinstance(error, DivergenceError) else 1


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
