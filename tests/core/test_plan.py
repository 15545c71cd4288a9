"""The plan: found through wrappers, pricing what it says, rounding and leaving as promised."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import paretorch
from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from paretorch.errors import ConfigError
from tests.sparsity.algorithm_1 import GATES


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 4), nn.Linear(4, 3)
    )


def batch(n: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(n, 2, 3, 3, generator=torch.Generator().manual_seed(seed))


def scatter(plan: Plan) -> None:
    generator = torch.Generator().manual_seed(0)
    for term in plan._terms:
        for decision in term.decisions():
            decision.data.copy_(torch.randn(decision.shape, generator=generator))


def both(**options: float) -> tuple[Method, Method]:
    return ContinuousSparsification(target=0.5), SMOL(target_bits=1.5, **options)


def train(plan: Plan, optimizer: torch.optim.Optimizer, x: Tensor, steps: int) -> None:
    for _ in range(steps):
        output = plan.model(x)
        nn.functional.cross_entropy(output, torch.arange(len(x)) % output.shape[1]).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()


# Finding the plan


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_found_through_wrappers() -> None:
    model = small_net()
    plan = compress(model, *both(), steps=10)
    assert Plan.of(model) is plan
    assert Plan.of(Wrapper(Wrapper(model))) is plan
    assert Plan.of(torch.compile(model)) is plan


def test_copies_have_their_own() -> None:
    model = small_net()
    plan = compress(model, *both(), steps=10)
    for twin in (copy.deepcopy(model), AveragedModel(model), copy.deepcopy(Wrapper(model))):
        own = Plan.of(twin)
        assert own is not plan
        assert own.model is (twin if type(twin) is type(model) else twin.module)
        own.harden()
        assert not plan.is_hard
        assert own.metrics()["sparsity"] == pytest.approx(0.5, abs=0.01)


def test_a_plain_model_has_none() -> None:
    with pytest.raises(ConfigError, match="compress"):
        Plan.of(small_net())


def test_an_average_of_the_model_can_be_finalized() -> None:
    model = small_net()
    plan = compress(model, *both(), steps=10)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    for _ in range(3):
        train(plan, optimizer, batch(), 3)
        average.update_parameters(model)
    small = Plan.of(average).finalize()
    assert list(small.state_dict()) == list(small_net().state_dict())
    assert not plan.is_hard


# Training


def test_param_groups_are_all_but_the_decisions() -> None:
    model = small_net()
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    model[1].bias.requires_grad_(False)
    plan = compress(model, *both(), steps=10)
    (group,) = plan.param_groups(weight_decay=5e-4)
    assert group["weight_decay"] == 5e-4
    expected = {id(p) for name, p in zip(names, parameters, strict=True) if name != "1.bias"}
    assert {id(p) for p in group["params"]} == expected
    assert len(group["params"]) == len(expected)


def test_metrics() -> None:
    plan = compress(small_net(), *both(), steps=10)
    metrics = plan.metrics()
    assert list(metrics) == ["step", "sparsity", "temperature", "shift", "bits", "bit_price"]
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["step"] == 0
    assert metrics["temperature"] == 1
    assert metrics["bits"] == pytest.approx(8.0, abs=1e-4)
    plan.step()
    assert plan.metrics()["step"] == 1


class Recorder(torch.optim.Optimizer):
    """Keeps the gradients that it is given, and changes nothing."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.seen: list[Tensor] = []

    def step(self, closure: None = None) -> None:
        self.seen = [p.grad.clone() for p in self.param_groups[0]["params"]]


def literal_price(plan: Plan, keep: float, bits: float, gate: str, decisions: dict[int, Tensor]) -> Tensor:
    """λ_keep Σ m + λ_bits Σ m·p, with m = b̂(β, s) and p = 1 + log₂(1 + e⁻ˢ), or 1 where there is no such decision."""
    price = torch.zeros(())
    for site, chain in zip(plan._sites, plan._chains, strict=True):
        m, p = torch.ones(()), None
        for r in chain.relaxations():
            spread = r.grouping.expand(decisions[id(r.decision)].view(r.grouping.grid)).expand(site.weight.shape)
            if r.room == "sparsity":
                m = GATES[gate](spread, plan.metrics()["temperature"])
                price = price + keep * m.sum()
            else:
                p = 1 + torch.log2(1 + torch.exp(-spread))
        if p is not None:
            price = price + bits * (m * p).sum()
    return price


PRICED = {
    "sparsity": (("weight", None), "sigmoid"),
    "sparsity-channel": (("channel", None), "erf"),
    "sparsity-block": (((2, 1), None), "arctan"),
    "precision": ((None, "weight"), "sigmoid"),
    "precision-layer": ((None, "layer"), "sigmoid"),
    "precision-network": ((None, "network"), "sigmoid"),
    "both": (("weight", "weight"), "algebraic"),
    "both-mixed": (("channel", "layer"), "sigmoid"),
    "both-blocks": (((2, 2), (4, 1)), "erf"),
    "both-network": (("weight", "network"), "arctan"),
}


@pytest.mark.parametrize("case", list(PRICED))
def test_the_price_and_its_gradient(case: str) -> None:
    (by_mask, by_bits), gate = PRICED[case]
    recorders: list[Recorder] = []

    def record(parameters: list[nn.Parameter]) -> Recorder:
        recorders.append(Recorder(parameters))
        return recorders[-1]

    methods: list[Method] = []
    if by_mask is not None:
        methods.append(ContinuousSparsification(group=by_mask, penalty=0.02, gate=gate, anneal=1.0, optimizer=record))
    if by_bits is not None:
        methods.append(SMOL(group=by_bits, penalty=0.03, optimizer=record, exclude="5"))
    plan = compress(small_net(), *methods, steps=10)
    for _ in range(3):
        plan.step()  # so that the temperature is not 1
    scatter(plan)
    leaves = {id(d): d.detach().clone().requires_grad_() for term in plan._terms for d in term.decisions()}
    price = literal_price(plan, 0.02, 0.03, gate, leaves)
    torch.testing.assert_close(plan.penalty(), price.detach(), rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(price, list(leaves.values()))
    plan.step()
    seen = [gradient for recorder in recorders for gradient in recorder.seen]
    assert len(seen) == len(expected)
    for got, want in zip(seen, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_the_price_comes_on_top_of_the_loss() -> None:
    recorders: list[Recorder] = []

    def record(parameters: list[nn.Parameter]) -> Recorder:
        recorders.append(Recorder(parameters))
        return recorders[-1]

    model = small_net()
    plan = compress(model, ContinuousSparsification(penalty=0.5, optimizer=record), steps=10)
    model(batch()).square().sum().backward()
    by_loss = [d.grad.clone() for d in plan._terms[0].decisions()]
    plan.step()
    for got, loss in zip(recorders[0].seen, by_loss, strict=True):
        torch.testing.assert_close(got, loss + 0.5 * 0.25)  # σ′(0) = 1/4
    assert all(d.grad is None for d in plan._terms[0].decisions())


# Deciding


def trained(*methods: Method, steps: int = 6) -> tuple[nn.Module, Plan, torch.optim.Optimizer]:
    model = small_net()
    plan = compress(model, *(methods or both()), steps=steps)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    train(plan, optimizer, batch(), steps)
    return model, plan, optimizer


def test_preview_ends_even_when_it_fails() -> None:
    model, plan, _ = trained()
    before = copy.deepcopy(model.state_dict())

    def look() -> None:
        with plan.hardened():
            assert plan.is_hard
            assert plan.metrics()["sparsity"] == pytest.approx(0.5, abs=0.01)
            raise KeyError

    with pytest.raises(KeyError):
        look()
    assert not plan.is_hard
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    plan.harden()
    with plan.hardened() as same:
        assert same is model
    assert plan.is_hard


@pytest.mark.parametrize("hard", [False, True])
def test_dense_state_is_the_plain_network(hard: bool) -> None:
    model, plan, optimizer = trained()
    if hard:
        plan.harden(optimizer)
    state = plan.dense_state_dict()
    plain = small_net(seed=9)
    assert list(state) == list(plain.state_dict())
    plain.load_state_dict(state)
    x = batch(seed=4)
    assert torch.equal(plain.eval()(x), model.eval()(x))
    state["0.weight"].zero_()
    assert bool(model[0].weight.any()), "a copy"


def test_recalibrate_estimates_batch_norm_afresh() -> None:
    model, plan, optimizer = trained()
    model.eval()
    model[0].train()
    batches = [batch(seed=s) for s in (11, 12, 13)]
    plan.harden(optimizer, recalibrate=((x, "a label") for x in batches))
    assert [m.training for m in model] == [True, False, False, False, False, False]
    assert model[1].momentum == 0.1
    with torch.no_grad():
        model[0].eval()
        inside = torch.stack([model[0](x) for x in batches])
    torch.testing.assert_close(model[1].running_mean, inside.mean((0, 1, 3, 4)), rtol=1e-4, atol=1e-5)
    per_batch = torch.stack([one.var((0, 2, 3)) for one in inside])
    torch.testing.assert_close(model[1].running_var, per_batch.mean(0), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="no batch"):
        plan.harden(recalibrate=[])


def test_harden_clears_the_momentum_of_dropped_weights() -> None:
    model, plan, optimizer = trained(ContinuousSparsification(target=0.5))
    weight = model[4].parametrizations.weight.original
    assert bool((optimizer.state[weight]["momentum_buffer"] != 0).all())
    before = optimizer.state[weight]["momentum_buffer"].clone()
    plan.harden(optimizer)
    dropped = model[4].weight == 0
    assert dropped.any()
    assert not dropped.all()
    after = optimizer.state[weight]["momentum_buffer"]
    assert torch.equal(after, before * ~dropped)
    still = weight.detach()[dropped].clone()
    train(plan, optimizer, batch(), 2)
    assert torch.equal(weight.detach()[dropped], still)
    assert bool((model[4].weight[dropped] == 0).all())


def test_hardening_twice_is_harmless() -> None:
    model, plan, optimizer = trained()
    plan.harden(optimizer)
    train(plan, optimizer, batch(), 2)
    before, momentum = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    plan.harden(optimizer)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    for one, state in optimizer.state_dict()["state"].items():
        assert torch.equal(state["momentum_buffer"], momentum["state"][one]["momentum_buffer"])


def test_steps_after_hardening_leave_decisions_and_counter() -> None:
    _, plan, optimizer = trained()
    plan.harden(optimizer)
    metrics = plan.metrics()
    train(plan, optimizer, batch(), 3)
    assert plan.metrics() == metrics


def test_finalize_hardens_first() -> None:
    model, plan, _ = trained()
    with plan.hardened():
        expected = model.eval()(batch())
    small = plan.finalize()
    assert torch.equal(small(batch()), expected)
    with pytest.raises(ConfigError, match="no plan"):
        Plan.of(small)


# Bytes


def wide_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip


BUDGETED = [
    ("sparsity", 4000),
    ("sparsity", 12000),
    ("precision", 3500),
    ("precision", 6000),
    ("zero", 4500),
    ("both", 1500),
    ("both", 3000),
]


@pytest.mark.parametrize(("kind", "budget"), BUDGETED)
def test_the_saved_file_keeps_to_the_budget(kind: str, budget: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    methods: dict[str, tuple[Method, ...]] = {
        "sparsity": (ContinuousSparsification(),),
        "precision": (SMOL(),),
        "zero": (SMOL(zero_precision=True, scale="auto"),),
        "both": (ContinuousSparsification(), SMOL(scale="auto")),
    }
    plan = compress(wide_net(), *methods[kind], steps=20, budget=budget)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    train(plan, optimizer, batch(16), 20)
    plan.harden(optimizer)
    train(plan, optimizer, batch(16), 3)
    path = Path(tmp_path_factory.mktemp("budget")) / "model.pare"
    paretorch.save(plan.finalize(), path)
    assert 0.95 * budget <= path.stat().st_size <= budget
    small = plan.model.state_dict()
    assert all(
        torch.equal(small[key], value) for key, value in paretorch.load(path, into=wide_net()).state_dict().items()
    )
