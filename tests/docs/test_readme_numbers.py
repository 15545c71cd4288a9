"""The numbers in the tables of the README and of docs/measured.md are those of the result files."""

import importlib.util
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from paretorch.training.recipe_values import by_place

_ROOT = Path(__file__).parents[2]
_README = "\n".join((_ROOT / name).read_text() for name in ("README.md", "docs/measured.md"))


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_ROOT / "results" / path).read_text())
    return found


def row(start: str) -> list[str]:
    """The cells of the line of a table that starts so, without emphasis; where both pages have it, they agree."""
    lines = list({line for line in _README.splitlines() if line.startswith(f"| {start}")})
    assert len(lines) == 1, start
    return [cell.strip(" *") for cell in lines[0].strip("|").split("|")]


def accuracy(study: str, setting: str) -> str:
    """In per cent on the test images, with the spread where there are seeds."""
    settings = read(f"{study}/summary.json")["settings"][setting]
    found = settings.get("final_test_accuracy", settings["test_accuracy"])
    spread = f" ± {100 * found['std']:.2f}" if found["n"] > 1 else ""
    return f"{100 * found['mean']:.2f}{spread}"


@pytest.mark.parametrize(
    ("start", "family", "name"),
    [
        ("dense, fp32", "dense fp32", "dense-seed0"),
        ("onnxruntime int8", "onnxruntime int8", "dense-seed0"),
        ("half of the weights", "channels pruned, fp16", "dense-seed0-torch-pruning-0.5"),
        ("80 % of the weights", "mp pruned, fp16 + zstd", "dense-seed0-mp-0.8-full-rate"),
        ("`pare train --bits 2.1 …`", "paretorch, SMOL", "smol-2.1-seed0"),
        ("`pare train --budget 48KB …`", "paretorch, CS + SMOL", "both-48KB-seed0"),
        ("`pare train --budget 24KB …`", "paretorch, CS + SMOL", "both-24KB-seed0"),
    ],
)
def test_files_side_by_side(start: str, family: str, name: str) -> None:
    points = read("deploy-resnet20/bench/bench.json")["points"]
    (point,) = (one for one in points if (one["family"], one["name"]) == (family, name))
    assert row(start)[1:] == [f"{point['bytes']:,}", f"{100 * point['accuracy']:.2f} %"]


@pytest.mark.parametrize("size", [24, 48])
def test_files_on_a_budget(size: int) -> None:
    file = _ROOT / f"results/deploy-resnet20/both-{size}KB-seed0.pare"
    assert row(f"`pare train --budget {size}KB …`")[1] == f"{file.stat().st_size:,}"


@pytest.mark.parametrize(
    ("start", "study", "settings", "dense"),
    [
        ("ResNet-20, 94.4 %", "sparsity-resnet20", ["cs-0.944"], True),
        ("the same by ST-3", "sparsity-resnet20", ["st3-0.944", "gmp-0.86"], False),
        ("VGG-16, 99.7 %", "sparsity-vgg16", ["cs-0.997"], True),
        ("VGG-16, half", "sparsity-channels-vgg16", ["channels-0.5"], True),
        ("ResNet-20, 2.4 bits", "precision-resnet20", ["layer-2.4"], True),
        ("ResNet-20, 2.3 bits", "precision-resnet20", ["channel-2.3", "smol-2.1"], False),
        ("ResNet-20, 2.1 bits", "precision-resnet20-long", ["smol-2.1"], True),
        ("ResNet-20, 2 bits everywhere", "precision-resnet20", ["lsq-2"], False),
    ],
)
def test_what_the_methods_keep(start: str, study: str, settings: list[str], dense: bool) -> None:
    cells = row(start)
    assert cells[1] == " · ".join(accuracy(study, one) for one in settings) + " %"
    assert cells[2] == (f"{accuracy(study, 'dense')} %" if dense else "")


def test_what_sharing_keeps() -> None:
    told, *cells = row("WRN-28-4, ")
    assert cells == [f"{accuracy('sharing-wrn28-4', name)} %" for name in ("swrn-2", "wrn")]
    settings = read("sharing-wrn28-4/summary.json")["settings"]
    small, whole = (settings[name]["parameters"]["mean"] / 1e6 for name in ("swrn-2", "wrn"))
    assert told.endswith(f"{small:.2f} M parameters for {whole:.2f} M")
    assert row("the same two with dropout")[1:] == [
        f"{accuracy('sharing-wrn28-4', name)} %" for name in ("swrn-2-dropout", "wrn-dropout")
    ]
    told, *cells = row("the same from one template")
    assert cells == [f"{accuracy('sharing-wrn28-4', 'swrn-1')} %", ""]
    assert told.endswith(f"{settings['swrn-1']['parameters']['mean'] / 1e6:.2f} M")


def test_a_step_on_a_gpu() -> None:
    large, small = (
        next(one for one in read(f"optimizers-step/h200-{name}.json")["cases"][case] if one["optimizer"] == "AvaGrad")
        for name, case in (("491m", "even"), ("resnet20", "resnet20"))
    )
    told = f"{large['ratio']:.2f} × the time of torch's fused Adam for 491 M parameters, {small['ratio']:.2f} × for ResNet-20"
    assert told in _README
    page = (_ROOT / "docs/optimizers.md").read_text()
    assert f"| {large['ratio']:.2f} ×, {100 * large['of_copy']:.0f} % |" in page
    assert f"| step, ResNet-20 on an H200 | at most 1.0 × | {small['ratio']:.2f} × |" in page


def test_a_step_on_a_cpu() -> None:
    rows = {one["optimizer"]: one["ratio"] for one in read("optimizers-step/cpu-training.json")["rows"]}
    told = f"takes {rows['AvaGrad']:.2f} × that of torch's foreach Adam, where torch's fused Adam takes {rows['Adam fused']:.2f} ×"
    assert told in _README


def test_a_character_lstm() -> None:
    settings = read("optim-lstm300/summary.json")["settings"]
    ava, adam = (
        f"{one['mean']:.3f} ± {one['std']:.3f}" for one in (settings[n]["test_bpc"] for n in ("avagrad", "adam"))
    )
    assert f"ends at {ava} bits per character with AvaGrad, {adam} with Adam" in _README


@pytest.mark.parametrize(
    ("start", "key"),
    [
        ("ResNet-50, 64", "resnet50"),
        ("ViT-B/16, 32", "vit_b_16"),
        ("MobileNetV2, 64", "mobilenet_v2"),
        ("Llama of 15 M weights", "llama15m"),
        ("LSTM, 3 layers", "lstm"),
    ],
)
def test_the_cost_in_the_own_loop_on_a_gpu(start: str, key: str) -> None:
    file = "h200.json" if key in ("llama15m", "lstm") else "h200-25-rounds.json"
    rows = {one["variant"]: one for one in read(f"own-loop/{file}")["rows"] if one["network"] == key}
    variants = ("cs", "smol by weight", "smol by channel", "cs + smol", "channels")
    ratios = [f"{statistics.median(rows[name]['ratios']):.2f} ×" if name in rows else "" for name in variants]
    assert row(start)[1:] == [f"{rows['dense']['ms']:.1f}", *ratios]


def test_what_training_costs_in_the_captured_loop() -> None:
    results = read("train-step/h200-compiled-schedules.json")["results"]
    small, wide, large = (
        "{:.2f} and {:.2f} ×".format(*(results[key][name]["ratio"] for name in ("sparse", "precise")))
        for key in ("resnet20", "wrn-28-10", "vgg16")
    )
    told = f"it is {small} for ResNet-20 with sparsity and with precision, {wide} for WRN-28-10, {large} for VGG-16"
    assert told in _README


def test_the_cost_in_the_own_loop_is_that_of_the_results() -> None:
    rows = json.loads((_ROOT / "results/own-loop/cpu.json").read_text())["rows"]
    ratio = {row["variant"]: statistics.median(row["ratios"]) for row in rows}
    sparsity, precision, both = (f"{ratio[name]:.2f} ×" for name in ("cs", "smol by weight", "cs + smol"))
    assert row("ResNet-20, batch 128, two CPU cores")[1:] == [sparsity, precision, both]
    guide = (_ROOT / "docs/guide.md").read_text()
    assert (
        f"{sparsity} the dense one with\n  Continuous Sparsification, {precision} with SMOL, {both} with both" in guide
    )


def test_one_rate_for_every_eps() -> None:
    landscape = read("optimizers-grid/summary.json")["landscape"]
    ava, adam = (landscape[name]["loss_by_one_alpha_for_all_eps"] for name in ("AvaGrad", "Adam"))
    assert f"one α for every ε loses {ava:.2f} points on average with AvaGrad, {adam:.2f} with Adam" in _README
    bpc: dict[tuple[float, float], float] = {}
    for path in (_ROOT / "results/optim-lstm300-rates").glob("avagrad-*.json"):
        run = json.loads(path.read_text())
        recipe = by_place(run["recipe"])
        bpc[recipe["optimizer.eps"], recipe["optimizer.lr"]] = run["result"].get("test_bpc", math.inf)
    best = {eps: min((value, lr) for (own, lr), value in bpc.items() if own == eps)[1] for eps in (1e-4, 1e-3)}
    told = f"at ε = 1e-4 {best[1e-4]:g} is the best of those tried, and at 1e-3 it learns nothing, where {best[1e-3]:g} is the best"
    assert told in _README
    assert bpc[1e-3, best[1e-4]] > 4, "as many bits as letters by their frequencies"


def shrunk(file: str, way: str, asked: str) -> dict[str, Any]:
    (found,) = (one for one in read(f"shrink/{file}.json")["rows"] if one["way"] == way and one.get("asked") == asked)
    return found


@pytest.mark.parametrize(
    ("start", "file", "asked", "steps"),
    [
        ("`shrink`, 3.7 MB, `steps=0`", "llama", "3.7 MB", [0]),
        ("`shrink`, 2.6 MB, `steps=0` · `steps=200`", "llama", "2.6 MB", [0, 200]),
        ("`shrink`, 1/10, `steps=0` · `steps=350`, 13 and 53 s", "convnet", "1/10", [0, 350]),
        ("`shrink`, 1/30, `steps=0` · `steps=350`, 14 and 52 s", "convnet", "1/30", [0, 350]),
    ],
)
def test_shrunk_networks(start: str, file: str, asked: str, steps: list[int]) -> None:
    _, size, measured = row(start)
    rows = [shrunk(file, f"shrink, {count} steps", asked) for count in steps]
    digits = 3 if file == "llama" else 2
    assert measured.removesuffix(" %") == " · ".join(f"{one['measure']:.{digits}f}" for one in rows)
    number, unit = size.split()
    scale = {"MB": 1e6, "kB": 1e3}[unit]
    assert all(math.isclose(float(number) * scale, one["file_bytes"], rel_tol=0.005) for one in rows)


def test_a_budget_in_milliseconds() -> None:
    page = (_ROOT / "docs/ship.md").read_text()
    names = {"resnet50": "ResNet-50", "mobilenetv2": "MobileNetV2"}
    for one in read("latency-budget/cpu.json")["rows"]:
        ratio = f"{one['ratio']:.3f} ({one['lowest']:.3f} to {one['highest']:.3f})"
        cells = [names[one["network"]], f"{one['dense_ms']:.1f} ms", f"{one['small_ms']:.1f} ms", ratio]
        cells += [f"{one['macs'][1] / one['macs'][0]:.2f}"]
        cells += [" · ".join(f"{one['seconds'][name]:.0f}" for name in ("compress", "harden"))]
        assert f"| {' | '.join(cells)} |" in page
        assert 0.95 <= one["times_budget"] <= 1.05


def test_the_cost_in_the_own_loop_is_written_by_its_script() -> None:
    spec = importlib.util.spec_from_file_location("own_loop", _ROOT / "docs/own_loop.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for path in script.PAGES:
        text = path.read_text()
        assert script.page(text) == text, "run: python docs/own_loop.py"


def test_the_readme_is_short() -> None:
    assert len((_ROOT / "README.md").read_text().splitlines()) <= 130
