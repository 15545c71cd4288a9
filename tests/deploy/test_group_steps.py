"""Steps and offsets of groups: found in any layout, exact to the last bit, and as small as their information."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paretorch.deploy import load, save, sizes
from paretorch.deploy.codec.sizes import TensorSize

HOW = ("none", "whole", "q * s + o", "fused", "(q - z) * s", "q * s - z * s", "(q - 8) * s + o")


def entropy(symbols: np.ndarray) -> float:
    """Bytes of these symbols, coded with their own frequencies."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(counts @ np.log2(counts.sum() / counts)) / 8


def quantized(
    rows: int,
    groups: int,
    length: int,
    bits: int,
    how: str,
    dtype: type = np.float32,
    zeros: float = 0.0,
    seed: int = 0,
) -> tuple[np.ndarray, float]:
    """Groups of neighbours with steps (and offsets) of their own, as people compute them; and their ideal bytes."""
    random = np.random.default_rng(seed)
    weight = random.normal(size=(rows * groups, length)).astype(np.float32)
    low, high = weight.min(1, keepdims=True), weight.max(1, keepdims=True)
    step = ((high - low) / (2**bits - 1)).astype(dtype).astype(np.float32)
    low = low.astype(dtype).astype(np.float32)
    width = np.dtype(dtype).itemsize
    if how == "none":
        step = (np.abs(weight).max(1, keepdims=True) / max(2 ** (bits - 1) - 1, 1)).astype(dtype).astype(np.float32)
        codes = np.rint(weight / step).astype(np.float32)
        values, extra = codes * step, 0.0
    else:
        zero = np.rint(-low / step)
        codes = np.rint((weight - low) / step).clip(0, 2**bits - 1).astype(np.float32)
        real = (-low / step).astype(np.float32)
        values = {
            "whole": (codes - zero) * step,
            "q * s + o": codes * step + low,
            "fused": (codes.astype(np.float64) * step + low.astype(np.float64)).astype(np.float32),
            "(q - z) * s": (codes - real) * step,
            "q * s - z * s": codes * step - zero * step,
            "(q - 8) * s + o": (codes - 8) * step + low,
        }[how]
        extra = entropy(zero) if how in ("whole", "q * s - z * s") else zero.size * width
    keep = random.random(weight.shape) >= zeros
    ideal = entropy(np.where(keep, codes + 1000, 0)) + step.size * width + extra
    return (values * keep).astype(np.float32).reshape(rows, groups * length), ideal


def saved(weight: Tensor, folder: Path) -> TensorSize:
    """Save and load; the values must come back bit for bit."""
    model, empty = nn.Module(), nn.Module()
    model.register_buffer("w", weight)
    empty.register_buffer("w", torch.zeros_like(weight))
    found = save(model, folder / "x.pare").tensors["w"]
    back = load(folder / "x.pare", into=empty).w
    assert torch.equal(back, weight)
    return found


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(2, 40),
    groups=st.integers(1, 5),
    length=st.sampled_from([16, 24, 32, 50, 64, 96, 128]),
    bits=st.integers(2, 8),
    how=st.sampled_from(HOW),
    dtype=st.sampled_from([np.float32, np.float16]),
    zeros=st.sampled_from([0.0, 0.0, 0.3, 0.9]),
    layout=st.sampled_from(["rows", "columns", "taps"]),
    seed=st.integers(0, 999),
)
def test_any_groups_are_restored(
    rows: int,
    groups: int,
    length: int,
    bits: int,
    how: str,
    dtype: type,
    zeros: float,
    layout: str,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    values, _ = quantized(rows, groups, length, bits, how, dtype, zeros, seed)
    weight = torch.from_numpy(values)
    if layout == "columns":
        weight = weight.T.contiguous()
    elif layout == "taps":
        weight = weight.reshape(rows, -1, 2, 1)
    saved(weight, tmp_path_factory.mktemp("groups"))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(100, 160),
    groups=st.integers(2, 4),
    length=st.sampled_from([32, 40, 64, 96, 128]),
    bits=st.integers(2, 6),
    how=st.sampled_from(HOW[:-1]),
    dtype=st.sampled_from([np.float32, np.float16]),
    transposed=st.booleans(),
    seed=st.integers(0, 999),
)
def test_groups_cost_codes_steps_and_offsets(
    rows: int, groups: int, length: int, bits: int, how: str, dtype: type, transposed: bool, seed: int
) -> None:
    values, ideal = quantized(rows, groups, length, bits, how, dtype, 0.0, seed)
    weight = torch.from_numpy(values)
    found = sizes({"w": weight.T.contiguous() if transposed else weight}).tensors["w"]
    assert found.coding == "affine"
    assert found.total < 1.04 * ideal + 150


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.bfloat16, 2), (torch.bfloat16, 5), (torch.float16, 4), (torch.float16, 8)]
)
@pytest.mark.parametrize("how", ["none", "whole"])
@pytest.mark.parametrize("length", [32, 128])
def test_groups_in_half_precision(dtype: torch.dtype, bits: int, how: str, length: int, tmp_path: Path) -> None:
    values, ideal = quantized(150, 3, length, bits, how, np.float16)
    found = saved(torch.from_numpy(values).to(dtype), tmp_path)
    assert found.coding == "affine"
    assert found.total < 1.03 * ideal + 150


@pytest.mark.parametrize("how", ["none", "whole", "q * s + o"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_a_row_may_have_an_offset_too(how: str, bits: int, tmp_path: Path) -> None:
    values, ideal = quantized(120, 1, 400, bits, how)
    found = saved(torch.from_numpy(values), tmp_path)
    assert found.total < 1.03 * ideal + 150


@pytest.mark.parametrize("zeros", [0.5, 0.9])
@pytest.mark.parametrize("how", ["none", "whole"])
def test_zeros_among_groups_cost_their_mask(zeros: float, how: str, tmp_path: Path) -> None:
    values, ideal = quantized(200, 4, 64, 4, how, zeros=zeros)
    assert saved(torch.from_numpy(values), tmp_path).total < 1.03 * ideal + 150


def test_groups_may_run_on_from_row_to_row(tmp_path: Path) -> None:
    values, ideal = quantized(90, 4, 64, 4, "none")
    found = saved(torch.from_numpy(values).reshape(240, 96), tmp_path)
    assert found.total < 1.03 * ideal + 150


def test_the_last_group_of_a_row_may_be_shorter(tmp_path: Path) -> None:
    values, ideal = quantized(300, 3, 128, 4, "whole")
    found = saved(torch.from_numpy(values)[:, :300].contiguous(), tmp_path)
    assert found.coding == "affine"
    assert found.total < 1.05 * ideal


def test_outliers_are_escaped(tmp_path: Path) -> None:
    values, ideal = quantized(200, 4, 96, 4, "whole")
    weight = torch.from_numpy(values)
    outliers = torch.rand(weight.shape, generator=torch.Generator().manual_seed(0)) < 0.002
    weight = torch.where(outliers, torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)), weight)
    found = saved(weight, tmp_path)
    assert found.off > 0
    assert found.total < 1.05 * ideal + 5 * int(outliers.sum())


def test_a_factor_multiplied_into_rows_costs_a_fraction_of_a_bit(tmp_path: Path) -> None:
    """As a folded norm does: every product is rounded once more."""
    values, ideal = quantized(200, 1, 288, 4, "none")
    factor = np.random.default_rng(5).normal(size=(200, 1)).astype(np.float32)
    weight = torch.from_numpy(values * factor)
    found = saved(weight, tmp_path)
    assert found.total < ideal + 1.3 * weight.numel() / 8


def test_scales_of_half_precision_take_less_than_those_of_full() -> None:
    full, half = (
        sizes({"w": torch.from_numpy(quantized(200, 8, 32, 4, "none", d)[0])}).tensors["w"]
        for d in (np.float32, np.float16)
    )
    assert half.steps < 0.6 * full.steps


@pytest.mark.parametrize("per_row", [True, False])
def test_bits_may_differ_from_group_to_group(per_row: bool, tmp_path: Path) -> None:
    """Odd codes of 1 to 5 bits, with real scales per row or per group; those per row are stored once."""
    random = np.random.default_rng(0)
    bits = random.integers(1, 6, (160, 10, 1))
    odd = 2 * np.floor(random.random((160, 10, 32)) * 2.0**bits) + 1 - 2.0**bits
    scale = (random.random((160, 1 if per_row else 10, 1)) + 0.5).astype(np.float32)
    values = odd.astype(np.float32) * (2.0**-bits * scale).astype(np.float32)
    found = saved(torch.from_numpy(values.reshape(160, 320).astype(np.float32)), tmp_path)
    ideal = bits.sum() * 32 / 8 + entropy(bits) + scale.nbytes
    assert found.total < 1.05 * ideal + 300


def test_precisions_are_those_of_the_groups() -> None:
    values, _ = quantized(100, 4, 96, 4, "whole")
    found = sizes({"w": torch.from_numpy(values)}).tensors["w"]
    assert found.precisions == {4: values.size}
    assert found.bits == 4.0


def test_trained_floats_are_left_alone(tmp_path: Path) -> None:
    weight = torch.randn(100, 96, generator=torch.Generator().manual_seed(0))
    assert saved(weight, tmp_path).coding == "planes"
    weight[:, ::2] = 0.25
    saved(weight, tmp_path)
    weight[3, 4] = torch.inf
    saved(weight, tmp_path)
