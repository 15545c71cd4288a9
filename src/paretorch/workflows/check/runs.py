"""A run folder: its configuration, its rows, both generations of its checkpoint, its artefact and its result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch import zoo
from paretorch.deploy.artefact import open_artefact
from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.checked_files import read_tensors, verify
from paretorch.support.files import open_regular, read_json
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.finish import read_result
from paretorch.training.folder import environment, environment_differences, read_history
from paretorch.training.networks import is_zoo
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import by_place, stored_recipe
from paretorch.training.tasks.images import IMAGES
from paretorch.workflows.check.record import DAMAGED, NOTE, OK, Checked, names

_CLASSES = {"cifar100": 100}


def check_run(path: Path) -> Checked:
    """Look at everything in a run folder."""
    found = Checked(path, "a run folder")
    recipe = _configuration(found)
    rows, lengths = _rows(found)
    stored = {name: _checkpoint(found, name, recipe, lengths) for name in ("checkpoint.pt", "checkpoint.previous.pt")}
    artefact = check_artefact(path / "model.pare", found)
    done = _result(found, artefact)
    note_left_behind(found)
    _advise(found, recipe, rows, stored, artefact, done)
    return found


def check_artefact(path: Path, found: Checked) -> bool:
    """Look at a `.pare` file, if it is there; returns whether it is whole."""
    if not path.exists():
        return False
    with found.reading(path.name):
        network, head = open_artefact(path)
        state = network.state_dict() if isinstance(network, nn.Module) else network
        known = f", the network {head['zoo'][0]}" if "zoo" in head else ""
        broken = [name for name, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
        words = f"{len(state)} tensors in {path.stat().st_size:,} bytes{known}"
        found.add(path.name, NOTE if broken else OK, f"{words}; {broken[0]} is not finite" if broken else words)
        return True
    return False


def check_tensors(path: Path, found: Checked, name: str) -> Any:
    """Look at a file of tensors with a checksum; returns what is in it, None if it is missing or damaged."""
    if not path.exists():
        return None
    with found.reading(name):
        content = read_tensors(path)
        with open_regular(path) as file:
            own = verify(file, path)
        if not own:
            found.add(name, NOTE, "it has no checksum of its own, as those of 0.1.0; the archive's match")
        return content
    return None


def note_left_behind(found: Checked) -> None:
    """Temporary files of writers that were killed."""
    if left := list(found.path.glob(".pare.*")):
        found.add(names(left), NOTE, "left behind by a process that was killed, or is writing now")


def _configuration(found: Checked) -> Recipe | None:
    path = found.path / "config.json"
    if not path.exists():
        found.add("config.json", DAMAGED, "it is missing")
        return None
    with found.reading("config.json"):
        try:
            content = read_json(path)
            recipe = stored_recipe(content["recipe"], "it")
        except (ValueError, KeyError, TypeError) as error:
            raise ArtefactError(f"it is not the configuration of a run: {error}") from error
        found.add(
            "config.json", OK, f"{recipe.network} on {recipe.data.name}, {recipe.epochs + recipe.finetune} epochs"
        )
        _environment(found, content.get("environment"))
        return recipe
    return None


def _environment(found: Checked, stored: Any) -> None:
    if not isinstance(stored, Mapping):
        found.add("config.json", NOTE, "it does not say in which environment the run was begun")
        return
    kind = stored.get("device")
    device = torch.device("cuda" if kind == "cuda" and torch.cuda.is_available() else "cpu")
    if differs := environment_differences(stored, environment(device)):
        found.add("environment", NOTE, f"begun elsewhere: {differs}")
    else:
        found.add("environment", OK, "as here")


def _rows(found: Checked) -> tuple[list[dict[str, Any]], set[int]]:
    """The rows of metrics.jsonl, and the lengths at which one ends."""
    path = found.path / "metrics.jsonl"
    if not path.exists():
        return [], {0}
    with found.reading("metrics.jsonl"):
        rows = read_history(found.path)
        lengths, end, total = {0}, 0, path.stat().st_size
        with open_regular(path) as file:
            for line in file:
                end += len(line)
                if line.endswith(b"\n"):
                    lengths.add(end)
        steps = [row.get("step") for row in rows]
        if not all(isinstance(step, int) for step in steps) or steps != sorted(steps, key=lambda one: one or 0):
            raise ArtefactError("its rows are not in order, or lack their step")
        cut = "" if total in lengths else "; a last line that was cut, which is left out"
        found.add("metrics.jsonl", OK, f"{len(rows)} rows{cut}")
        return rows, lengths
    return [], {0}


def _checkpoint(found: Checked, name: str, recipe: Recipe | None, lengths: set[int]) -> Checkpoint | None:
    path = found.path / name
    if check_tensors(path, found, name) is None:
        return None
    with found.reading(name):
        stored = Checkpoint.load(path, torch.device("cpu"))
        if recipe is not None and by_place(stored.recipe) != by_place(recipe.as_dict()):
            raise ArtefactError("it is of another recipe than config.json")
        _require_shapes(stored, recipe)
        where = f"epoch {stored.epoch}" + (f", step {stored.step}" if stored.step else "")
        if stored.offset not in lengths:
            raise ArtefactError(f"it was written at {where}, when metrics.jsonl had rows that it has not now")
        broken = [name for name, one in stored.model.items() if one.is_floating_point() and not one.isfinite().all()]
        found.add(name, NOTE if broken else OK, f"{where}; {broken[0]} is not finite" if broken else where)
        return stored
    return None


def _require_shapes(stored: Checkpoint, recipe: Recipe | None) -> None:
    """Refuse tensors of other shapes than those of the network, where it can be built without running code of a user."""
    if not all(isinstance(one, Tensor) for one in stored.model.values()):
        raise ArtefactError("its model has values that are no tensors")
    if stored.step and len(stored.record) != stored.step:
        raise ArtefactError("its record has another length than its step says")
    if stored.random["cpu"].shape != torch.get_rng_state().shape:
        raise ArtefactError("the state of its random generator has another length")
    if recipe is None or not is_zoo(recipe.network) or recipe.data.name not in IMAGES:
        return
    wanted = {"classes": _CLASSES[recipe.data.name]} if recipe.data.name in _CLASSES else {}
    try:
        network = zoo.build(recipe.network, **{**wanted, **recipe.network_options})
    except ConfigError:
        return
    for name, one in network.state_dict().items():
        own = stored.model.get(name)
        if own is not None and own.shape != one.shape:
            raise ArtefactError(f"its {name} is {tuple(own.shape)}, and {tuple(one.shape)} in {recipe.network}")
    shapes = {one.shape for one in stored.model.values()} | {torch.Size([])}
    moments = (one for state in stored.optimizer.get("state", {}).values() for one in state.values())
    if wrong := [one for one in moments if isinstance(one, Tensor) and one.numel() > 1 and one.shape not in shapes]:
        raise ArtefactError(f"its optimizer has a tensor of {tuple(wrong[0].shape)}, which is that of no weight")


def _result(found: Checked, artefact: bool) -> bool:
    with found.reading("result.json"):
        result = read_result(found.path)
        if result is None:
            return False
        size = (found.path / "model.pare").stat().st_size if artefact else None
        if size is not None and result["bytes"] != size:
            raise ArtefactError(f"it says that model.pare has {result['bytes']} bytes, which has {size}")
        found.add("result.json", OK, f"finished after {result['epochs']} epochs")
        return True
    return False


def _advise(
    found: Checked,
    recipe: Recipe | None,
    rows: list[dict[str, Any]],
    stored: Mapping[str, Checkpoint | None],
    artefact: bool,
    done: bool,
) -> None:
    path, newest, older = found.path, *stored.values()
    if done and artefact and found.is_whole:
        return
    command = f"pare train --out {path} --resume"
    if done and artefact:
        found.advice.append("The run is finished; model.pare and result.json are whole.")
    elif (kept := newest or older) is not None and recipe is not None:
        step = f", step {kept.step}" if kept.step else ""
        which = "" if newest is not None else " from checkpoint.previous.pt"
        found.advice.append(f"{command} goes on{which} after epoch {kept.epoch}{step}; {len(rows)} rows are kept.")
    elif artefact:
        found.advice.append(f'The network can be loaded: pt.load("{path / "model.pare"}", into=...).')
    elif recipe is not None:
        there = [name for name in stored if (path / name).exists()]
        what = f"Remove {' and '.join(there)}, and {command}" if there else command
        found.advice.append(f"{what} begins the run again.")
