"""What k bits cost in the file: about k bits per weight, whatever the grid; bad options and bad weights are refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paretorch import SMOL, ContinuousSparsification, compress, report
from paretorch.deploy import load, save
from paretorch.errors import ConfigError
from paretorch.methods.precision.rivals import BSQ, DSQ, LSQ, PACT, SLB, DoReFa, LQNets, Uniform, first_and_last
from tests.contract.cases import build
from tests.contract.loop import equal, snapshot
from tests.decisions import relaxations

ALL = [Uniform, DoReFa, PACT, LSQ, LQNets, DSQ, SLB, BSQ]


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(32, 64, 3, bias=False), nn.Conv2d(64, 32, 3, bias=False))


def file_bits(network: nn.Module, path: Path) -> float:
    save(network, path)
    return 8 * path.stat().st_size / sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    "method",
    [
        *(kind(bits=bits) for kind in (Uniform, LSQ, LQNets, DSQ, SLB, DoReFa, PACT) for bits in (2, 4)),
        *(kind(bits=1) for kind in (Uniform, LQNets, DSQ, SLB, DoReFa)),
    ],
    ids=lambda method: f"{type(method).__name__}-{method.bits}",
)
def test_k_bits_cost_at_most_k_bits_in_the_file(method: Any, tmp_path: Path) -> None:
    plan = compress(convolutions(), method, steps=4)
    plan.step()
    small = plan.finalize()
    expected = snapshot(small)
    values = [int(p.unique().numel()) for p in small.parameters()]
    assert max(values) <= 2**method.bits
    assert max(values) > 2**method.bits / 4, "the grid is used"
    bits = file_bits(small, tmp_path / "model.pare")
    assert 0.5 * method.bits <= bits <= method.bits + 0.1, "values, codebook, names and all"
    assert equal(snapshot(load(tmp_path / "model.pare", into=convolutions())), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [Uniform, LSQ, LQNets, DSQ, SLB, DoReFa, PACT])
def test_bits_of_half_precision_are_told_as_those_of_fp32(kind: Any, dtype: torch.dtype) -> None:
    """Numbers of 8 or 11 binary digits are on a binary grid of so many bits, whatever few values they are."""
    small = compress(convolutions().to(dtype), kind(bits=2), steps=4).finalize()
    assert report(small).bits == pytest.approx(2.0)
    mixed = compress(convolutions().to(dtype), SMOL(target_bits=2.5, init_bits=4.0), steps=4).finalize()
    assert report(mixed).bits == pytest.approx(2.5, abs=0.01)
    assert report(compress(convolutions().to(dtype), Uniform(bits=8), steps=4).finalize()).bits == 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_channels_in_half_precision_cost_what_they_do_in_fp32(bits: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """Each channel has a step of its own, and its products are rounded once more: together they are many values."""
    full, half = (
        compress(convolutions().to(kind), LSQ(bits=bits, group="channel"), steps=4).finalize()
        for kind in (torch.float32, dtype)
    )
    save(full, tmp_path / "full.pare")
    save(half, tmp_path / "half.pare")
    assert report(half).bits == pytest.approx(report(full).bits)
    assert (tmp_path / "half.pare").stat().st_size <= (tmp_path / "full.pare").stat().st_size
    assert equal(snapshot(load(tmp_path / "half.pare", into=convolutions().to(dtype))), snapshot(half))


@pytest.mark.parametrize("bits", [2, 4])
def test_planes_cost_their_bits_and_a_sign(bits: int, tmp_path: Path) -> None:
    plan = compress(convolutions(), BSQ(bits=bits), steps=4)
    plan.step()
    counted = plan.metrics()["bits"]
    assert 0.5 * counted <= file_bits(plan.finalize(), tmp_path / "model.pare") <= counted + 1.1


def test_zeros_beside_few_values_cost_their_mask(tmp_path: Path) -> None:
    plan = compress(convolutions(), ContinuousSparsification(target=0.9), LSQ(bits=2), steps=4)
    plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(0.2, abs=0.01)
    assert file_bits(plan.finalize(), tmp_path / "model.pare") <= 0.8


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bits", [-1, 17, 2.5, 2.0, True, None])
def test_bits_out_of_range_are_refused_with_the_model_untouched(kind: Any, bits: Any) -> None:
    network = build("linear")
    before = snapshot(network)
    with pytest.raises(ConfigError, match=rf"bits={bits}: {kind.__name__} takes "):
        compress(network, kind(bits=bits), steps=4)
    assert equal(snapshot(network), before)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (LSQ(bits=1), "takes 2, 3"),
        (PACT(bits=6), "takes 2, 3, 4, 5, 8"),
        (LQNets(bits=5), "takes 1, 2, 3, 4"),
        (LQNets(momentum=1.5), "from 0 to 1"),
        (LSQ(lr=-0.1), "0 or more"),
        (DSQ(softness=0.5), "0.01 to 0.49"),
        (SLB(final_temperature=0.0), "above 0"),
        (BSQ(penalty=-1.0), "0 or more"),
        (BSQ(adjustments=0), "1 or more"),
        (Uniform(scale="large"), "exponent from -60 to 60"),
        (Uniform(scale=-4), r'weights up to .* use scale="auto"'),
        (DoReFa(group="channel"), 'one grid for each "layer"'),
        (LSQ(group="network"), '"layer" or "channel"'),
        (LSQ(overrides={"0": {"bits": 20}}), "bits=20"),
        (LSQ(overrides={"0": {"lr": 1.0}}), "is no option of LSQ that may differ by layer"),
    ],
)
def test_refused_with_the_model_untouched(method: Any, message: str) -> None:
    network = build("linear")
    before = snapshot(network)
    with pytest.raises(ConfigError, match=message):
        compress(network, method, steps=4)
    assert equal(snapshot(network), before)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(kind: Any, bad: float) -> None:
    network = build("linear")
    network[0].weight.data[0, 0] = bad
    with pytest.raises(ConfigError, match=r"0.weight has values that are not finite"):
        compress(network, kind(), steps=4)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e4])
def test_layers_of_any_magnitude(kind: Any, size: float) -> None:
    """Zeros, and weights far outside ±2: the grid is scaled to them."""
    network = build("linear")
    network[0].weight.data.mul_(size)
    plan = compress(network, kind(), steps=4)
    network(torch.ones(2, 6)).sum().backward()
    plan.step()
    plan.harden()
    found = network[0].weight.detach()
    assert bool(torch.isfinite(found).all())
    if size == 1e4:
        assert 1e3 < float(found.abs().max()) < 2e4


@pytest.mark.parametrize("kind", [Uniform, LQNets, DSQ, SLB, DoReFa, PACT])
@pytest.mark.parametrize("shape", [(1, 1), (4, 3)])
def test_layers_of_equal_weights_keep_their_size(kind: Any, shape: tuple[int, int]) -> None:
    layer = nn.Linear(*shape, bias=False)
    nn.init.constant_(layer.weight, -0.3)
    small = compress(layer, kind(bits=2), steps=4).finalize()
    assert all(0.5 < value / -0.3 < 2 for value in small.get_parameter("weight").flatten().tolist())


def test_first_and_last_may_have_bits_of_their_own() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    assert first_and_last(network, 8) == {"0.weight": {"bits": 8}, "4.weight": {"bits": 8}}
    overrides = first_and_last(network, 8, exclude=["4"])
    assert list(overrides) == ["0.weight", "2.weight"]
    plan = compress(network, LSQ(bits=2, exclude=["4"], overrides=overrides), steps=4)
    assert [own.precision for own in relaxations(network)] == [8, 2, 8]
    assert plan.metrics()["bits"] == pytest.approx((8 * 18 + 2 * 36 + 8 * 72) / 126)
    with pytest.raises(ConfigError, match="no layer"):
        first_and_last(nn.ReLU(), 8)


@pytest.mark.parametrize("kind", [LSQ, Uniform])
def test_a_budget_in_bytes_is_kept_by_the_zeros_beside(kind: Any, tmp_path: Path) -> None:
    plan = compress(convolutions(), ContinuousSparsification(), kind(bits=2), steps=4, budget=4000)
    plan.harden()
    save(plan.finalize(), tmp_path / "model.pare")
    assert 3500 <= (tmp_path / "model.pare").stat().st_size <= 4000
