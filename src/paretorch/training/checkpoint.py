"""Checkpoints: everything a run needs to go on as if it had never stopped.

Written atomically; read with `weights_only=True`, so a file from elsewhere cannot run code.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paretorch.errors import ArtefactError
from paretorch.training.files import write_atomically

_FORMAT = 1
_ANEW = "remove it to begin the run again"
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
        """Replace `path` by this checkpoint, or leave it as it was."""
        buffer = io.BytesIO()
        torch.save({"format": _FORMAT, **self.__dict__}, buffer)
        write_atomically(path, buffer.getbuffer())

    @classmethod
    def load(cls, path: Path, device: torch.device) -> "Checkpoint":
        """Read a checkpoint; tensors arrive on `device`, generator states on the CPU."""
        try:
            content = torch.load(path, map_location=device, weights_only=True)
        except Exception as error:  # what a torn or foreign file makes of the unpickler is not ours to list
            raise ArtefactError(f"{path} is not a readable checkpoint; {_ANEW}.") from error
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ArtefactError(f"{path} is a checkpoint of another format; {_ANEW}.")
        if set(content) != set(cls.__dataclass_fields__):
            raise ArtefactError(f"{path} lacks parts of a checkpoint; {_ANEW}.")
        for name, kind in _KINDS.items():
            if not isinstance(content[name], kind):
                raise ArtefactError(f"{path} has no {name} as checkpoints have it; {_ANEW}.")
        content["random"] = {name: state.cpu() for name, state in content["random"].items()}
        return cls(**content)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of torch's global generators that a step may draw from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Put the global generators back; a state of a device that is not used now is passed over."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
