"""docs/results.md: every table and figure of the thesis, and numbers of ours that follow from the raw files."""

import importlib.util
import json
import re
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paretorch.workflows.studies import load_study, study_names
from paretorch.workflows.tickets import make_searches

ROOT = Path(__file__).parents[2]
PARTS = tomllib.loads((ROOT / "docs/thesis_tables.toml").read_text())["part"]
PAGE = (ROOT / "docs/results.md").read_text()


def _generator() -> Any:
    spec = importlib.util.spec_from_file_location("results_page", ROOT / "docs/results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


generator = _generator()


def test_the_page_is_what_the_files_give() -> None:
    assert generator.page() == PAGE, "run: python docs/results.py"


def test_every_table_of_the_thesis_has_all_its_rows() -> None:
    rows = {
        "3.1": 13, "3.2": 13, "3.3": 16, "3.4": 4, "4.1": 12, "4.2": 14, "4.3": 23, "5.1": 17, "5.2": 8, "5.3": 17,
        "5.4": 9, "5.5": 7, "5.6": 3, "5.7": 3, "6.1": 38, "6.2": 20,
    }  # fmt: skip
    tables = {part["label"].removeprefix("Table "): part for part in PARTS if part["label"].startswith("Table")}
    assert list(tables) == list(rows)
    for label, count in rows.items():
        own = [
            row for row in tables[label]["rows"] if re.search(r"\d", row["thesis"]) or row["thesis"] == "out of memory"
        ]
        grids = [row for row in own if row["thesis"].startswith("a grid")]
        assert len(own) - len(grids) == count, label


def test_figures_are_in_the_order_of_the_thesis() -> None:
    for chapter, count in {"3": 12, "4": 13, "5": 8, "6": 7}.items():
        figures = [part["label"] for part in PARTS if part["label"].startswith(f"Figure {chapter}.")]
        assert figures == [f"Figure {chapter}.{number}" for number in range(1, count + 1)]


def _references() -> list[tuple[str, str, str]]:
    found = []
    for part in PARTS:
        for row in part.get("rows", ()):
            for text in row.get("ours", ()):
                study, _, setting = text.partition("|")[0].strip().rpartition("/")
                found.append((study or part["study"], setting, row.get("kind", part.get("kind"))))
    return found


def test_every_row_names_runs_that_there_are() -> None:
    studies = {name: load_study(name) for name in {name for name, *_ in _references()}}
    for name, setting, kind in _references():
        study = studies[name]
        if kind in generator.KINDS:
            assert setting in study.settings, (name, setting)
        elif kind in ("within", "runs"):
            assert study.only([setting]).settings
        elif kind == "round":
            label, number = setting.split()
            searches = [one for table in study.tickets for one in make_searches({"seeds": [0], **table}, name)]
            (search,) = (one for one in searches if one.name == f"{label}-seed0")
            assert 1 <= int(number) <= search.rounds
        else:
            methods = {
                one
                for table in study.tickets
                for one in ([table["method"]] if isinstance(table["method"], str) else table["method"])
            }
            assert setting in {"*", "dense", *methods}, (name, setting)


def test_every_study_of_the_thesis_is_on_the_page() -> None:
    ours = {  # beside the thesis
        "deploy-resnet20", "dense-resnet20", "dense-vgg16", "sparsity-anneal", "sparsity-channels-resnet20", "sparsity-channels-vgg16",
        "sparsity-resnet20-cosine", "sparsity-resnet20-light", "sparsity-screening", "sparsity-lambda", "sparsity-beta", "sparsity-init",
    }  # fmt: skip
    assert {name for name, *_ in _references()} | ours == set(study_names())


def _measured() -> list[tuple[str, str, str, str, str]]:
    """Study, setting, kind, what the page says, and the seeds, of every line about one setting that has numbers."""
    kinds = {(study, setting): kind for study, setting, kind in _references() if kind in generator.KINDS}
    found = []
    for line in PAGE.splitlines():
        command = re.search(r"`pare study (\S+) --only ([^\s'*]+) --root data`", line)
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if command and (command[1], command[2]) in kinds and cells[2].strip():
            found.append((command[1], command[2], kinds[command[1], command[2]], cells[2], cells[3]))
    return found


@pytest.mark.parametrize(("study", "setting", "kind", "here", "seeds"), _measured())
def test_numbers_follow_from_the_raw_files(study: str, setting: str, kind: str, here: str, seeds: str) -> None:
    runs = [
        json.loads(path.read_text())["result"]
        for path in sorted((ROOT / "results" / study).glob(f"{setting}-seed*.json"))
    ]
    assert seeds == ("**one**" if len(runs) == 1 else str(len(runs)))
    if kind == "validation-bpc":
        assert here == ("1 diverged" if "diverged" in runs[0] else f"{runs[0]['test_bpc']:.3f}")
        return
    name = {"bpc": "test_bpc", "f1": "test_f1", "frechet": "test_frechet", "bleu": "test_bleu"}.get(
        kind, "test_accuracy"
    )
    values = [run.get(f"final_{name}", run[name]) for run in runs]
    if kind not in ("bpc", "frechet", "bleu"):
        values = [100 * value for value in values]
    if kind == "error":
        values = [100 - value for value in values]
    digits = {"bpc": 3, "f1": 1, "bleu": 1}.get(kind, 2)
    expected = f"{statistics.mean(values):.{digits}f}"
    if len(values) > 1:
        expected += f" ± {statistics.stdev(values):.{digits}f}"
    counted = {"bits": "bits", "activations": "activation_bits", "sparsity": "sparsity"}.get(kind)
    if counted and counted in runs[0]:
        count = statistics.mean(run[counted] for run in runs)
        expected = (f"{100 * count:.1f} %" if kind == "sparsity" else f"{count:.2f}") + f", {expected}"
    assert here == expected


def test_the_sparsest_within_two_points_follows_from_the_raw_files() -> None:
    folder = ROOT / "results/sparsity-resnet20"
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*-seed*.json")):
        runs.setdefault(path.stem.rpartition("-seed")[0], []).append(json.loads(path.read_text())["result"])
    bar = statistics.mean(run["test_accuracy"] for run in runs["dense"]) - 0.02
    for family, start in (
        ("cs", "| ResNet-20: CS "),
        ("gmp", "| ResNet-20: GMP "),
        ("st3", "| not in the thesis' table: ResNet-20, ST-3 "),
    ):
        within = [
            own
            for setting, own in runs.items()
            if setting.startswith(f"{family}-") and statistics.mean(run["test_accuracy"] for run in own) >= bar
        ]
        best = max(within, key=lambda own: own[0]["sparsity"])
        tests = [100 * run["final_test_accuracy"] for run in best]
        (line,) = (line for line in PAGE.splitlines() if line.startswith(start))
        told = f"{100 * best[0]['sparsity']:.1f} ({statistics.mean(tests):.2f} ± {statistics.stdev(tests):.2f};"
        assert told in line


def test_tickets_are_told_as_in_the_thesis(tmp_path: Path) -> None:
    rows = []
    for seed in (0, 1, 2):
        common = {"seed": seed, "epochs": 85, "search_epochs": 85, "layers": {}}
        rows.append(
            {
                **common,
                "search": f"dense-seed{seed}",
                "method": "dense",
                "round": 0,
                "sparsity": 0.0,
                "accuracy": 0.9,
                "test_accuracy": 0.89,
            }
        )
        for number, accuracy in ((1, 0.92), (2, 0.91), (3, 0.8)):
            ticket = {
                "method": "imp",
                "round": number,
                "sparsity": 1 - 0.8**number,
                "accuracy": accuracy,
                "test_accuracy": accuracy - 0.01,
            }
            rows.append({**common, "search": f"imp-rate0.2-seed{seed}", **ticket})
    target = tmp_path / "sparsity-tickets-vgg16"
    target.mkdir()
    (target / "tickets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (part,) = (part for part in PARTS if part["label"] == "Table 4.2")
    lines = {line.row: line for line in generator.Maker(tmp_path).lines(part) if line.row}
    assert lines["VGG-16: dense"].here == "89.00 ± 0.00, 100.0 ± 0.0, 0 / 0 / 0"
    assert lines["VGG-16, sparsest matching: IMP"].here == "90.00 ± 0.00, 64.0 ± 0.0, 2 / 2 / 2"
    assert lines["VGG-16, best performing: IMP"].here == "91.00 ± 0.00, 80.0 ± 0.0, 1 / 1 / 1"
    empty = lines["VGG-16, best performing: CS"]
    assert not empty.here
    assert empty.minutes > 60
    assert "about" in empty.cells()[-1]


def test_empty_rows_say_how_long_they_would_take() -> None:
    for part in PARTS:
        for line in generator.Maker().lines(part):
            if not line.here and not line.what.startswith("quoted"):
                assert line.minutes > 0, (part["label"], line.row)


def test_links_lead_somewhere() -> None:
    targets = set(re.findall(r"\]\(([^)#]+)\)", PAGE))
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


@pytest.mark.parametrize(("optimizer", "figure"), [("Adam", "6.1"), ("AvaGrad", "6.2")])
def test_what_the_grid_says_follows_from_its_raw_errors(optimizer: str, figure: str) -> None:
    grid = json.loads((ROOT / "results/optimizers-grid/raw.json").read_text())["grids"][optimizer]
    errors = np.array(grid["error"], dtype=float)
    errors[~np.isfinite(errors)] = errors[np.isfinite(errors)].max()
    lost = (errors - errors.min(axis=0)).mean(axis=1).min()
    section = PAGE.split(f"### Figure {figure}:")[1].split("###")[0]
    assert f"| points lost by one α for every ε, mean over ε | – | {lost:.2f} |" in section
    best = np.array(grid["alphas"])[errors.argmin(axis=0)]
    decades = np.log10(best.max() / best.min())
    told = re.search(r"\| decades over which the best α moves with ε \| [^|]* \| ([\d.]+) \|", section)
    assert told is not None
    assert float(told[1]) == pytest.approx(decades, abs=0.31)  # of equals the middle one counts


def test_where_the_synthetic_problem_ends_follows_from_its_curves() -> None:
    curves = json.loads((ROOT / "results/optimizers-synthetic/raw.json").read_text())["curves"]
    for name, curve in curves.items():
        ends = curve["w"][-1]
        assert f"| {statistics.mean(ends):.2f} ± {statistics.stdev(ends):.2f} | {len(ends)} |" in next(
            line for line in PAGE.splitlines() if line.startswith(f"| {name} |") and "optimizers-synthetic" in line
        )
