"""Bugs that were found once, each by the smallest case that showed it."""

import re
import warnings
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.finish.byte_budget import ByteBudget
from paretorch.core.step.noise import uniform
from paretorch.deploy import encoded_size
from paretorch.errors import ConfigError, DivergenceError, UndecidedWarning
from paretorch.methods.sparsity.rivals import MagnitudePruning


def test_trimming_a_tied_weight_counts_it_once() -> None:
    def nonzeros(state: Mapping[str, torch.Tensor], _: object) -> int:
        return sum(int((value != 0).sum()) for value in {id(v): v for v in state.values()}.values())

    shared = torch.randn(10, 10)
    state = {"embed.weight": shared, "head.weight": shared, "bias": torch.ones(5)}
    ByteBudget(45, nonzeros).trim(state, ["embed.weight"], [])
    assert nonzeros(state, None) == 45
    assert state["head.weight"] is state["embed.weight"]


@pytest.mark.parametrize("options", [{"rounding": "round"}, {"zero_precision": True}, {"allowed_bits": (1, 2, 4)}])
@pytest.mark.parametrize("target", [1.5, 3.3])
def test_bits_meet_their_target(options: dict[str, object], target: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(50, 40)
    plan = compress(model, SMOL(target_bits=target, scale="auto", **options), steps=10)
    plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(target, abs=0.02)


def test_decisions_are_priced_from_the_same_state() -> None:
    runs = []
    for order in (0, 1):
        torch.manual_seed(0)
        model = nn.Linear(6, 5)
        methods = [ContinuousSparsification(init=0.1, penalty=0.1), SMOL(penalty=0.1, lr=0.1)]
        plan = compress(model, *(methods if order else methods[::-1]), steps=10)
        for _ in range(3):
            model(torch.ones(2, 6)).square().sum().backward()
            plan.step()
            model.zero_grad()
        chain = model.paretorch_weight
        runs.append((chain.sparsity.s.detach(), chain.precision.s.detach()))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plan = compress(
        model, ContinuousSparsification(target=0.5, include="1"), SMOL(target_bits=4.0, include="0"), steps=10
    )
    model(torch.ones(2, 4)).sum().backward()
    model[0].weight.grad.fill_(float("nan"))
    before = model[1].paretorch_weight.sparsity.s.detach().clone()
    with pytest.raises(DivergenceError, match=r"0\.weight"):
        plan.step()
    assert torch.equal(model[1].paretorch_weight.sparsity.s, before)


def test_a_budget_out_of_reach_leaves_the_search_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    plan = compress(model, SMOL(group="layer"), steps=10, budget=2000)
    plan.set_budget(ByteBudget(300, lambda state, edits: encoded_size(state, model, edits)))
    before = model.paretorch_weight.precision.s.detach().clone()
    with pytest.raises(ConfigError, match="budget=300"):
        plan.harden()
    assert not plan.is_hard
    assert torch.equal(model.paretorch_weight.precision.s, before)
    assert Plan.of(model) is plan


def test_one_group_at_half_its_size_is_kept() -> None:
    model = nn.Linear(4, 4)
    plan = compress(model, ContinuousSparsification(group="network", target=0.5), steps=10)
    plan.harden()
    assert plan.metrics()["sparsity"] == 0.0


def test_an_uninitialized_layer_is_refused_kindly() -> None:
    with pytest.raises(ConfigError, match="run one batch"):
        compress(nn.LazyLinear(3), ContinuousSparsification(), steps=10)


def test_learned_precision_above_the_start_is_kept() -> None:
    model = nn.Linear(4, 4)
    plan = compress(model, SMOL(init_bits=4.0), steps=10)
    with torch.no_grad():
        model.paretorch_weight.precision.s.fill_(-6.0)  # about 9.7 bits
    plan.harden()
    assert plan.metrics()["bits"] == 9.0


@pytest.mark.parametrize("lag", [1, 64, 4096, 16384])
def test_noise_at_a_distance_is_not_correlated(lag: int) -> None:
    draws = [uniform(torch.Size([200_000]), torch.tensor(step), 17) for step in range(12)]
    scores = [float((3 * x[lag:] * x[:-lag]).mean()) * (len(x) - lag) ** 0.5 for x in draws]
    assert abs(sum(scores)) / len(scores) ** 0.5 < 4
    assert max(abs(score) for score in scores) < 5


def test_few_bits_are_fine_where_only_some_layers_are_sparse() -> None:
    model = nn.Sequential(nn.Linear(20, 40), nn.Linear(40, 3))
    plan = compress(model, ContinuousSparsification(target=0.8, exclude="1"), SMOL(target_bits=0.6), steps=10)
    plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("method", [ContinuousSparsification, MagnitudePruning])
def test_a_target_that_would_drop_everything_is_refused(method: type) -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5))
    with pytest.raises(ConfigError, match=r"would drop everything: the smallest group has 100 of 300 weights.*0\.6666"):
        compress(model, method(target=0.95, group="layer"), steps=4)
    compress(model, method(target=0.6, group="layer"), steps=4)


def test_hardening_too_early_says_so_and_a_preview_does_not() -> None:
    model = nn.Linear(10, 20)
    plan = compress(model, ContinuousSparsification(target=0.5), steps=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with plan.hardened():
            pass
    with pytest.warns(UndecidedWarning, match=r"step 0 of 10: the masks .* on average 0\.500 away from 0 or 1"):
        plan.harden()
    other = nn.Linear(10, 20)
    settled = compress(other, ContinuousSparsification(init=1.0), steps=1)
    settled.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settled.harden()


def test_an_option_that_an_older_state_does_not_know_is_at_its_default() -> None:
    def make(**options: str) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        method = ContinuousSparsification(target=0.5, group="channel", **options)
        compress(model, method, steps=4, example=torch.zeros(2, 4))
        return model

    state = make().state_dict()
    text = bytes(state["paretorch_config"].tolist()).decode()
    old = re.sub(r'"count": "[^"]*", ', "", text)
    assert old != text
    state["paretorch_config"] = torch.tensor(list(old.encode()), dtype=torch.uint8)
    make().load_state_dict(dict(state))
    with pytest.raises(ConfigError, match="count was 'weights', is 'macs'"):
        make(count="macs").load_state_dict(dict(state))
