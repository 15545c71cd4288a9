"""`pare train`, `report` and `data` as a user meets them: what is printed, and the exit code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.training.folder import read_history

_SMALL = ["--network", "digits-cnn", "--data", "digits", "--device", "cpu", "--set", 'network_options={"width": 4}']


def _pare(*words: str, code: int = 0) -> str:
    """Run in this process; gives everything printed, on one line a line."""
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small compressed run."""
    out = tmp_path_factory.mktemp("runs") / "small"
    _pare("train", *_SMALL, "--epochs", "1", "--finetune", "1", "--sparsity", "0.5", "--bits", "2", "--out", str(out))
    return out


def test_a_run_leaves_its_folder(finished: Path) -> None:
    expected = {"config.json", "metrics.jsonl", "model.pare", "report.html", "result.json"}
    checkpoints = {"checkpoint.pt", "checkpoint.previous.pt"}
    assert {path.name for path in finished.iterdir()} == expected | checkpoints
    result = json.loads((finished / "result.json").read_text())
    assert result["bytes"] == (finished / "model.pare").stat().st_size
    assert result["sparsity"] == pytest.approx(0.5, abs=0.01)


def test_resuming_a_finished_run_needs_only_the_folder(finished: Path) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    assert "test accuracy" in _pare("train", "--out", str(finished), "--resume", "--device", "cpu")
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_a_folder_without_a_run_is_not_continued_with_the_defaults(tmp_path: Path) -> None:
    """A mistyped folder would be a new run of 200 epochs."""
    out = tmp_path / "small-with-a-typo"
    told = _pare("train", "--out", str(out), "--resume", "--device", "cpu", code=2)
    assert "small-with-a-typo holds no run to continue" in told
    assert not out.exists()


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"recipe": {}}', '{"recipe": []}', '{"recipe": {"network": "digits-cnn"}}']
)
def test_a_damaged_configuration_is_not_continued_with_the_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    told = _pare("train", "--out", str(tmp_path), "--resume", "--device", "cpu", code=1)
    assert re.search(r"pare: \S*config\.json (is damaged|is not the configuration of a run).*", told)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_resuming_with_other_flags_names_them(finished: Path) -> None:
    told = _pare("train", "--out", str(finished), "--resume", "--lr", "0.3", "--device", "cpu", code=2)
    assert "lr (there 0.1, now 0.3)" in told


def test_a_finished_run_is_not_overwritten(finished: Path) -> None:
    assert "--resume" in _pare("train", *_SMALL, "--out", str(finished), code=2)


def test_the_configuration_of_a_run_is_a_configuration(finished: Path, tmp_path: Path) -> None:
    told = _pare("train", "--config", str(finished / "config.json"), "--dry-run", "--device", "cpu", "--bits", "3")
    assert "expected bytes" in told
    assert "features.0" in told


def test_dry_run_prints_the_plan_and_trains_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    told = _pare("train", *_SMALL, "--sparsity", "0.5", "--dry-run", "--out", str(out))
    assert "head" in told
    assert "sparsity groups" in told
    assert "paretorch_" not in told
    rows = [line.split("│")[1].strip() for line in told.splitlines() if line.count("│") == 6]
    assert len(rows) == len(set(rows)) > 3  # each weight once
    assert "2,200 (200 epochs of 11)" in told
    assert not out.exists()


def test_report_of_a_run_and_of_an_artefact(finished: Path, tmp_path: Path) -> None:
    assert "bits per weight" in _pare("report", str(finished))
    page = tmp_path / "page.html"
    told = _pare("report", str(finished / "model.pare"), "--json", "--html", str(page))
    assert json.loads(told)["bytes"]["total"] == (finished / "model.pare").stat().st_size
    assert page.read_text().startswith("<!doctype html>")


def test_a_run_in_this_folder_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    _pare("train", *_SMALL, "--epochs", "1", "--quiet", "--out", ".")
    assert "<h1>mine</h1>" in Path("report.html").read_text()


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    words = [*_SMALL, "--epochs", "2000", "--out", str(tmp_path / "run"), "--resume"]
    with subprocess.Popen([sys.executable, "-m", "paretorch.cli", "train", *words], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()  # an epoch is done
        try:
            told = _pare("train", *words, code=1)
        finally:
            first.kill()
    assert told == f"pare: Another process is training in {tmp_path / 'run'}: wait for it, or choose another --out\n"
    rows = read_history(tmp_path / "run")
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1)), "no epoch is told twice"


def test_a_run_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    words = ["train", *_SMALL, "--epochs", "1", "--quiet"]
    _pare(*words, "--lr", "0.05", "--out", str(tmp_path / "a"))
    _pare(*words, "--lr", "0", "--start", str(tmp_path / "a" / "model.pare"), "--out", str(tmp_path / "b"))
    first = [json.loads((tmp_path / name / "metrics.jsonl").read_text())["loss"] for name in "ab"]
    assert first[1] < first[0] - 0.1


def test_pruning_chooses_the_method(tmp_path: Path) -> None:
    words = ["--epochs", "1", "--pruning", "gmp", "--sparsity", "0.9", "--quiet", "--out", str(tmp_path / "run")]
    _pare("train", *_SMALL, *words, "--set", 'sparsity_options={"every": 2}')
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["sparsity"] == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--network", "resnet21", "--data", "digits"], "did you mean"),
        (["train", "--network", "resnet20", "--data", "digits"], 'try network_options={"channels": 1}'),
        (["train", "--data", "mnist"], "There is no image set 'mnist'"),
        (["train", *_SMALL, "--optimizer", "sdg"], "choose one of sgd"),
        (["train", *_SMALL, "--pruning", "gpm"], "choose one of cs, mp, gmp, st3"),
        (["train", *_SMALL, "--pruning", "gmp"], "needs a target"),
        (["train", *_SMALL, "--pruning", "amc", "--sparsity", "0.5"], "set validation"),
        (["train", *_SMALL, "--set", "cutout"], "NAME=VALUE"),
        (["train", *_SMALL, "--set", "colour=3"], "unknown fields: colour"),
        (["train", *_SMALL, "--milestones", "a"], "--milestones takes numbers"),
        (["train", *_SMALL, "--milestones", "80,120"], "add --schedule steps"),
        (["tickets", *_SMALL, "--milestones", "80,120"], "add --schedule steps"),
        (["train", *_SMALL, "--budget", "much"], "is not a size"),
        (["train", *_SMALL, "--device", "toaster"], "is no device"),
        (["train", *_SMALL, "--sparsity", "1.5"], "target=1.5"),
        (["train", *_SMALL, "--budget", "10"], "budget"),
        (["train", "--config", "nowhere.toml"], "nowhere.toml"),
        (["train", "--epochs", "many"], "--epochs"),
        (["train", "--no-such-flag"], "No such option"),
        (["report", "nowhere"], "There is no artefact"),
        (["nonsense"], "No such command"),
        (["data", "mnist"], "There is no image set"),
    ],
)
def test_a_mistake_is_told_in_a_line_with_exit_code_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in _pare(*words, code=2)
    assert not any(tmp_path.iterdir())


def test_missing_data_is_a_failure_that_names_the_repair(tmp_path: Path) -> None:
    told = _pare("train", "--data", "cifar10", "--root", str(tmp_path), "--out", str(tmp_path / "run"), code=1)
    assert "pare data cifar10 --download" in told


def test_divergence_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    words = ["train", *_SMALL, "--lr", "1e15", "--epochs", "3", "--quiet", "--out", str(tmp_path / "run")]
    assert "try a lower learning rate" in _pare(*words, code=3)


def test_an_unwritable_folder_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Cannot write" in _pare("train", *_SMALL, "--out", str(tmp_path / "file" / "run"), code=1)


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paretorch.training.run.train", interrupted)
    monkeypatch.setattr(sys, "argv", ["pare", "train", "--out", "runs/a b"])
    assert "Continue with: pare train --out 'runs/a b' --resume" in _pare("train", *_SMALL, code=130)


@pytest.mark.parametrize("command", ["demo", "train", "report", "study", "data"])
def test_every_command_has_help_with_examples(command: str) -> None:
    told = _pare(command, "--help")
    assert "Examples" in told
    assert f"pare {command}" in told


def test_data_is_checked() -> None:
    assert "digits: 1437 training and 360 test images of 1×8×8, 10 classes" in _pare("data", "digits")
