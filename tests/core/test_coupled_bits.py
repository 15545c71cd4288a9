"""Bits beside channels that go: those of the network that is saved, without weights that would read a channel that is gone."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.core.method import Method
from paretorch.methods.precision.grid import s_of_bits
from paretorch.methods.precision.rivals import LSQ, Uniform
from tests.core.coupled_nets import NETS
from tests.decisions import decisions, noting

X = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
STEPS = 12


def _searched(name: str, *methods: Method, hard: bool = True) -> tuple[nn.Module, pt.Plan]:
    torch.manual_seed(0)
    model = NETS[name][0]()
    plan = pt.compress(model, *methods, steps=STEPS, example=X)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.02, momentum=0.9)
    for _ in range(STEPS):
        nn.functional.cross_entropy(model(X), torch.arange(5) % 4).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    if hard:
        plan.harden(optimizer)
    return model.eval(), plan


def _channels(target: float = 0.3, multiple: int = 1) -> pt.ContinuousSparsification:
    return pt.ContinuousSparsification(target=target, group="channel", multiple=multiple)


def _saved_bits(model: nn.Module, folder: Path) -> float:
    """All bits of the weights in the file, by its own precisions; zeros count none."""
    pt.save(model, folder / "small.pare")
    report = pt.report(folder / "small.pare", latency=False)
    return report.bits * report.built


def _weights(name: str) -> int:
    return sum(p.numel() for p in NETS[name][0]().parameters() if p.dim() > 1)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("name", ["residual", "dense", "depthwise", "shuffled", "excited"])
def test_a_target_is_met_by_what_is_saved(name: str, zeros: bool, tmp_path: Path) -> None:
    model, plan = _searched(name, _channels(), pt.SMOL(target_bits=1.5, zero_precision=zeros))
    expected, bits = model(X), plan.metrics()["bits"]
    assert bits == pytest.approx(1.5, abs=0.02)
    small = plan.finalize()
    assert torch.allclose(small(X), expected, atol=1e-5)
    assert _saved_bits(small, tmp_path) == pytest.approx(bits * _weights(name), rel=1e-5)


def test_what_fills_a_layer_up_costs_nothing(tmp_path: Path) -> None:
    model, plan = _searched("residual", _channels(multiple=4), pt.SMOL(target_bits=1.5))
    expected, bits = model(X), plan.metrics()["bits"]
    small = plan.finalize()
    assert torch.allclose(small(X), expected, atol=1e-5)
    assert all(layer.out_channels % 4 == 0 for layer in (small.stem, small.a, small.b))
    assert _saved_bits(small, tmp_path) == pytest.approx(bits * _weights("residual"), rel=1e-5)


@pytest.mark.parametrize("rival", [LSQ(bits=2), Uniform(bits=3)])
def test_the_rivals_count_alike(rival: Method, tmp_path: Path) -> None:
    _, plan = _searched("residual", _channels(), rival)
    bits = plan.metrics()["bits"]
    left = sum(p.numel() for p in plan.finalize().parameters() if p.dim() > 1)
    assert bits == pytest.approx(rival.bits * left / _weights("residual"), rel=1e-5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("zeros", [False, True])
def test_a_search_is_steered_by_the_same_count(zeros: bool) -> None:
    """Between the bits of all rows that stay and those of what is left of them: enough were saved, so the price falls."""
    channels, masks_of = noting(_channels())
    precisions, bits_of = noting(pt.SMOL(target_bits=1.5, zero_precision=zeros))
    _searched("residual", channels, precisions, hard=False)
    (masks,), (bits,) = masks_of, bits_of
    masks.decisions()[0].data[::2] = -10.0
    rows = sum(
        float(one.survives(one.grid()).expand(one.grouping.shape).sum())
        for one in masks.relaxations
        if one.grouping.shape[1:]
    )  # type: ignore[union-attr]
    head = NETS["residual"][0]().head.weight.numel()
    left = sum(
        float(chain.survives().expand(one.grouping.shape).sum())
        for chain, one in zip(bits.chains, bits.relaxations, strict=True)
    )  # type: ignore[union-attr]
    assert left < 0.9 * (rows + head)
    for one, weight in zip(bits.relaxations, bits.chains, strict=True):
        one.decision.data.fill_(float(s_of_bits(1.5 * bits.weights / math.sqrt(left * (rows + head)))))
        weight.latent.data.copy_(weight.latent.sign() * 4.0)  # no zeros among them
    bits.set_scalar("integral", 0.0)
    bits.method.steer(bits, torch.tensor(STEPS))  # type: ignore[attr-defined]
    assert bits.method.price(bits) < bits.method._start_price(bits)  # type: ignore[attr-defined, operator]


def test_the_count_goes_with_copies() -> None:
    model, plan = _searched("residual", _channels(), pt.SMOL(target_bits=1.5), hard=False)
    other = pt.Plan.of(copy.deepcopy(model))
    plan.harden()
    before = other.metrics()["bits"]
    decisions(other.model, "sparsity")[0].data.sub_(10.0)
    assert other.metrics()["bits"] < before
    assert plan.metrics()["bits"] == pytest.approx(1.5, abs=0.02)
