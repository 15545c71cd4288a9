"""SoftSharing: which layers share, how they begin, how coefficients are trained, what is refused."""

import gc
import math
import warnings
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paretorch import ContinuousSparsification, SoftSharing, compress, layer_similarity
from paretorch.errors import ConfigError, PareWarning
from paretorch.methods.sharing import fold
from paretorch.methods.sharing.banks import bank, orthogonal
from paretorch.methods.sharing.similarity import recurrence
from tests.contract.loop import optimizer_of, train
from tests.methods.sharing.cases import attach, batch, build


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_orthogonal_starts(layers: int, templates: int, seed: int) -> None:
    q = orthogonal(layers, templates, seed)
    small = q.T @ q if layers >= templates else q @ q.T
    torch.testing.assert_close(small, torch.eye(min(layers, templates), dtype=torch.float64))
    assert torch.equal(q, orthogonal(layers, templates, seed))


@pytest.mark.parametrize("domain", ["real", "simplex", "one-hot"])
@pytest.mark.parametrize("templates", [1, 2, 3, 6])
def test_every_layer_keeps_its_variance(domain: str, templates: int) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
    with torch.no_grad():
        for layer in network:
            layer.weight.normal_(0.0, 0.1)
    compress(network, SoftSharing(templates=templates, domain=domain), steps=1)
    for layer in network:
        assert float(layer.weight.std()) == pytest.approx(0.1, rel=0.06)


def test_an_uncorrected_start_would_shrink() -> None:
    weights = [torch.randn(40, 40) for _ in range(6)]
    values, alpha = bank(weights, 2, "real", "orthogonal", 0)
    q = orthogonal(6, 2, 0)
    shrunk = torch.stack([sum(float(a) * t for a, t in zip(row, values, strict=True)) for row in q]).var()
    kept = torch.stack([sum(float(a) * t for a, t in zip(row, values, strict=True)) for row in alpha]).var()
    assert float(shrunk) == pytest.approx(2 / 6, rel=0.1)
    assert float(kept) == pytest.approx(1.0, rel=0.1)


def test_fit_begins_as_near_as_mixtures_can_be() -> None:
    torch.manual_seed(0)
    weights = torch.stack([torch.randn(5, 5) for _ in range(4)])
    values, alpha = bank(list(weights), 2, "real", "fit", 0)
    mixed = torch.einsum("lk,kij->lij", alpha, torch.stack(values))
    best = torch.linalg.svdvals(weights.flatten(1))[2:].square().sum().sqrt()
    torch.testing.assert_close((mixed - weights).norm(), best, rtol=1e-4, atol=1e-5)


def test_layers_share_by_kind_and_shape_or_by_a_callable() -> None:
    network = nn.ModuleDict(
        {
            "a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4), "d": nn.Linear(4, 4),
            "wide": nn.Linear(4, 8), "table": nn.Embedding(4, 4), "rnn": nn.LSTM(4, 4, num_layers=2, bidirectional=False),
        }
    )  # fmt: skip
    groups = [one.layers for one in layer_similarity(network)]
    assert groups == [
        ("a.weight", "b.weight", "c.weight", "d.weight"),
        ("rnn.weight_ih_l0", "rnn.weight_ih_l1"),
        ("rnn.weight_hh_l0", "rnn.weight_hh_l1"),
    ]
    by = {"a": 1, "b": 2, "c": 1, "d": None}.get
    compress(network, SoftSharing(include=nn.Linear, by=lambda name, _: by(name), templates=1), steps=1)
    assert [one.layers for one in layer_similarity(network)] == [("a.weight", "c.weight")]
    assert isinstance(network["b"].weight, nn.Parameter)


def test_patterns_and_overrides_choose_too() -> None:
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)), *(nn.Linear(5, 5) for _ in range(3)))
    compress(network, SoftSharing(templates=1, exclude="0", overrides={"[345]": {"templates": 2}}), steps=1)
    assert [len(one.layers) for one in layer_similarity(network)] == [2, 3]
    assert {name for name, _ in network.named_parameters() if "template" in name} == {
        "paretorch_template_0_0", "paretorch_template_1_0", "paretorch_template_1_1",
    }  # fmt: skip


def test_patterns_make_groups() -> None:
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    compress(network, SoftSharing(templates=1, by=["[01]", "[0-3]", lambda name, _: name == "5"]), steps=1)
    assert [one.layers for one in layer_similarity(network)] == [("0.weight", "1.weight"), ("2.weight", "3.weight")]
    found = layer_similarity(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), by=("[01]", "[23]"))
    assert [len(one.layers) for one in found] == [2, 2]


def test_frozen_weights_are_frozen_afterwards() -> None:
    network = build("linear")
    network[1:].requires_grad_(False)
    plan = compress(network, SoftSharing(templates=2), steps=1)
    small = fold(network, layers=1)
    assert [name for name, p in small.named_parameters() if p.requires_grad] == ["0.weight", "0.bias"]
    assert [name for name, p in plan.finalize().named_parameters() if p.requires_grad] == ["0.weight", "0.bias"]


def test_frozen_weights_have_frozen_templates() -> None:
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)), *(nn.Linear(5, 5) for _ in range(2)))
    for i in (0, 1, 2):
        network[i].weight.requires_grad_(False)
    with pytest.warns(PareWarning, match=r"2\.weight is frozen, and shares .* such as 3\.weight: exclude it"):
        compress(network, SoftSharing(templates=1), steps=1)
    assert not network.paretorch_template_0_0.requires_grad
    assert network.paretorch_template_1_0.requires_grad, "one of its layers is trained"


def test_coefficients_are_the_plans_and_have_no_decay() -> None:
    network = build("linear")
    plan = attach(network, "fewer")
    coefficients = [m.s for m in network.modules() if type(m).__name__ == "Mix"]
    weights = {id(p) for group in plan.param_groups(weight_decay=0.1) for p in group["params"]}
    assert not weights & {id(c) for c in coefficients}
    assert {id(network.paretorch_template_0_0), id(network.paretorch_template_0_1)} <= weights
    before = [c.detach().clone() for c in coefficients]
    train(network, plan, optimizer_of(plan), batch("linear"), 1)
    assert all(not torch.equal(a, b) for a, b in zip(before, coefficients, strict=True))


@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_the_rate_drops(solver: str) -> None:
    network = build("linear")
    plan = compress(network, SoftSharing(lr=0.1, drops=(0.5, 0.75), solver=solver), steps=8)
    optimizer = optimizer_of(plan)
    rates = []
    for _ in range(8):
        train(network, plan, optimizer, batch("linear"), 1)
        rates.append(plan.state_dict()["sharing"]["param_groups"][0]["lr"])
    expected = [0.1] * 3 + [0.02] * 2 + [0.004] * 3
    assert rates == pytest.approx(expected)


def test_sgd_is_nesterovs() -> None:
    """A literal step: v ← μv + g, α ← α − η(g + μv)."""
    network = build("linear")
    plan = compress(network, SoftSharing(lr=0.3, momentum=0.8, drops=()), steps=4)
    mix = next(m for m in network.modules() if type(m).__name__ == "Mix")
    v, alpha = torch.zeros(4), mix.s.detach().clone()
    for _ in range(3):
        network(batch("linear")).square().mean().backward()
        g = mix.s.grad.clone()
        v = 0.8 * v + g
        alpha = alpha - 0.3 * (g + 0.8 * v)
        plan.step()
        torch.testing.assert_close(mix.s.detach(), alpha)


def test_one_hot_gives_softmax_gradients() -> None:
    from paretorch.methods.sharing.banks import one_hot

    s = torch.tensor([0.3, 0.7, -0.2], requires_grad=True)
    value = one_hot(s, False)
    assert value.tolist() == [0.0, 1.0, 0.0]
    weight = torch.tensor([1.0, -2.0, 0.5])
    (found,) = torch.autograd.grad((value * weight).sum(), s)
    (expected,) = torch.autograd.grad((torch.softmax(s, 0) * weight).sum(), s)
    torch.testing.assert_close(found, expected)


def test_the_weights_that_were_given_up_are_freed() -> None:
    network = build("linear")
    given_up = [weakref.ref(network[i].weight) for i in (1, 3, 5, 7)]
    plan = attach(network, "fewer")
    gc.collect()
    assert [ref() for ref in given_up] == [None] * 4
    assert not plan.is_hard


def test_every_group_has_its_own_reward() -> None:
    """The slopes reach the layers that they belong to, whatever stands between these in the model."""
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5), nn.Linear(4, 4), nn.Linear(5, 5), nn.Linear(5, 5))
    plan = compress(network, SoftSharing(recurrence=0.1, lr=1.0, momentum=0.0, drops=()), steps=4)
    mixes = [network[i].parametrizations.weight[0].sharing for i in range(5)]
    before = [mix.s.detach().clone().requires_grad_() for mix in mixes]
    with torch.no_grad():  # away from the start, where |·| has no slope
        for mix, value in zip(mixes, before, strict=True):
            value += torch.linspace(0.1, 0.4, len(value))
            mix.s.copy_(value)
    price = -0.1 * sum(recurrence(torch.stack([before[i] for i in group])) for group in ((0, 2), (1, 3, 4)))
    slopes = torch.autograd.grad(price, before)
    plan.step()
    for mix, value, slope in zip(mixes, before, slopes, strict=True):
        torch.testing.assert_close(mix.s.detach(), value.detach() - slope)


def test_similarity_is_logged() -> None:
    network = build("linear")
    plan = attach(network, "one")
    assert plan.metrics()["similarity"] == pytest.approx(1.0)
    assert attach(build("linear"), "all").metrics()["similarity"] == pytest.approx(0.0, abs=1e-5)


def test_more_templates_than_layers_are_allowed_and_explained() -> None:
    network = build("linear")
    before = network(batch("linear"))
    with pytest.warns(UserWarning, match="6 templates for 4 layers"):
        compress(network, SoftSharing(templates=6), steps=1)
    torch.testing.assert_close(network(batch("linear")), before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"templates": 0}, "1 or more"),
        ({"templates": 2.5}, "1 or more"),
        ({"domain": "ball"}, "real, simplex, one-hot"),
        ({"start": "zero"}, '"orthogonal" or "fit"'),
        ({"recurrence": -1.0}, "0 or more"),
        ({"threshold": 1.5}, "from 0 to 1"),
        ({"domain": "simplex", "threshold": 0.5}, 'need domain="real"'),
        ({"solver": "lbfgs"}, '"sgd" or "adam"'),
        ({"lr": 0.0}, "positive"),
        ({"momentum": 1.0}, "just below 1"),
        ({"drops": (2.0,)}, "shares of the steps"),
        ({"group": "layer"}, "use by="),
        ({"by": "stages"}, "function"),
        ({"by": ()}, "patterns such as"),
        ({"by": nn.Linear}, "patterns such as"),
        ({"by": ["*", "stages.*"]}, "'stages.*' matches none of the layers that may share, such as 0.weight"),
        ({"by": lambda name, _: None}, "let by= give equal layers one label"),
        ({"by": lambda name, _: [name]}, "a number, a string or a tuple"),
        ({"drops": 0.5}, "shares of the steps"),
        ({"domain": ["real"]}, "real, simplex, one-hot"),
        ({"exclude": "*"}, "finds no layer"),
        ({"include": ["0", "9"]}, "no two layers of one kind and one weight shape .* choose others with include="),
        ({"overrides": {"1": {"templates": 1}}}, "must be one"),
    ],
)
def test_refusals(options: dict[str, object], words: str) -> None:
    network = build("linear")
    state = list(network.state_dict())
    with pytest.raises(ConfigError, match=words):
        compress(network, SoftSharing(**options), steps=4)
    assert list(network.state_dict()) == state


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="byte budget does not go with SoftSharing"):
        compress(build("linear"), SoftSharing(), steps=4, budget=100_000)
    with pytest.raises(ConfigError, match="channels of layers that share"):
        compress(
            build("conv"),
            SoftSharing(),
            ContinuousSparsification(target=0.3, group="channel"),
            steps=4,
            example=batch("conv"),
        )


def test_dtypes_and_moves() -> None:
    network = build("linear").to(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = attach(network, "fewer")
    assert network.paretorch_template_0_0.dtype == torch.bfloat16
    losses = train(network, plan, optimizer_of(plan), batch("linear").to(torch.bfloat16), 2)
    assert all(math.isfinite(loss) for loss in losses)
    mixes = [m for m in network.modules() if type(m).__name__ == "Mix"]
    network.to(torch.float64)
    assert all(m.s.dtype == torch.float32 for m in mixes)
    assert plan.finalize()[1].weight.dtype == torch.float64
