"""AMC, piece by piece against its paper: states, bounded actions, noise, values, and the search as a whole."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from paretorch import compress
from paretorch.core.plan import Plan
from paretorch.deploy.measure.structure import count_macs
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals import AMC, MagnitudePruning, harden_searched
from paretorch.methods.sparsity.rivals.amc import (
    FEATURES,
    Agent,
    Layer,
    Walk,
    episode_of,
    kept_counts,
    layers_of,
    noise,
    reward_of,
    truncated_normal,
    wanted_value,
)


def _network() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 1), nn.Flatten(), nn.Linear(96, 5)]
    return nn.Sequential(*layers)


def _zeros(network: nn.Sequential) -> list[float]:
    return [float((network[i].weight == 0).float().mean()) for i in (0, 2, 4)]  # type: ignore[union-attr]


def test_the_layers_are_seen_in_the_order_of_the_forward_pass() -> None:
    network = _network()
    compress(network, AMC(target=0.5), steps=1)
    network.train()
    seen = layers_of(network, torch.zeros(3, 2, 8, 8))
    assert list(seen) == [network[0], network[2], network[4]]
    assert list(seen.values()) == [
        Layer(n=4, c=2, h=8, w=8, stride=2, k=3, macs=72 * 16, weights=72),
        Layer(n=6, c=4, h=4, w=4, stride=1, k=1, macs=24 * 16, weights=24),
        Layer(n=5, c=96, h=1, w=1, stride=1, k=1, macs=480, weights=480),
    ]
    assert network.training
    assert not network[0]._forward_hooks


def test_layers_whose_weights_are_stored_the_other_way_round_are_seen_as_the_others() -> None:
    """In and out are what they do, not how they are stored; multiply-adds are those of the report."""
    network = nn.Sequential(
        nn.ConvTranspose2d(6, 4, 3, stride=2),
        nn.ConvTranspose2d(4, 6, 2, groups=2),
        nn.Flatten(),
        Conv1D(5, 600),
    )
    compress(network, AMC(target=0.5), steps=1)
    example = torch.zeros(1, 6, 4, 4)
    seen = list(layers_of(network, example).values())
    assert seen == [
        Layer(n=4, c=6, h=4, w=4, stride=2, k=3, macs=216 * 16, weights=216),
        Layer(n=6, c=2, h=9, w=9, stride=1, k=2, macs=48 * 81, weights=48),
        Layer(n=5, c=600, h=1, w=1, stride=1, k=1, macs=3000, weights=3000),
    ]
    assert [layer.macs for layer in seen] == list(count_macs(network, example).values())


def test_a_state_has_the_paper_s_features_in_its_order_scaled() -> None:
    layers = [Layer(8, 4, 16, 16, 2, 3, 1000, 300), Layer(4, 8, 8, 4, 1, 1, 500, 100)]
    found = Walk(layers).state(1, reduced=60.0, last=0.2)
    #           t    n    c    h    w     stride k    FLOPs reduced    rest a_{t-1}
    expected = [1.0, 0.5, 1.0, 0.5, 0.25, 0.5, 1 / 3, 0.5, 60 / 400, 0.0, 0.2]
    torch.testing.assert_close(found, torch.tensor(expected))
    assert len(found) == FEATURES
    assert float(Walk(layers).state(0, 0.0, 0.0)[9]) == pytest.approx(100 / 400)


def _algorithm_1(wanted: list[float], weights: list[int], alpha: float, most: float) -> list[float]:
    """Algorithm 1 of He et al., line by line."""
    done = []
    reduced = 0.0
    for t, action in enumerate(wanted):
        action = min(action, most)
        everything = sum(weights)
        rest = sum(weights[t + 1 :])
        duty = alpha * everything - most * rest - reduced
        action = max(action, duty / weights[t])
        reduced = reduced + action * weights[t]
        done.append(action)
    return done


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    target=st.floats(0.01, 0.98),
    room=st.floats(0.05, 1.0),
    seed=st.integers(0, 99),
)
def test_actions_are_bounded_as_printed_and_the_target_is_always_met(
    weights: list[int], target: float, room: float, seed: int
) -> None:
    most = target + (0.999 - target) * room
    wanted = torch.rand(len(weights), generator=torch.Generator().manual_seed(seed)).tolist()
    walk = Walk([Layer(1, 1, 1, 1, 1, 1, 1, count) for count in weights])
    shares: list[float] = []
    for t, action in enumerate(wanted):
        reduced = sum(a * w for a, w in zip(shares, weights, strict=False))
        shares.append(walk.bounded(t, action, reduced, target, most))
    assert shares == pytest.approx(_algorithm_1(wanted, weights, target, most))
    dropped = sum(a * w for a, w in zip(shares, weights, strict=True))
    assert dropped >= target * sum(weights) - 1e-6
    assert all(a <= most + 1e-9 for a in shares)
    kept = round((1 - target) * sum(weights))
    counts = kept_counts(shares, weights, kept)
    assert sum(counts) == kept
    assert all(0 <= count <= size for count, size in zip(counts, weights, strict=True))


def test_layers_that_are_given_some_back_get_it_in_proportion() -> None:
    assert kept_counts([0.5, 0.8], [100, 100], 70) == [50, 20]
    assert kept_counts([0.5, 0.75], [100, 100], 150) == [100, 50]
    assert kept_counts([0.9, 0.9, 0.9], [10, 10, 10], 4) == [2, 1, 1]


@pytest.mark.parametrize(("mean", "sigma"), [(0.5, 0.5), (0.1, 0.2), (0.95, 0.4)])
def test_noise_is_a_truncated_normal(mean: float, sigma: float) -> None:
    draw = torch.Generator().manual_seed(0)
    found = torch.tensor([truncated_normal(mean, sigma, draw) for _ in range(4000)])
    assert 0.0 <= float(found.min()) < float(found.max()) <= 1.0

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    low, high = -mean / sigma, (1 - mean) / sigma
    mass = 0.5 * (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2)))
    expected = mean + sigma * (density(low) - density(high)) / mass
    assert float(found.mean()) == pytest.approx(expected, abs=0.02)
    assert truncated_normal(1.7, 0.0, draw) == 1.0


def test_noise_stays_then_decays() -> None:
    assert [noise(episode, 2) for episode in range(4)] == pytest.approx([0.5, 0.5, 0.475, 0.45125])


def test_values_are_the_reward_over_its_baseline_and_what_comes_after() -> None:
    y = wanted_value(torch.tensor([[-0.2], [-0.2]]), -0.5, torch.tensor([[2.0], [2.0]]), torch.tensor([[0.0], [1.0]]))
    torch.testing.assert_close(y, torch.tensor([[2.3], [0.3]]))
    assert reward_of(0.9) == pytest.approx(-0.1)


def test_every_layer_of_an_episode_has_its_reward_and_the_baseline_follows() -> None:
    agent = Agent(2, seed=0)
    states = [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])]
    agent.remember(states, [0.1, 0.9], -0.4)
    agent.remember(states, [0.2, 0.8], -0.2)
    assert [(row[1], row[2], row[4]) for row in agent._memory] == [
        (0.1, -0.4, False),
        (0.9, -0.4, True),
        (0.2, -0.2, False),
        (0.8, -0.2, True),
    ]
    assert torch.equal(agent._memory[0][3], states[1])
    assert agent.baseline == pytest.approx(-0.4 * 0.95 - 0.2 * 0.05)


def test_the_agent_learns_which_action_pays() -> None:
    agent, state = Agent(1, seed=1), torch.zeros(1)
    for episode in range(150):
        action = agent.act(state, noise(episode, 60))
        agent.remember([state], [action], -((action - 0.8) ** 2))
        if episode >= 60:
            for _ in range(6):
                agent.learn()
    assert agent.act(state, 0.0) == pytest.approx(0.8, abs=0.12)


def test_an_episode_feeds_back_what_was_done() -> None:
    class Fixed(Agent):
        def act(self, state: Tensor, sigma: float) -> float:
            return 0.3

    walk = Walk([Layer(1, 1, 1, 1, 1, 1, 1, 100)] * 2)
    states, shares = episode_of(walk, Fixed(FEATURES, 0), 0.5, target=0.5, most=0.9)
    assert shares == pytest.approx([0.3, 0.7])
    assert states[1][-3:].tolist() == pytest.approx([0.15, 0.0, 0.3])


def test_the_search_spares_the_layer_that_matters_and_meets_the_target() -> None:
    network = _network()
    plan = compress(network, AMC(target=0.6, episodes=30, warmup=15), steps=1)
    tried: list[tuple[float, list[float]]] = []

    def evaluate(model: nn.Module) -> float:
        tried.append((1.0 - _zeros(network)[0], _zeros(network)))  # only the first layer counts
        return tried[-1][0]

    before = torch.get_rng_state()
    best = harden_searched(plan, evaluate, torch.zeros(1, 2, 8, 8))
    assert torch.equal(torch.get_rng_state(), before), "the search has a generator of its own"
    assert len(tried) == 30
    assert best == max(score for score, _ in tried)
    assert _zeros(network) == max(tried)[1]
    assert _zeros(network)[0] < 0.2
    total = sum(network[i].weight.numel() for i in (0, 2, 4))  # type: ignore[union-attr]
    dropped = sum(int((network[i].weight == 0).sum()) for i in (0, 2, 4))  # type: ignore[union-attr]
    assert dropped == total - round(0.4 * total)
    for i in (0, 2, 4):
        weight = network[i].paretorch_weight.latent  # type: ignore[union-attr,index]
        gone = network[i].weight == 0  # type: ignore[union-attr]
        assert not bool(gone.any()) or weight.abs()[gone].max() <= weight.abs()[~gone].min()


def test_a_search_repeats_with_its_seed() -> None:
    found = []
    for seed in (0, 0, 1):
        network = _network()
        plan = compress(network, AMC(target=0.5, episodes=4, warmup=2), steps=1)
        harden_searched(plan, lambda model: float(model(torch.ones(1, 2, 8, 8)).sum()), torch.zeros(1, 2, 8, 8), seed)
        found.append(_zeros(network))
    assert found[0] == found[1] != found[2]


def test_only_amc_is_searched() -> None:
    plan: Plan = compress(_network(), MagnitudePruning(target=0.5), steps=1)
    with pytest.raises(ConfigError, match="nothing to search"):
        harden_searched(plan, lambda model: 0.0, torch.zeros(1, 2, 8, 8))


def test_an_accuracy_that_is_no_number_is_refused() -> None:
    plan: Plan = compress(_network(), AMC(target=0.5, episodes=2), steps=1)
    with pytest.raises(ConfigError, match="evaluate gave nan: return the accuracy"):
        harden_searched(plan, lambda model: math.nan, torch.zeros(1, 2, 8, 8))
    assert not plan.is_hard
