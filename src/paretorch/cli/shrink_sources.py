"""What `pare shrink` works on: a network of the zoo or of the user's own, its weights, and batches of the zoo's data."""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretorch.errors import ConfigError, PareError
from paretorch.support.eval_mode import first_sentence

if TYPE_CHECKING:
    from torch import Tensor, nn

_AT_ONCE = 64  # batches that are in memory as numbers; every epoch is shuffled anew
_NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights


def own_network(text: str) -> "nn.Module | None":
    """Return what FILE.py:FUNCTION gives; None if the text is no such thing."""
    from torch import nn

    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        return None
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"There is no file {file}: give --network FILE.py:FUNCTION, or a name of the zoo")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses and pickles look their module up there
    try:
        spec.loader.exec_module(module)
        built = getattr(module, name)()
    except Exception as error:  # a user's file may raise anything
        raise ConfigError(f"{text} cannot be built: {type(error).__name__}: {first_sentence(error)}") from error
    if not isinstance(built, nn.Module):
        raise ConfigError(f"{text} gives {type(built).__name__}, not a module")
    return built


def load_weights(model: "nn.Module", path: Path) -> None:
    """Fill the network from an artefact, a safetensors file, or a file of torch.save, of which nothing is executed."""
    from paretorch import deploy

    if not path.is_file():
        raise ConfigError(f"There are no weights {path}: give a .safetensors, .pt or .pare file")
    if path.suffix == ".pare":
        deploy.load(path, into=model)
        return
    try:
        model.load_state_dict(_read_state(path))
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"{path} has not the weights of this network: {first_sentence(error)}") from error


def _read_state(path: Path) -> "Mapping[str, Tensor]":
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a foreign file makes of the unpickler is not ours to list
        raise PareError(f"{path} cannot be read as weights: {first_sentence(error)}") from error
    while isinstance(found, Mapping) and (inner := next((key for key in _NESTED if key in found), None)) is not None:
        found = found[inner]
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ConfigError(f"{path} holds no state dict: save model.state_dict()")
    return found


class TaskInputs:
    """Training batches of a task as the model sees them, some of each epoch, the same each time."""

    def __init__(self, task: Any, name: str) -> None:
        if not hasattr(task, "inputs"):
            raise ConfigError(
                f"pare shrink has no unlabelled batches of {name}: use pt.shrink in Python, with your own"
            )
        self._task = task

    def __iter__(self) -> "Iterator[Tensor]":
        for number in count():
            yield from self._task.inputs(number, min(self._task.steps, _AT_ONCE))
