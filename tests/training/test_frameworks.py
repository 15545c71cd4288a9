"""Trainers of others: their loops with our callback do what ten lines do, and go on where they were stopped."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import paretorch as pt
from paretorch.errors import ConfigError
from paretorch.training.lightning import PlanCallback as LightningCallback
from paretorch.training.transformers import PlanCallback as TransformersCallback
from tests.meeting import both_ranks, free_ports
from tests.training.by_lightning import Module, fit
from tests.training.by_transformers import arguments, hf_trainer
from tests.training.ten_lines import (
    CLIP,
    SEARCH,
    STEPS,
    Net,
    Same,
    by_hand,
    check_alike,
    compressed,
    everything,
    numbers,
)

# transformers


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
        assert options.max_grad_norm == CLIP
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
        plan = pt.compress(model, *methods, steps=SEARCH)
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
    both_ranks("tests.training.frameworks_rank", tmp_path, framework, str(free_ports(1)[0]))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    check_alike(*({name: numbers(value) for name, value in one.items()} for one in (first, by_hand(ranks=2))))
