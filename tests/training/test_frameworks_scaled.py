"""Trainers of others with a gradient scaler, and which of their checkpoints is the best.

`transformers` and `lightning` make a scaler for fp16 on GPUs alone, and say so on a CPU. Here each gets torch's own scaler for the
CPU, in the place where it keeps that of a GPU, so that its own code scales, unscales, skips and updates.
"""

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
import transformers
from lightning.pytorch.plugins import MixedPrecision
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader

import paretorch as pt
from paretorch.training.lightning import PlanCallback as LightningCallback
from paretorch.training.transformers import PlanCallback as TransformersCallback
from tests.training.by_lightning import Module
from tests.training.by_transformers import arguments, hf_trainer
from tests.training.ten_lines import SEARCH, STEPS, Net, Same, compressed


def new_scaler(first: float = 2.0**10) -> torch.amp.GradScaler:
    """It doubles after each step, so that who asks it too late unscales by another number."""
    return torch.amp.GradScaler("cpu", init_scale=first, growth_interval=1)


class Active(Net):
    """Decisions on activations get their gradients from autograd, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def active(model: nn.Module) -> tuple[pt.Plan, torch.optim.Optimizer]:
    methods = (pt.ContinuousSparsification(target=0.5), pt.SMOLActivations(target_bits=4.0))
    plan = pt.compress(model, *methods, steps=SEARCH, example={"x": torch.zeros(2, 8), "labels": torch.zeros(2).long()})
    return plan, torch.optim.SGD(plan.param_groups(), lr=0.5, momentum=0.9)


def by_hand(kind: type[Net], attach: Any, first: float) -> dict[str, Tensor]:
    """The ten lines with the same scaler."""
    torch.manual_seed(0)
    model = kind()
    plan, optimizer = attach(model)
    scaler = new_scaler(first)
    batch = torch.utils.data.default_collate([Same()[0]] * 2)
    for step in range(STEPS):
        with torch.autocast("cpu", torch.float16):
            loss = model(**batch)["loss"]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        plan.step(scaler)
        scaler.update()
        model.zero_grad()
        if step + 1 == SEARCH:
            plan.harden(optimizer)
    return model.state_dict()


def check_alike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


KINDS = pytest.mark.parametrize(("kind", "attach"), [(Net, compressed), (Active, active)])
FIRST = pytest.mark.parametrize("first", [2.0**10, 2.0**40])  # the second overflows, so that steps are skipped


@KINDS
@FIRST
def test_transformers_with_a_scaler(kind: type[Net], attach: Any, first: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind()
    plan, optimizer = attach(model)
    trainer = hf_trainer(model, optimizer, tmp_path)
    trainer.args.max_grad_norm = 0.0
    scaler = trainer.accelerator.scaler = new_scaler(first)
    trainer.compute_loss_context_manager = lambda: torch.autocast("cpu", torch.float16)
    trainer.train()
    assert plan.is_hard
    check_alike(model.state_dict(), by_hand(kind, attach, first))
    assert "update" not in vars(scaler)


@KINDS
@FIRST
def test_lightning_with_a_scaler(kind: type[Net], attach: Any, first: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Module()
    module.net = kind()
    module.plan, module._optimizer = attach(module.net)
    scaler = new_scaler(first)
    trainer = lightning.Trainer(
        max_steps=STEPS, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[LightningCallback()], plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
        default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, DataLoader(Same(), 2))
    assert module.plan.is_hard
    check_alike(module.net.state_dict(), by_hand(kind, attach, first))
    assert "update" not in vars(scaler)


def test_the_best_model_of_transformers_is_rounded(tmp_path: Path) -> None:
    """The score falls at every step, so that every network of the search is better than the rounded ones; none of them comes back."""
    model = Net()
    plan, optimizer = compressed(model)
    scores = iter(range(100, 0, -1))
    options = {"metric_for_best_model": "score", "greater_is_better": True, "eval_strategy": "steps", "eval_steps": 1}
    args = arguments(tmp_path, load_best_model_at_end=True, **options)
    args.save_steps = 1
    trainer = transformers.Trainer(
        model, args, train_dataset=Same(), eval_dataset=Same(), optimizers=(optimizer, None), callbacks=[TransformersCallback()],
        compute_metrics=lambda _: {"score": float(next(scores))},
    )  # fmt: skip
    trainer.train()
    found = [row["eval_score"] for row in trainer.state.log_history if "eval_score" in row]
    assert trainer.state.best_metric == found[SEARCH - 1] < found[0]
    assert trainer.state.best_global_step == SEARCH
    best = torch.load(tmp_path / f"checkpoint-{SEARCH}" / "plan.pt", weights_only=True)
    assert best.keys() == plan.state_dict().keys()
    assert plan.is_hard
    assert int(model.paretorch_phase) == 1
    mask = model.body[0].weight == 0
    assert 0.2 < float(mask.float().mean()) < 0.8


def test_the_best_checkpoint_of_lightning_is_rounded(tmp_path: Path) -> None:
    class Watched(Module):
        scores = iter(range(100, 0, -1))

        def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
            self.log("score", float(next(self.scores)))

    module = Watched()
    best = lightning.callbacks.ModelCheckpoint(
        tmp_path, "{step}", monitor="score", mode="max", save_top_k=1, save_on_train_epoch_end=False
    )
    stop = lightning.callbacks.EarlyStopping("score", mode="max", patience=SEARCH)
    trainer = lightning.Trainer(
        max_steps=STEPS, max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, val_check_interval=1, callbacks=[LightningCallback(), best, stop],
    )  # fmt: skip
    trainer.fit(module, DataLoader(Same(), 2), DataLoader(Same(), 4 * STEPS))
    assert trainer.global_step == STEPS  # patience is counted anew
    assert float(best.best_model_score) == 100.0 - (SEARCH - 1)
    state = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    assert int(state["net.paretorch_phase"]) == 1


def test_curves_of_decisions_are_in_the_trackers_of_transformers(tmp_path: Path) -> None:
    model = Net()
    _, optimizer = compressed(model)
    args = arguments(tmp_path)
    args.report_to = ["tensorboard"]
    trainer = transformers.Trainer(
        model, args, train_dataset=Same(), optimizers=(optimizer, None), callbacks=[TransformersCallback()]
    )
    trainer.train()
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    curve = {one.step: one.value for one in events.Scalars("train/plan_sparsity")}
    rows = {row["step"]: row["plan_sparsity"] for row in trainer.state.log_history if "loss" in row}
    assert curve.keys() >= rows.keys() == set(range(1, STEPS + 1))
    assert all(curve[step] == pytest.approx(value) for step, value in rows.items() if step < STEPS)


def test_curves_of_decisions_are_in_the_logger_of_lightning(tmp_path: Path) -> None:
    module = Module()
    logger = lightning.loggers.CSVLogger(tmp_path, "", "")
    trainer = lightning.Trainer(
        max_steps=STEPS, max_epochs=-1, accelerator="cpu", logger=logger, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, log_every_n_steps=1, callbacks=[LightningCallback()],
    )  # fmt: skip
    trainer.fit(module, DataLoader(Same(), 2))
    header, *rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert {"plan/sparsity", "plan/bits"} <= set(header.split(","))
    assert len(rows) >= STEPS
