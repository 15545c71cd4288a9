"""The run folder: config.json, metrics.jsonl, checkpoint.pt and the one before it, and at the end model.pare, report.html, a generator's samples.png."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from paretorch.errors import ArtefactError, ConfigError, warn
from paretorch.support import __version__, checked_files
from paretorch.support.c_code import find_compiler
from paretorch.support.files import parse_json, read_json, read_text, sweep
from paretorch.training import shards
from paretorch.training.files import write_atomically, write_error
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import require_same_recipe

_DECIDING = ("device", "hardware", "threads", "compiler", "torch", "paretorch")
"""What the last bits of a result may depend on; `compiler`: optimizers run a compiled step if there is one."""


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
        begun = self.has_checkpoint()
        here = environment(device or torch.device("cpu"))
        if begun:
            self._content = self.config.read_bytes()
            warn_of_other_environment(json.loads(self._content).get("environment"), here, path)
        else:
            self._content = json.dumps({"recipe": recipe.as_dict(), "environment": here}, indent=2).encode()
        self._rows = b""
        self._make()
        if not begun:
            write_atomically(self.config, self._content)
        sweep(path)
        self.rewind(None if begun else 0)

    @property
    def rows(self) -> bytes:
        """What is in metrics.jsonl."""
        return self._rows

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint, of one process or of several ranks."""
        return checked_files.exists(self.checkpoint) or shards.exists(self.path)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self.path, error) from error

    def restore(self) -> None:
        """Write config.json and metrics.jsonl again if somebody has removed them, or the whole folder, during the run."""
        self._make()
        if not self.config.exists():
            write_atomically(self.config, self._content)
        if self._rows and not self.metrics.exists():
            write_atomically(self.metrics, self._rows)

    def rewind(self, offset: int | None) -> None:
        """Cut metrics.jsonl to `offset` bytes (None: leave it), so that steps taken again are not written twice."""
        if self.metrics.exists() and not self.metrics.is_file():
            raise ArtefactError(f"{self.metrics} is not a file: remove it, or choose another --out")
        try:
            with open(self.metrics, "ab") as file:
                if offset is not None:
                    if file.tell() < offset:
                        raise ArtefactError(
                            f"{self.metrics} lacks rows that were there when the run was stopped; put them back, or "
                            f"remove {self.checkpoint} to begin the run again"
                        )
                    file.truncate(offset)
            self._rows = self.metrics.read_bytes()
        except OSError as error:
            raise write_error(self.metrics, error) from error

    def append(self, row: dict[str, Any]) -> int:
        """Add one line to metrics.jsonl; returns the length of the file."""
        self.restore()
        line = json.dumps(row).encode() + b"\n"
        try:
            with open(self.metrics, "ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
                self._rows += line
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
    begun = checked_files.exists(path / "checkpoint.pt") or shards.exists(path)
    if not (begun or (path / "result.json").exists()):
        return
    if not resume:
        raise ConfigError(f"{path} already holds a run; continue it with --resume or choose another --out")
    try:
        stored = dict(read_json(path / "config.json")["recipe"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}/config.json is not the configuration of a run; choose another --out") from error
    require_same_recipe(recipe, stored, path)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The complete rows of a run's metrics.jsonl."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    try:
        rows = [parse_json(line) for line in read_text(path).splitlines(keepends=True) if line.endswith("\n")]
        if not all(isinstance(row, dict) for row in rows):
            raise ValueError
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} is damaged: it should hold one JSON object per line") from error
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
        "compiler": find_compiler() is not None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "paretorch": __version__,
    }


def warn_of_other_environment(stored: Any, here: dict[str, Any], where: Path) -> None:
    """Warn, in one line, of what differs from where a run was begun: the same steps may then give other last bits."""
    if not isinstance(stored, dict):
        return
    if differs := environment_differences(stored, here):
        warn(
            f"{where} was begun in another environment: {differs}; the result may differ from that of a run that stayed there"
        )


def environment_differences(stored: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What the last bits of a result may depend on and differs, as "threads (there 2, here 4), …"; empty if nothing does."""
    differs = [name for name in _DECIDING if name in stored and stored[name] != here[name]]
    return ", ".join(f"{name} (there {stored[name]!r}, here {here[name]!r})" for name in differs)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
