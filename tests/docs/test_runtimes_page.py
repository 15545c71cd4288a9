"""The numbers in docs/runtimes.md are those of the result file."""

import json
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_losses_in_llama_cpp() -> None:
    page = (_ROOT / "docs/runtimes.md").read_text()
    record = json.loads((_ROOT / "results/gguf-llama/cpu.json").read_text())
    rows = {(row["way"].partition(",")[0], row.get("format")): row for row in record["rows"]}
    assert f"dense {rows['dense', None]['loss_llama_cpp']:.3f}" in page
    assert f"{record['weights']:,} weights" in page
    for form in ("Q8_0", "Q4_0", "TQ2_0"):
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {form} |")]
        size, quantizer, rounded, shrunk, in_torch = [cell.strip() for cell in line.strip("|").split("|")[1:]]
        assert size == f"{rows['shrunk', form]['bytes']:,}"
        found = [rows[way, form]["loss_llama_cpp"] for way in ("llama.cpp's quantizer", "rounded", "shrunk")]
        assert [quantizer, rounded, shrunk] == [f"{loss:.3f}" for loss in found]
        assert in_torch == f"{rows['shrunk', form]['loss_torch']:.3f}"
