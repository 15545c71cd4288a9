"""The loop: search, round, fine-tune, with a checkpoint whenever one is due.

All that happens is a function of the recipe and of the position (epoch, step); the position is in the checkpoint, so a
run that is killed and resumed takes the very steps of one that is not.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paretorch.errors import ArtefactError, DivergenceError
from paretorch.optim.peers import set_mode
from paretorch.support.arithmetic import exact
from paretorch.support.processes import on_sigterm
from paretorch.training import optimizers, schedules, shards
from paretorch.training.checkpoint import Checkpoint, random_state, restore_random
from paretorch.training.compression import harden
from paretorch.training.folder import RunFolder
from paretorch.training.progress import Progress
from paretorch.training.recipe import THROUGH, Recipe
from paretorch.training.recipe_values import require_same_recipe
from paretorch.training.runtime import Runtime, fast_on_gpu, own_random
from paretorch.training.stepper import Stepper
from paretorch.training.tasks import Task, derive_seed
from paretorch.training.tracking import Tracking

if TYPE_CHECKING:
    from paretorch.core.plan import Plan

_WHEN = (0.125, 0.25, 0.5, 0.75, 1.0)  # of the epochs


def similarities(plan: "Plan | None", epoch: int, epochs: int) -> dict[str, Any]:
    """Matrices for the row of an epoch, one per group of layers; nothing at other epochs, and where nothing is shared."""
    due = {max(1, round(share * epochs)) for share in _WHEN}
    if plan is None or plan.is_hard or epoch not in due or all(one.kind != "sharing" for one in plan.methods()):
        return {}
    from paretorch.methods.sharing import layer_similarity

    found = layer_similarity(plan.model)
    return {"similarities": [[[round(value, 3) for value in row] for row in one.matrix.tolist()] for one in found]}


_DIVERGED = 1e5
# Steps: compiling takes about a minute and saves half a millisecond a step of ResNet-20, 1.7 of WRN-28-10.
_MIN_STEPS_TO_COMPILE = 30_000


FIT_ERRORS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What loading a state into another network raises."""


def does_not_fit(folder: RunFolder) -> ArtefactError:
    """The error for a checkpoint of another network."""
    message = f"{folder.checkpoint} does not fit this network; it comes from another version of it."
    return ArtefactError(f"{message} Choose another --out")


class Trainer:
    """Trains one model on one task by one recipe, into one run folder."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        folder: RunFolder,
        *,
        plan: "Plan | None" = None,
        runtime: Runtime | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.model, self.task, self.recipe, self.folder, self.plan = model, task, recipe, folder, plan
        self.runtime = runtime or Runtime()
        self.device = device or torch.device("cpu")
        # Some optimizers cannot be captured; a study has them beside others, so they run without a graph of their own.
        captured = (
            self.device.type == "cuda" and self.runtime.graph and recipe.optimizer.name not in optimizers.UNCAPTURED
        )
        rate = torch.tensor(recipe.optimizer.lr, device=self.device) if captured else None
        groups = (
            optimizers.dense_groups(model, recipe.optimizer.weight_decay)
            if plan is None
            else plan.param_groups(recipe.optimizer.weight_decay)
        )
        self.optimizer = optimizers.build(recipe.optimizer, groups, recipe.optimizer.lr if rate is None else rate)
        self._compiles = self.device.type == "cuda" and self._should_compile()
        if self._compiles and plan is not None:
            plan.compile()
        self.stepper = self._make_stepper(rate)
        self.after_step: Callable[[int], None] | None = None
        """Called on the host after each step, with the number of steps taken so far; None: nothing is."""
        self._tracking: Tracking | None = None
        self._is_to_stop = False
        self._epoch, self._step, self._offset = 0, 0, 0
        self._record: torch.Tensor | None = None

    def _make_stepper(self, rate: torch.Tensor | None) -> Stepper:
        return Stepper(
            self.model,
            self.task,
            self.optimizer,
            self.plan,
            device=self.device,
            rate=rate,
            compile=self._compiles,
            samples=self.recipe.compression.samples if self.plan is not None else 1,
        )

    @property
    def epochs(self) -> int:
        """Epochs of the whole run."""
        return self.recipe.epochs + (self.recipe.finetune if self.plan is not None else 0)

    def run(self, *, resume: bool = False) -> dict[str, Any]:
        """Train to the end of the recipe; returns the last row of metrics.

        At a SIGTERM it keeps the steps taken so far, the one under way too, and raises KeyboardInterrupt; at a second one at once.
        """
        with own_random(self.device), fast_on_gpu(self.device):
            return self._run(resume)

    def _run(self, resume: bool) -> dict[str, Any]:
        if resume and self.folder.has_checkpoint():
            self._restore()
        if self.runtime.track:
            rows = len(self.folder.history()) if self._epoch else 0
            steps = self._epoch * self.task.steps
            config = self.recipe.as_dict()
            self._tracking = Tracking(self.runtime.track, self.folder.path, config=config, step=steps, rows=rows)
        held_out = "validation" if self.recipe.data.validation else "test"
        tracking = self._tracking or nullcontext()
        with tracking, Progress(self.runtime.progress, held_out) as progress, on_sigterm(self._stop):
            first = "compiling, once: about a minute" if self._compiles else ""
            progress.start(self.epochs, self.task.steps, self._epoch * self.task.steps + self._step, first)
            while self._epoch < self.epochs:
                self._harden_when_due(progress)
                self._evaluate_and_log(self.train_epoch(progress), progress)
                ends = self._epoch in (self.recipe.epochs, self.epochs)
                if ends or self._epoch % self.runtime.checkpoint_epochs == 0 or self._stops():
                    self._save()
                self._end_if_asked()
            self._harden_when_due(progress)
        return self.folder.history()[-1]

    def train_epoch(self, progress: Progress) -> dict[str, Any]:
        """Take the steps of one epoch, or the rest of them after a resume; returns their row of metrics."""
        epoch, steps, begun = self._epoch, self.task.steps, time.perf_counter()
        if self._step == 0:
            torch.manual_seed(derive_seed(self.recipe.seed, epoch, 2))
        self.model.train()
        set_mode(self.optimizer, training=True)
        rates = self._rates(epoch)
        self.stepper.begin(self.task.epoch(epoch), rates, self._step, self._record)
        self._record = None
        for step in range(self._step, steps):
            self.stepper.step(step)
            progress.advance()
            done = step + 1
            if self.after_step is not None:
                self.after_step(epoch * steps + done)
            due = done < steps and (self._stops() or self._keeps(done))
            if due or self.device.type == "cpu":
                self._require_finite(self.stepper.record(done, self._step if due else step), done)
            if due:
                self._step = done
                self._save(self.stepper.record(done))
                self._end_if_asked()
        record = self.stepper.record(steps)
        self._require_finite(record, steps)
        seconds = time.perf_counter() - begun
        self._epoch, self._step = epoch + 1, 0
        phase = "train" if self.plan is None else "finetune" if self.plan.is_hard else "search"
        means = exact(record).mean(0).tolist()
        tallies = dict(zip(self.task.tallies, means[1:], strict=True))
        return {"phase": phase, "lr": rates[-1], "loss": means[0], **tallies, "seconds": seconds}

    def _should_compile(self) -> bool:
        wanted = self.runtime.compile
        return self.epochs * self.task.steps >= _MIN_STEPS_TO_COMPILE if wanted is None else wanted

    def _keeps(self, done: int) -> bool:
        return bool(self.runtime.checkpoint_steps) and done % self.runtime.checkpoint_steps == 0

    def _stop(self, *_: object) -> None:
        if self._is_to_stop:
            raise KeyboardInterrupt
        self._is_to_stop = True

    def _stops(self) -> bool:
        """Whether to keep the steps taken so far, and end."""
        return self._is_to_stop

    def _end_if_asked(self) -> None:
        if self._stops():
            raise KeyboardInterrupt

    def _harden_when_due(self, progress: Progress) -> None:
        if self.plan is None or self.plan.is_hard or self._epoch < self.recipe.epochs:
            return
        if self.recipe.epochs == 0:
            self._evaluate_and_log({"phase": "start"}, progress)
        harden(self.plan, self.optimizer, self.task, self.recipe)
        self.stepper.release()
        self._evaluate_and_log({"phase": "harden"}, progress)
        self._save()

    def _evaluate_and_log(self, row: dict[str, Any], progress: Progress) -> None:
        self.model.eval()
        set_mode(self.optimizer, training=False)
        evaluation = self.task.evaluate(self.model)
        decisions = {} if self.plan is None else self.plan.metrics()
        row = {"epoch": self._epoch, **row, **evaluation, **decisions, "step": self._epoch * self.task.steps}
        row |= similarities(self.plan, self._epoch, self.recipe.epochs)
        broken = next((name for name, value in evaluation.items() if not math.isfinite(value)), None)
        if broken:
            raise self._diverged(self._epoch * self.task.steps, evaluation[broken], broken)
        self._offset = self.folder.append(row)
        if self._tracking is not None:
            self._tracking.add(row)
        progress.epoch(row)

    def _rates(self, epoch: int) -> list[float]:
        recipe, asked = self.recipe, self.recipe.schedule
        lr = recipe.optimizer.lr
        through = asked.finetune_name == THROUGH
        if through or epoch < recipe.epochs:
            length = recipe.epochs + (recipe.finetune if through else 0)
            base, start, name, warmup, drops = lr, 0, asked.name, asked.warmup, asked.milestones
        else:
            base = lr / 10 if asked.finetune_lr is None else asked.finetune_lr
            start, length, name, warmup = recipe.epochs, recipe.finetune, asked.finetune_name, 0.0
            drops = asked.finetune_milestones or ()
        schedule = schedules.build(name, length, milestones=drops, factor=asked.factor, warmup=warmup)
        return [base * schedule(epoch - start + step / self.task.steps) for step in range(self.task.steps)]

    def _require_finite(self, record: torch.Tensor, done: int) -> None:
        """Look at the losses of the steps just before the step `done` of this epoch."""
        losses = record[:, 0]
        bad = ~losses.isfinite() | (losses.abs() > _DIVERGED)
        if bad.any():
            index = int(bad.to(torch.uint8).argmax())
            step = self._epoch * self.task.steps + done - len(losses) + index
            raise self._diverged(step, float(losses[index]), "loss")

    def _diverged(self, step: int, value: float, what: str) -> DivergenceError:
        kept = f" {self.folder.checkpoint} is the last good state." if self.folder.checkpoint.exists() else ""
        return DivergenceError(
            f"The {what} is {value:g} at step {step} (epoch {step // self.task.steps + 1}): try a lower learning rate "
            f"(now {self.recipe.optimizer.lr:g}) or a warm-up (--set schedule.warmup=5), and check the data for broken values.{kept}"
        )

    def _save(self, record: torch.Tensor | None = None) -> None:
        self.folder.restore()
        self._moment(record).save(self.folder.checkpoint)
        shards.remove(self.folder.path)

    def _moment(self, record: torch.Tensor | None) -> Checkpoint:
        return Checkpoint(
            recipe=self.recipe.as_dict(),
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            plan=None if self.plan is None else self.plan.state_dict(),
            epoch=self._epoch,
            step=self._step,
            offset=self._offset,
            record=torch.zeros(0) if record is None else record,
            random=random_state(self.device),
        )

    def _restore(self) -> None:
        if shards.exists(self.folder.path):
            self._continue(shards.load(shards.find(self.folder.path)))
        else:
            self._continue(Checkpoint.load(self.folder.checkpoint, self.device, resume=True))

    def _continue(self, stored: Checkpoint) -> None:
        require_same_recipe(self.recipe, stored.recipe, self.folder.path)
        try:
            self._require_fit(stored)
            self._load_model(stored)
            optimizers.load_state(self.optimizer, stored.optimizer)
            if self.plan is not None and stored.plan is not None:
                self.plan.load_state_dict(stored.plan)
            restore_random(stored.random, self.device)
        except FIT_ERRORS as error:
            raise does_not_fit(self.folder) from error
        self._epoch, self._step, self._offset = stored.epoch, stored.step, stored.offset
        self._record = stored.record if stored.step else None
        self.folder.rewind(stored.offset)
        self._require_same_steps()

    def _load_model(self, stored: Checkpoint) -> None:
        self.model.load_state_dict(stored.model)

    def _require_fit(self, stored: Checkpoint) -> None:
        """Raise ValueError for parts that would fail only later, or be passed over."""
        if (self.plan is None) != (stored.plan is None):
            raise ValueError("a plan for a dense run, or none for a compressed one")
        if stored.step and stored.record.shape != (stored.step, 1 + len(self.task.tallies)):
            raise ValueError("a record of another shape")
        if stored.step and not stored.record.is_floating_point():
            raise ValueError("a record of another type")

    def _require_same_steps(self) -> None:
        """Refuse to go on with data that make longer or shorter epochs than those before."""
        steps, rows = self.task.steps, self.folder.history()
        taken = rows[-1].get("step", self._epoch * steps) if rows else 0
        if taken != self._epoch * steps or self._step >= steps:
            raise ArtefactError(
                f"{self.folder.path} was run with other data: an epoch has {steps} steps now, and had another number. "
                f"Use the same data or another --out"
            )
