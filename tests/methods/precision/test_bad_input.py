"""What cannot be meant by precisions: refused before training with the model untouched, or done as documented."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from paretorch import SMOL, ContinuousSparsification, compress
from paretorch.errors import ConfigError, DivergenceError, MissedTargetWarning
from paretorch.methods.precision.grid import quantize, scale_offset
from paretorch.methods.precision.rivals import Uniform
from paretorch.methods.precision.shuffle import GivenPrecision, precision_map
from tests.contract.cases import build
from tests.contract.loop import equal, snapshot
from tests.decisions import copies, decisions, relaxations


@pytest.mark.parametrize(
    "options",
    [
        *({"target_bits": bits} for bits in (-1, -0.5, 0, 16.5, 17, math.nan, math.inf, "2", True)),
        *({"init_bits": bits} for bits in (-1, 0, 1, 16.5, math.nan)),
        *({"allowed_bits": bits} for bits in ((-1, 2), (0, 1), (4, 17), (1.5,), [1, 2], (True, 2))),
        *({"scale": scale} for scale in ("large", 1.5, True, 61, -61)),
    ],
)
def test_bits_below_0_or_above_16(options: dict[str, Any]) -> None:
    network = build("linear")
    before = snapshot(network)
    with pytest.raises(ConfigError, match=next(iter(options))):
        compress(network, SMOL(**options), steps=4)
    assert equal(snapshot(network), before)


@pytest.mark.parametrize(("options", "lowest"), [({}, 1), ({"allowed_bits": (2, 4)}, 2)])
def test_a_target_below_what_every_weight_gets(options: dict[str, Any], lowest: int) -> None:
    with pytest.raises(ConfigError, match=f"below the {lowest} that every weight gets: use zero_precision=True"):
        compress(build("linear"), SMOL(target_bits=lowest - 0.5, **options), steps=4)
    compress(build("linear"), SMOL(target_bits=lowest - 0.5, zero_precision=True, **options), steps=4)


def test_a_target_above_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="target_bits=6 is above the largest of allowed_bits, 4"):
        compress(build("linear"), SMOL(target_bits=6, allowed_bits=(1, 2, 4)), steps=4)


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 8), (torch.float16, 11), (torch.float32, 16)])
def test_more_bits_than_the_dtype_has_digits(dtype: torch.dtype, most: int) -> None:
    """A value of p bits has p binary digits: of more, the last would be rounded away, and count all the same."""
    given = precision_map(compress(nn.Linear(4, 3), Uniform(bits=most), steps=1).finalize())
    for fits in (SMOL(init_bits=most, penalty=1e-4), Uniform(bits=most), GivenPrecision(precisions=given)):
        compress(nn.Linear(4, 3).to(dtype), fits, steps=4)
    if most == 16:
        return
    given = precision_map(compress(nn.Linear(4, 3), Uniform(bits=most + 1), steps=1).finalize())
    for method in (
        SMOL(init_bits=most + 1),
        SMOL(init_bits=most, allowed_bits=(2, 16)),
        SMOL(overrides={"weight": {"init_bits": most + 1.0}}),
        Uniform(bits=most + 1),
        GivenPrecision(precisions=given),
    ):
        network = nn.Linear(4, 3).to(dtype)
        with pytest.raises(
            ConfigError, match=rf"weight is {dtype}, which holds at most {most} bits, not 1?\d: .*\.float\("
        ):
            compress(network, method, steps=4)
        assert list(network.state_dict()) == ["weight", "bias"]


def test_a_generous_file_takes_the_largest_bits_that_are_allowed() -> None:
    plan = compress(build("linear"), SMOL(allowed_bits=(1, 2)), steps=4, budget=10_000)
    plan.harden()
    assert plan.metrics()["bits"] == 2.0


def test_zero_precision_leaves_a_bit_to_large_weights() -> None:
    """No target goes below that: a weight above half the scale is nearer to ±1 than to 0, and keeps its bit."""
    torch.manual_seed(0)
    network = nn.Linear(40, 60)
    nn.init.normal_(network.weight, std=0.6).data.clamp_(-2, 2)
    large = float((network.weight.detach().abs() > 0.5).float().mean())
    plan = compress(network, SMOL(target_bits=0.01, zero_precision=True, scale=0), steps=4)
    with pytest.warns(MissedTargetWarning, match=f"target_bits=0.01: {large:.3g} is the least here"):
        plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(large, abs=1e-6)


def test_a_kept_weight_has_a_bit() -> None:
    network = build("linear")
    plan = compress(network, ContinuousSparsification(target=0.5), SMOL(target_bits=0.3), steps=4)
    with pytest.warns(MissedTargetWarning, match="is the least here, since every kept weight"):
        plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["weight", "bias"])
def test_weights_that_are_not_finite(which: str, bad: float) -> None:
    network = build("conv2d")
    getattr(network[2], which).data.flatten()[0] = bad
    with pytest.raises(ConfigError, match=rf"2\.{which} has values that are not finite: load or initialize"):
        compress(network, SMOL(target_bits=2.0), steps=4)


def test_a_range_beyond_the_grid_of_a_given_scale() -> None:
    network = build("linear")
    network[2].weight.data[0, 0] = -5.0
    before = snapshot(network)
    with pytest.raises(ConfigError, match=r'2\.weight has weights up to 5, outside the grid of ±2: use scale="auto"'):
        compress(network, SMOL(target_bits=2.0, scale=0), steps=4)
    assert equal(snapshot(network), before)


@pytest.mark.parametrize("scale", ["fit", "auto"])
def test_the_scale_is_found_where_none_is_given(scale: str) -> None:
    network = build("linear")
    network[2].weight.data[0, 0] = -5.0
    rms = [float(network[i].weight.detach().square().mean().sqrt()) for i in (0, 2)]
    plan = compress(network, SMOL(target_bits=4.0, scale=scale), steps=4)
    found = [own.scale_exponent() for own in relaxations(network)]
    assert found == ([0, 2] if scale == "fit" else [round(math.log2(one) + scale_offset(4.0)) for one in rms])
    plan.harden()
    weight = relaxations(network)[1]
    levels = weight.levels(weight.decision.detach())
    expected = quantize(-5.0 / weight.scale, levels[0, 0]) * weight.scale
    assert network[2].weight[0, 0].item() == expected.item()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_have_become_infinite_are_not_rounded(value: float) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plan = compress(network, SMOL(target_bits=2.0), steps=4)
    before = copies(decisions(network))
    network[1].paretorch_weight.latent.data[0, 0] = value
    with pytest.raises(DivergenceError, match=r"1\.weight has values that are not finite"):
        plan.harden()
    assert not plan.is_hard
    assert all(torch.equal(a, b) for a, b in zip(decisions(network), before, strict=True))
