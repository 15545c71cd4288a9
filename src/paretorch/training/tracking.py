"""Metrics in TensorBoard, Weights & Biases and MLflow: `pare train --track wandb`, or `Tracking` in a loop of your own.

Nothing needs a network: TensorBoard writes files, W&B runs offline unless it is logged in (`wandb sync` uploads later), and
MLflow writes a database into the run folder unless MLFLOW_TRACKING_URI names a server.
"""

from __future__ import annotations

import json
import logging
import netrc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from paretorch.core.plan import Plan
from paretorch.errors import ConfigError, MissingExtraError
from paretorch.support.files import read_json
from paretorch.training.files import write_atomically

Row = Mapping[str, Any]


class Tracker(Protocol):
    """One of the services."""

    def add(self, row: Row) -> None:
        """Write the numbers of a row at its step."""

    def close(self) -> None:
        """Write what is left."""


class Tracking:
    """Writes rows of metrics to one or several trackers.

    A run that is resumed goes on in the same W&B or MLflow run, and rows that it repeats are written once.

    Args:
        names: "tensorboard", "wandb", "mlflow", or several of them.
        folder: The run folder; local files go into its subfolders tensorboard, wandb and mlflow.
        config: Options to show beside the curves, such as a recipe.
        step: The optimizer steps that were taken before, if the run is resumed.
        rows: The rows that were written before and are not repeated.

    Example:
        >>> with Tracking("tensorboard", "runs/mine") as tracking:  # doctest: +SKIP
        ...     for x, y in batches:
        ...         ...  # backward, optimizer.step(), plan.step()
        ...         tracking.log(plan, loss=float(loss))
    """

    def __init__(
        self,
        names: str | Sequence[str],
        folder: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        step: int = 0,
        rows: int = 0,
    ) -> None:
        names = [names] if isinstance(names, str) else list(names)
        require_trackers(names)
        path = Path(folder)
        self._trackers: list[Tracker] = [_TRACKERS[name](path, dict(config or {}), step, rows) for name in names]
        self._step = step

    def add(self, row: Row) -> None:
        """Write a row of metrics.jsonl: its numbers by name, at its "step"."""
        for tracker in self._trackers:
            tracker.add(row)

    def log(self, plan: Plan | None = None, /, **values: float) -> None:
        """Write the plan's metrics and further numbers, at the plan's step or at step=."""
        row = {**({} if plan is None else plan.metrics()), **values}
        self._step = int(row.get("step", self._step + 1))
        self.add({**row, "step": self._step})

    def close(self) -> None:
        """Write what is left, and end the runs."""
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _TensorBoard:
    """Event files; what a stopped run wrote after `step` is purged."""

    def __init__(self, folder: Path, config: dict[str, Any], step: int, rows: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, row: Row) -> None:
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Remembered:
    """The run's name at a service and how many rows it has, in a file of the run folder."""

    def __init__(self, path: Path, rows: int) -> None:
        self._path, self._next = path, rows
        self.ident, self._written = "", 0
        if rows or path.exists():
            with suppress(OSError, ValueError, TypeError, KeyError):
                stored = read_json(path)
                self.ident, self._written = str(stored["run"]), int(stored["rows"])
        if not rows:  # begun anew
            self.ident, self._written = "", 0

    def is_new(self) -> bool:
        """Count a row; whether it was not written before."""
        self._next += 1
        return self._next > self._written

    def keep(self) -> None:
        """Remember the rows so far."""
        self._written = max(self._written, self._next)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps({"run": self.ident, "rows": self._written}).encode())


class _WandB:
    def __init__(self, folder: Path, config: dict[str, Any], step: int, rows: int) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._memory = _Remembered(folder / "wandb" / "paretorch.json", rows)
        (folder / "wandb").mkdir(exist_ok=True)  # else wandb warns and writes elsewhere
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "paretorch"),
            name=folder.absolute().name,
            dir=str(folder),
            id=self._memory.ident or None,
            resume="allow",
            config=config,
            mode=_wandb_mode(),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        self._memory.ident = str(self._run.id)
        self._run.define_metric("*", step_metric="step")

    def add(self, row: Row) -> None:
        if self._memory.is_new():
            self._run.log({**_numbers(row), "step": row["step"]})
            self._memory.keep()

    def close(self) -> None:
        self._run.finish()


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Let these loggers write warnings only."""
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


class _MLflow:
    def __init__(self, folder: Path, config: dict[str, Any], step: int, rows: int) -> None:
        from mlflow.tracking import MlflowClient

        self._memory = _Remembered(folder / "mlflow" / "paretorch.json", rows)
        (folder / "mlflow").mkdir(parents=True, exist_ok=True)
        local = f"sqlite:///{(folder / 'mlflow' / 'mlflow.db').absolute().as_posix()}"
        address = os.environ.get("MLFLOW_TRACKING_URI") or local
        with _quiet("mlflow.store.db.utils", "alembic.runtime.migration"):  # which tell how a database is made
            self._client = MlflowClient(tracking_uri=address)
        if not self._memory.ident:
            run = self._client.create_run(self._experiment(folder, address == local), run_name=folder.absolute().name)
            self._memory.ident = run.info.run_id
            for name, value in config.items():
                self._client.log_param(self._memory.ident, name, str(value)[:500])

    def _experiment(self, folder: Path, is_local: bool) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "paretorch")
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # Without a place of its own, a local store would make a folder mlruns wherever the command runs.
        place = (folder / "mlflow" / "artefacts").absolute().as_uri() if is_local else None
        return str(self._client.create_experiment(name, artifact_location=place))

    def add(self, row: Row) -> None:
        if self._memory.is_new():
            for name, value in _numbers(row).items():
                self._client.log_metric(self._memory.ident, name, value, step=int(row["step"]))
            self._memory.keep()

    def close(self) -> None:
        self._client.set_terminated(self._memory.ident)


_TRACKERS: dict[str, Callable[[Path, dict[str, Any], int, int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
}
TRACKERS = tuple(_TRACKERS)
_PACKAGES = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


def require_trackers(names: Sequence[str]) -> None:
    """Refuse unknown trackers, and those whose package is missing, before anything is trained."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"track={name!r}: choose from {', '.join(TRACKERS)}")
        for package in _PACKAGES[name]:
            try:
                __import__(package)
            except ImportError as error:
                raise MissingExtraError(f"--track {name} needs {package}: pip install 'paretorch[track]'") from error


def _numbers(row: Row) -> dict[str, float]:
    """The numbers of a row by name, without its step."""
    return {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}


def _wandb_mode() -> Any:
    """WANDB_MODE; without it online if logged in, else offline: wandb would ask for a key on the terminal."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    with suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc().authenticators("api.wandb.ai"):
            return "online"
    return "offline"
