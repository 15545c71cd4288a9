"""Training, by this process alone or by the ranks that torchrun has started.

Each rank takes its part of every batch, all take the same steps, and the first one writes.
"""

import contextlib
import json
import os
import warnings
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paretorch.errors import ConfigError, PareWarning
from paretorch.support.sharded import is_sharded, whole
from paretorch.training import run, shards
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.files import alone_in
from paretorch.training.finish import finish, read_result
from paretorch.training.fit import FIT_ERRORS, Trainer, does_not_fit
from paretorch.training.folder import RunFolder, check_folder
from paretorch.training.optimizers import clip_gradients
from paretorch.training.ranks import Ranks, device_of_rank, joined, launched, over_all_ranks
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import changed, require_same_recipe
from paretorch.training.runtime import Runtime, fast_on_gpu, own_random
from paretorch.training.stepper import Stepper
from paretorch.training.tasks import Batch, SharedTask, Task
from paretorch.training.tasks.choose import choose
from paretorch.training.tracking import require_trackers
from paretorch.training.writer import Writer


def train(recipe: Recipe, out: Path, runtime: Runtime | None = None, *, resume: bool = False) -> dict[str, Any]:
    """Run a recipe to its end in the folder `out`; returns the result: metrics, bytes, sparsity, bits.

    Under torchrun all ranks call this, and all return the result. The batch of the recipe is that of all ranks together, so the
    result does not depend on their number but for the order of sums.
    """
    runtime = runtime or Runtime()
    count = launched()
    if runtime.shard and count == 1 and "RANK" not in os.environ:
        raise ConfigError("--shard shares a network out among ranks: start them with torchrun --nproc-per-node N")
    if count == 1 and runtime.accumulate == 1:
        return run.train(recipe, out, runtime, resume=resume)
    device = run.choose_device(device_of_rank(runtime.device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with joined(device) as ranks:
        first = ranks.is_first
        progress, track = (runtime.progress, runtime.track) if first else ("quiet", ())
        own = replace(runtime, device=str(device), compile=False, graph=False, progress=progress, track=track)
        return _train(recipe, out, own, ranks, resume)


def _train(recipe: Recipe, out: Path, runtime: Runtime, ranks: Ranks, resume: bool) -> dict[str, Any]:
    def begin() -> dict[str, Any] | None:
        check_folder(out, recipe, resume=resume)
        require_trackers(runtime.track)
        return read_result(out) if resume else None

    if (result := ranks.from_first(begin)) is not None:
        return result
    setup = ranks.together(lambda: run.prepare(recipe, runtime))
    ranks.together(lambda: require_parts(recipe, setup.task, runtime, ranks))
    if isinstance(setup.task, SharedTask):
        setup.task.share(ranks.rank, ranks.count, runtime.accumulate, ranks.mean)
    with contextlib.ExitStack() as inside:
        inside.enter_context(warnings.catch_warnings())
        if not ranks.is_first:  # the first one warns
            warnings.simplefilter("ignore", PareWarning)
        inside.enter_context(own_random(setup.device))
        inside.enter_context(fast_on_gpu(setup.device))

        def open_folder() -> RunFolder | None:
            if not ranks.is_first:
                return None
            inside.enter_context(alone_in(out))
            return RunFolder(out, recipe, resume=resume, device=setup.device)

        opened = ranks.together(open_folder)
        rows = ranks.each(None if opened is None else opened.rows)[0]
        folder = FollowerFolder(out, rows or b"") if opened is None else opened
        with over_all_ranks(setup.model, ranks):
            trainer = RankTrainer(
                setup.model,
                setup.task,
                recipe,
                folder,
                ranks=ranks,
                shard=runtime.shard,
                resume=resume,
                plan=setup.plan,
                runtime=runtime,
                device=setup.device,
            )
            if recipe.optimizer.clip_norm is not None:
                clip_gradients(trainer.optimizer, recipe.optimizer.clip_norm)
            last = trainer.run(resume=resume)
        state = {
            name: whole(value).cpu() if isinstance(value, torch.Tensor) else value
            for name, value in setup.model.state_dict().items()
        }
        return ranks.from_first(lambda: _finish(recipe, runtime, state, folder, last))


def _finish(
    recipe: Recipe, runtime: Runtime, state: dict[str, Any], folder: RunFolder, last: dict[str, Any]
) -> dict[str, Any]:
    """What one process does at the end, with a network of its own that nothing is left of the ranks in."""
    setup = run.prepare(recipe, runtime)
    setup.model.load_state_dict(state)
    test = None
    if recipe.data.validation:
        test = choose(changed(recipe, {"data.validation": 0}), runtime, setup.device)[0]
    return finish(setup.model, setup.task, setup.plan, folder, last, test, recipe.compression.norms)


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
            own = tuple(self._own(each.chunk(self._parts)[part]) for each in batch)
            with self._exchanging(part == self._parts - 1):
                loss, row = self._forward(*own)
                (loss / self._parts).backward()
            rows.append(row)
        return torch.cat(rows).mean(0, keepdim=True)

    def _own(self, rows: Tensor) -> Tensor:
        """This rank's rows of a batch; of a stream there are no others."""
        return rows if self._coming is not None else rows.chunk(self._ranks.count)[self._ranks.rank]

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
        self._writer = Writer(folder.path, ranks) if ranks.count > 1 else None

    def run(self, *, resume: bool = False) -> dict[str, Any]:
        with self._writer or contextlib.nullcontext():
            return super().run(resume=resume)

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
        if self._writer is None:
            super()._save(record)
            return
        self._ranks.from_first(self.folder.restore)
        self._writer.save(self._moment(record))

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
