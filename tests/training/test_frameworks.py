"""Trainers of others: their loops with our callback do what ten lines do, and go on where they were stopped."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import paretorch as pt
from paretorch.errors import ConfigError
from paretorch.training.lightning import PlanCallback as LightningCallback
from paretorch.training.transformers import PlanCallback as TransformersCallback
from tests.meeting import both_ranks

STEPS, _SEARCH, _CLIP = 6, 4, 0.05


class Same(Dataset[dict[str, Tensor]]):
    """One example many times, another one on another rank: the order in which a loop takes them does not matter."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.linspace(-1, 1, 8).roll(self._rank), "labels": torch.tensor(2 + self._rank)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def compressed(model: nn.Module) -> tuple[pt.Plan, torch.optim.Optimizer]:
    methods = (pt.ContinuousSparsification(target=0.5), pt.SMOL(target_bits=2.0))
    plan = pt.compress(model, *methods, steps=_SEARCH)
    return plan, torch.optim.SGD(plan.param_groups(weight_decay=1e-3), lr=0.5, momentum=0.9)


def everything(model: nn.Module) -> torch.optim.Optimizer:
    """As people make it: of all parameters, the plan's own among them, which have no gradients."""
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3)


def by_hand(ranks: int = 1) -> dict[str, Tensor]:
    """What the ten lines come to, with the batches of so many ranks as one."""
    model = Net()
    plan, optimizer = compressed(model)
    batch = torch.utils.data.default_collate([Same(rank)[0] for rank in range(ranks) for _ in range(2)])
    for step in range(STEPS):
        model(**batch)["loss"].backward()
        nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], _CLIP)
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        if step + 1 == _SEARCH:
            plan.harden(optimizer)
    return model.state_dict()


def check_alike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


# transformers


def arguments(folder: Path, **options: Any) -> Any:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=STEPS,
        lr_scheduler_type="constant",
        max_grad_norm=_CLIP,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="steps",
        save_steps=3,
        **options,
    )


def hf_trainer(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, folder: Path, rank: int = 0, **options: Any
) -> Any:
    return transformers.Trainer(
        model,
        arguments(folder, **options),
        train_dataset=Same(rank),
        optimizers=(optimizer, None),
        callbacks=[TransformersCallback()],
    )


def test_transformers_follow_the_ten_lines(tmp_path: Path) -> None:
    model = Net()
    plan, optimizer = compressed(model)
    trainer = hf_trainer(model, optimizer, tmp_path)
    trainer.train()
    assert plan.is_hard
    check_alike(model.state_dict(), by_hand())
    rows = [row for row in trainer.state.log_history if "plan_sparsity" in row]
    assert len(rows) >= STEPS
    assert rows[-1]["plan_sparsity"] == pytest.approx(0.5, abs=0.01)
    small = plan.finalize()
    assert float((small.body[0].weight == 0).float().mean()) > 0.2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_transformers_take_a_step_for_a_step_of_the_optimizer(tmp_path: Path, accumulate: int) -> None:
    model = Net()
    _, optimizer = compressed(model)
    hf_trainer(model, optimizer, tmp_path, gradient_accumulation_steps=accumulate).train()
    check_alike(model.state_dict(), by_hand())


def test_transformers_resume(tmp_path: Path) -> None:
    for stop in (3, STEPS):
        model = Net()
        _, optimizer = compressed(model)
        trainer = hf_trainer(model, optimizer, tmp_path)
        trainer.args.max_steps = stop
        trainer.train(resume_from_checkpoint=None if stop == 3 else str(tmp_path / "checkpoint-3"))
    assert (tmp_path / "checkpoint-3" / "plan.pt").exists()
    check_alike(model.state_dict(), by_hand())


def test_transformers_leave_no_torn_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the plan's part of a checkpoint is written: it is not there, rather than half."""
    model = Net()
    _, optimizer = compressed(model)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        hf_trainer(model, optimizer, tmp_path).train()
    assert (tmp_path / "checkpoint-3" / "trainer_state.json").exists()
    assert not (tmp_path / "checkpoint-3" / "plan.pt").exists()


def test_transformers_do_not_resume_without_the_plan(tmp_path: Path) -> None:
    for folder, start in ((tmp_path / "one", None), (tmp_path / "other", str(tmp_path / "one" / "checkpoint-3"))):
        model = Net()
        _, optimizer = compressed(model)
        trainer = hf_trainer(model, optimizer, folder)
        if start is None:
            trainer.train()
        else:
            with pytest.raises(ConfigError, match=r"other/checkpoint-3/plan.pt, .* is not there"):
                trainer.train(resume_from_checkpoint=start)


def test_transformers_clip_every_training_of_the_same_arguments(tmp_path: Path) -> None:
    options = arguments(tmp_path)
    for _ in range(2):
        model = Net()
        _, optimizer = compressed(model)
        parts = {"train_dataset": Same(), "optimizers": (optimizer, None), "callbacks": [TransformersCallback()]}
        transformers.Trainer(model, options, **parts).train()
        check_alike(model.state_dict(), by_hand())
        assert options.max_grad_norm == _CLIP
        assert not optimizer._optimizer_step_pre_hooks


def test_transformers_with_an_optimizer_of_everything(tmp_path: Path) -> None:
    model = Net()
    compressed(model)
    hf_trainer(model, everything(model), tmp_path).train()
    check_alike(model.state_dict(), by_hand())
    with pytest.raises(ConfigError, match="use bf16=True"):  # as with DeepSpeed, which scales by itself
        TransformersCallback().on_train_begin(SimpleNamespace(fp16=True), None, None, optimizer=None)


def language_model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def test_a_language_model_of_the_hub_kind(tmp_path: Path) -> None:
    """Tied embeddings, checkpoints by save_pretrained and a resumed run; smaller on disk, the same outputs when read back."""
    tokens = torch.arange(16) % 7
    data = [{"input_ids": tokens, "labels": tokens} for _ in range(4)]
    left = []
    for start in (None, "checkpoint-3"):
        model = language_model()
        methods = (pt.ContinuousSparsification(target=0.5), pt.SMOL(target_bits=2.0, group="channel"))
        plan = pt.compress(model, *methods, steps=_SEARCH)
        optimizer = torch.optim.AdamW(plan.param_groups(), lr=1e-3)
        trainer = transformers.Trainer(
            model,
            arguments(tmp_path),
            train_dataset=data,
            optimizers=(optimizer, None),
            callbacks=[TransformersCallback()],
        )
        trainer.train(resume_from_checkpoint=None if start is None else str(tmp_path / start))
        left.append(plan.finalize().eval())
    whole, resumed = left
    check_alike(resumed.state_dict(), whole.state_dict())
    assert whole.lm_head.weight is whole.transformer.wte.weight
    path = tmp_path / "gpt.pare"
    assert pt.save(whole, path).total < 0.3 * sum(4 * one.numel() for one in whole.parameters())
    back = pt.load(path, into=language_model()).eval()
    torch.testing.assert_close(back(tokens[None]).logits, whole(tokens[None]).logits, rtol=0, atol=0)
    whole.save_pretrained(tmp_path / "plain")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "plain").eval()
    torch.testing.assert_close(again(tokens[None]).logits, whole(tokens[None]).logits, rtol=0, atol=0)


# Lightning


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, everything: bool = False) -> None:
        super().__init__()
        self.net = Net()
        self.plan, self._optimizer = compressed(self.net)
        self._everything = everything

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss: Tensor = self.net(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return everything(self) if self._everything else self._optimizer


def fit(
    module: Module,
    folder: Path,
    steps: int = STEPS,
    start: str | None = None,
    rank: int = 0,
    callback: LightningCallback | None = None,
    **options: Any,
) -> Any:
    saving = lightning.callbacks.ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1
    )
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=_CLIP,
        log_every_n_steps=1,
        callbacks=[callback or LightningCallback(), saving],
        **options,
    )
    trainer.fit(module, DataLoader(Same(rank), 2), ckpt_path=start)
    return trainer


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning_follows_the_ten_lines(tmp_path: Path, accumulate: int) -> None:
    module = Module()
    trainer = fit(module, tmp_path, accumulate_grad_batches=accumulate)
    assert module.plan.is_hard
    check_alike(module.net.state_dict(), by_hand())
    assert float(trainer.callback_metrics["plan/sparsity"]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("stop", [3, 5])
def test_lightning_resumes(tmp_path: Path, stop: int) -> None:
    fit(Module(), tmp_path, stop)
    module = Module()
    fit(module, tmp_path, start=str(tmp_path / f"step={stop}.ckpt"))
    check_alike(module.net.state_dict(), by_hand())


def test_lightning_begins_anew_after_a_resumed_training(tmp_path: Path) -> None:
    callback = LightningCallback()
    fit(Module(), tmp_path, 3)
    for start in (str(tmp_path / "step=3.ckpt"), None):
        module = Module()
        fit(module, tmp_path, start=start, callback=callback)
        check_alike(module.net.state_dict(), by_hand())


def test_lightning_with_an_optimizer_of_everything(tmp_path: Path) -> None:
    module = Module(everything=True)
    fit(module, tmp_path)
    check_alike(module.net.state_dict(), by_hand())


# Two ranks


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_two_ranks_train_like_one(tmp_path: Path, framework: str) -> None:
    """Each has examples of its own; stopped and resumed, both end with the weights of one loop over all of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both_ranks("tests.training.frameworks_rank", tmp_path, framework, str(port))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    check_alike(*({name: _numbers(value) for name, value in one.items()} for one in (first, by_hand(ranks=2))))


def _numbers(value: Tensor) -> Tensor:
    """What a plan keeps as the bits of its numbers, as numbers: ranks add in another order, which the last bits show."""
    return value.view(torch.float32) if value.dtype == torch.int32 and value.dim() else value
