"""What every method promises, for layers that share: formula, resume, copies, compile, finalize, files."""

import copy
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.func import functional_call

from paretorch import Plan
from paretorch.deploy import load, save
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.contract.promises import Run, continues_bit_for_bit
from tests.contract.test_finalize import anatomy
from tests.methods.sharing.cases import METHODS, MODELS, STEPS, attach, batch, build, every


@pytest.fixture(autouse=True)
def _early_rounding_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="harden at step")
        yield


def coefficients(domain: str, s: Tensor, hard: bool) -> Tensor:
    if domain == "real":
        return s
    if domain == "simplex":
        return s.exp() / s.exp().sum()
    return (s == s.max()).float()


def literal_weights(plan: Plan) -> dict[str, Tensor]:
    """W_l = Σ_i α_l,i T_i with m ⊙ T for masked templates, read off the state and nothing else (in eval mode)."""
    state = plan.model.state_dict()
    domain = plan.methods()[0].domain
    beta, shift = plan.metrics().get("temperature", 0.0), plan.metrics().get("shift", 0.0)
    weights = {}
    for key in state:
        found = re.fullmatch(r"(.+)\.parametrizations\.(\w+)\.0\.sharing\.s", key)
        if found is None:
            continue
        mixture = plan.model.get_submodule(key.removesuffix(".s"))
        bank = mixture.names[0].rpartition("_")[0]
        total = torch.zeros(())
        for i, share in enumerate(coefficients(domain, state[key], False)):
            template = state[f"{bank}_{i}"]
            if f"{bank}_{i}_sparsity" in state:
                s = state[f"{bank}_{i}_sparsity"].view(template.shape)
                template = template * 2.0 / (1 + torch.exp(-beta * (s + shift)))
            total = total + share * template
        weights[f"{found[1]}.{found[2]}"] = total
    return weights


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("method", ["all", "fewer", "one", "simplex", "one-hot", "adam"])
def test_computes_the_formula(method: str, model: str) -> None:
    network = build(model)
    plain = copy.deepcopy(network)
    plan = attach(network, method)
    optimizer, x = optimizer_of(plan), batch(model)
    for steps in (0, 5):
        train(network, plan, optimizer, x, steps)
        weights = literal_weights(plan)
        assert weights
        own = {k: v for k, v in network.state_dict().items() if k in plain.state_dict()}
        expected = functional_call(plain.eval(), {**own, **weights}, x, tie_weights=False)
        torch.testing.assert_close(network.eval()(x), expected, rtol=1e-4, atol=1e-5)
        network.train()


def test_masks_are_on_the_templates() -> None:
    network = build("linear")
    plan = attach(network, "masked")
    optimizer, x = optimizer_of(plan), batch("linear")
    for steps in (0, 5):
        train(network, plan, optimizer, x, steps)
        for name, value in literal_weights(plan).items():
            torch.testing.assert_close(network.get_submodule(name.rpartition(".")[0]).weight, value)
    plan.harden(optimizer)
    masks = {
        key: value for key, value in network.state_dict().items() if key.endswith("_sparsity") and "template" in key
    }
    assert len(masks) == 2
    assert all(value.numel() == 64 for value in masks.values())
    dropped = torch.stack([value.flatten() + plan.metrics()["shift"] < 0 for value in masks.values()]).all(0)
    assert dropped.any()
    assert (network.get_submodule("1").weight.flatten()[dropped] == 0).all()


@pytest.mark.parametrize("model", list(MODELS))
def test_as_many_templates_as_layers_change_nothing_at_first(model: str) -> None:
    network = build(model)
    before = network(batch(model))
    attach(network, "all")
    torch.testing.assert_close(network(batch(model)), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_template_exists_once(method: str) -> None:
    network = build("linear")
    plan = attach(network, method)
    count = METHODS[method]()[0].templates or 4
    every = dict(network.named_parameters(remove_duplicate=False))
    trained = {id(p) for group in plan.param_groups() for p in group["params"]}
    names = [name for name, p in every.items() if p.shape == (8, 8) and id(p) in trained]
    assert names == [f"paretorch_template_0_{i}" for i in range(count)]
    state = network.state_dict()
    assert equal(from_bytes(to_bytes(state)), state)  # which refuses tensors that share memory
    copied = copy.deepcopy(network)
    assert sum(p.numel() for p in copied.parameters()) == sum(p.numel() for p in every.values())


def started(method: str, model: str, steps: int = 0, seed: int = 0) -> Run:
    network = build(model, seed)
    plan = attach(network, method)
    optimizer = optimizer_of(plan)
    train(network, plan, optimizer, batch(model), steps)
    return network, plan, optimizer, batch(model)


@pytest.mark.parametrize("phase", ["start", "searching", "hard"])
@pytest.mark.parametrize(("method", "model"), every())
def test_state_and_deepcopy_continue_bit_for_bit(method: str, model: str, phase: str) -> None:
    continues_bit_for_bit(partial(started, method, model), phase)


@pytest.mark.parametrize(
    ("method", "model"), [(method, "linear") for method in METHODS] + [("fewer", "conv"), ("fewer", "attention")]
)
def test_compiled_follows_eager(method: str, model: str) -> None:
    torch._dynamo.reset()
    runs = []
    for compiled in (False, True):
        network = build(model)
        plan = attach(network, method)
        optimizer = optimizer_of(plan)
        runner = torch.compile(network, backend="aot_eager", fullgraph=True) if compiled else network
        losses = train(runner, plan, optimizer, batch(model), 2)
        counter = torch._dynamo.utils.counters["stats"]
        graphs = counter["unique_graphs"]
        losses += train(runner, plan, optimizer, batch(model), 3)
        assert counter["unique_graphs"] == graphs
        plan.harden(optimizer)
        runs.append(losses + train(runner, plan, optimizer, batch(model), 2))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", list(METHODS))
def test_accumulation_and_autocast_follow(method: str) -> None:
    losses = {}
    for parts, mixed in ((1, False), (2, False), (1, True)):
        network = build("conv")
        plan = attach(network, method)
        losses[parts, mixed] = train(network, plan, optimizer_of(plan), batch("conv"), 5, parts, mixed)
    torch.testing.assert_close(losses[1, False], losses[2, False], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses[1, False], losses[1, True], rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("method", "model"), every())
def test_a_plain_module_with_the_same_outputs(method: str, model: str, tmp_path: Path) -> None:
    network = build(model)
    plan = attach(network, method)
    optimizer, x = optimizer_of(plan), batch(model)
    train(network, plan, optimizer, x, STEPS)
    with plan.hardened() as preview:
        hard = preview.eval()(x)
    plan.harden(optimizer)
    assert torch.equal(network(x), hard)
    network.train()
    train(network, plan, optimizer, x, 2)
    expected, dense = network.eval()(x), plan.dense_state_dict()
    small = plan.finalize()
    torch.testing.assert_close(small(x), expected, rtol=1e-6, atol=1e-7)
    original = build(model)
    assert list(small.state_dict()) == list(original.state_dict())
    assert anatomy(small) == anatomy(original)
    assert not [key for m in small.modules() for key in m.__dict__ if key.startswith("_paretorch")]
    assert equal(snapshot(small), dense)
    if model == "tied":
        assert small.again.weight is small.first.weight
    save(small, tmp_path / "model.pare")
    again = load(tmp_path / "model.pare", into=build(model, seed=1)).eval()
    assert equal(snapshot(again), snapshot(small))
    assert torch.equal(again(x), small(x))
    if model != "lstm":
        torch.testing.assert_close(torch.export.export(small, (x,)).module()(x), small(x))
