"""Accelerate: two processes over gloo, stopped and resumed, are one loop over all of their batches; and one process in bf16."""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import paretorch as pt
from tests.meeting import both_ranks, free_ports
from tests.training.ten_lines import Net, Same, by_hand, check_alike, compressed, numbers


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    both_ranks("tests.training.accelerate_rank", tmp_path, str(free_ports(1)[0]))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    check_alike(*({name: numbers(value) for name, value in one.items()} for one in (first, by_hand(ranks=2))))
    small = pt.load(tmp_path / "small.pare", into=Net())
    assert 0.2 < float((small.body[0].weight == 0).float().mean()) < 0.8


def test_bf16_on_a_cpu() -> None:
    """fp16 needs a GPU here: accelerate refuses it on a CPU. Weights and decisions stay fp32."""
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    network = Net()
    plan, optimizer = compressed(network)
    model, optimizer = accelerator.prepare(network, optimizer)
    batch = torch.utils.data.default_collate([Same()[0]] * 2)
    for _ in range(plan.steps):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    small = accelerator.unwrap_model(model)
    assert plan.finalize() is network is small
    assert {one.dtype for one in network.parameters()} == {torch.float32}
    assert pt.report(network).sparsity > 0.45
    AcceleratorState._reset_state(True)
