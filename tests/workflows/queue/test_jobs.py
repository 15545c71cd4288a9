"""Workers of one queue, as real processes: jobs are done once, the dead are named, and results equal those of a serial run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paretorch.errors import ConfigError
from paretorch.workflows.queue import Claims, Engine, Job, LocalEngine, choose_engine, owner_of, run_jobs
from paretorch.workflows.studies import run_study
from paretorch.workflows.studies.study import parse_study

_STUDY = """
title = "Digits"
claim = "it runs"
seeds = [0, 1]
[recipe]
network = "digits-cnn"
network_options = {width = 2}
data = "digits"
epochs = 3
[settings.slow]
lr = 0.01
[settings.fast]
lr = 0.05
"""
_CPU = ("--device", "cpu", "--checkpoint-steps", "2")


def start_study(folder: Path, epochs: int = 3) -> subprocess.Popen[str]:
    """`pare study` on a file, two runs at a time."""
    (folder / "small.toml").write_text(_STUDY.replace("epochs = 3", f"epochs = {epochs}"))
    words = ["study", str(folder / "small.toml"), "--device", "cpu", "--parallel", "2"]
    words += ["--out", str(folder / "results"), "--runs", str(folder / "runs")]
    command = [sys.executable, "-m", "paretorch.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(folder: Path) -> dict[str, object]:
    """What does not depend on when and where the runs of a study ran."""
    found = {}
    for path in sorted((folder / "results" / "small").glob("*-seed*.json")):
        content = json.loads(path.read_text())
        rows = [{key: value for key, value in row.items() if key != "seconds"} for row in content["metrics"]]
        found[path.stem] = (content["result"], rows)
    return found


def wait(until: Callable[[], object], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)


def process_of(folder: Path) -> int:
    """The process that trains in a run folder; 0 while there is none."""
    words = owner_of(folder).rpartition(" ")[2] if folder.exists() else ""
    command = Path(f"/proc/{words}/cmdline")
    named = command.read_bytes() if words and command.exists() else b""
    return int(words) if b"paretorch.cli.worker" in named else 0


def serial(folder: Path, *only: str) -> dict[str, object]:
    """The results of runs in one process at a time."""
    study, places = parse_study("small", _STUDY), {"results": folder / "results", "runs": folder / "runs"}
    run_study(study, **places, only=list(only) or None, options=_CPU, log=lambda line: None)
    return results(folder)


@pytest.mark.faults
@pytest.mark.timeout(280)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_two_commands_share_a_study_and_killed_processes_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "5")
    first, second = start_study(tmp_path), start_study(tmp_path)
    one = tmp_path / "runs" / "small" / "slow-seed0"
    wait(lambda: process_of(one))
    os.kill(process_of(one), signal.SIGKILL)
    wait(lambda: any(tmp_path.glob("results/small/*-seed*.json")))
    first.kill()  # its processes end by themselves
    told, _ = second.communicate()
    first.communicate()
    assert second.returncode == 0, told
    assert results(tmp_path) == serial(tmp_path / "serial")
    assert json.loads((tmp_path / "results" / "small" / "summary.json").read_text())["settings"].keys() == {
        "slow",
        "fast",
    }


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_a_process_that_is_killed_is_named_and_replaced(tmp_path: Path) -> None:
    study = parse_study("small", _STUDY)
    told: list[str] = []
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        process = process_of(tmp_path / "runs" / "small" / "fast-seed1")
        if process and not killed:
            killed.append(process)
            os.kill(process, signal.SIGKILL)

    places = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    options = {"only": ["fast"], "options": _CPU, "log": told.append, "watch": kill_one}
    run_study(study, **places, engine=LocalEngine(2), **options)  # type: ignore[arg-type]
    assert killed
    assert "fast-seed1: its process was killed by SIGKILL; another one continues it" in told
    assert results(tmp_path) == serial(tmp_path / "serial", "fast")


def job(folder: Path, *words: str) -> Job:
    return Job(folder.name, folder, words, folder / "log.txt")


def test_a_silent_worker_of_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "1")
    one = job(tmp_path / "one", "--version")
    one.folder.mkdir()
    (one.folder / ".claim-1").write_text(json.dumps({"owner": "node7, process 12", "beat": 3}))
    told: list[str] = []
    ends = run_jobs(
        [one], LocalEngine(1), is_over=lambda job: None, ended=lambda job, code, words: words, log=told.append
    )
    assert not ends.failed
    assert told[0] == "one (node7, process 12): in the hands of other workers; waiting for them"
    assert told[1] == "one: its worker fell silent (node7, process 12); continuing its run"
    assert told[2].startswith("[1/1] one: pare ")
    assert Claims().take(one.folder) is not None, "the job was given back"


def fails_alone(engine: Engine, tmp_path: Path) -> None:
    """Of two jobs the first fails, and the second is done all the same."""
    jobs = [job(tmp_path / "bad", "study", "missing.toml"), job(tmp_path / "good", "--version")]
    told: list[str] = []
    ends = run_jobs(
        jobs,
        engine,
        is_over=lambda job: None,
        ended=lambda job, code, words: words if code == 0 else None,
        log=told.append,
    )
    assert list(ends.failed) == ["bad"]
    assert "Cannot read the study missing.toml" in ends.failed["bad"]
    assert told[0].startswith("[1/2] bad: failed: Cannot read the study missing.toml")
    assert told[1].startswith("[2/2] good: pare ")


def test_a_job_that_fails_stops_no_other_one(tmp_path: Path) -> None:
    fails_alone(LocalEngine(1), tmp_path)


def test_what_is_over_is_neither_claimed_nor_run(tmp_path: Path) -> None:
    told: list[str] = []
    jobs = [job(tmp_path / name, "no such command") for name in "abc"]
    run_jobs(
        jobs, LocalEngine(2), is_over=lambda job: "done before", ended=lambda job, code, words: None, log=told.append
    )
    assert told == [f"[{number}/3] {name}: done before" for number, name in enumerate("abc", 1)]
    assert not any(tmp_path.iterdir())


def test_processes_get_one_gpu_each_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    given: list[str] = []

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        given.append(options["env"]["CUDA_VISIBLE_DEVICES"])  # type: ignore[index]
        return real([sys.executable, "-c", "import time; time.sleep(60)"])

    real = subprocess.Popen
    monkeypatch.setattr("paretorch.support.processes.subprocess.Popen", popen)
    processes = []
    for device in ("auto", "cuda:1"):
        engine = LocalEngine(3, device)
        for number in range(3):
            each = job(tmp_path / f"{device}-{number}", "train")
            each.folder.mkdir()
            processes.append(engine.start(each, 1))
    for process in processes:
        process.kill()
        process.wait()
    assert given == ["4", "GPU-7", "4", "4,GPU-7", "4,GPU-7", "4,GPU-7"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("slurm", "There is no engine 'slurm': use local, auto, or ray://HOST"),
        ("ray://", "'ray://' is no address of a Ray cluster"),
        ("ray://127.0.0.1:1", "Nothing answers at 127.0.0.1:1"),
    ],
)
def test_an_engine_that_cannot_be_had_is_one_sentence(name: str, message: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=message):
        choose_engine(name, None)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'paretorch\[cluster\]'"):
        choose_engine("auto", None)
