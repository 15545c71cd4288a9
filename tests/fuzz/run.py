"""Coverage-guided fuzzing of one target with atheris, and mutation without it.

    python -m tests.fuzz.run pickle --runs 200000 --out results/attacks
    python -m tests.fuzz.run run-folder --mutations 10000 --out results/attacks

Each input must be read or refused within `SECONDS` and below `MEGABYTES`; a traceback, a hang or more memory ends the run
with exit code 1, and the input is kept in the current folder (`crash-*`).
"""

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 10
"""For one input."""
MEGABYTES = 2048
"""Of the process, of which torch takes 300."""


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, replaced, removed, repeated or put in."""
    out = bytearray(data or b"\0")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out))
        match chance.randrange(5):
            case 0:
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                out[at] = chance.choice(b'\0\x01\x7f\x80\xff0-"{[,]}\\\n.e')
            case 2:
                del out[at : at + chance.randint(1, 9)]
            case 3:
                out[at:at] = out[at : at + chance.randint(1, 64)] * chance.choice((1, 1, 1, 50))
            case _:
                out[at:at] = chance.choice((b"null", b"-1", b"1e999", b"NaN", b"[]", b"{}", b'""', b"true", b"9" * 30))
        out = out or bytearray(b"\0")
    return bytes(out)


def mutate(name: str, count: int, seed: int = 0) -> dict[str, object]:
    """Read `count` mutations of the corpus; returns the record."""
    from tests.fuzz.targets import TARGETS, seeds

    chance, target, corpus = random.Random(seed), TARGETS[name], seeds(name)
    accepted, slowest, start = 0, 0.0, time.monotonic()
    for _ in range(count):
        begin = time.monotonic()
        accepted += target(mutated(chance.choice(corpus), chance))
        slowest = max(slowest, time.monotonic() - begin)
    return {
        "attack": f"mutated: {name}",
        "tries": count,
        "survived": count,
        "accepted": accepted,
        "slowest_s": round(slowest, 3),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seconds": round(time.monotonic() - start),
        "command": f"python -m tests.fuzz.run {name} --mutations {count}" + (f" --seed {seed}" if seed else ""),
    }


def fuzz(name: str, runs: int, seconds: int = 0) -> dict[str, object]:
    """Fuzz in a process of its own, as libFuzzer ends it, for so many runs or seconds at most; returns the record."""
    with tempfile.TemporaryDirectory() as corpus:
        kept = Path(__file__).parent / "corpus" / name
        words = [sys.executable, "-m", "tests.fuzz.run", name, "--inside", f"-runs={runs}", f"-timeout={SECONDS}"]
        words += [f"-rss_limit_mb={MEGABYTES}", "-max_len=16384", "-print_final_stats=1"]
        words += [*([f"-max_total_time={seconds}"] if seconds else []), corpus, str(kept)]
        start = time.monotonic()
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    executed = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
    peak = re.search(r"stat::peak_rss_mb: +(\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    if done.returncode or executed is None:
        sys.stderr.write(done.stdout[-4000:] + done.stderr[-4000:])
        raise SystemExit(1)
    return {
        "attack": f"fuzzed: {name}",
        "tries": int(executed[1]),
        "survived": int(executed[1]),
        "coverage": int(covered[-1]) if covered else None,
        "peak_mib": int(peak[1]) if peak else None,
        "seconds": round(time.monotonic() - start),
        "command": f"python -m tests.fuzz.run {name} --runs {runs}" + (f" --seconds {seconds}" if seconds else ""),
    }


def _inside(name: str, words: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["paretorch", "pickletools", "tomllib"]):
        from tests.fuzz.targets import TARGETS

    def once(data: bytes) -> None:
        TARGETS[name](data)

    atheris.Setup([sys.argv[0], *words], once)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=0, help="End the runs after so many seconds.")
    parser.add_argument("--mutations", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="Write the record into this folder.")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given, others = parser.parse_known_args()
    if given.inside:
        return _inside(given.target, others)
    record = (
        fuzz(given.target, given.runs, given.seconds)
        if given.runs
        else mutate(given.target, given.mutations, given.seed)
    )
    text = json.dumps(record, indent=2) + "\n"
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        seed = f"-seed{given.seed}" if given.seed else ""
        (given.out / f"{'fuzz' if given.runs else 'mutate'}-{given.target}{seed}.json").write_text(text)
    print(text, end="")
    return None


if __name__ == "__main__":
    main()
