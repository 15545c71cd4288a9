"""A budget in bytes is kept by the file that `save` really writes."""

import copy
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import paretorch
from paretorch import SMOL, ContinuousSparsification, compress
from paretorch.core.method import Method
from paretorch.errors import ConfigError, MissedTargetWarning
from paretorch.methods.precision.rivals import LSQ, Uniform
from tests.core.tiny import batch, train


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


@pytest.mark.parametrize(
    ("method", "budget"),
    [
        (ContinuousSparsification(), 4000),
        (ContinuousSparsification(), 12000),
        (ContinuousSparsification(), 24000),
        (SMOL(scale="auto"), 3500),
        (SMOL(scale="auto"), 6000),
    ],
)
def test_one_method_alone_is_searched_near_where_the_file_lands(method: Method, budget: int) -> None:
    plan = compress(wide_net(), method, steps=20, budget=budget)
    (aimed,) = (one.share for one in plan.methods())
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    train(plan, optimizer, batch(16), 20)
    plan.harden(optimizer)
    reached = plan.metrics()
    assert reached.get("bits", 1 - reached.get("sparsity", 0.0)) == pytest.approx(aimed, rel=0.06)


def test_beside_a_given_target_the_other_fills_the_file() -> None:
    methods = ContinuousSparsification(target=0.7), SMOL(scale="auto")
    plan = compress(wide_net(), *methods, steps=20, budget=3000)
    (assigned,) = (method.share for method in plan.methods() if method.kind == "precision")
    with pytest.warns(UserWarning, match="rounding will change the network"):
        plan.harden()
    reached = plan.metrics()
    assert reached["sparsity"] == pytest.approx(0.7), (
        "masks have a target of their own, and more bytes are no reason to exceed it"
    )
    assert assigned is not None
    assert reached["bits"] > 1.5 * assigned, "bits have none"
    size = paretorch.deploy.encoded_size(plan.plain_state_dict(), plan.model, plan.edits())
    assert 0.95 * 3000 <= size <= 3000


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        ((ContinuousSparsification(target=0.5), SMOL(target_bits=2.5)), True),  # half a mask bit, half a code: 3.5 bits
        ((ContinuousSparsification(target=0.9), SMOL(target_bits=0.4)), False),
        ((ContinuousSparsification(target=0.5),), True),
        ((ContinuousSparsification(target=0.9), SMOL()), False),  # the bits are the budget's to choose
        ((SMOL(target_bits=2.0),), False),
        ((SMOL(target_bits=6.0),), True),
        ((ContinuousSparsification(target=0.5, group="channel"), SMOL(target_bits=2.0)), False),
    ],
)
def test_targets_that_do_not_fit_are_told_before_training(methods: tuple[Method, ...], told: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compress(wide_net(), *methods, steps=20, budget=3600)
    found = [str(one.message) for one in caught if issubclass(one.category, MissedTargetWarning)]
    assert len(found) == told
    assert all(
        re.search(r"budget=3600: the targets take about [\d,]+ bytes, so harden will lower", one) for one in found
    )


@pytest.mark.parametrize("group", ["channel", (2, 2)])
def test_a_budget_that_leaves_no_group_is_told_as_such(group: str | tuple[int, int]) -> None:
    methods = ContinuousSparsification(group=group), SMOL(target_bits=2.0)
    with pytest.raises(ConfigError, match=r"^budget=1400 is too small, allow more bytes: it comes to target=0\.9"):
        compress(wide_net(), *methods, steps=4, budget=1400, example=batch())
    methods = ContinuousSparsification(group=group, target=0.99999), SMOL()
    with pytest.raises(ConfigError, match=r"^target=0\.99999"):
        compress(wide_net(), *methods, steps=4, budget=4000, example=batch())


def test_a_run_to_a_budget_goes_on_whatever_the_model_started_from() -> None:
    """Statistics of other values take other bytes, and so the budget gives other targets."""

    def attached(model: nn.Module, budget: int = 3000) -> tuple[paretorch.Plan, torch.optim.Optimizer]:
        plan = compress(model, ContinuousSparsification(), SMOL(), steps=20, budget=budget)
        return plan, torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)

    plan, optimizer = attached(wide_net())
    train(plan, optimizer, batch(16), 7)
    state = copy.deepcopy([plan.model.state_dict(), plan.state_dict(), optimizer.state_dict()])
    train(plan, optimizer, batch(16), 13)
    other = wide_net()
    for value in (*other.parameters(), *(one for one in other.buffers() if one.dim())):
        nn.init.uniform_(value, -0.001, 0.001)
    again, optimizer = attached(other)
    assert again.methods() != plan.methods()
    for owner, one in zip((other, again, optimizer), state, strict=True):
        owner.load_state_dict(one)
    assert again.methods() == plan.methods()
    train(again, optimizer, batch(16), 13)
    for one in (plan, again):
        one.harden()
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in plan.model.state_dict().items())
    with pytest.raises(ConfigError, match=r"this state belongs to another plan: .*target_bits was"):
        attached(wide_net(), budget=6000)[0].model.load_state_dict(state[0])


@pytest.mark.parametrize("methods", [(ContinuousSparsification(), SMOL()), (SMOL(exclude="8"),)], ids=["both", "some"])
def test_ranks_that_start_from_other_values_have_the_same_targets(methods: tuple[Method, ...]) -> None:
    def started(seed: int) -> nn.Module:
        model = wide_net()
        torch.manual_seed(seed)
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.reset_parameters()
        return model

    plans = [compress(started(seed), *methods, steps=4, budget=6000) for seed in range(3)]
    assert len({tuple(method.share for method in plan.methods()) for plan in plans}) == 1


@pytest.mark.parametrize(("group", "budget"), [("weight", 8500), ("channel", 6500)])
def test_generous_budget_drops_nothing(group: str, budget: int, tmp_path: Path) -> None:
    plan = compress(wide_net(), ContinuousSparsification(), SMOL(group=group), steps=20, budget=budget)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    train(plan, optimizer, batch(16), 20)
    plan.harden(optimizer)
    assert plan.metrics()["sparsity"] == 0.0
    paretorch.save(plan.finalize(), tmp_path / "model.pare")
    assert (tmp_path / "model.pare").stat().st_size <= budget


@pytest.mark.parametrize(
    ("methods", "budget"),
    [
        ((LSQ(bits=4),), 3500),
        ((Uniform(bits=3),), 3500),
        ((SMOL(),), 1600),
        ((ContinuousSparsification(include="3"), SMOL(include="0", group="layer", scale="auto")), 1700),
    ],
    ids=["lsq", "uniform", "smol", "mixed"],
)
def test_unreachable_budget_is_refused_before_training(methods: tuple[Method, ...], budget: int) -> None:
    model = wide_net()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(ConfigError, match=r"cannot get below \d+ bytes|allow at least \d+"):
        compress(model, *methods, steps=4, budget=budget)
    assert torch.equal(torch.rand(3), drawn)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_compact_counts_folded_norms(tmp_path: Path) -> None:
    bits = []
    for compact in (False, True):
        model, x = wide_net().train(), torch.randn(16, 2, 8, 8)
        for _ in range(3):
            model(x)
        plan = compress(model, SMOL(group="channel"), steps=2, budget=3000, compact=compact)
        bits.append(plan.methods()[0].share or 0.0)
        plan.harden()
        model.eval()
        before = model(x)
        small = plan.finalize()
        assert torch.allclose(small(x), before, atol=0.02 * float(before.detach().abs().max()))
        paretorch.save(small, tmp_path / "model.pare")
        assert 0.94 * 3000 <= (tmp_path / "model.pare").stat().st_size <= 3000
    assert bits[1] > bits[0]


def test_compact_needs_a_budget() -> None:
    with pytest.raises(ConfigError, match="give a budget"):
        compress(wide_net(), SMOL(), steps=2, compact=True)
