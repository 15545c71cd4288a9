"""A budget in milliseconds: measured times as prices, a target that follows from them, and networks that are cut until they meet it."""

import copy
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification
from paretorch.core.compress import compress
from paretorch.core.finish.latency_budget import LatencyBudget, Point, between
from paretorch.core.plan import Plan
from paretorch.deploy import encoded_size
from paretorch.edits import Edit
from paretorch.errors import ConfigError, MissedTargetWarning, PareWarning
from paretorch.methods.sparsity.rivals import NetworkSlimming

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.body, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(torch.relu(self.norm2(self.body(x))).mean((2, 3)))


class Fake:
    """A runtime whose layers take the time of their products, but for those that are free, and whose networks take a little more."""

    def __init__(
        self, model: nn.Module, free: Sequence[str] = (), whole: Callable[[float], float] = lambda time: 1.0 + time
    ) -> None:
        self.model, self.free, self.whole = copy.deepcopy(model), free, whole
        self.networks: list[float] = []

    def __deepcopy__(self, memo: dict[int, object]) -> "Fake":
        return self

    def layer(self, weight: str, rows: Sequence[int], columns: Sequence[int]) -> list[list[float]]:
        rate = 0.0 if weight.split(".")[0] in self.free else 1e-3
        return [[rate * row * column for column in columns] for row in rows]

    def network(self, edits: Sequence[Edit]) -> float:
        small = copy.deepcopy(self.model)
        for edit in edits:
            edit.apply(small)
        sizes = {name: p.shape[0] * p.shape[1] for name, p in small.named_parameters() if p.dim() > 1}
        found = self.whole(sum(1e-3 * n for name, n in sizes.items() if name.split(".")[0] not in self.free))
        self.networks.append(found)
        return found


def trained(width: int = 64) -> Net:
    torch.manual_seed(0)
    model = Net(width).train()
    model(X)  # its norms have seen a batch
    return model


def run(model: nn.Module, plan: Plan, steps: int) -> nn.Module:
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.01)
    for _ in range(steps):
        model(X).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    return plan.finalize()


@pytest.mark.parametrize("share", [0.35, 0.5, 0.8])
def test_the_cut_network_takes_the_time_that_was_asked_for(share: float) -> None:
    model = trained()
    # Bent, so that a straight line through what was measured before is off.
    clock = Fake(model, whole=lambda time: 1.0 + time + 0.3 * time**0.5)
    target = share * clock.network(())
    method = ContinuousSparsification(group="channel", exclude="head", multiple=2)
    plan = compress(model, method, steps=4, example=X, latency=target, stopwatch=clock)
    before = len(clock.networks)
    small = run(model, plan, 4)
    assert 0.95 * target <= Fake(small, whole=clock.whole).network(()) <= target
    assert len(clock.networks) - before <= 5
    assert small.stem.out_channels % 2 == 0


def test_layers_keep_blocks_of_eight_unless_told_otherwise() -> None:
    model = trained()
    clock = Fake(model)
    plan = compress(model, channels(), steps=4, example=X, latency=0.6 * clock.network(()), stopwatch=clock)
    small = run(model, plan, 4)
    assert small.stem.out_channels % 8 == small.body.out_channels % 8 == 0
    assert small.stem.out_channels < 64


def channels(**options: object) -> ContinuousSparsification:
    return ContinuousSparsification(group="channel", exclude="head", **options)


def test_a_wide_layer_that_takes_no_time_is_not_cut() -> None:
    model = trained()
    clock = Fake(model, free=["stem", "head"])
    plan = compress(model, channels(), steps=4, example=X, latency=0.6 * clock.network(()), stopwatch=clock)
    (term,) = plan._terms
    assert term.coupling is not None
    assert term.coupling.prices is not None
    both = term.coupling.prices[:64].mean(), term.coupling.prices[64:].mean()
    torch.testing.assert_close(both[0], both[1])  # rows and columns of the body save alike
    other = trained()
    clock = Fake(other, free=["body", "head"])
    small = run(other, compress(other, channels(), steps=4, example=X, latency=1.1, stopwatch=clock), 4)
    assert small.body.out_channels == 64
    assert small.stem.out_channels < 64


def test_bytes_and_milliseconds_together() -> None:
    model = trained()
    clock = Fake(model)
    target, budget = 0.6 * clock.network(()), 9_000
    meter = lambda state, edits: encoded_size(state, trained(), edits)  # noqa: E731
    methods = channels(multiple=2), SMOL(group="channel")
    with warnings.catch_warnings(action="ignore"):
        plan = compress(
            model, *methods, steps=4, example=X, latency=target, stopwatch=clock, budget=budget, meter=meter
        )
        small = run(model, plan, 4)
    assert 0.95 * target <= Fake(small).network(()) <= target
    assert 0.9 * budget <= encoded_size(small.state_dict(), small, ()) <= 1.01 * budget


def test_a_file_that_only_channels_make_smaller_takes_more_of_them() -> None:
    model = trained()
    clock = Fake(model)
    target, budget = 0.8 * clock.network(()), 50_000
    meter = lambda state, edits: encoded_size(state, trained(), edits)  # noqa: E731
    plan = compress(model, channels(), steps=4, example=X, latency=target, stopwatch=clock, budget=budget, meter=meter)
    small = run(model, plan, 4)
    assert Fake(small).network(()) < 0.95 * target
    assert encoded_size(small.state_dict(), small, ()) <= 1.01 * budget


def test_a_network_that_is_fast_enough_is_left_whole() -> None:
    model = trained()
    clock = Fake(model)
    with pytest.warns(PareWarning, match=r"takes 5\.54 ms already, which is within 9 ms, so nothing is removed"):
        plan = compress(model, channels(), steps=2, example=X, latency=9.0, stopwatch=clock)
    small = run(model, plan, 2)
    assert (small.stem.out_channels, small.body.out_channels) == (64, 64)


def test_what_cannot_be_met_is_said_before_anything_changes() -> None:
    model = trained()
    before, keys = copy.deepcopy(model.state_dict()), list(model.state_dict())
    clock = Fake(model)
    least = r"takes at least 1\.12 ms, with 8 channels in each layer that can be cut, and 1\.05 ms was asked for"
    with pytest.raises(ConfigError, match=least):
        compress(model, channels(), steps=2, example=X, latency=1.05, stopwatch=clock)
    with pytest.raises(
        ConfigError,
        match=r"no cut makes this network or its layers faster here: it takes 7 ms with all channels and 7 ms",
    ):
        compress(model, channels(), steps=2, example=X, latency=3.0, stopwatch=Fake(model, whole=lambda time: 7.0))
    with pytest.raises(ConfigError, match="needs a method that removes channels: give ContinuousSparsification"):
        compress(model, ContinuousSparsification(), steps=2, example=X, latency=3.0, stopwatch=clock)
    with pytest.raises(ConfigError, match="removes channels: give example="):
        compress(model, channels(), steps=2, latency=3.0, stopwatch=clock)
    with pytest.raises(ConfigError, match="says how many channels go: leave out target="):
        compress(model, channels(target=0.5), steps=2, example=X, latency=3.0, stopwatch=clock)
    with pytest.raises(ConfigError, match="NetworkSlimming counts weights alone"):
        compress(model, NetworkSlimming(group="channel"), steps=2, example=X, latency=3.0, stopwatch=clock)
    with pytest.raises(ConfigError, match=r'count="latency" is for compress\(latency=\)'):
        compress(model, channels(target=0.5, count="latency"), steps=2, example=X)
    with pytest.raises(ConfigError, match="finds no channel that can be removed"):
        compress(nn.Linear(4, 4), ContinuousSparsification(group="channel"), steps=2, example=torch.randn(2, 4), latency=3.0, stopwatch=clock)  # fmt: skip
    assert list(model.state_dict()) == keys
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_time_that_blocks_of_channels_miss_is_warned_of() -> None:
    budget = LatencyBudget(5.0, Fake(Net()), 0.5, Point(0.1, 1.0), Point(1.0, 10.0))
    stairs = lambda factor: Point(0.5 * factor, 8.0 if factor > 0.9 else 4.0)  # noqa: E731
    with pytest.warns(MissedTargetWarning, match="the network takes 4 ms, not 5 ms, since channels go in blocks"):
        assert budget.fit(stairs) < 0.9


def test_a_line_never_leads_beyond_its_ends() -> None:
    low, high = Point(0.2, 2.0), Point(1.0, 10.0)
    assert between(low, high, 6.0) == pytest.approx(0.6)
    assert between(low, high, 20.0) == 1.0
    assert between(low, high, 1.0) == pytest.approx(0.2)
    assert between(Point(0.2, 5.0), Point(1.0, 5.0), 5.0) == pytest.approx(0.6)


def test_a_run_goes_on_with_the_times_that_it_began_with() -> None:
    first = trained()
    plan = compress(first, channels(), steps=4, example=X, latency=3.0, stopwatch=Fake(first))
    first(X).square().mean().backward()
    plan.step()
    state = copy.deepcopy(first.state_dict())

    second = trained()
    slower = Fake(second, whole=lambda time: 1.0 + 1.2 * time)  # another day
    again = compress(second, channels(), steps=4, example=X, latency=3.0, stopwatch=slower)
    assert again.methods() != plan.methods()
    again._terms[0].coupling.times = 2.0 * again._terms[0].coupling.times
    second.load_state_dict(state)
    assert again.methods() == plan.methods()
    torch.testing.assert_close(again._terms[0].coupling.times, plan._terms[0].coupling.times)
    assert not any("times" in name for name in run(first, plan, 0).state_dict())


def test_a_failed_measurement_leaves_the_search_as_it_was() -> None:
    model = trained()
    clock = Fake(model)
    plan = compress(model, channels(), steps=4, example=X, latency=3.0, stopwatch=clock)
    before = copy.deepcopy(model.state_dict())

    def fail(time: float) -> float:
        raise ConfigError("no such operator")

    clock.whole = fail
    with pytest.raises(ConfigError, match="no such operator"):
        plan.harden()
    assert not plan.is_hard
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
