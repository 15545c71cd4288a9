"""`pare tickets` as a user meets it: what is printed, what is left, the exit code, and a kill in the middle."""

import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import UndecidedWarning
from paretorch.training.recipe_values import recipe_from
from paretorch.workflows.studies import load_study, study_names
from paretorch.workflows.tickets import METHODS, make_searches

_SMALL = ["--network", "digits-cnn", "--data", "digits", "--device", "cpu", "--set", 'network_options={"width": 2}']
_WIDE = {"COLUMNS": "200", "TERM": "dumb"}
_QUICK = [*_SMALL, "--epochs", "1", "--batch", "128", "--lr", "0.05"]


def _pare(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["tickets", *words], env=_WIDE)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def _rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "tickets.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small search, and what was printed."""
    out = tmp_path_factory.mktemp("runs") / "tickets"
    told = _pare(
        *_QUICK, "--method", "cs,imp", "--rounds", "2", "--init", "-0.02,0.05", "--store", "0.5", "--out", str(out)
    )
    return out, told


def test_a_search_prints_its_tickets_and_leaves_them(finished: tuple[Path, str]) -> None:
    out, told = finished
    names = ["dense-seed0", "cs-init-0.02-seed0", "cs-init0.05-seed0", "imp-rate0.2-seed0"]
    rows = _rows(out)
    assert {row["search"] for row in rows} == set(names)
    assert len(rows) == 7
    assert all(f"{name} round 2" in told for name in names[1:])
    assert told.count("best performing") == 2
    assert told.count("sparsest matching") == 2
    summary = json.loads((out / "summary.json").read_text())
    assert [one["method"] for one in summary["found"]] == ["cs", "imp"]
    assert summary["recipe"]["data"]["validation"] == 200
    assert (out / "tickets.svg").read_text().startswith("<svg ")


def test_the_folder_is_enough_to_resume(finished: tuple[Path, str]) -> None:
    out, _ = finished
    before = _rows(out)
    assert "imp, seed 0" in _pare("--out", str(out), "--resume", "--device", "cpu")
    assert _rows(out) == before


def test_further_searches_can_join(finished: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = finished
    told = _pare("--storage", str(out), "--method", "supermask", "--init", "0.05", "--device", "cpu")
    assert "supermask-init0.05-seed0 round 1" in told
    assert "cs-init0.05-seed0 round 2" not in told.split("Tickets")[0]
    assert len({row["search"] for row in _rows(out)}) == 5


def test_a_finished_search_is_not_overwritten(finished: tuple[Path, str]) -> None:
    assert "continue it with --resume" in _pare(*_QUICK, "--out", str(finished[0]), code=2)


def test_resuming_with_other_flags_names_them(finished: tuple[Path, str]) -> None:
    out = str(finished[0])
    assert "lr (there 0.05, now 0.3)" in _pare("--out", out, "--resume", "--lr", "0.3", "--device", "cpu", code=2)
    words = ["--method", "imp", "--rounds", "4", "--store", "0.5", "--device", "cpu"]
    assert "rounds (there 2, now 4)" in _pare("--out", out, "--resume", *words, code=2)


def test_a_file_holds_recipe_and_search(tmp_path: Path) -> None:
    config = tmp_path / "tickets.toml"
    config.write_text(
        'network = "digits-cnn"\ndata = "digits"\nepochs = 1\nbatch = 128\nseed = 3\nnetwork_options = {width = 2}\n'
        '[tickets]\nmethod = "supermask-stochastic"\ninit = [0.5, 1.0]\n[tickets.options]\nlr = 50.0\n'
    )
    _pare("--config", str(config), "--out", str(tmp_path / "run"), "--device", "cpu", "--quiet")
    names = {row["search"] for row in _rows(tmp_path / "run")}
    assert names == {"dense-seed3", "supermask-stochastic-init0.5-seed3", "supermask-stochastic-init1-seed3"}
    record = json.loads((tmp_path / "run" / "supermask-stochastic-init1-seed3" / "search.json").read_text())
    assert record["options"]["lr"] == 50.0
    assert record["rounds"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*_SMALL, "--method", "lottery"], "choose one of cs, imp"),
        ([*_SMALL, "--method", "imp", "--init", "0.1"], "runs of imp do not differ by init"),
        ([*_SMALL, "--option", "penalty"], "--option takes NAME=VALUE"),
        ([*_SMALL, "--option", "colour=3"], "there is no option 'colour'"),
        ([*_SMALL, "--init", "0.1,0.1"], "Two of the runs would have one name"),
        ([*_SMALL, "--init", "low"], "--init takes numbers"),
        ([*_SMALL, "--rounds", "0"], "rounds=0"),
        ([*_SMALL, "--epochs", "2", "--store", "3"], "a round has 2 epochs"),
        ([*_SMALL, "--method", "imp", "--continue"], "imp always rewinds"),
        ([*_SMALL, "--rate", "0.2"], "imp-c, sequential by rate"),
        ([*_SMALL, "--validation", "0"], "never by the test set"),
        ([*_SMALL, "--validation", "9999"], "validation set of 9999"),
        ([*_SMALL, "--set", "sparsity=0.5"], "decides the sparsity itself"),
        ([*_SMALL, "--seeds", "a"], "--seeds takes whole numbers"),
        ([*_SMALL, "--out", "a", "--storage", "b"], "give one of them"),
        (["--out", "nowhere", "--resume"], "holds no ticket search"),
        (["--network", "resnet21", "--data", "digits"], "did you mean"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_mistake_is_told_in_a_line_with_exit_code_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in _pare(*words, code=2)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("table", "message"),
    [("tickets = 3", "should be a table"), ("[tickets]\nmood = 1", "unknown fields of a ticket search: mood")],
)
def test_a_wrong_table_is_refused(table: str, message: str, tmp_path: Path) -> None:
    config = tmp_path / "tickets.toml"
    config.write_text(f'network = "digits-cnn"\ndata = "digits"\n{table}\n')
    assert message in _pare("--config", str(config), "--out", str(tmp_path / "run"), code=2)
    assert not (tmp_path / "run").exists()


def test_divergence_is_a_failure(tmp_path: Path) -> None:
    told = _pare(*_SMALL, "--lr", "1e15", "--epochs", "1", "--rounds", "1", "--out", str(tmp_path / "run"), code=1)
    assert "dense-seed0: failed" in told
    assert "2 searches failed (dense-seed0, cs-init0-seed0); the same command continues" in told


@pytest.mark.parametrize("place", [["--out", "a b"], ["--storage", "a b"], []])
def test_an_interrupt_says_once_how_to_go_on(place: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    words = [*_QUICK, "--rounds", "1", *place]
    with monkeypatch.context() as patched:
        patched.setattr("paretorch.cli.tickets.work", interrupted)
        patched.setattr(sys, "argv", ["pare", "tickets", *words])
        told = _pare(*words, code=130)
    assert told.count("Continue with:") == 1
    again = shlex.split(told.split("Continue with:")[1])
    assert again == ["pare", "tickets", *words, "--resume"]
    assert "cs-init0-seed0 round 1" in _pare(*again[2:])


def test_no_advice_is_given_about_rounding_since_tickets_are_retrained(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _pare(*_QUICK, "--rounds", "1", "--option", "final_temperature=2", "--out", str(tmp_path / "run"))
    assert not [one for one in heard if issubclass(one.category, UndecidedWarning)]


def test_help_has_examples() -> None:
    told = _pare("--help")
    assert "Examples" in told
    assert "pare tickets --out runs/tickets --resume" in told


def test_the_setting_in_the_documentation_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tickets.md").read_text()
    values = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    searches = make_searches({"seeds": [0], **values.pop("tickets")}, "the page")
    assert recipe_from(values).schedule.milestones == (56, 71)
    assert len(searches) == 33
    assert {search.method.label for search in searches} >= {"cs-init-0.3", "cs-init0", "cs-init0.3"}


def test_the_page_names_only_options_studies_and_methods_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tickets.md").read_text()
    shells = "".join(part.split("```")[0] for part in page.split("```sh\n")[1:])
    commands = re.findall(r"pare (tickets|study) (.*)", shells)
    assert len(commands) == len(shells.splitlines()) == 7
    told = {name: CliRunner().invoke(app, [name, "--help"], env=_WIDE).output for name in ("tickets", "study")}
    for name, words in commands:
        assert [flag for flag in re.findall(r"--[a-z]+", words) if flag not in told[name]] == [], words
    studies = set(re.findall(r"(?:sparsity|imagenet)-[a-z0-9-]+", page))
    assert studies == {name for name in study_names() if load_study(name).tickets}
    assert set(re.findall(r"^\| `([a-z][a-z-]+)`", page, re.MULTILINE)) == set(METHODS)


@pytest.mark.faults  # tests/faults/test_same_file.py kills such a search at other moments
@pytest.mark.timeout(240)
def test_killed_searches_continue_bit_for_bit(tmp_path: Path) -> None:
    words = [*_QUICK, "--rounds", "2", "--epochs", "2", "--quiet", "--resume"]

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "paretorch.cli", "tickets", *words, "--out", str(out)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    whole, killed, chance = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    _pare(*words, "--out", str(whole))
    for mark in ("round-1/search/checkpoint.pt", "rounds.jsonl"):
        process = start(killed)
        while not (killed / "cs-init0-seed0" / mark).exists() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    _pare(*words, "--out", str(killed))
    assert _rows(killed) == _rows(whole)


def test_searches_run_in_processes_of_the_queue(tmp_path: Path) -> None:
    words = ["tickets", "--network", "digits-cnn", "--data", "digits", "--epochs", "1", "--rounds", "1"]
    words += ["--batch", "256", "--device", "cpu", "--parallel", "2", "--out", str(tmp_path / "found")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "[2/2]" in told.output
    assert (tmp_path / "found" / "tickets.jsonl").read_text().count("\n") == 2
    again = CliRunner().invoke(app, ["tickets", "--storage", str(tmp_path / "found"), "--unit", "none"])
    assert again.exit_code == 2
    assert "has no search 'none'" in again.output
