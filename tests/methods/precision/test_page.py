"""The numbers on the page of precision are those of the result files."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[3]
_PAGE = (_ROOT / "docs" / "precision.md").read_text()
_RUNS = {
    "dense": "dense",
    "SMOL by layer": "layer-2.4",
    "SMOL by channel": "channel-2.3",
    "SMOL per weight": "smol-2.1",
    "SMOL per weight, zero precision": "zero-1.7",
    "LSQ, the same bits everywhere": "lsq-2",
}


def run(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_ROOT / f"results/precision-resnet20/{_RUNS[name]}-seed0.json").read_text())
    return found


def rows(first: str) -> dict[str, list[str]]:
    """The table that begins with this line, by the first cell."""
    lines = _PAGE[_PAGE.index(first) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return {one[0]: one[1:] for one in cells}


@pytest.mark.parametrize("name", _RUNS)
def test_the_table_of_files(name: str) -> None:
    bits, on_disk, size, accuracy = rows("| | bits, as counted in papers")[name]
    result = run(name)["result"]
    assert bits == ("32" if name == "dense" else f"{result['bits']:.2f}")
    assert float(on_disk) == pytest.approx(result["bits_on_disk"], abs=0.05 if name == "dense" else 0.0051)
    assert size == f"{result['bytes'] / 1000:.0f} kB"
    assert accuracy == f"{100 * result['test_accuracy']:.2f} %"


def test_the_row_of_650_epochs() -> None:
    dense, weight, zero = (
        json.loads((_ROOT / f"results/precision-resnet20-long/{name}-seed0.json").read_text())["result"]
        for name in ("dense", "smol-2.1", "zero-1.7")
    )
    _, measured, accuracy, _ = rows("| | thesis")["the same two in 650 epochs, the thesis' length"]

    def told(one: dict[str, Any]) -> str:
        apart = round(100 * (one["test_accuracy"] - dense["test_accuracy"]), 2)
        return f"{one['bits']:.2f} bits, {abs(apart):.2f} {'above' if apart > 0 else 'below'}"

    assert measured.replace("*", "") == f"{told(weight)}; {told(zero)}"
    per_cent = [f"{100 * one['test_accuracy']:.2f} %" for one in (weight, zero, dense)]
    assert accuracy == f"{per_cent[0]}; {per_cent[1]} ({per_cent[2]})"


@pytest.mark.parametrize("name", ["SMOL per weight", "SMOL by channel", "SMOL by layer", "dense"])
def test_the_table_of_epochs(name: str) -> None:
    table = rows("| epoch | 10")
    header = re.findall(r"\d+|rounded", _PAGE[_PAGE.index("| epoch | 10") :].split("\n")[0])
    for epoch, cell in zip(header, table[name], strict=True):
        phase, number = ("harden", 200) if epoch == "rounded" else ("", int(epoch))
        found = [
            row for row in run(name)["metrics"] if row["epoch"] == number and (row["phase"] == "harden") == bool(phase)
        ]
        if not found:
            assert cell == "", "dense is not rounded"
            continue
        told = f"{100 * found[0]['test_accuracy']:.1f}"
        assert cell == (told if number > 200 or name == "dense" else f"{found[0]['bits']:.2f}, {told}")
