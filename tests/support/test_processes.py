"""Processes that the package starts run the package, whatever modules are in the current folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import paretorch
from paretorch import deploy, zoo
from paretorch.report import report
from paretorch.support.processes import module_command
from paretorch.workflows.studies import run_study
from paretorch.workflows.studies.study import parse_study
from paretorch.workflows.studies.tickets import run_tickets

_STUDY = """
title = "Digits"
claim = "it runs"
seeds = [0]
[recipe]
network = "digits-cnn"
network_options = {width = 2}
data = "digits"
validation = 200
epochs = 1
"""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that exists once a module of the current folder has been run."""
    folder, sprung = tmp_path / "sent", tmp_path / "sprung"
    folder.mkdir()
    for name in ("paretorch.py", "torch.py", "numpy.py", "json.py"):
        (folder / name).write_text(f"open({str(sprung)!r}, 'w').close()\nraise SystemExit(9)\n")
    monkeypatch.chdir(folder)
    return sprung


def test_a_module_of_the_current_folder_is_not_run(trap: Path) -> None:
    done = subprocess.run(module_command("paretorch.cli", "--version"), capture_output=True, text=True, check=False)
    assert done.stdout == f"pare {paretorch.__version__}\n", done.stderr
    assert not trap.exists()


def test_the_trap_is_one(trap: Path) -> None:
    command = [word for word in module_command("paretorch.cli", "--version") if word != "-P"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 9
    assert trap.exists()


@pytest.mark.faults  # the process is started as the command above is
def test_latency_is_measured_by_the_package(trap: Path, tmp_path: Path) -> None:
    deploy.save(zoo.build("digits-cnn", width=2).eval(), tmp_path / "model.pare")
    found = report(tmp_path / "model.pare", example=torch.zeros(1, 1, 8, 8))
    assert any(one.isolated for one in found.latency)
    assert not trap.exists()


@pytest.mark.faults  # the processes are started as the command above is
def test_runs_of_a_study_are_of_the_package(trap: Path, tmp_path: Path) -> None:
    study = parse_study("small", _STUDY)
    summary = run_study(study, tmp_path / "results", tmp_path / "runs", options=["--device", "cpu"])
    assert summary["settings"]["run"]["test_accuracy"]["n"] == 1
    assert not trap.exists()


@pytest.mark.faults
def test_ticket_searches_of_a_study_are_of_the_package(trap: Path, tmp_path: Path) -> None:
    study = parse_study("small", _STUDY + '[[tickets]]\nmethod = "imp"\nrounds = 1\n')
    run_tickets(study, tmp_path / "results", tmp_path / "runs", options=["--device", "cpu"])
    assert (tmp_path / "results" / "small" / "tickets.jsonl").exists()
    assert not trap.exists()


def test_no_other_file_starts_python() -> None:
    root = Path(paretorch.__file__).parent
    found = [path.relative_to(root) for path in root.rglob("*.py") if re.search(r"sys\.executable", path.read_text())]
    assert found == [Path("support/processes.py")]


def test_python_processes_that_others_start_for_a_command_leave_the_current_folder_out(trap: Path) -> None:
    code = """
import atexit, subprocess, sys
atexit.register(lambda: subprocess.run([sys.executable, "-m", "json.tool", "-h"]))
sys.argv = ["pare", "--version"]
from paretorch.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert "usage:" in done.stdout, done.stderr
    assert not trap.exists()
