"""Many workers at one search, some of them killed, on every kind of storage.

    python -m tests.faults.workers --workers 10 --runs 5 --out results/attacks

In each run some workers are killed (-9) at random moments, and others take their places. At the end every setting has one
result, and no setting was trained by two workers that lived: what a killed worker had under way is trained again, once.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.faults.kills import wait
from tests.faults.postgres import programs, server

KINDS = ("sqlite", "journal", "postgresql")
PATIENCE = 30.0
"""Seconds of silence that end a worker here."""
_LIMIT = 300.0
"""Seconds in which a run has to end."""
_GRID = [float(i + 1) for i in range(6)], [1.0, 2.0, 3.0, 4.0]
_TRIALS = 24


def _work(place: str, folder: Path, log: Path) -> int:
    """Start a worker; returns its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(words, 1)
        os.dup2(words, 2)
        from paretorch.workflows import tuning

        def note(what: str, alpha: float, eps: float) -> None:
            with open(folder / "trained", "ab", buffering=0) as file:
                file.write(f"{what} {alpha} {eps} {os.getpid()} {time.monotonic():.2f}\n".encode())

        def train(alpha: float, eps: float, beat: Any) -> float:
            beat()
            note("begin", alpha, eps)
            time.sleep(random.uniform(0.5, 2.0))
            beat()
            note("end", alpha, eps)
            return alpha + eps

        found = tuning.search(train, *_GRID, method="grid", trials=_TRIALS, storage=place)
        assert found.tried.all()
        assert found.best == (1.0, 1.0, 2.0)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextlib.contextmanager
def place_of(kind: str, folder: Path) -> Iterator[str]:
    """A new storage."""
    if kind == "postgresql":
        with server() as url:
            yield url
    else:
        yield f"sqlite:///{folder}/s.db" if kind == "sqlite" else str(folder / "s.journal")


def run(kind: str, workers: int, kills: int, seed: int, patience: float = PATIENCE) -> dict[str, Any]:
    """One run; returns what happened."""
    with mock.patch.dict(os.environ, PARE_PATIENCE=str(patience)):
        return _run(kind, workers, kills, seed)


def _run(kind: str, workers: int, kills: int, seed: int) -> dict[str, Any]:
    chance = random.Random(f"{kind} {seed}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        log = folder / "log"
        (folder / "trained").touch()
        with place_of(kind, folder) as place:
            living = [_work(place, folder, log) for _ in range(workers)]
            killed: set[int] = set()
            while not (folder / "trained").stat().st_size:
                time.sleep(0.01)
            for _ in range(kills):
                time.sleep(chance.uniform(0.1, 0.8))
                pid = living.pop(chance.randrange(len(living)))
                os.kill(pid, signal.SIGKILL)
                if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL:
                    killed.add(pid)
                living.append(_work(place, folder, log))
            codes = [wait(pid, _LIMIT) for pid in living]
            for pid, code in zip(living, codes, strict=True):
                if code is None:
                    os.kill(pid, signal.SIGKILL)
            text = log.read_text(errors="replace")
            assert all(code == 0 for code in codes), f"{kind}: {codes}\n{text[-3000:]}"
            _require_one_result_each(kind, place)
        begun = _require_once((folder / "trained").read_text(), killed)
        assert "Traceback" not in text, text[-3000:]
    return {"kills": len(killed), "begun": begun, "seconds": round(time.monotonic() - start, 1)}


def _require_one_result_each(kind: str, place: str) -> None:
    from paretorch.workflows.tuning.storage import open_study

    study = open_study(place, "tuning", {"alphas": _GRID[0], "epsilons": _GRID[1]})
    done = [
        trial for trial in study.get_trials() if trial.state.name == "COMPLETE" and "repeats" not in trial.user_attrs
    ]
    cells = [(trial.params["alpha"], trial.params["eps"]) for trial in done]
    assert len(cells) == len(set(cells)) == _TRIALS, f"{kind}: {sorted(cells)}"


def _require_once(text: str, killed: set[int]) -> int:
    """Whether each setting was trained by one worker that lived, or by one that was killed at its very end."""
    begun, ended = defaultdict(list), defaultdict(list)
    for line in text.splitlines():
        what, alpha, eps, pid, _ = line.split()
        (begun if what == "begin" else ended)[alpha, eps].append(int(pid))
    assert len(begun) == _TRIALS
    for cell, pids in begun.items():
        lived = [pid for pid in pids if pid not in killed]
        assert len(lived) <= 1, (
            f"{cell} was trained by {pids}, of which {sorted(killed & set(pids))} were killed:\n{text}"
        )
        assert ended[cell], f"{cell} was never finished"
    return sum(map(len, begun.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kills", type=int, default=3, help="In each run.")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="Seconds of silence that end a worker.")
    parser.add_argument("--storage", choices=KINDS, action="append")
    parser.add_argument("--out", type=Path, help="Write the record into this folder.")
    given = parser.parse_args()
    import paretorch.workflows.tuning.worker  # noqa: F401  # before copies of this process are made

    rows = []
    for kind in given.storage or KINDS:
        if kind == "postgresql" and programs() is None:
            raise SystemExit("PostgreSQL is not installed: apt-get install postgresql")
        done = [run(kind, given.workers, given.kills, seed, given.patience) for seed in range(given.runs)]
        print(kind, done, file=sys.stderr, flush=True)
        rows.append(
            {
                "attack": f"{given.workers} workers, {given.kills} killed: {kind}",
                "tries": given.runs,
                "survived": given.runs,
                "kills": sum(one["kills"] for one in done),
                "settings": given.runs * _TRIALS,
                "begun": sum(one["begun"] for one in done),
                "slowest_s": max(one["seconds"] for one in done),
                "limit_s": _LIMIT,
            }
        )
    chosen = "".join(f" --storage {kind}" for kind in given.storage or ())
    counts = f"--workers {given.workers} --runs {given.runs} --kills {given.kills} --patience {given.patience:g}"
    command = f"python -m tests.faults.workers {counts}{chosen}"
    record = {"command": command, "patience_s": given.patience, "rows": rows}
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        name = "workers" if given.storage is None else "workers-" + "-".join(given.storage)
        (given.out / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
