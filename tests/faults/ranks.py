"""Kill -9 of one of two ranks at random moments; the run is continued on one, two and four ranks.

    python -m tests.faults.ranks --kills 10 --seed 0 --out results/attacks

Both ranks share the network out (FSDP2) and write a checkpoint every second step, in the background. After a kill the other rank has to
end by itself, in one sentence, and what is there has to be a checkpoint of one of the last two intervals: the one under way may be lost
with that of the checkpoint that was being written. At its end a life that was continued on two ranks has to have the files of a run that
was never killed, bit for bit; one that was continued on one or four, its losses and almost all of its decisions.
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
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paretorch.training import shards
from tests.faults.kills import begin, wait
from tests.faults.scenes import Scene, pare, warm_up
from tests.meeting import free_ports
from tests.training.test_ranks import assert_alike, rows, small, write_network

INTERVAL = 2
TOLERANCE = 2e-3
ENDS = (2, 1, 4)
"""On how many ranks lives come to their ends, in turn."""
_LIMIT = 300.0
_ALONE = 60.0
"""Seconds in which a rank has to notice that the other one is gone."""


def _rank(rank: int, count: int, port: int, folder: Path) -> None:
    """One of so many ranks: begin the run or go on with it."""
    from paretorch.training.stepper import Stepper

    if count > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    step = Stepper.step

    def counted(self: Stepper, index: int) -> None:
        step(self, index)
        if rank == 0:
            with open(folder / "steps", "ab") as file:
                file.write(b".")

    Stepper.step = counted  # type: ignore[method-assign]
    words = ["train", *small(folder), "--checkpoint-steps", str(INTERVAL), "--device", "cpu", "--quiet"]
    pare(*words, "--out", str(folder / "run"), "--resume", *(["--shard"] if count > 1 else []))


def start(count: int, folder: Path) -> list[int]:
    """Begin so many ranks; returns their processes."""
    (folder / "steps").write_bytes(b"")
    (port,) = free_ports(1)
    scenes = [Scene(partial(_rank, rank, count, port), lambda folder: None) for rank in range(count)]
    return [begin(scene, folder, folder / "log") for scene in scenes]


def finish(count: int, folder: Path) -> None:
    """Let the run come to its end."""
    codes = [wait(pid, _LIMIT) for pid in start(count, folder)]
    assert codes == [0] * count, f"{codes} in {folder}:\n{_said(folder)}"


def _said(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")[-3000:]


def _position(run: Path) -> int:
    """Steps in the newest checkpoint; 0 without one."""
    if not shards.exists(run):
        return 0
    stored = shards.load(shards.find(run))
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = next((row["step"] for row in reversed(history) if row["epoch"] == stored.epoch), 0)
    return int(steps) + stored.step


class RankKiller:
    """Kills ranks of runs.

    Args:
        seed: Of the moments.
        scratch: A folder for the runs.
    """

    def __init__(self, seed: int, scratch: Path) -> None:
        self._chance, self._scratch = random.Random(f"ranks {seed}"), scratch
        self.kills: Counter[int] = Counter()
        """Kills so far, by the number of ranks on which the run came to its end."""
        self.lives: Counter[int] = Counter()
        self.most_lost = 0
        """Steps, of one kill."""
        self._whole = self._folder("whole")
        before = time.monotonic()
        finish(2, self._whole)
        self.seconds = time.monotonic() - before

    def _folder(self, name: str) -> Path:
        folder = self._scratch / name
        folder.mkdir(parents=True)
        write_network(folder)
        return folder

    def live(self, most: int) -> None:
        """One life with up to so many kills."""
        end = ENDS[self.lives.total() % len(ENDS)]
        folder = self._folder(str(self.lives.total()))
        self.lives[end] += 1
        for _ in range(min(most, self._chance.randint(1, 2))):
            if not self._kill(folder):
                break
            self.kills[end] += 1
        finish(end, folder)
        whole, found = self._whole / "run", folder / "run"
        assert "Traceback" not in _said(folder), _said(folder)
        if end == 2:
            pairs = zip_longest(rows(found), rows(whole))
            assert rows(found) == rows(whole), "\n".join(f"{a}\nfor\n{b}" for a, b in pairs if a != b) + _said(folder)
            assert (found / "model.pare").read_bytes() == (whole / "model.pare").read_bytes()
        else:
            assert_alike(whole, found, TOLERANCE)

    def _kill(self, folder: Path) -> bool:
        """Kill one of two ranks; returns whether both were there."""
        before = _position(folder / "run")
        pids = start(2, folder)
        time.sleep(self._chance.uniform(0.0, self.seconds))
        killed = self._chance.randrange(2)
        os.kill(pids[killed], signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(pids[killed], 0)[1]) != -signal.SIGKILL:
            wait(pids[1 - killed], _LIMIT)
            return False
        code = wait(pids[1 - killed], _ALONE)
        if code is None:  # it may wait for the other one to arrive
            os.kill(pids[1 - killed], signal.SIGKILL)
            os.waitpid(pids[1 - killed], 0)
        taken = before + (folder / "steps").stat().st_size
        if code == 0:  # the other one had nothing left to wait for
            assert (folder / "run" / "result.json").exists(), f"a rank ended well too early:\n{_said(folder)}"
            return True
        assert "Traceback" not in _said(folder), _said(folder)
        assert code is None or taken == before or "lost another rank, which has ended" in _said(folder), _said(folder)
        lost = taken - _position(folder / "run")
        assert 0 <= lost <= 2 * INTERVAL, f"{lost} steps are lost in {folder}"
        self.most_lost = max(self.most_lost, lost)
        return True


def campaign(kills: int, seed: int) -> list[dict[str, Any]]:
    """Kill so many ranks; returns the rows of the record."""
    with tempfile.TemporaryDirectory() as scratch:
        killer = RankKiller(seed, Path(scratch))
        while killer.kills.total() < kills:
            killer.live(kills - killer.kills.total())
            print(f"ranks: {killer.kills.total()} kills", file=sys.stderr, flush=True)
    words = {2: "two, bit for bit", 1: "one", 4: "four"}
    return [
        {
            "attack": f"kill -9: one of two ranks (FSDP2), continued on {words[end]}",
            "tries": killer.kills[end],
            "survived": killer.kills[end],
            "lives": killer.lives[end],
            **({} if end == 2 else {"tolerance": TOLERANCE}),
            "interval": INTERVAL,
            "most_lost": killer.most_lost,
            "seconds_undisturbed": round(killer.seconds, 1),
            "limit_s": _LIMIT,
        }
        for end in ENDS
        if killer.kills[end]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="Write the record into this folder.")
    given = parser.parse_args()
    warm_up()
    command = f"python -m tests.faults.ranks --kills {given.kills} --seed {given.seed}"
    record = {"command": command, "rows": campaign(given.kills, given.seed)}
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "kills-ranks.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
