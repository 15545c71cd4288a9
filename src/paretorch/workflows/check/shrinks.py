"""The folder of a shrink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from paretorch.errors import ArtefactError
from paretorch.support.files import read_json
from paretorch.training.folder import environment, environment_differences
from paretorch.workflows.check.record import NOTE, OK, Checked
from paretorch.workflows.check.runs import check_artefact, check_tensors, note_left_behind


def check_shrink(path: Path) -> Checked:
    """Look at everything in it."""
    found = Checked(path, "the folder of a shrink")
    for name in ("shrink.json", "result.json"):
        if (path / name).exists():
            with found.reading(name):
                try:
                    content = read_json(path / name)
                except ValueError as error:
                    raise ArtefactError("it is no JSON") from error
                if not isinstance(content, dict):
                    raise ArtefactError("it is no record")
                found.add(name, OK, f"{content.get('bytes', content.get('budget'))} bytes")
                stored = content.get("environment")
                if isinstance(stored, Mapping) and (
                    differs := environment_differences(stored, environment(torch.device("cpu")))
                ):
                    found.add("environment", NOTE, f"begun elsewhere: {differs}")
    artefact = check_artefact(path / "model.pare", found)
    steps = []
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        content = check_tensors(path / name, found, name)
        if content is not None:
            with found.reading(name):
                if not isinstance(content, dict) or not {"rounded", "steps", "size"} <= content.keys():
                    raise ArtefactError("it lacks parts of a checkpoint")
                tuner = content.get("tuner")
                steps.append(tuner.get("done", 0) if isinstance(tuner, dict) else 0)
                found.add(name, OK, f"after {steps[-1]} steps of training")
    note_left_behind(found)
    if not found.is_whole:
        if steps:
            found.advice.append(f"pare shrink ... --out {path} --resume goes on after {steps[0]} steps.")
        elif artefact:
            found.advice.append("model.pare is whole.")
        else:
            found.advice.append(f"Remove {path}, and begin again.")
    return found
