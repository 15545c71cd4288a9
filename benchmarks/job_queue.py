"""Claim: the queue costs less than a second per job, and a thousand workers with jobs of 60 s are over 95 % busy.

    python benchmarks/job_queue.py --out results/job_queue.json

The first part is measured: jobs whose processes end at once are run through the real queue on this machine's disk, so that all the
time is the queue's own (claims, looks at results, logs, pauses). The second part is a simulation of the queue's rule: workers take
jobs in order, go on at random where they meet a claim, pay for every look, die at random, and lose what came after the last
checkpoint; the job of a dead worker is free once it has been silent for the patience and somebody has looked twice. A look costs ten
times what was measured here, as on a network file system.

The third part puts two searches of the thesis on 1 to 1,000 GPUs, on paper and in the simulation: 11 ticket searches of 5 rounds of 85 epochs
of ResNet-20 with 3 seeds each, and the 441 settings of (α, ε) on WRN-28-4 with 200 epochs each. Seconds of an epoch were measured on one
H200 (results/train-step, results/sharing-wrn28-4), checkpoints are files of such runs, written at 100 MB/s. On paper, the last of
J jobs of t seconds on G GPUs ends after

    ⌈J/G⌉ (t (1 + d (p + s + c/2)) + q)  +  (2p + s + c/2) Σ_k (1 − P(N < k)^n)

with d deaths per second, a patience of p seconds, s seconds to start, a checkpoint every c seconds, q seconds of the queue, n = min(G, J) jobs in the last
wave, and N deaths of a job, which are Poisson with mean d t: whoever dies k times in the last wave holds it up k times.
"""

import argparse
import heapq
import json
import math
import platform
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretorch.workflows.queue import Claims, Job, patience, run_jobs

NETWORK = 10  # how much slower a look is on a network file system
DEATHS_PER_HOUR = 1.0
BYTES_PER_SECOND = 1e8  # of a network file system
CHECKPOINT = 10.0  # seconds between two checkpoints of a job
START = 5.0  # seconds for a process to begin; part of the job's time, and lost again after a death


class Ended:
    """A process that has ended already."""

    def poll(self) -> int | None:
        return 0


class InstantEngine:
    """Runs nothing."""

    places, sees_deaths = 1, True

    def start(self, job: Job, claim: int) -> Ended:
        return Ended()

    def stop(self, processes: Sequence[Any]) -> None:
        pass


def measure_overhead(count: int) -> tuple[float, float]:
    """Seconds of the queue per job, and per look at a job that another worker has."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            Job(f"job{i}", Path(folder) / f"job{i}", (), Path(folder) / f"job{i}" / "log.txt") for i in range(count)
        ]
        over: set[str] = set()

        def ended(job: Job, code: int, words: str) -> str:
            over.add(job.name)
            return "done"

        begun = time.perf_counter()
        run_jobs(
            jobs,
            InstantEngine(),
            is_over=lambda job: "done" if job.name in over else None,
            ended=ended,
            log=lambda line: None,
        )
        overhead = (time.perf_counter() - begun) / count
        held = Claims().take(Path(folder) / "held")
        assert held is not None
        looks, claims = [], Claims()
        for _ in range(200):
            begun = time.perf_counter()
            claims.take(Path(folder) / "held")
            looks.append(time.perf_counter() - begun)
        held.release()
    return overhead, statistics.median(looks)


@dataclass(frozen=True)
class Search:
    """Many trainings of one kind.

    Args:
        jobs: How many, each of which one GPU does.
        epochs: Of a job.
        epoch: Seconds of an epoch, measured on one H200.
        checkpoint: Bytes.
    """

    jobs: int
    epochs: int
    epoch: float
    checkpoint: int

    @property
    def writing(self) -> float:
        """The share of the time that checkpoints take."""
        return self.checkpoint / BYTES_PER_SECOND / CHECKPOINT

    @property
    def seconds(self) -> float:
        """Of a job that is left alone."""
        return START + self.epochs * self.epoch * (1.0 + self.writing)


SEARCHES = {
    "tickets of ResNet-20": Search(11 * 3, 5 * 85, 0.642, 4_407_381),
    "grid of WRN-28-4": Search(441, 200, 1.33, 70_317_235),
}
GPUS = (1, 8, 33, 100, 441, 1000)


def on_paper(search: Search, gpus: int, overhead: float) -> float:
    """Seconds until the last job has ended."""
    deaths, again = DEATHS_PER_HOUR / 3600, START + CHECKPOINT / 2
    each = search.seconds * (1.0 + deaths * (patience() + again)) + overhead
    mean, fewer, held_up = deaths * search.seconds, 0.0, 0.0
    for count in range(10):
        fewer += math.exp(-mean) * mean**count / math.factorial(count)
        held_up += 1.0 - fewer ** min(gpus, search.jobs)
    return math.ceil(search.jobs / gpus) * each + held_up * (2 * patience() + again)


def plan_searches(look: float, overhead: float) -> list[dict[str, Any]]:
    """Both searches on paper and simulated, five times with other deaths."""
    rows = []
    for name, search in SEARCHES.items():
        for gpus in GPUS:
            found = [simulate(gpus, search.jobs, search.seconds, look, overhead, seed).hours for seed in range(5)]
            row = {
                "search": name,
                "gpus": gpus,
                "paper_hours": on_paper(search, gpus, overhead) / 3600,
                "simulated_hours": found,
            }
            rows.append(row)
            mean = statistics.mean(found)
            print(f"{name} on {gpus:>4} GPUs: {row['paper_hours']:.3f} h on paper, {mean:.3f} h simulated")
    return rows


@dataclass
class Simulated:
    """What a simulation came to."""

    hours: float
    busy: float
    busy_while_jobs_wait: float
    deaths: int
    looks_per_job: float


def simulate(workers: int, jobs: int, seconds: float, look: float, overhead: float, seed: int) -> Simulated:
    """Let so many workers do so many jobs of so many seconds."""
    chance = random.Random(seed)
    left = [seconds] * jobs  # of work
    free_at = [0.0] * jobs  # until then a worker has the job, or it is not yet known that its worker is dead
    at = [0] * workers
    mine = [list(range(jobs)) for _ in range(workers)]  # what each worker has not yet seen done
    waiting = jobs
    useful = useful_until = end_of_free = 0.0
    deaths = looks = 0
    events = [(chance.random(), worker) for worker in range(workers)]  # they do not start in the same instant
    heapq.heapify(events)
    finished, under_way = 0.0, list[float]()
    while waiting:
        now, worker = heapq.heappop(events)
        own, tries, held = mine[worker], 0, 0
        while own and held < 16:
            at[worker] %= len(own)
            job = own[at[worker]]
            tries += 1
            if free_at[job] > now:
                held += 1
                at[worker] = chance.randrange(len(own))
            elif left[job] > 0:
                break
            else:
                del own[at[worker]]
        else:
            looks += tries
            if own:
                heapq.heappush(events, (now + tries * look + patience() / 60, worker))
            continue
        looks += tries
        begun = now + tries * look + overhead
        if left[job] == seconds and free_at[job] == 0.0:
            end_of_free, useful_until = begun, useful  # nobody has begun it before
            under_way = [when for when, _ in events if when > now]
        lives = chance.expovariate(DEATHS_PER_HOUR / 3600)
        if lives < left[job]:
            deaths += 1
            kept = max(0.0, lives - START) // CHECKPOINT * CHECKPOINT
            left[job] -= kept
            useful += kept
            # Two looks, a patience apart, show that nobody beats any more; the worker is started again.
            free_at[job] = begun + lives + 2 * patience()
            heapq.heappush(events, (begun + lives + patience(), worker))
        else:
            useful += left[job]
            finished = max(finished, begun + left[job])
            heapq.heappush(events, (begun + left[job], worker))
            free_at[job], left[job] = begun + left[job], 0.0
            waiting -= 1
    full = end_of_free * workers
    # Work is counted when it is taken up: what of it is done later is none of that time.
    open_then = sum(max(0.0, when - end_of_free) for when in under_way)
    return Simulated(
        finished / 3600, useful / (finished * workers), (useful_until - open_then) / full, deaths, looks / jobs
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100, help="Jobs of the measurement.")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--per-worker", type=int, default=20, help="Jobs per worker of the simulation.")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    overhead, look = measure_overhead(asked.jobs)
    print(f"{1000 * overhead:.0f} ms of the queue per job, {1000 * look:.2f} ms per look at a claim")
    rows = []
    for workers in (1, 10, 100, asked.workers):
        found = simulate(workers, workers * asked.per_worker, 60.0, NETWORK * look, overhead, seed=0)
        rows.append({"workers": workers, "jobs": workers * asked.per_worker, **found.__dict__})
        print(
            f"{workers:>5} workers: {100 * found.busy:.1f} % busy to the very end, "
            f"{100 * found.busy_while_jobs_wait:.1f} % while there were jobs to take, {found.deaths} deaths, "
            f"{found.looks_per_job:.1f} looks per job"
        )
    planned = plan_searches(NETWORK * look, overhead)
    holds = overhead <= 1.0 and rows[-1]["busy_while_jobs_wait"] > 0.95
    print(f"claim {'holds' if holds else 'FAILS'}")
    if asked.out is not None:
        content = {
            "command": shlex.join(["python", *sys.argv]),
            "hardware": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "overhead_seconds": overhead,
            "look_seconds": look,
            "network_factor": NETWORK,
            "deaths_per_worker_and_hour": DEATHS_PER_HOUR,
            "job_seconds": 60.0,
            "simulated": rows,
            "searches": planned,
        }
        asked.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
