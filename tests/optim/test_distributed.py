"""Two ranks take the step that one takes: DDP, and FSDP2, where each rank sees half of every parameter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from paretorch.optim import AnnealedAdam, AvaGrad, AvaGradW, DelayedAdam
from tests.meeting import meet

STEPS = 4
KINDS = {"AvaGrad": AvaGrad, "AvaGradW": AvaGradW, "DelayedAdam": DelayedAdam, "AnnealedAdam": AnnealedAdam}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)).double()


def build(kind: str, model: nn.Module, **options):
    if kind == "AnnealedAdam":
        options["steps"] = 10
    return KINDS[kind](model.parameters(), lr=0.1, eps=1e-8, weight_decay=0.01, **options)


def batch(step: int) -> Tensor:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    x[:, 0] = 0  # weights that never have a gradient, on one rank's shard or the other's
    return x


def train(model: nn.Module, optimizer, steps: range, rank: int, ranks: int) -> None:
    for step in steps:
        model(batch(step).chunk(ranks)[rank]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def alone(kind: str) -> list[Tensor]:
    model = network()
    train(model, build(kind, model), range(STEPS), 0, 1)
    return [p.detach() for p in model.parameters()]


def train_all(rank: int, folder: str) -> None:
    results = {}
    for kind in KINDS:
        for implementation in ({}, {"foreach": True}):
            model = network()
            for layer in (model[0], model[2], model):
                fully_shard(layer)
            optimizer = build(kind, model, **implementation)
            train(model, optimizer, range(2), rank, 2)
            # A checkpoint in between: saved whole, loaded into a new optimizer of the same shards.
            state = get_optimizer_state_dict(model, optimizer)
            optimizer = build(kind, model, **implementation)
            set_optimizer_state_dict(model, optimizer, state)
            train(model, optimizer, range(2, STEPS), rank, 2)
            results[f"fsdp {kind} {implementation}"] = [p.full_tensor().detach() for p in model.parameters()]
        model = network()
        parallel = DistributedDataParallel(model)
        train(parallel, build(kind, model), range(STEPS), rank, 2)
        results[f"ddp {kind}"] = [p.detach() for p in model.parameters()]
    torch.save(results, Path(folder) / f"{rank}.pt")


def work(rank: int, folder: str) -> None:
    meet(folder, rank, lambda: train_all(rank, folder))


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_two_ranks_are_one(tmp_path) -> None:
    mp.spawn(work, args=(str(tmp_path),), nprocs=2, join=True)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert len(first) == 3 * len(KINDS)
    expected = {kind: alone(kind) for kind in KINDS}
    for name in first:
        for ours, other, reference in zip(first[name], second[name], expected[name.split()[1]], strict=True):
            assert torch.equal(ours, other), name
            torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")
