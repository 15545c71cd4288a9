"""The numbers of docs/many-gpus.md are those of results/two-ranks and results/job_queue.json."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/many-gpus.md").read_text()
_NAMES = {"perturbed": "one process, first weights off", "ddp": "two ranks, DDP", "fsdp2": "two ranks, FSDP2"}
_ROWS = json.loads((_ROOT / "results/two-ranks/cpu.json").read_text())["rows"]


def _gap(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")


def _share(row: dict[str, Any], kind: str) -> str:
    return f"{100 * row['rounding'][f'other_{kind}'] / row['rounding'][kind]:.1f} %"


@pytest.mark.parametrize("row", [row for row in _ROWS if row["network"] == "resnet20"], ids=lambda row: row["how"])
def test_rows_of_the_table(row: dict[str, Any]) -> None:
    gaps = " | ".join(_gap(row["loss_gaps"][step - 1]) for step in (1, 10, 20, 40))
    accuracy = f"{100 * row['end']['test_accuracy']:.1f} % ({100 * row['one']['test_accuracy']:.1f})"
    line = (
        f"| {row['kind']}, {_NAMES[row['how']]} | {gaps} | {_share(row, 'masks')}, {_share(row, 'bits')} | {accuracy} |"
    )
    assert line in _PAGE


def test_what_is_said_of_the_table() -> None:
    ranks = [row for row in _ROWS if row["how"] != "perturbed"]
    wide = [row for row in ranks if row["kind"] == "float64"]
    plain = [row for row in ranks if row["network"] == "plain"]
    assert len(wide) == len(plain) == 4
    assert all(max(row["loss_gaps"][:20]) < 1e-10 for row in wide)
    assert all(max(row["loss_gaps"]) < 1e-5 for row in plain)
    assert all(_share(row, kind) == "0.0 %" for row in [*wide, *plain] for kind in ("masks", "bits"))


def test_how_long_training_waits_for_a_checkpoint() -> None:
    rows = {row["how"]: row for row in json.loads((_ROOT / "results/two-ranks/checkpoints.json").read_text())["rows"]}
    before, now = (rows[how] for how in ("at once", "in the background"))
    told = (
        f"a checkpoint of {now['checkpoint_mb']:.0f} MB kept two ranks waiting for {now['wait_median_s']:.2f} s "
        f"({now['wait_most_s']:.2f} s at most), and for {before['wait_median_s']:.2f} s when training waited"
    )
    assert told in " ".join(_PAGE.split())


_QUEUE = json.loads((_ROOT / "results/job_queue.json").read_text())


def _time(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


@pytest.mark.parametrize("gpus", sorted({row["gpus"] for row in _QUEUE["searches"]}))
def test_how_long_a_search_takes(gpus: int) -> None:
    rows = {row["search"]: row for row in _QUEUE["searches"] if row["gpus"] == gpus}
    found = [rows[name] for name in ("tickets of ResNet-20", "grid of WRN-28-4")]
    times = [time for row in found for time in (row["paper_hours"], statistics.mean(row["simulated_hours"]))]
    assert " | ".join([f"| {gpus:,}", *map(_time, times)]) in _PAGE
    assert all(abs(row["paper_hours"] / statistics.mean(row["simulated_hours"]) - 1) < 0.1 for row in found)


def test_what_the_queue_costs() -> None:
    most = max(_QUEUE["simulated"], key=lambda row: row["workers"])
    assert f"jobs that nobody has begun | {100 * most['busy_while_jobs_wait']:.1f} % |" in _PAGE
    assert f"wait for their silence | {100 * most['busy']:.1f} % |" in _PAGE
    assert f"the process's own start | {_QUEUE['overhead_seconds']:.1f} s |" in _PAGE
