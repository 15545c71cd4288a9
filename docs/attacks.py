"""Writes docs/attacks.md: the table of results/attacks, attack by attack.

python docs/attacks.py
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_HEAD = """# Attacks

What was tried against the library, and what survived; every row comes from a file of [results/attacks](../results/attacks), by the
command beside it. Survived means: the outcome is that of an undisturbed run, bit for bit, or one error of the library in one line;
no traceback, no code of the file run, nothing lost, nothing trained twice, no hang above the limit. This page is written by
`python docs/attacks.py`. What is promised about files from strangers is in [SECURITY.md](../SECURITY.md).

| attack | tries | survived | beside | command |
|---|---|---|---|---|
"""
_NOTES = """
All of it ran on two cores beside other work, with a load of up to 22, so that times are upper bounds. What did not survive at first and was mended, each with a test:
temporary files that no later start removed (rounds, tuning, results), a checkpoint left beside the result of a shrink, field names with line breaks in messages, a flipped
bit in the mark of a checksum, a worker that ended in a traceback since its storage was slower than others were patient. What is open: on SQLite, ten workers
at that load with a patience of 10 and of 30 seconds gave living workers up, so that a setting was trained twice (and stored once); with the default, 60 seconds, none was.
"""
_BESIDE = {
    "lives": "{:,} lives",
    "slowest_s": "slowest {} s",
    "peak_mib": "peak {} MiB",
    "accepted": "{:,} still valid",
    "coverage": "{:,} edges",
    "kills": "{:,} kills",
    "settings": "{:,} settings",
    "limit_s": "limit {:g} s",
}


def table() -> str:
    """The page."""
    rows: list[tuple[dict[str, Any], str]] = []
    for path in sorted((ROOT / "results" / "attacks").glob("*.json")):
        record = json.loads(path.read_text())
        rows += [(row, record["command"]) for row in record.get("rows", [record])]
    lines = []
    for row, command in rows:
        beside = ", ".join(text.format(row[name]) for name, text in _BESIDE.items() if row.get(name) is not None)
        lines.append(f"| {row['attack']} | {row['tries']:,} | {row['survived']:,} | {beside} | `{command}` |")
    kinds = {"kill -9": "kills", "fuzzed": "executions of atheris", "mutated": "mutated files and folders"}
    totals = {
        words: sum(row["tries"] for row, _ in rows if row["attack"].startswith(kind)) for kind, words in kinds.items()
    }
    total = ", ".join(f"{count:,} {words}" for words, count in totals.items())
    return _HEAD + "\n".join(lines) + f"\n\nIn all: {total}.\n" + _NOTES


if __name__ == "__main__":
    (ROOT / "docs" / "attacks.md").write_text(table())
