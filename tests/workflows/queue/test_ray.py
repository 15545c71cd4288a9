"""Studies on a Ray cluster of two nodes on this machine: processes and a node are killed, and results equal a serial run's."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paretorch.training.recipe_values import recipe_from
from paretorch.training.runtime import Runtime
from paretorch.workflows import tuning
from paretorch.workflows.queue import choose_engine
from paretorch.workflows.studies import run_study
from paretorch.workflows.studies.study import parse_study
from paretorch.workflows.tuning.queued import QueuedTrials
from paretorch.workflows.tuning.trial import Trial
from tests.workflows.queue.test_jobs import _STUDY, fails_alone, process_of, results

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc"),
    pytest.mark.filterwarnings("ignore"),  # of Ray
]


@pytest.fixture
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head with so many cores and two nodes with one each, or a head alone if it has any; `auto` finds it."""
    cores: int = request.param
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    memory = {"object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": cores, "include_dashboard": False, **memory})
    made.nodes = [] if cores else [made.add_node(num_cpus=1, **memory) for _ in range(2)]
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    made.shutdown()


def compare(cluster: Any, folder: Path, seeds: int, *, kill_node: bool) -> None:
    """Run every setting with so many seeds, serially and on the cluster, where things are killed."""
    study = parse_study("small", _STUDY.replace("[0, 1]", str(list(range(seeds)))))
    words = ("--device", "cpu", "--checkpoint-steps", "2")
    serial = folder / "serial"
    run_study(study, serial / "results", serial / "runs", options=words, log=lambda line: None)
    runs, told, killed = folder / "runs" / "small", list[str](), list[int]()

    def kill(done: int, total: int) -> None:
        process = process_of(runs / "slow-seed1")
        if process and not killed:
            killed.append(process)
            os.kill(process, signal.SIGKILL)
        if kill_node and len(cluster.nodes) == 2 and any(folder.glob("results/small/*-seed*.json")):
            cluster.remove_node(cluster.nodes.pop(), allow_graceful=False)

    engine = choose_engine("auto", None, "cpu")
    assert engine.places == 2
    run_study(study, folder / "results", folder / "runs", engine=engine, options=words, log=told.append, watch=kill)
    assert killed
    assert any("was killed by SIGKILL; another one continues it" in line for line in told)
    assert results(folder) == results(serial)
    ended = [line.split("] ")[1].split(":")[0] for line in told if line.startswith("[")]
    assert sorted(ended) == sorted(name for name, _ in study.jobs()), "each job ended once"


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_a_job_that_fails_on_the_cluster_stops_no_other_one(cluster: Any, tmp_path: Path) -> None:
    engine = choose_engine("auto", None, "cpu")
    assert engine.places == 1
    fails_alone(engine, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("cluster", [0], indirect=True)
@pytest.mark.timeout(280)
def test_a_process_of_the_cluster_is_killed(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "10")
    compare(cluster, tmp_path, 2, kill_node=False)


@pytest.mark.faults
@pytest.mark.parametrize("cluster", [0], indirect=True)
@pytest.mark.timeout(900)
def test_twenty_jobs_lose_a_process_and_a_node(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "20")
    begun = time.monotonic()
    compare(cluster, tmp_path, 10, kill_node=True)
    assert time.monotonic() - begun < 900


@pytest.mark.faults
@pytest.mark.parametrize("cluster", [0], indirect=True)
@pytest.mark.timeout(280)
def test_trials_of_a_search_run_on_the_cluster(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "10")
    values = {"network": "digits-cnn", "network_options": {"width": 2}, "data": "digits", "epochs": 4}
    found = []
    for engine in (choose_engine("auto", None, "cpu"), None):
        folder = tmp_path / ("serial" if engine is None else "cluster")
        trial = Trial(recipe_from({**values, "validation": 200}), Runtime(device="cpu", progress="quiet"), folder)
        trial.check()
        train = trial if engine is None else QueuedTrials(trial, engine, ("--device", "cpu"))
        options = {"storage": folder / "trials.journal", "workers": 1 if engine is None else engine.places}
        found.append(tuning.search(train, [0.02, 0.05, 0.1], [0.1], method="grid", trials=3, **options))
    assert found[0].errors.tolist() == found[1].errors.tolist()
    assert sorted(path.parent.name for path in tmp_path.glob("cluster/lr*/trial.json")) == [
        "lr0.02-eps0.1",
        "lr0.05-eps0.1",
        "lr0.1-eps0.1",
    ]
