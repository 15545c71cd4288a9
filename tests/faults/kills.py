"""Kill -9 at aimed and at random moments, over every kind of job.

    python -m tests.faults.kills --kills 60 --out results/attacks
    python -m tests.faults.kills --scene train --kills 200 --seed 1

A life of a job is: begun, killed and begun again some times, and then left alone. At its end it has to have the files of a job
that was never killed, bit for bit; in between, a start that is not killed has to come to its end, and none may print a traceback.
An aimed kill is inside of a call that changes files (before it, in the middle of a write, after it); others are after a random time.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.inject import DEATHS, Faults
from tests.faults.scenes import SCENES, Scene, warm_up

_LIMIT = 300.0
"""Seconds in which a start has to end: ten times what the slowest takes on a busy machine."""


def begin(scene: Scene, folder: Path, log: Path, faults: Faults | None = None) -> int:
    """Begin or go on in a process of its own, which begins as a copy of this one; returns its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code, captured = 1, sys.stderr
    try:
        os.setsid()  # what it starts is killed with it at the limit
        words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(words, 1)
        os.dup2(words, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)  # pytest has a file of its own there
        if faults is None:
            scene.begin(folder)
        else:
            with faults:
                scene.begin(folder)
            (folder / "calls").write_text(str(len(faults.calls)))
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
        if faults is not None:
            (folder / "calls").write_text(str(len(faults.calls)))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        captured.flush()
        os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """The exit code, negative for a signal; None if the process still runs after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


def kill(pid: int) -> bool:
    """Kill it; returns whether it had not ended by itself."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def finish(name: str, folder: Path, log: Path) -> Any:
    """Let a job come to its end, and return what it came to."""
    pid = begin(SCENES[name], folder, log)
    code = wait(pid, _LIMIT)
    if code is None:
        os.killpg(pid, signal.SIGKILL)
        raise AssertionError(f"{name} hangs in {folder} (limit {_LIMIT:g} s)\n{log.read_text()[-2000:]}")
    text = log.read_text(errors="replace")
    assert code == 0, f"{name} failed in {folder} with code {code}:\n{text[-3000:]}"
    assert "Traceback" not in text, f"{name} in {folder}:\n{text[-3000:]}"
    return SCENES[name].outcome(folder)


class Killer:
    """Kills the jobs of one kind.

    Args:
        name: One of `SCENES`.
        seed: Of the moments.
        scratch: A folder for the jobs.
    """

    def __init__(self, name: str, seed: int, scratch: Path) -> None:
        self.name, self.scene = name, SCENES[name]
        self._chance = random.Random(f"{name} {seed}")
        self._scratch = scratch
        self.kinds: Counter[str] = Counter()
        """Kills so far, by kind."""
        self.lives = 0
        whole = self._folder("whole")
        pid = begin(self.scene, whole, whole / "log", Faults(whole))  # which counts the calls
        assert wait(pid, _LIMIT) == 0, (whole / "log").read_text()[-3000:]
        self.calls = int((whole / "calls").read_text())
        again = self._folder("again")
        start = time.monotonic()
        self.expected = finish(name, again, again / "log")
        self.seconds = time.monotonic() - start
        assert self.scene.outcome(whole) == self.expected, f"{name} gives other files when it is run again"

    def _folder(self, name: str) -> Path:
        path = self._scratch / self.name / name
        path.mkdir(parents=True)
        self.scene.prepare(path)
        return path

    def live(self, most: int) -> None:
        """One life with up to so many kills."""
        self.lives += 1
        folder = self._folder(str(self.lives))
        log = folder / "log"
        for _ in range(min(most, self._chance.randint(1, 5))):
            if not (self._aimed(folder, log) if self._chance.random() < 0.6 else self._random(folder, log)):
                break
        found = finish(self.name, folder, log)
        if found != self.expected:
            pairs = [
                f"{str(a)[:500]}\nfor\n{str(b)[:500]}" for a, b in zip(found, self.expected, strict=True) if a != b
            ]
            raise AssertionError(f"{self.name} came to something else in {folder}:\n" + "\n".join(pairs))
        left = [path for path in folder.rglob(".pare.*") if not path.name.startswith(".pare.lock")]
        assert not left, f"left behind: {left}"

    def _aimed(self, folder: Path, log: Path) -> bool:
        mode, at = self._chance.choice(DEATHS), self._chance.randrange(max(1, self.calls))
        pid = begin(self.scene, folder, log, Faults(folder, at, mode))
        code = wait(pid, _LIMIT)
        if code is None:
            os.killpg(pid, signal.SIGKILL)
            raise AssertionError(f"{self.name} hangs in {folder}")
        if code == -signal.SIGKILL:
            self.kinds[f"aimed: {mode}"] += 1
            return True
        assert code == 0, f"{self.name} failed in {folder} with code {code}:\n{log.read_text()[-3000:]}"
        return False  # it had fewer calls left

    def _random(self, folder: Path, log: Path) -> bool:
        pid = begin(self.scene, folder, log)
        time.sleep(self._chance.uniform(0.0, self.seconds))
        if kill(pid):
            self.kinds["random"] += 1
            return True
        return False


def campaign(names: list[str], kills: int, seed: int) -> dict[str, Any]:
    """Kill each kind of job so many times; returns the record."""
    rows = []
    for name in names:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            killer = Killer(name, seed, Path(scratch))
            while killer.kinds.total() < kills:
                killer.live(kills - killer.kinds.total())
                print(f"{name}: {killer.kinds.total()} kills", file=sys.stderr, flush=True)
        rows.append(
            {
                "attack": f"kill -9: {name}",
                "tries": killer.kinds.total(),
                "survived": killer.kinds.total(),
                "lives": killer.lives,
                "kinds": dict(sorted(killer.kinds.items())),
                "calls_that_change_files": killer.calls,
                "seconds_undisturbed": round(killer.seconds, 1),
                "limit_s": _LIMIT,
                "seconds": round(time.monotonic() - start),
            }
        )
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", choices=sorted(SCENES), action="append")
    parser.add_argument("--kills", type=int, default=20, help="Of each kind of job.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="Write the record into this folder.")
    given = parser.parse_args()
    warm_up()
    names = given.scene or list(SCENES)
    chosen = "".join(f" --scene {name}" for name in given.scene or ())
    record = campaign(names, given.kills, given.seed)
    record = {"command": f"python -m tests.faults.kills{chosen} --kills {given.kills} --seed {given.seed}", **record}
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        name = "kills" if given.scene is None else "kills-" + "-".join(given.scene)
        (given.out / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
