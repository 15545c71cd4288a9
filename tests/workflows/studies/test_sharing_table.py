"""Parameters and accuracy side by side, from results that are written down here."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.workflows.studies.study import Study, load_study
from paretorch.workflows.studies.tables import show_sharing


@pytest.fixture
def study() -> Study:
    return load_study("sharing-wrn28-10-cifar10")


def _result(accuracy: float, parameters: int) -> dict[str, float]:
    return {"test_accuracy": accuracy, "parameters": parameters, "bytes": 4 * parameters}


def test_parameters_beside_accuracy(study: Study) -> None:
    found = {
        "wrn-seed0": _result(0.96, 36_000_000),
        "wrn-dropout-seed0": _result(0.97, 36_000_000),
        "swrn-1-seed0": _result(0.95, 12_000_000),
        "swrn-1-seed1": _result(0.97, 12_000_000),
        "swrn-2-dropout-seed0": _result(0.98, 17_000_000),
    }
    head, _, *lines = show_sharing(study, found)
    assert head.split()[:3] == ["setting", "parameters", "bytes"]
    assert [line.split() for line in lines] == [
        ["wrn", "36,000,000", "144,000,000", "96.00", "%", "–", "1"],
        ["wrn-dropout", "36,000,000", "144,000,000", "97.00", "%", "–", "1"],
        ["swrn-1", "12,000,000", "48,000,000", "96.00", "%", "±", "1.41", "%", "+0.00", "2"],
        ["swrn-2-dropout", "17,000,000", "68,000,000", "98.00", "%", "+1.00", "1"],
    ]
    (line,) = show_sharing(study, {"swrn-1-seed0": _result(0.95, 1)})[2:]
    assert line.split()[-2:] == ["–", "1"], "no dense network, no distance"


def test_where_nothing_is_shared_there_is_no_such_table() -> None:
    assert show_sharing(load_study("dense-resnet20"), {"run-seed0": _result(0.9, 1)}) == []


def test_a_run_counts_its_parameters(tmp_path: Path) -> None:
    small = ["network=swrn-16-1-1", "data=digits", "epochs=1", "schedule=constant", 'network_options={"channels": 1}']
    words = ["study", "sharing-similarities", "--seeds", "0", "--device", "cpu", "--out", str(tmp_path / "results")]
    words += ["--runs", str(tmp_path / "runs"), *(f"--set={one}" for one in small)]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    row = json.loads((tmp_path / "results" / "sharing-similarities" / "swrn-40-8-8-seed0.json").read_text())
    assert 120_000 < row["result"]["parameters"] < 130_000, "175 k without sharing"
    assert f"{row['result']['parameters']:,}" in told.output
