"""The code of docs/sharing.md runs as it stands."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

PAGE = Path(__file__).parents[2] / "docs" / "sharing.md"


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
    from paretorch.studies import study_names

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
    files = [
        PAGE.parents[1] / f"results/sharing-wrn28-4/{name}-seed0.json" for name in ("wrn", "swrn-2", "swrn-4", "swrn-6")
    ]
    results = [json.loads(file.read_text())["result"] for file in files]
    errors = [f"{100 * (1 - result['test_accuracy']):.2f}" for result in results]
    counts = [f"{result['parameters'] / 1e6:.2f}" for result in results]
    for own, told in ((errors, " (one seed)"), (counts, "")):
        assert f"| {' · '.join([own[0], '–', *own[1:]])}{told} |" in page


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


def _f1(name: str) -> tuple[list[float], int]:
    """F₁ after each of the 250 epochs in per cent, and the parameters that are left."""
    run = json.loads((PAGE.parents[1] / f"results/sharing-shortest-paths/{name}-seed0.json").read_text())
    rows = [row for row in run["metrics"] if row["phase"] != "harden"]
    assert [row["epoch"] for row in rows] == list(range(1, 251))
    return [100 * row["test_f1"] for row in rows], run["result"]["parameters"]


def test_the_rows_of_shortest_paths() -> None:
    page = PAGE.read_text()
    measured = {name: _f1(name) for name in ("cnn", "scnn", "scnn-recurrent")}
    until = [next(epoch for epoch, value in enumerate(values, 1) if value >= 99) for values, _ in measured.values()]
    assert f"| {' · '.join(map(str, until))} (one seed) |" in page
    for values, _ in measured.values():
        means = [sum(values[50 * phase : 50 * phase + 50]) / 50 for phase in range(1, 5)]
        assert f"| {' · '.join(f'{mean:.1f}' for mean in means)} |" in page
    assert f"{measured['scnn-recurrent'][1]:,} parameters for {measured['scnn'][1]:,}" in page
