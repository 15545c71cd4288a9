"""The folder of a shrink, and what is shown of it: a bar on a terminal, one line per phase elsewhere, or nothing.

The folder has what was asked for, a checkpoint, and at the end the file and the record. Everything is written whole or not at
all, so that a process that is killed at any moment can be followed by one that goes on.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from paretorch.errors import ArtefactError, ConfigError
from paretorch.support import checked_files
from paretorch.support.checks import require_one_of
from paretorch.support.files import read_json, sweep
from paretorch.training.files import save_tensors, write_atomically, write_error
from paretorch.training.folder import environment, warn_of_other_environment
from paretorch.training.progress import make_bar

MODES = ("auto", "bar", "plain", "quiet")
_LINES = 20  # of training, elsewhere than on a terminal


class ShrinkProgress:
    """Shows phases, and for each the work done, the time left, and what is known of the network.

    Args:
        mode: "bar", "plain" or "quiet"; "auto" is a bar on a terminal, and quiet elsewhere.
    """

    def __init__(self, mode: str = "auto") -> None:
        require_one_of("progress", mode, MODES)
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() and find_spec("rich") is not None else "quiet"
        self._mode = mode
        self._bar: Any = None
        self._task: Any = None
        self._phase = ""
        self._shown = 0

    def show(self, phase: str, done: int, total: int, words: str = "") -> None:
        """So much of a phase is done.

        Args:
            words: Such as those of `describe`.
        """
        if self._mode == "bar":
            self._advance(phase, done, total, words)
        elif self._mode == "plain":
            self._print(phase, done, total, words)

    def _advance(self, phase: str, done: int, total: int, words: str) -> None:
        if self._bar is None:
            self._bar = _make_bar()
            self._bar.start()
        if phase != self._phase:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._phase = self._bar.add_task(phase, total=total), phase
        self._bar.update(self._task, completed=done, total=total, description=f"{phase} {words}".strip())

    def _print(self, phase: str, done: int, total: int, words: str) -> None:
        part = done * _LINES // max(total, 1) if words else 0
        if phase != self._phase or part != self._shown:
            self._phase, self._shown = phase, part
            print(f"{phase} {done}/{total} {words}".strip(), flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def describe(distance: float, zeros: float, bits: float, expected: float) -> str:
    """Return what is known while training: 'distance 0.0312 zeros 12.3 % bits 4.10 3.700 MB'."""
    size = f"{expected / 1e6:.3f} MB" if expected >= 1e6 else f"{expected / 1e3:.2f} kB"
    return f"distance {distance:.4g} zeros {100 * zeros:.1f} % bits {bits:.2f} {size}"


def _make_bar() -> Any:
    from rich.console import Console

    return make_bar(Console(stderr=True))


SECONDS = 10.0
"""Between two checkpoints."""
_SHARE = 20.0  # of the time, at most one part in so many goes to checkpoints
_ENVIRONMENT = "environment"
_ANEW = "remove the folder to begin again"


class ShrinkFolder:
    """Owns the files of one shrink.

    Args:
        path: A new folder, or one of the same shrink, which goes on; None keeps nothing.
        settings: What the result follows from. A folder with other settings raises.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._last, self._cost = time.monotonic(), 0.0
        self._device = torch.device("cpu")
        if path is None:
            return
        self.artefact = path / "model.pare"
        self._cut = path / "cut.pare"
        self._settings, self._result, self._checkpoint = (
            path / name for name in ("shrink.json", "result.json", "checkpoint.pt")
        )
        if self._settings.exists():
            self._require_same(settings)
        elif any((path / name).exists() for name in ("config.json", "checkpoint.pt", "model.pare")):
            raise ConfigError(f"{path} holds something else: choose another folder")
        self._asked = dict(settings)
        sweep(path)

    def _begin(self) -> None:
        """Say what was asked for, once there is something to keep: wrong batches leave nothing behind."""
        assert self._path is not None
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self._path, error) from error
        if not self._settings.exists():
            content = {**self._asked, _ENVIRONMENT: environment(self._device)}
            write_atomically(self._settings, json.dumps(content, indent=2).encode())

    def _warn_of_other_environment(self, device: torch.device) -> None:
        assert self._path is not None
        self._device = device
        if self._settings.exists():
            warn_of_other_environment(_read_json(self._settings).get(_ENVIRONMENT), environment(device), self._path)

    def _require_same(self, settings: Mapping[str, Any]) -> None:
        stored = _read_json(self._settings)
        for name, value in settings.items():
            if stored.get(name) != value:
                shown = "" if name == "network" else f" (there {stored.get(name)!r}, now {value!r})"
                raise ConfigError(f"{self._path} was begun with another {name}{shown}: choose another folder")

    def result(self) -> dict[str, Any] | None:
        """Return the record of a shrink that is done."""
        if self._path is None or not (self._result.exists() and self.artefact.exists()):
            return None
        checked_files.remove(self._checkpoint)  # it is there after a kill at the very end
        return _read_json(self._result)

    def load(self, device: torch.device) -> dict[str, Any]:
        """Return the last checkpoint; empty if there is none."""
        if self._path is None or not checked_files.exists(self._checkpoint):
            return {}
        self._warn_of_other_environment(device)
        try:
            found = checked_files.read_newest(self._checkpoint, device)
        except checked_files.DamagedError as error:
            raise ArtefactError(f"{error}: {_ANEW}") from error
        if not isinstance(found, dict) or not {"rounded", "steps", "size"} <= found.keys():
            raise ArtefactError(f"{self._checkpoint} lacks parts of a checkpoint: {_ANEW}")
        return found

    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        waited = time.monotonic() - self._last
        return self._path is not None and waited >= max(SECONDS, _SHARE * self._cost)

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        if self._path is None:
            return
        self._begin()
        start = time.monotonic()
        save_tensors(self._checkpoint, dict(state), generations=2)
        self._last = time.monotonic()
        self._cost = self._last - start if SECONDS else 0.0

    def load_cut(self, into: nn.Module) -> nn.Module | None:
        """Return the network without the channels that are gone, filled into `into`; None if there is none yet."""
        if self._path is None or not self._cut.exists():
            return None
        from paretorch.deploy import load

        return load(self._cut, into=into)

    def save_cut(self, model: nn.Module) -> None:
        """Keep the network without the channels that are gone."""
        if self._path is None:
            return
        from paretorch.deploy import save

        self._begin()
        save(model, self._cut)

    def finish(self, model: nn.Module, record: Mapping[str, Any]) -> None:
        """Write the file and the record; the checkpoint goes."""
        if self._path is None:
            return
        from paretorch.deploy import save

        self._begin()
        save(model, self.artefact)
        write_atomically(self._result, json.dumps(dict(record), indent=2).encode())
        checked_files.remove(self._checkpoint)
        self._cut.unlink(missing_ok=True)


def fingerprint(model: nn.Module) -> str:
    """Return a short text that another network, or the same with other weights, does not have."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} is damaged: {_ANEW}") from error
    if not isinstance(found, dict):
        raise ArtefactError(f"{path} is damaged: {_ANEW}")
    return found
