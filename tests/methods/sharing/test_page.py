"""The code of docs/sharing.md runs as it stands."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

PAGE = Path(__file__).parents[3] / "docs" / "sharing.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    batches = [(torch.randn(4, 3, 8, 8), torch.arange(4)) for _ in range(2)]
    names = {"torch": torch, "steps": 2, "batches": batches, "criterion": nn.CrossEntropyLoss()}
    exec(compile(code, str(PAGE), "exec"), names)
    assert os.listdir(tmp_path) == ["folded.pare"]
    assert "stages.0.1.conv1.weight" in capsys.readouterr().out
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(names["small"].eval()(x), names["again"](x))


def test_every_option_that_the_page_names_exists() -> None:
    from paretorch import SoftSharing

    for call in re.findall(r"SoftSharing\(([a-z_]+)=", PAGE.read_text()):
        assert call in SoftSharing.__dataclass_fields__


def test_every_command_of_the_page_exists() -> None:
    import typer

    from paretorch.cli.app import app
    from paretorch.workflows.studies import study_names

    page = PAGE.read_text()
    studies = re.findall(r"pare study ([\w-]+)", page)
    assert len(studies) >= 5
    assert set(studies) <= set(study_names())
    commands = typer.main.get_command(app).commands
    for name, rest in re.findall(r"pare (fold|train|report) ([^`#\n]*)", page):
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, rest


def test_the_rows_of_wide_resnets() -> None:
    page = PAGE.read_text()
    settings = json.loads((PAGE.parents[1] / "results/sharing-wrn28-4/summary.json").read_text())["settings"]
    rows = [settings[name] for name in ("wrn", "swrn-1", "swrn-2", "swrn-4", "swrn-6")]
    errors = " · ".join(_with_spread(row["test_accuracy"]) for row in rows)
    counts = " · ".join(f"{row['parameters']['mean'] / 1e6:.2f}" for row in rows)
    assert f"| {errors} ([below]" in page
    assert f"| {counts} |" in page
    dropout = ("wrn-dropout", "swrn-2-dropout", "swrn-2-slow")
    assert f"| {' · '.join(_with_spread(settings[name]['test_accuracy']) for name in dropout)} ([below]" in page


def test_the_seeds_of_wide_resnets() -> None:
    page = PAGE.read_text()
    rows = {
        "WRN-28-4": ("wrn", "wrn-dropout"),
        "SWRN-28-4-2": ("swrn-2", "swrn-2-dropout"),
        "SWRN-28-4-2, α at a tenth of the rate": (None, "swrn-2-slow"),
        "SWRN-28-4-6": ("swrn-6", None),
    }
    for title, settings in rows.items():
        cells = (", ".join(_errors(name)) if name else "" for name in settings)
        assert f"| {title} | {' | '.join(cells)} |".replace("|  |", "| |") in page
    plain = " · ".join(_late_error(name) for name in ("wrn", "swrn-2"))
    dropout = " · ".join(_late_error(name) for name in ("wrn-dropout", "swrn-2-dropout", "swrn-2-slow"))
    assert f"| {plain} · – · {_late_error('swrn-6')} | {dropout} · – |" in page
    both = [[float(error) for error in _errors(name)] for name in ("wrn-dropout", "swrn-2-dropout")]
    assert max(both[0]) < min(both[1])


def _errors(setting: str) -> list[str]:
    """One a seed."""
    files = sorted((PAGE.parents[1] / "results/sharing-wrn28-4").glob(f"{setting}-seed*.json"))
    return [_error(json.loads(file.read_text())["result"]["test_accuracy"]) for file in files]


def test_the_stage_that_became_two_layers() -> None:
    found = []
    for file in sorted((PAGE.parents[1] / "results/sharing-wrn28-4/fold/two").glob("seed*.json")):
        points = {one["name"]: one["accuracy"] for one in json.loads(file.read_text())["points"]}
        found.append(f"{_error(points['model'])} and {_error(points['folded'])}")
    assert f"by seed: {', '.join(found)} (" in PAGE.read_text()
    assert len(found) == 3


def test_the_table_of_similarities() -> None:
    from paretorch.workflows.studies.pictures import by_distance

    page, folder = PAGE.read_text(), PAGE.parents[1] / "results/sharing-wrn28-4"
    titles = {
        "swrn-2": "SWRN-28-4-2",
        "swrn-2-dropout": "the same with dropout",
        "swrn-2-slow": "and α at a tenth of the rate",
        "swrn-4": "SWRN-28-4-4",
        "swrn-6": "SWRN-28-4-6",
    }
    many, second = [], []
    for setting, title in titles.items():
        runs = [json.loads(file.read_text())["metrics"] for file in sorted(folder.glob(f"{setting}-seed*.json"))]
        rows = [{row["epoch"]: row["similarities"] for row in run if "similarities" in row} for run in runs]
        cells = [[by_distance(matrix) for matrix in kept[200]] for kept in rows]
        told = [", ".join(f"{even:.2f} / {odd:.2f}" for even, odd in stage) for stage in zip(*cells, strict=True)]
        assert f"| {title} | {' | '.join(told)} |" in page
        if setting in ("swrn-4", "swrn-6"):
            many += [one for stages in cells for one in stages]
        else:
            second += [stages[1] for stages in cells]
        for kept in rows:
            for epoch, limit in ((50, 0.09), (100, 0.03)):
                assert _apart(kept[epoch], kept[200]) < limit + 0.005
    assert (round(min(even for even, _ in many), 2), round(max(even for even, _ in many), 2)) == (0.32, 0.65)
    assert round(max(odd for _, odd in many), 2) == 0.10
    assert (len(second), sum(even > 0.95 and odd < 0.2 for even, odd in second)) == (9, 7)


def _apart(one: list[list[list[float]]], other: list[list[list[float]]]) -> float:
    """The mean distance of similarities of different layers."""
    pairs = [(torch.tensor(a), torch.tensor(b)) for a, b in zip(one, other, strict=True)]
    unlike = [(a - b).abs()[~torch.eye(len(a), dtype=torch.bool)].mean() for a, b in pairs]
    return float(torch.stack(unlike).mean())


def _late_error(setting: str) -> str:
    """Mean over the last ten epochs and all seeds."""
    files = (PAGE.parents[1] / "results/sharing-wrn28-4").glob(f"{setting}-seed*.json")
    rows = [json.loads(file.read_text())["metrics"] for file in files]
    found = [row["test_accuracy"] for run in rows for row in run if row["epoch"] > 190 and row["phase"] != "harden"]
    assert len(found) == 10 * len(rows)
    return _error(sum(found) / len(found))


def _with_spread(accuracy: dict[str, float]) -> str:
    told = _error(accuracy["mean"])
    return told if accuracy["n"] == 1 else f"{told} ± {100 * accuracy['std']:.2f} ({accuracy['n']} seeds)"


def _error(share: float) -> str:
    return f"{100 * (1 - share):.{2 if share > 0.9 else 1}f}"


def test_the_table_of_folds() -> None:
    page, folder = PAGE.read_text(), PAGE.parents[1] / "results/sharing-wrn28-4/fold"
    for stage, word in enumerate(("first", "second", "third")):
        anew = json.loads((folder / f"folding-stages.{stage}.json").read_text())["points"]
        kept = json.loads((folder / f"kept/folding-stages.{stage}.json").read_text())
        assert [one["layers"] for one in anew] == [one["layers"] for one in kept] == [6, 5, 4, 3, 2, 1]
        pairs = [f"{_error(a['measured'])} ({_error(b['measured'])})" for a, b in zip(anew, kept, strict=True)]
        assert f"| {word} stage | {_error(anew[0]['measured'])} | {' | '.join(pairs[1:])} |" in page
    anew_whole = json.loads((folder / "folding.json").read_text())["points"][:12]
    kept_whole = json.loads((folder / "kept/folding.json").read_text())[:12]
    pairs = [f"{_error(a['measured'])} ({_error(b['measured'])})" for a, b in zip(anew_whole, kept_whole, strict=True)]
    assert f"| error | {_error(anew_whole[0]['measured'])} | {' | '.join(pairs[1:])} |" in page
    bytes_left = [f"{one['bytes']:,}" for one in anew]
    assert f"| bytes, third stage | {' | '.join(bytes_left)} |" in page
    files = {one["name"]: one for one in json.loads((folder / "bench.json").read_text())["points"]}
    small, whole = files["folded"], files["model"]
    told = f"{small['bytes']:,} bytes for {whole['bytes']:,}, error {_error(small['accuracy'])} for {_error(whole['accuracy'])}"
    assert told in page


def _f1(name: str, seed: int) -> tuple[list[float], int]:
    """F₁ after each of the 250 epochs in per cent, and the parameters that are left."""
    run = json.loads((PAGE.parents[1] / f"results/sharing-shortest-paths/{name}-seed{seed}.json").read_text())
    rows = [row for row in run["metrics"] if row["phase"] != "harden"]
    assert [row["epoch"] for row in rows] == list(range(1, 251))
    return [100 * row["test_f1"] for row in rows], run["result"]["parameters"]


def test_the_rows_of_shortest_paths() -> None:
    page = PAGE.read_text()
    measured = {name: [_f1(name, seed) for seed in range(3)] for name in ("cnn", "scnn", "scnn-recurrent")}
    until = []
    for runs in measured.values():
        curves = [values for values, _ in runs]
        until.append(", ".join(str(next(i for i, value in enumerate(curve, 1) if value >= 99)) for curve in curves))
        mean = [sum(values) / 3 for values in zip(*curves, strict=True)]
        phases = [mean[50 * phase : 50 * phase + 50] for phase in range(5)]
        assert f"| {' · '.join(f'{sum(phase) / 50:.1f}' for phase in phases)} |" in page
        assert " · ".join(f"{phase[-1]:.1f}" for phase in phases) in page
    assert f"| {' · '.join(until)} (three seeds) |" in page
    first, second, third = (f"{count:,}" for _, count in measured["scnn-recurrent"])
    assert f"{first}, {second} and {third} parameters for {measured['scnn'][0][1]:,}" in page
