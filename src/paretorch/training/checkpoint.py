"""Checkpoints: everything a run needs to go on as if it had never stopped.

Written atomically, with a checksum, and the one before it is kept; read with `weights_only=True`, so a file from elsewhere
cannot run code.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paretorch.errors import ArtefactError
from paretorch.support.checked_files import DamagedError, read_newest, read_tensors
from paretorch.training.files import save_tensors

_FORMAT = 1
_REMEDY = "remove it to begin the run again"
_KINDS = {
    **dict.fromkeys(("recipe", "model", "optimizer", "random"), dict),
    **dict.fromkeys(("epoch", "step", "offset"), int),
    "record": torch.Tensor,
}


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a run.

    epoch, step: epochs done, and steps done in the epoch under way. offset: the length of metrics.jsonl at that moment.
    record: the losses of the epoch under way. random: generator states by device type. plan: None for a dense run.
    """

    recipe: dict[str, Any]
    model: dict[str, Any]
    optimizer: dict[str, Any]
    plan: dict[str, Any] | None
    epoch: int
    step: int
    offset: int
    record: torch.Tensor
    random: dict[str, torch.Tensor]

    def save(self, path: Path) -> None:
        """Replace `path` by this checkpoint, or leave it as it was; the one before it is kept as checkpoint.previous.pt."""
        save_tensors(path, {"format": _FORMAT, **self.__dict__}, generations=2)

    @classmethod
    def load(cls, path: Path, device: torch.device, *, resume: bool = False) -> "Checkpoint":
        """Read a checkpoint; tensors arrive on `device`, generator states on the CPU.

        Args:
            path: Its file.
            device: Where its tensors go.
            resume: Go on from the one before it, with a warning, if the file is damaged.
        """
        try:
            content = read_newest(path, device) if resume else read_tensors(path, device)
        except DamagedError as error:
            raise ArtefactError(f"{error}; {_REMEDY}") from error
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ArtefactError(f"{path} is a checkpoint of another format; {_REMEDY}")
        return cls.checked(content, path)

    @classmethod
    def checked(cls, content: dict[str, Any], path: Path) -> "Checkpoint":
        """A checkpoint of these parts, once they are known to be sound; `path` is where they are from."""
        if set(content) != set(cls.__dataclass_fields__):
            raise ArtefactError(f"{path} lacks parts of a checkpoint; {_REMEDY}")
        for name, kind in _KINDS.items():
            if not isinstance(content[name], kind) or not _is_sound(name, content[name]):
                raise ArtefactError(f"{path} has no {name} as checkpoints have it; {_REMEDY}")
        content["random"] = {name: state.cpu() for name, state in content["random"].items()}
        return cls(**content)


def _is_sound(name: str, value: Any) -> bool:
    """Whether a part of the right type can be of a checkpoint."""
    if name in ("epoch", "step", "offset"):
        return not isinstance(value, bool) and value >= 0
    if name == "random":
        states = value.values()
        return "cpu" in value and all(isinstance(one, torch.Tensor) and one.dtype == torch.uint8 for one in states)
    if name == "recipe":
        return _is_json(value)
    return True


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of torch's global generators that a step may draw from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore_random(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Put the global generators back; a state of a device that is not used now is passed over."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if device.type == "mps" and "mps" in states:
        torch.mps.set_rng_state(states["mps"])
