"""The benchmark's own bookkeeping, with a clock that is given and a GPU that is not there."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from paretorch.deploy.fast.packing import Order, pack, unpack

PATH = Path(__file__).parents[2] / "benchmarks" / "packed_linear.py"
TILE = (32, 128)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packed_linear_benchmark", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = load()


class Graph:
    """Stands for a CUDA graph."""

    def __init__(self, calls: list) -> None:
        self.calls = calls

    def replay(self) -> None:
        self.calls[0]()


def int4_product(x: Tensor, packed: Tensor, group: int, scales: Tensor) -> Tensor:
    """(c − 8) · scale + zero, the even columns in the high halves of the bytes."""
    codes = torch.stack([packed >> 4, packed & 15], dim=2).flatten(1).float()
    scale, zero = (scales[..., i].float().repeat_interleave(group, 0).T for i in (0, 1))
    return (x.float() @ ((codes - 8) * scale + zero).T).bfloat16()


@pytest.fixture
def options(monkeypatch) -> argparse.Namespace:
    ticks = iter(range(1, 10_000))
    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "BEYOND_CACHE", 100_000)
    monkeypatch.setattr(bench, "_graph", lambda calls: (Graph(calls), 20))
    monkeypatch.setattr(bench, "elapsed", lambda call, count: call() or float(next(ticks)))
    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", lambda codes, tiles: codes)
    monkeypatch.setattr(torch, "_weight_int4pack_mm", int4_product)
    return argparse.Namespace(
        shapes=["64x256"], batch=[2], kinds=["4", "2", "mixed", "blocks"], tiles=["32x128", "64x128"],
        warps=[4], stages=[2, 3], programs=[2], early=[0, 1], rounds=2,
    )  # fmt: skip


def test_every_candidate_computes_the_same(options) -> None:
    rows = bench.gpu_table(options, 1e12)
    assert [row["candidate"] for row in rows] == [
        "bf16",
        "torch int4",
        "packed 4",
        "packed 2",
        "packed mixed",
        "packed blocks",
    ]
    assert all(row["error"] < 0.01 for row in rows)
    assert [row["bytes"] for row in rows[2:5]] == [64 * 256 // 2, 64 * 256 // 4, 64 * 256 * 6 // 8]
    assert all(row["copies"] * row["bytes"] >= 100_000 for row in rows)


def test_the_sweep_tries_settings_around_the_best_once(options) -> None:
    options.kinds = ["4"]
    rows = bench.sweep(options)
    settings = {row["setting"] for row in rows}
    assert len(rows) == len(settings)
    assert {setting[:4] for setting in settings} == {(t, 4, s, 2) for t in ("32x128", "64x128") for s in (2, 3)}
    assert len([setting for setting in settings if setting[4]]) == 3
    assert [row["us"] for row in rows] == sorted(row["us"] for row in rows)


@pytest.mark.parametrize("kind", ["2", "4", "8", "mixed", "blocks"])
def test_random_codes_are_what_pack_would_make(kind) -> None:
    packed = bench.random_packed((100, 300), kind, TILE, "cpu")
    again = pack(unpack(packed), *TILE)
    assert torch.equal(unpack(again), unpack(packed))
    assert packed.order is {"mixed": Order.REGULAR, "blocks": Order.FREE}.get(kind, Order.FULL)


def test_the_cpu_table_is_written_with_its_command(monkeypatch, tmp_path) -> None:
    target = tmp_path / "rows.json"
    monkeypatch.setattr(bench, "timed_rounds", lambda calls, rounds, seconds: {n: [2.0, 4.0] for n in calls})
    monkeypatch.setattr(bench, "_onnxruntime", lambda layer, x, path, threads: lambda: layer(x))
    monkeypatch.setattr(sys, "argv", ["packed_linear.py", "--cpu", "--size", "16", "--json", str(target)])
    bench.main()
    found = json.loads(target.read_text())
    assert len(found["sparse"]) == 2 * 4 * 3
    assert {row["us"] for row in found["sparse"]} == {3000.0}
    assert found["threads"] == 1
    assert "packed_linear.py --cpu" in found["command"]
