"""The network of a run folder with its plan, from the checkpoint alone: what was learned about sharing is only there."""

import ast
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paretorch.core.compress import compress
from paretorch.core.relaxation import PREFIX
from paretorch.errors import ArtefactError, ConfigError


def shared_network(folder: Path) -> nn.Module:
    """The zoo network of a run that shares, as its last checkpoint has it, on the CPU; `Plan.of` finds its plan."""
    import paretorch
    from paretorch import zoo
    from paretorch.training.checkpoint import Checkpoint

    path = folder / "checkpoint.pt"
    if not path.exists():
        raise ConfigError(f"{folder} holds no checkpoint.pt: give the folder of a run")
    checkpoint = Checkpoint.load(path, torch.device("cpu"))
    try:
        network: nn.Module = zoo.build(checkpoint.recipe["network"], **_options(folder, checkpoint.recipe))
        config = checkpoint.model.get(f"{PREFIX}config")
        plan = json.loads(bytes(config.tolist())) if config is not None else {}
        steps, seed = plan.pop("steps", 1), plan.pop("seed", 0)
    except (KeyError, ValueError, AttributeError) as error:
        raise ArtefactError(f"{path} is not the checkpoint of a run of this version") from error
    if "sharing" not in plan:
        raise ConfigError(f"the network of {folder} shares no templates: train it with SoftSharing")
    methods = [getattr(paretorch, _name(fields))(**_fields(fields)) for fields in plan.values()]
    compress(network, *methods, steps=steps, seed=seed)
    try:
        network.load_state_dict(checkpoint.model)
    except RuntimeError as error:
        raise ArtefactError(f"{path} does not fit the network that its configuration names") from error
    return network.eval()


def _options(folder: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """Options of the network: of a finished run those in its artefact, else those of the recipe and its data."""
    from paretorch.deploy.artefact import open_artefact

    if (folder / "model.pare").exists() and "zoo" in (head := open_artefact(folder / "model.pare")[1]):
        return dict(head["zoo"][1])
    suited = {"classes": 100} if recipe.get("data") == "cifar100" else {}
    return {**suited, **(recipe.get("network_options") or {})}


def _name(fields: dict[str, str]) -> str:
    import paretorch

    name = fields["method"]
    if name not in paretorch.__all__:
        raise ConfigError(f"the network was trained with {name} too: fold it in Python, before finalize")
    return name


def _fields(fields: dict[str, str]) -> dict[str, Any]:
    try:
        return {name: ast.literal_eval(value) for name, value in fields.items() if name != "method"}
    except (ValueError, SyntaxError) as error:
        raise ConfigError(
            "the run was trained with functions as options: fold it in Python, before finalize"
        ) from error
