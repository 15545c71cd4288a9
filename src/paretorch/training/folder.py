"""The run folder: config.json, metrics.jsonl, checkpoint.pt, and at the end model.pare, report.html, a generator's samples.png."""

import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.version import __version__
from paretorch.training.files import write_atomically, write_error
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import require_same_recipe


class RunFolder:
    """Opens a folder for a run, new or resumed, and owns the files in it."""

    def __init__(self, path: Path, recipe: Recipe, *, resume: bool = False, device: torch.device | None = None) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.pt"
        self.artefact = path / "model.pare"
        self.report = path / "report.html"
        self.samples = path / "samples.png"
        check_folder(path, recipe, resume=resume)
        begun = self.checkpoint.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(path, error) from error
        if not begun:
            content = {"recipe": recipe.as_dict(), "environment": environment(device or torch.device("cpu"))}
            write_atomically(self.config, json.dumps(content, indent=2).encode())
        self.rewind(None if begun else 0)

    def rewind(self, offset: int | None) -> None:
        """Cut metrics.jsonl to `offset` bytes (None: leave it), so that steps taken again are not told twice."""
        try:
            with open(self.metrics, "ab") as file:
                if offset is not None:
                    if file.tell() < offset:
                        raise ArtefactError(
                            f"{self.metrics} lacks rows that were there when the run was stopped; put them back, or "
                            f"remove {self.checkpoint} to begin the run again."
                        )
                    file.truncate(offset)
        except OSError as error:
            raise write_error(self.metrics, error) from error

    def append(self, row: dict[str, Any]) -> int:
        """Add one line to metrics.jsonl; returns the length of the file."""
        try:
            with open(self.metrics, "ab") as file:
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                return file.tell()
        except OSError as error:
            raise write_error(self.metrics, error) from error

    def history(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far; a last line cut by a kill is left out."""
        return read_history(self.path)


def check_folder(path: Path, recipe: Recipe, *, resume: bool) -> None:
    """Refuse a folder whose run must not be touched: any without `resume`, with it one of another recipe.

    A run is in a folder once it has a checkpoint or a result; what was stopped before that is begun anew.
    """
    if not any((path / name).exists() for name in ("checkpoint.pt", "result.json")):
        return
    if not resume:
        raise ConfigError(f"{path} already holds a run; continue it with --resume or choose another --out.")
    try:
        stored = dict(json.loads((path / "config.json").read_text())["recipe"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}/config.json is not the configuration of a run; choose another --out.") from error
    require_same_recipe(recipe, stored, path)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The complete rows of a run's metrics.jsonl."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError
    except ValueError as error:
        raise ArtefactError(f"{path} is damaged: it should hold one JSON object a line.") from error
    return rows


def _program() -> str:
    program = Path(sys.argv[0])
    return "pare" if program.stem in ("pare", "__main__", "") else f"python {program.parent.name}/{program.name}"


def environment(device: torch.device) -> dict[str, Any]:
    """What a reader needs to judge or repeat the run."""
    return {
        "command": f"{_program()} {shlex.join(sys.argv[1:])}".strip(),
        "device": device.type,
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "paretorch": __version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
