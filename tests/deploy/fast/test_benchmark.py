"""The benchmark's bookkeeping, with a given clock and no GPU."""

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

from paretorch.deploy.fast.launch import SETTINGS
from paretorch.deploy.fast.packing import Order, pack, unpack

PATH = Path(__file__).parents[3] / "benchmarks" / "packed_linear.py"
TILE = (32, 128)


def load(name: str = "packed_linear") -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", PATH.with_stem(name))
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


class Kept(list):
    """What was written so far, each time anew."""

    def __call__(self, **results: list) -> None:
        self.append(json.loads(json.dumps(results)))


@pytest.fixture
def options(monkeypatch) -> argparse.Namespace:
    ticks = iter(range(1, 10_000))
    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "BEYOND_CACHE", 100_000)
    monkeypatch.setattr(bench, "_graph", lambda calls: (Graph(calls), 20))
    monkeypatch.setattr(bench, "elapsed", lambda call, count: call() or float(next(ticks)))
    monkeypatch.setattr(bench, "chosen", lambda packed, x: bench.parse("64x128:2x4"))
    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", lambda codes, tiles: codes)
    monkeypatch.setattr(torch, "_weight_int4pack_mm", int4_product)
    return argparse.Namespace(
        shapes=["64x256"], batch=[2], kinds=["4", "2", "mixed", "blocks"], settings=None, rounds=2, ahead=2, sweep=True
    )


def test_every_candidate_computes_the_same(options) -> None:
    kept = Kept()
    options.shapes = ["64x256", "128x256"]
    bench.gpu_table(options, 1e12, kept)
    assert [len(results["rows"]) for results in kept] == [6, 12], "written shape by shape"
    rows = kept[0]["rows"]
    assert [row["candidate"] for row in rows] == [
        "bf16",
        "torch int4",
        "packed 4",
        "packed 2",
        "packed mixed",
        "packed blocks",
    ]
    assert all(row["error"] < 0.01 for row in rows)
    assert [row["bytes"] for row in rows[2:4]] == [64 * 256 // 2, 64 * 256 // 4]
    assert all(row["copies"] * row["bytes"] >= 100_000 for row in rows)
    assert {row.get("setting") for row in rows} == {None, "tiles 64x128, 2 × 4 warps"}


def test_a_given_setting_is_kept(options) -> None:
    kept = Kept()
    options.settings, options.kinds = ["32x128:3x2:stages=4:early"], ["4"]
    bench.gpu_table(options, 1e12, kept)
    assert kept[-1]["rows"][-1]["setting"] == "tiles 32x128, 3 × 2 warps, 4 stages, early"


def test_without_a_setting_the_fastest_of_those_optimize_knows_is_taken(monkeypatch) -> None:
    def clock(calls: dict) -> dict[str, list[float]]:
        return {name: [1.0 + (name != str(SETTINGS[-1]))] * 4 for name in calls}

    monkeypatch.setattr(bench, "timer", lambda device, rounds, seconds, graphs: clock)
    packed = bench.random_packed((64, 512), "2", TILE, "cpu")
    assert bench.chosen(packed, torch.randn(1, 512)) == SETTINGS[-1]


def test_the_sweep_writes_every_row_as_it_comes_the_most_promising_setting_first(options, monkeypatch, capsys) -> None:
    def fails(setting: object, case: object) -> dict | None:
        return None if setting.tuning.warps == 16 else right(setting, case)

    right, kept = bench.try_setting, Kept()
    monkeypatch.setattr(bench, "try_setting", fails)
    options.kinds = ["4", "2"]
    bench.sweep(options, kept)
    lengths = [len(results["sweep"]) for results in kept]
    tried = [bench.parse(text) for text in bench.SWEEP if "x16" not in text]
    assert lengths == list(range(1, 2 * len(tried) + 1))
    rows = kept[-1]["sweep"]
    assert [row["setting"] for row in rows] == [str(setting) for setting in tried for _ in range(2)]
    assert [row["kind"] for row in rows[:2]] == ["4", "2"], "every setting for all cases before the next"
    assert {row["candidate"] for row in kept[0]["dense"]} == {"bf16", "torch int4"}
    assert all(row["vs_bf16"] > 0 for row in rows)
    assert capsys.readouterr().out.count("best so far") == 2, "the clock only grows: the first of each case"


def test_a_setting_without_enough_memory_is_named_and_skipped(options, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench.Field, "add_packed", lambda *args: 1 / 0)
    assert bench.try_setting(bench.parse("32x256:1x8"), ("64x256", "4", 1)) is None
    assert "1 × 8 warps: ZeroDivisionError" in capsys.readouterr().out


def test_all_that_will_be_measured_is_compiled_ahead(options, monkeypatch, capsys) -> None:
    class Pool(list):
        def __init__(self, count: int, mp_context: object) -> None:
            assert count == 2

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *args: object) -> None: ...

        map = staticmethod(map)

    done: list = []
    right = bench.compile_one
    monkeypatch.setattr(bench, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(bench, "compile_one", lambda *task: done.append(task) or right(*task))
    options.kinds = ["4"]
    bench.compile_ahead(options)
    assert [setting for setting, _ in done] == [bench.parse(text) for text in bench.SWEEP]
    done.clear()
    options.sweep = False
    bench.compile_ahead(options)
    assert tuple(setting for setting, _ in done) == SETTINGS
    assert f"compiled {len(SETTINGS)} of {len(SETTINGS)}" in capsys.readouterr().out


def test_the_sweep_has_all_settings_of_optimize_and_none_twice() -> None:
    swept = [bench.parse(text) for text in bench.SWEEP]
    assert set(SETTINGS) <= set(swept)
    assert len(set(swept)) == len(swept)


@pytest.mark.parametrize("kind", ["2", "4", "8", "mixed", "blocks"])
def test_random_codes_are_what_pack_would_make(kind) -> None:
    packed = bench.random_packed((100, 300), kind, TILE, "cpu")
    again = pack(unpack(packed), *TILE)
    assert torch.equal(unpack(again), unpack(packed))
    assert packed.order is {"mixed": Order.REGULAR, "blocks": Order.FREE}.get(kind, Order.FULL)


def test_the_cpu_table_is_written_with_its_command(monkeypatch, tmp_path) -> None:
    target, rows = tmp_path / "new" / "rows.json", load("compressed_rows")
    monkeypatch.setattr(rows, "timed_rounds", lambda calls, rounds, seconds: {n: [2.0, 4.0] for n in calls})
    monkeypatch.setattr(rows, "_onnxruntime", lambda layer, x, path, threads: lambda: layer(x))
    monkeypatch.setitem(sys.modules, "compressed_rows", rows)
    monkeypatch.setattr(sys, "argv", ["packed_linear.py", "--cpu", "--size", "16", "--json", str(target)])
    bench.main()
    found = json.loads(target.read_text())
    assert len(found["sparse"]) == 2 * 4 * 3
    assert {row["us"] for row in found["sparse"]} == {3000.0}
    assert found["threads"] == 1
    assert "packed_linear.py --cpu" in found["command"]
    assert [path.name for path in target.parent.iterdir()] == ["rows.json"]
