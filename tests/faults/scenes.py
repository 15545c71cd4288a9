"""Tiny jobs of every kind, as commands that begin, and that go on after a kill; each ends in the same files, bit for bit."""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_DIGITS = ["--network", "digits-cnn", "--data", "digits", "--batch", "360", "--device", "cpu", "--quiet"]
_SMALL = ["--set", 'network_options={"width": 2}']
_STUDY = """
title = "Digits"
claim = "it runs"
seeds = [0]
[recipe]
network = "digits-cnn"
network_options = {width = 2}
data = "digits"
batch = 360
epochs = 2
[settings.slow]
lr = 0.01
[settings.fast]
lr = 0.05
"""
_TICKETS = {
    "network": "digits-cnn",
    "network_options": {"width": 2},
    "data": "digits",
    "batch": 360,
    "validation": 200,
    "epochs": 1,
    "lr": 0.05,
    "tickets": {"method": ["imp", "cs"], "rounds": 2, "seeds": [0]},
}


@dataclass(frozen=True)
class Scene:
    """One kind of job.

    Args:
        begin: Does the job in this process, or goes on with it; it ends with SystemExit as commands do.
        outcome: What is compared at the end.
        prepare: Writes what the job reads, once.
    """

    begin: Callable[[Path], None]
    outcome: Callable[[Path], Any]
    prepare: Callable[[Path], None] = lambda folder: None


def pare(*words: str) -> None:
    """Run a command in this process."""
    from paretorch.cli.app import app

    sys.argv = ["pare", *words]
    app()


def _train(folder: Path) -> None:
    words = ["train", *_DIGITS, *_SMALL, "--epochs", "2", "--sparsity", "0.5", "--finetune", "1", "--lr", "0.05"]
    pare(*words, "--checkpoint-steps", "1", "--out", str(folder / "run"), "--resume")


def _trained(folder: Path) -> Any:
    run = folder / "run"
    result = json.loads((run / "result.json").read_text())
    return result, _rows(run), (run / "model.pare").read_bytes(), sorted(os.listdir(run))


def _rows(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def _tickets(folder: Path) -> None:
    config = folder / "tickets.json"
    if not config.exists():
        config.write_text(json.dumps(_TICKETS))
    pare("tickets", "--config", str(config), "--storage", str(folder / "tickets"), "--device", "cpu", "--quiet")


def _ticket_rows(folder: Path) -> Any:
    found = sorted((folder / "tickets").glob("*-seed0/rounds.jsonl"))
    rows = [json.loads(line) for path in found for line in path.read_text().splitlines()]
    masks = [torch.load(path, weights_only=True) for path in sorted((folder / "tickets").glob("*/round-*/ticket.pt"))]
    bits = [{name: value.tolist() for name, value in one["bits"].items()} for one in masks]
    dense = json.loads((folder / "tickets" / "dense-seed0" / "dense.json").read_text())
    return rows, bits, dense


def _tune(folder: Path) -> None:
    os.environ["PARE_PATIENCE"] = "5"  # in this process, which is the only worker: whoever is silent was killed
    words = ["tune", *_DIGITS, "--epochs", "1", "--validation", "200", "--method", "grid", "--epsilons", "0.1"]
    pare(*words, "--alphas", "0.05,0.1,0.5", "--trials", "3", "--out", str(folder / "tune"))


def _tried(folder: Path) -> Any:
    found = json.loads((folder / "tune" / "tuning.json").read_text())
    return sorted(map(str, found["trials"])), found["best"]


def _study(folder: Path) -> None:
    from paretorch.workflows.queue import LocalEngine
    from paretorch.workflows.studies import run_study
    from paretorch.workflows.studies.study import parse_study

    run_study(
        parse_study("small", _STUDY),
        folder / "results",
        folder / "runs",
        engine=LocalEngine(2),
        options=["--device", "cpu", "--checkpoint-steps", "1", "--quiet"],
    )


def _studied(folder: Path) -> Any:
    found = sorted((folder / "results" / "small").glob("*-seed0.json"))
    results = [json.loads(path.read_text())["result"] for path in found]
    files = [path.read_bytes() for path in sorted((folder / "runs").glob("small/*/model.pare"))]
    return len(found), results, files


def _weights(folder: Path) -> None:
    from paretorch import deploy, zoo

    torch.manual_seed(0)
    deploy.save(zoo.build("digits-cnn", width=4).eval(), folder / "dense.pare")
    (folder / "mine.py").write_text(
        "from paretorch import zoo\n\n\ndef build():\n    return zoo.build('digits-cnn', width=4)\n"
    )


def _shrink(folder: Path) -> None:
    from paretorch.workflows.shrink import folder as folders

    folders.SECONDS = 0.0  # a checkpoint at every step
    words = [
        "shrink",
        "--network",
        f"{folder / 'mine.py'}:build",
        "--data",
        "digits",
        "--batch",
        "64",
        "--device",
        "cpu",
        "--quiet",
    ]
    weights = ["--weights", str(folder / "dense.pare"), "--budget", "1/4", "--steps", "8"]
    resume = ["--resume"] if (folder / "shrink" / "shrink.json").exists() else []
    pare(*words, *weights, "--out", str(folder / "shrink"), *resume)


def _shrunk(folder: Path) -> Any:
    result = json.loads((folder / "shrink" / "result.json").read_text())
    result.pop("seconds", None)
    return result, (folder / "shrink" / "model.pare").read_bytes(), sorted(os.listdir(folder / "shrink"))


SCENES = {
    "train": Scene(_train, _trained),
    "tickets": Scene(_tickets, _ticket_rows),
    "tune": Scene(_tune, _tried),
    "study": Scene(_study, _studied),
    "shrink": Scene(_shrink, _shrunk, _weights),
}


def warm_up() -> None:
    """Import what the jobs need, so that a process that begins as a copy of this one begins at once. Nothing is computed."""
    import paretorch.cli.app
    import paretorch.methods.precision
    import paretorch.methods.sharing
    import paretorch.methods.sparsity
    import paretorch.report
    import paretorch.training
    import paretorch.workflows.shrink
    import paretorch.workflows.studies
    import paretorch.workflows.tickets
    import paretorch.workflows.tuning  # noqa: F401

    with contextlib.suppress(ImportError):
        import torch._dynamo
    torch.set_num_threads(1)
