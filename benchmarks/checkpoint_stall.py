"""Claim: ranks wait for the copy of a checkpoint, and for less than half of the time that writing it takes.

    python benchmarks/checkpoint_stall.py --out results/two-ranks/checkpoints.json

`pare train --shard` on two ranks, a network of four wide layers with CS and SMOL, so that a checkpoint has more than a hundred megabytes, and one
checkpoint every few steps. "At once" waits until each is written, as ranks did before; "in the background" is what they do now. What is
told is the time that training spends in a checkpoint, that for the one before included, and the time of the whole run.
"""

import argparse
import json
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

EVERY = 2  # steps
NETWORK = """
from torch import nn


def build(channels=1, classes=10):
    wide = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), *wide, nn.Linear(WIDTH, classes))
"""
HOWS = ("at once", "in the background", "none")


def work(folder: Path, how: str, port: int, rank: int) -> None:
    """One of two ranks."""
    from paretorch.cli.app import app
    from paretorch.training.launch import RankTrainer

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    waits: list[float] = []
    save, run = RankTrainer._save, RankTrainer.run

    def timed(trainer: Any, record: Any = None) -> None:
        if how == "none":
            return
        begun = time.perf_counter()
        save(trainer, record)
        if how == "at once":
            trainer._writer.finish()
        waits.append(time.perf_counter() - begun)

    def whole(trainer: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        last = run(trainer, **options)
        content = {"waits": waits, "seconds": time.perf_counter() - begun, "bytes": size_of(folder / "run")}
        if rank == 0:
            (folder / "found.json").write_text(json.dumps(content))
        return last

    RankTrainer._save, RankTrainer.run = timed, whole  # type: ignore[method-assign]
    words = ["train", "--network", f"{folder / 'wide.py'}:build", "--data", "digits", "--batch", "240", "--shard"]
    words += [
        "--epochs",
        "5",
        "--finetune",
        "0",
        "--optimizer",
        "sgd",
        "--lr",
        "0.01",
        "--sparsity",
        "0.5",
        "--bits",
        "3",
    ]
    words += ["--checkpoint-steps", str(EVERY), "--checkpoint-epochs", "1000", "--device", "cpu", "--quiet"]
    sys.argv = ["pare", *words, "--out", str(folder / "run")]
    app()


def size_of(run: Path) -> int:
    """Bytes of the newest checkpoint."""
    numbers = [int(path.name) for path in run.glob("checkpoint.ranks/*") if path.name.isdecimal()]
    newest = run / "checkpoint.ranks" / str(max(numbers, default=0))
    return sum(path.stat().st_size for path in newest.glob("*")) + sum(
        path.stat().st_size for path in newest.glob(".m*")
    )


def measure(how: str, width: int) -> dict[str, Any]:
    """One run on two ranks."""
    with tempfile.TemporaryDirectory() as scratch, socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        held.close()
        (Path(scratch) / "wide.py").write_text(NETWORK.replace("WIDTH", str(width)))
        words = [sys.executable, __file__, "--worker", scratch, how, str(port)]
        processes = [subprocess.Popen([*words, str(rank)]) for rank in range(2)]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit("a rank failed")
        found = json.loads((Path(scratch) / "found.json").read_text())
    return dict(found)


def summed_up(how: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """What some runs took together."""
    waits = [wait for one in found for wait in one["waits"]]
    return {
        "how": how,
        "checkpoints": len(waits),
        "wait_median_s": statistics.median(waits) if waits else 0.0,
        "wait_most_s": max(waits, default=0.0),
        "runs_s": [one["seconds"] for one in found],
        "checkpoint_mb": found[0]["bytes"] / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2, help="Runs of each kind, in turn.")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = [[measure(how, asked.width) for how in HOWS] for _ in range(asked.rounds)]
    rows = [summed_up(how, list(runs)) for how, runs in zip(HOWS, zip(*found, strict=True), strict=True)]
    for row in rows:
        print(
            f"{row['how']:>17}: {row['checkpoints']} checkpoints of {row['checkpoint_mb']:.0f} MB, training waits "
            f"{row['wait_median_s']:.2f} s for one, {row['wait_most_s']:.2f} s at most; runs of "
            + ", ".join(f"{seconds:.1f} s" for seconds in row["runs_s"])
        )
    holds = rows[1]["wait_median_s"] < rows[0]["wait_median_s"] / 2
    print(f"claim {'holds' if holds else 'FAILS'}")
    if asked.out is not None:
        content = {
            "command": shlex.join(["python", *sys.argv]),
            "hardware": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "torch": torch.__version__,
            "holds": holds,
            "rows": rows,
        }
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        place, how, port, rank = sys.argv[2:]
        work(Path(place), how, int(port), int(rank))
    else:
        main()
