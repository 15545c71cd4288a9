"""`pare demo`: the whole way on data that comes with the package, in about a minute.

A small network learns 8×8 digits; then, from its weights, which to drop and how many bits to keep are learned together under
a budget in bytes; then what is left is fine-tuned, saved and reported.
"""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from paretorch.errors import ConfigError
from paretorch.training.recipe import CompressionRecipe, DataRecipe, OptimizerRecipe, Recipe, ScheduleRecipe
from paretorch.training.runtime import Runtime

BUDGET = 12_000

_DENSE = Recipe(
    "digits-cnn",
    epochs=12,
    data=DataRecipe("digits", batch=64),
    optimizer=OptimizerRecipe(lr=0.05, weight_decay=5e-4),
)
_SMALL = replace(
    _DENSE,
    epochs=24,
    finetune=8,
    schedule=ScheduleRecipe(finetune_lr=0.02),
    compression=CompressionRecipe(budget=BUDGET),
)


def run_demo(
    out: Path = Path("demo-run"), *, budget: int = BUDGET, seed: int = 0, device: str = "auto"
) -> list[dict[str, Any]]:
    """Train dense, compress to `budget` bytes, fine-tune, report; returns the two rows of the comparison.

    Writes out/model.pare and out/report.html, and the run folders out/dense and out/small. A second call starts again.
    """
    from paretorch.training import train

    if out.exists() and not (out / "dense" / "config.json").exists() and any(out.iterdir()):
        raise ConfigError(f"{out} holds something that is no demo; choose another folder with --out")
    dense, small = out / "dense", out / "small"
    for folder in (dense, small):
        shutil.rmtree(folder, ignore_errors=True)
    runtime = Runtime(device=device)
    with _one_thread():
        train(replace(_DENSE, seed=seed), dense, runtime)
        train(
            replace(_SMALL, seed=seed, start=str(dense / "model.pare"), compression=CompressionRecipe(budget=budget)),
            small,
            runtime,
        )
        return _compare(out, dense, small)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Steps this small gain nothing from a second thread, lose much on a busy machine, and with one they repeat anywhere."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _compare(out: Path, dense: Path, small: Path) -> list[dict[str, Any]]:
    from paretorch import zoo
    from paretorch.deploy import load
    from paretorch.report import report, write_html
    from paretorch.training.folder import read_history

    pixels = zoo.data.load("digits").test[0][:64]
    example = pixels.float() / 255
    shutil.copyfile(small / "model.pare", out / "model.pare")
    before = report(dense / "model.pare", latency=False)
    # Timed by turns: of networks that are timed one after the other, a busy machine makes either the slower one.
    after = report(out / "model.pare", example=example, baseline=load(dense / "model.pare"))
    rows = [{**_row(name, one), **_latency(after, name)} for name, one in (("dense", before), ("compressed", after))]
    write_html(
        out / "report.html", title="The digits, smaller", comparison=rows, report=after, history=read_history(small)
    )
    return rows


def _row(name: str, report: Any) -> dict[str, Any]:
    # A dense network is stored as plain fp32; that the artefact's coder would save a little on it is no merit of ours.
    return {
        "network": name,
        "accuracy": report.accuracy,
        "bits": report.bits,
        "sparsity": report.sparsity,
        "bytes": report.sizes.dense if name == "dense" else report.sizes.total,
    }


def _latency(report: Any, name: str) -> dict[str, Any]:
    """The median of a network under the runtime that is fastest here; the range of its rounds if those of both overlap."""
    pairs = report.timed_against_dense
    if not pairs:
        return {"latency": None, "runtime": None}
    runtime = min(pairs, key=lambda one: float(pairs[one][0].median_ms))
    dense, small = pairs[runtime]
    own = dense if name == "dense" else small
    differs = runtime in report.speedups
    said = f"{own.median_ms:.2f} ms" if differs else f"{own.low_ms:.2f} to {own.high_ms:.2f} ms"
    return {"latency": said if differs or name == "dense" else f"{said}, no difference", "runtime": runtime}
