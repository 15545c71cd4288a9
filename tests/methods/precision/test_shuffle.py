"""Maps of precisions: read off a finalized network, permuted within layers, given to new weights."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paretorch import SMOL, ContinuousSparsification, compress
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import quantize
from paretorch.methods.precision.shuffle import GivenPrecision, precision_map
from tests.contract.cases import MODELS, build
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.decisions import bits, decisions


def searched(model: str = "linear", **options: object) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    network = build(model)
    plan = compress(network, SMOL(**{"target_bits": 2.5, **options}), steps=6)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    for s in decisions(network):
        s.data.copy_(torch.randn(s.shape, generator=generator) * 2 - 1)
    plan.harden()
    values = plan.dense_state_dict()
    found = {name: own * (values[name] != 0) for name, own in bits(network).items()}
    return plan.finalize(), found


@pytest.mark.parametrize("options", [{}, {"zero_precision": True}, {"scale": 3}, {"scale": "auto", "group": "channel"}])
def test_the_map_is_read_off_the_values(options: dict[str, object]) -> None:
    network, own = searched("conv2d", **options)
    found = precision_map(network)
    assert found.bits.keys() == own.keys()
    assert all(torch.equal(found.bits[name].long(), own[name].long()) for name in own)


def test_a_tied_weight_is_read_once_and_at_its_scale() -> None:
    network, own = searched("tied", scale="auto")
    found = precision_map(network)
    assert found.bits.keys() == own.keys()
    assert all(torch.equal(found.bits[name].long(), own[name].long()) for name in own)


@settings(max_examples=30, deadline=None)
@given(p=st.integers(1, 16), seed=st.integers(0, 99), exponent=st.integers(-8, 8))
def test_every_precision_is_readable(p: int, seed: int, exponent: int) -> None:
    w = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
    values = quantize(w, torch.tensor(p)) * 2.0**exponent
    edits = [{"kind": "scale", "weight": "w", "exponent": exponent}]
    assert bool((precision_map({"w": values}, edits).bits["w"] == p).all())


def test_shuffling_keeps_every_layer_s_histogram() -> None:
    found = precision_map(searched()[0])
    mixed = found.shuffled(seed=1)
    for name, p in found.bits.items():
        assert torch.equal(p.flatten().sort().values, mixed.bits[name].flatten().sort().values)
        assert not torch.equal(p, mixed.bits[name])
    assert mixed.average == found.average
    assert repr(found.shuffled(seed=1)) == repr(mixed) != repr(found.shuffled(seed=2))


@pytest.mark.parametrize("shuffle", [False, True])
def test_new_weights_are_trained_at_the_given_precisions(shuffle: bool) -> None:
    precisions = precision_map(searched(zero_precision=True)[0])
    wanted = precisions.shuffled(seed=4) if shuffle else precisions
    network = build("linear", seed=5)
    plan = compress(network, GivenPrecision(precisions=wanted), steps=8)
    assert plan.metrics()["bits"] == pytest.approx(precisions.average)
    optimizer, x = optimizer_of(plan), MODELS["linear"].batch(6)
    losses = train(network, plan, optimizer, x, 8)
    assert losses[-1] < losses[0]
    saved = copy.deepcopy((network.state_dict(), plan.state_dict(), optimizer.state_dict()))
    after = train(network, plan, optimizer, x, 2)

    twin = build("linear", seed=6)
    again = compress(twin, GivenPrecision(precisions=wanted), steps=8)
    own = optimizer_of(again)
    twin.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    own.load_state_dict(saved[2])
    assert train(twin, again, own, x, 2) == after
    assert equal(snapshot(twin), snapshot(network))
    small = plan.finalize()
    read = precision_map(small)
    for name, p in wanted.bits.items():
        assert torch.equal(read.bits[name] == 0, p == 0)
        assert bool((read.bits[name] == p).all())


def test_zeros_of_a_sparse_network_are_no_bits() -> None:
    network = build("linear")
    plan = compress(network, ContinuousSparsification(target=0.5), SMOL(target_bits=1.0), steps=4)
    found = precision_map(plan.finalize())
    assert sum(int((p == 0).sum()) for p in found.bits.values()) == 45


def test_other_networks_and_maps_are_refused() -> None:
    with pytest.raises(ConfigError, match="no weight of this network lies on the grid"):
        precision_map(build("linear"))
    with pytest.raises(ConfigError, match=r"needs precisions"):
        compress(build("linear"), GivenPrecision(), steps=4)
    found = precision_map(searched()[0])
    with pytest.raises(ConfigError, match=r"no precisions of the shape \(6, 3, 3, 3\)"):
        compress(build("conv2d"), GivenPrecision(precisions=found), steps=4)
    state = compress(build("linear"), GivenPrecision(precisions=found), steps=4).model.state_dict()
    twin = compress(build("linear"), GivenPrecision(precisions=found.shuffled(1)), steps=4).model
    with pytest.raises(ConfigError, match="another plan"):
        twin.load_state_dict(state)
