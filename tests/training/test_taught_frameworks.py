"""Trainers of others with a teacher: the losses of a loop that adds `pt.distillation_loss` by hand."""

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader

import paretorch as pt
from paretorch.errors import ConfigError
from paretorch.training.lightning import PlanCallback as LightningCallback
from paretorch.training.transformers import PlanCallback as TransformersCallback
from tests.training.by_lightning import Module, fit
from tests.training.by_transformers import arguments, hf_trainer
from tests.training.ten_lines import CLIP, SEARCH, STEPS, Net, Same, check_alike, compressed, numbers
from tests.training.test_frameworks import language_model

_ALPHA, _TEMPERATURE = 0.7, 2.0


def check_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Alike up to the order of sums, the plan's numbers too, which are kept as bits."""
    check_alike(*({name: numbers(value) for name, value in one.items()} for one in (found, expected)))


class Dropping(Net):
    """A teacher that would not be sure of itself in training mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))


def by_hand() -> dict[str, Tensor]:
    model, teacher = Net(), Dropping().eval()
    plan, optimizer = compressed(model)
    batch = torch.utils.data.default_collate([Same()[0]] * 2)
    for step in range(STEPS):
        outputs = model(**batch)
        with torch.no_grad():
            taught = teacher(**batch)
        distilled = pt.distillation_loss(outputs, taught, _TEMPERATURE)
        (_ALPHA * distilled + (1 - _ALPHA) * outputs["loss"]).backward()
        nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], CLIP)
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        if step + 1 == SEARCH:
            plan.harden(optimizer)
    return model.state_dict()


def taught_trainer(model: nn.Module, optimizer: Any, folder: Path, callback: Any, **options: Any) -> Any:
    trainer = hf_trainer(model, optimizer, folder, **options)
    trainer.remove_callback(TransformersCallback)
    trainer.add_callback(callback)
    return trainer


@pytest.mark.parametrize("accumulate", [1, 2])
def test_transformers_with_a_teacher(tmp_path: Path, accumulate: int) -> None:
    model, teacher = Net(), Dropping().train()
    before = copy.deepcopy(teacher.state_dict())
    _, optimizer = compressed(model)
    callback = TransformersCallback(teacher, _ALPHA, _TEMPERATURE)
    trainer = taught_trainer(model, optimizer, tmp_path, callback, gradient_accumulation_steps=accumulate)
    trainer.train()
    check_close(model.state_dict(), by_hand())
    check_alike(teacher.state_dict(), before)
    assert not teacher.training
    assert not model._forward_hooks
    rows = [row for row in trainer.state.log_history if "plan_distillation" in row]
    assert len(rows) >= STEPS
    assert rows[0]["plan_distillation"] > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_language_model_learns_from_its_dense_self(tmp_path: Path, accumulate: int) -> None:
    """Its loss is divided by the items of all batches of a step; the teacher's must be so, too. Padding does not count."""
    tokens = torch.arange(16) % 7
    mask = (torch.arange(16) < 12).long()
    row = {"input_ids": tokens, "labels": tokens.where(mask.bool(), -100), "attention_mask": mask}

    def parts() -> tuple[Any, Any, torch.optim.Optimizer]:
        model = language_model()
        teacher = copy.deepcopy(model)
        plan = pt.compress(model, pt.SMOL(target_bits=2.0, group="channel"), steps=100)
        return model, teacher, torch.optim.SGD(plan.param_groups(), lr=0.1)

    model, teacher, optimizer = parts()
    options = arguments(tmp_path, gradient_accumulation_steps=accumulate)
    options.max_steps, options.max_grad_norm = 2, 0.0
    transformers.Trainer(
        model,
        options,
        train_dataset=[row] * 8,
        optimizers=(optimizer, None),
        callbacks=[TransformersCallback(teacher, _ALPHA)],
    ).train()
    found = model.state_dict()
    model, teacher, optimizer = parts()
    plan = pt.Plan.of(model.train())
    batch = torch.utils.data.default_collate([row] * 2)
    for _ in range(2):
        outputs = model(**batch, num_items_in_batch=int(batch["attention_mask"].sum()))  # as the trainer counts them
        distilled = pt.distillation_loss(outputs.logits, teacher.eval()(**batch).logits, mask=batch["attention_mask"])
        (_ALPHA * distilled + (1 - _ALPHA) * outputs.loss).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    check_close(found, model.state_dict())


def test_transformers_evaluate_without_the_teacher(tmp_path: Path) -> None:
    losses = []
    for teacher in (None, Dropping()):
        model = Net()
        _, optimizer = compressed(model)
        trainer = taught_trainer(model, optimizer, tmp_path, TransformersCallback(teacher))
        TransformersCallback.on_train_begin(
            trainer.callback_handler.callbacks[-1],
            trainer.args,
            trainer.state,
            trainer.control,
            model=model,
            optimizer=optimizer,
        )
        losses.append(trainer.evaluate(Same())["eval_loss"])
    assert losses[0] == losses[1]


class NoLoss(Net):
    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"logits": self.body(x)}


def test_what_transformers_cannot_be_taught(tmp_path: Path) -> None:
    model = Net()
    _, optimizer = compressed(model)
    with pytest.raises(ConfigError, match="shares parameters with the student"):
        taught_trainer(model, optimizer, tmp_path, TransformersCallback(model)).train()
    callback = TransformersCallback(Dropping())
    smooth = language_model()
    _, other = compressed(smooth)
    with pytest.raises(ConfigError, match="label_smoothing_factor computes a loss beside"):
        taught_trainer(smooth, other, tmp_path, callback, label_smoothing_factor=0.1).train()
    model = NoLoss()
    _, optimizer = compressed(model)
    with pytest.raises(ConfigError, match="returns no loss for teacher="):
        taught_trainer(model, optimizer, tmp_path, callback).train()
    with pytest.raises(ConfigError, match="teacher takes a module, not str"):
        TransformersCallback("bert-base")  # type: ignore[arg-type]


# Lightning


class Returning(Module):
    """A step that returns a dict."""

    def training_step(self, batch: dict[str, Tensor], index: int) -> Any:
        return {"loss": self.net(**batch)["loss"], "seen": index}


class Holding(Module):
    """The teacher is a part of the module, which Lightning puts into training mode with it."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = Dropping()


@pytest.mark.parametrize(("kind", "accumulate"), [(Module, 1), (Module, 2), (Returning, 1), (Holding, 1)])
def test_lightning_with_a_teacher(tmp_path: Path, kind: type[Module], accumulate: int) -> None:
    module = kind()
    teacher = module.teacher if isinstance(module, Holding) else Dropping().train()
    callback = LightningCallback(teacher, _ALPHA, _TEMPERATURE)
    trainer = fit(module, tmp_path, callback=callback, accumulate_grad_batches=accumulate)
    check_close(module.net.state_dict(), by_hand())
    assert float(trainer.callback_metrics["plan/distillation"]) > 0
    assert "training_step" not in vars(module)
    assert not module.net._forward_hooks


def test_lightning_with_a_teacher_resumes(tmp_path: Path) -> None:
    fit(Module(), tmp_path, 3, callback=LightningCallback(Dropping(), _ALPHA, _TEMPERATURE))
    module = Module()
    callback = LightningCallback(Dropping(), _ALPHA, _TEMPERATURE)
    fit(module, tmp_path, start=str(tmp_path / "step=3.ckpt"), callback=callback)
    check_close(module.net.state_dict(), by_hand())


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Elsewhere(Module):
    """A step that does not call the network as a module."""

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net.body(batch["x"]), batch["labels"])


def test_what_lightning_cannot_be_taught(tmp_path: Path) -> None:
    for module, told in ((Manual(), "manual optimization returns none"), (Elsewhere(), "does not call the network")):
        trainer = lightning.Trainer(
            max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
            enable_model_summary=False, callbacks=[LightningCallback(Dropping())],
        )  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            trainer.fit(module, DataLoader(Same(), 2))
        assert "training_step" not in vars(module)
