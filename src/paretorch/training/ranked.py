"""The loop on several ranks: each takes its part of every batch, all take the same steps, and the first one writes."""

import contextlib
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paretorch.errors import ConfigError
from paretorch.support import checked_files
from paretorch.support.sharded import is_sharded
from paretorch.training import shards
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.fit import FIT_ERRORS, Trainer, does_not_fit
from paretorch.training.folder import RunFolder
from paretorch.training.ranks import Ranks
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import require_same_recipe
from paretorch.training.runtime import Runtime
from paretorch.training.stepper import Stepper
from paretorch.training.task import Batch, Task


class RankStepper(Stepper):
    """Steps on this rank's part of the batch, and on one part of that after another if gradients are accumulated."""

    def __init__(self, runner: nn.Module, *args: Any, ranks: Ranks, parts: int, **options: Any) -> None:
        super().__init__(runner, *args, **options)
        self._runner, self._ranks, self._parts = runner, ranks, parts

    def record(self, stop: int, start: int = 0) -> Tensor:
        """Loss and tallies over the batches of all ranks."""
        return self._ranks.mean(super().record(stop, start))

    def _gradients(self, batch: Batch) -> Tensor:
        rows = []
        for part in range(self._parts):
            own = tuple(each.chunk(self._parts)[part].chunk(self._ranks.count)[self._ranks.rank] for each in batch)
            with self._exchanging(part == self._parts - 1):
                loss, row = self._forward(*own)
                (loss / self._parts).backward()
            rows.append(row)
        return torch.cat(rows).mean(0, keepdim=True)

    def _exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are added up over the ranks once a step, with the last part."""
        if isinstance(self._runner, DistributedDataParallel):
            return contextlib.nullcontext() if last else self._runner.no_sync()
        if any(is_sharded(weight) for weight in self._runner.parameters()):
            self._runner.set_requires_gradient_sync(last)  # type: ignore[operator]
        return contextlib.nullcontext()


class FollowerFolder(RunFolder):
    """The run folder as ranks other than the first have it: they know its rows, and write nothing."""

    def __init__(self, path: Path, rows: bytes) -> None:
        self.path, self.checkpoint, self._rows = path, path / "checkpoint.pt", rows

    def restore(self) -> None:
        pass

    def rewind(self, offset: int | None) -> None:
        self._rows = self._rows if offset is None else self._rows[:offset]

    def append(self, row: dict[str, Any]) -> int:
        self._rows += json.dumps(row).encode() + b"\n"
        return len(self._rows)

    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._rows.splitlines()]


class RankTrainer(Trainer):
    """Trains one model on all ranks.

    Args:
        ranks: Which of them this one is.
        shard: Whether to share the model out among them (FSDP2).
        resume: Whether to read the checkpoint in the folder, if there is one. The network is loaded before it is shared out.
        Others: As of `Trainer`.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        folder: RunFolder,
        *,
        ranks: Ranks,
        shard: bool,
        resume: bool,
        device: torch.device,
        **options: Any,
    ) -> None:
        self._ranks = ranks
        self._stored: Checkpoint | None = None
        if ranks.count > 1 and resume and ranks.from_first(folder.has_checkpoint):
            self._stored = _read(folder, device, ranks)
            require_same_recipe(recipe, self._stored.recipe, folder.path)
            try:
                model.load_state_dict(self._stored.model)
            except FIT_ERRORS as error:
                raise does_not_fit(folder) from error
        if shard and ranks.count > 1:
            share_out(model, device, ranks)
        super().__init__(model, task, recipe, folder, device=device, **options)

    def _make_stepper(self, rate: Tensor | None) -> Stepper:
        runner = self.model
        if self._ranks.count > 1 and not any(is_sharded(weight) for weight in runner.parameters()):
            # Buffers are the same everywhere: statistics are over all ranks, decisions and schedules follow the same steps.
            runner = DistributedDataParallel(runner, forward_sync_buffers=False)
        parts = self.runtime.accumulate
        return RankStepper(
            runner, self.task, self.optimizer, self.plan, device=self.device, ranks=self._ranks, parts=parts
        )

    def _stops(self) -> bool:
        return self._ranks.any(super()._stops())

    def _save(self, record: Tensor | None = None) -> None:
        if self._ranks.count == 1:
            super()._save(record)
            return
        self._ranks.from_first(self.folder.restore)
        shards.save(self.folder.path, self._moment(record), self._ranks)
        if self._ranks.is_first:
            checked_files.remove(self.folder.checkpoint)

    def _restore(self) -> None:
        if self._stored is None:
            super()._restore()
        else:
            self._continue(self._stored)

    def _load_model(self, stored: Checkpoint) -> None:
        if stored is not self._stored:
            super()._load_model(stored)


def _read(folder: RunFolder, device: torch.device, ranks: Ranks) -> Checkpoint:
    """The newest checkpoint, of several ranks or of one process, as this rank continues it."""
    if ranks.from_first(lambda: shards.exists(folder.path)):
        found = ranks.from_first(lambda: shards.find(folder.path))
        return ranks.together(lambda: shards.load(found, ranks.rank))

    def read() -> Checkpoint:
        return Checkpoint.load(folder.checkpoint, device, resume=True)

    # The first one puts the previous checkpoint in the place of a damaged one, before the others read.
    ranks.from_first(lambda: read() and None)
    return ranks.together(read)


def require_parts(recipe: Recipe, task: Task, runtime: Runtime, ranks: Ranks) -> None:
    """Refuse batches that cannot be shared out."""
    if not getattr(task, "splits", False):
        raise ConfigError(
            f"The batches of {recipe.data.name} cannot be taken in parts: train with one process, and without --accumulate"
        )
    if recipe.compression.samples > 1:
        raise ConfigError(
            "precision_options.samples splits batches itself: leave it out, or train with one process without --accumulate"
        )
    parts = ranks.count * runtime.accumulate
    if recipe.data.batch % parts:
        raise ConfigError(
            f"A batch of {recipe.data.batch} cannot be shared out equally: make it a multiple of {parts} "
            f"({ranks.count} ranks times {runtime.accumulate} parts)"
        )


def share_out(model: nn.Module, device: torch.device, ranks: Ranks) -> None:
    """Share parameters, gradients and states out among the ranks (FSDP2), a child of the network at a time."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP2 takes no other
    mesh = init_device_mesh(device.type, (ranks.count,))
    for child in model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)
