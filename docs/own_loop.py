"""Writes what training costs in the user's own loop into docs/measured.md and README.md, from results/own-loop.

python docs/own_loop.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "measured.md", ROOT / "README.md")

_NETWORKS = {
    "resnet50": "ResNet-50, 64 at 128 px",
    "vit_b_16": "ViT-B/16, 32 at 224 px",
    "mobilenet_v2": "MobileNetV2, 64 at 128 px",
    "llama15m": "Llama of 15 M weights, 64 × 223",
    "lstm": "LSTM, 3 layers",
}
FILES = dict.fromkeys(("resnet50", "vit_b_16", "mobilenet_v2"), "h200-25-rounds.json")
"""Where the numbers of networks are that were measured again over more rounds."""
_GPU = ("cs", "smol by weight", "smol by channel", "cs + smol", "channels")
_CPU = ("cs", "smol by weight", "cs + smol")


def _medians(file: str, network: str | None = None) -> dict[str, float]:
    rows = json.loads((ROOT / "results" / "own-loop" / file).read_text())["rows"]
    return {
        row["variant"]: statistics.median(row["ratios"]) for row in rows if network in (None, row.get("network"))
    } | {"ms": next(row["ms"] for row in rows if row["variant"] == "dense" and network in (None, row.get("network")))}


def lines() -> dict[str, str]:
    """Each line that is written, by how it begins."""
    found = {}
    for key, name in _NETWORKS.items():
        ratio = _medians(FILES.get(key, "h200.json"), key)
        cells = [f"{ratio[one]:.2f} ×" if one in ratio else "" for one in _GPU]
        found[f"| {name} |"] = f"| {name} | {ratio['ms']:.1f} | {' | '.join(cells)} |".replace("|  |", "| |")
    ratio = _medians("cpu.json")
    cells = [f"{ratio[one]:.2f} ×" for one in _CPU]
    name = "ResNet-20, batch 128, two CPU cores"
    found[f"| {name} |"] = f"| {name} | {' | '.join(cells)} |"
    return found


def page(text: str) -> str:
    """The page with these lines in place of those that begin alike."""
    new = lines()

    def line(old: str) -> str:
        return next((text for start, text in new.items() if old.startswith(start)), old)

    return "\n".join(map(line, text.split("\n")))


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
