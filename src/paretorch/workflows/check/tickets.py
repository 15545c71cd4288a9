"""A folder of ticket searches: what is searched, the rounds that are done, the tensors of each, and what a worker was doing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from paretorch.errors import ArtefactError
from paretorch.workflows.check.record import DAMAGED, OK, Checked
from paretorch.workflows.check.runs import check_run, check_tensors, note_left_behind
from paretorch.workflows.tickets.storage import STORED, Storage, Unit


def check_tickets(path: Path) -> Checked:
    """Look at everything in a folder of searches."""
    found = Checked(path, "a folder of ticket searches")
    with found.reading("recipe.json"):
        storage = Storage.open(path)
        units = storage.units()
        found.add("recipe.json", OK, f"{storage.recipe.network} on {storage.recipe.data.name}, {len(units)} units")
        for unit in units:
            part = Checked(unit.folder, "a search")
            _check_unit(part, unit)
            found.merge(part, unit.name)
    note_left_behind(found)
    if not found.is_whole and not found.advice:
        found.advice.append(f"Copy recipe.json from elsewhere, or begin again in another folder than {path}.")
    return found


def _check_unit(found: Checked, unit: Unit) -> None:
    with found.reading("rounds.jsonl"):
        rows = unit.rows()
        numbers = [row["round"] for row in rows]
        if unit.search is not None and numbers != list(range(1, len(rows) + 1)):
            raise ArtefactError(f"its rounds are {numbers}, which should be 1, 2, ...")
        whole = 1 if unit.search is None else unit.search.rounds
        if rows or unit.search is not None:
            found.add("rounds.jsonl" if unit.search else "dense.json", OK, f"{len(rows)} of {whole} rounds")
        _check_files(found, len(rows))
    for folder in sorted({one.parent for one in unit.folder.rglob("config.json")}):
        part = check_run(folder)
        # Of a training that is done the large files are removed, and what it came to is in the row.
        part.findings = [one for one in part.findings if one.state == DAMAGED or one.name.endswith(".pt")]
        part.advice = []
        found.merge(part, str(folder.relative_to(unit.folder)))
    note_left_behind(found)
    if not found.is_whole:
        found.advice.append(
            f"Remove what is damaged of a round that is not done, or {unit.folder} as a whole, and give the command that "
            f"began the search again; the other searches are not touched."
        )


def _check_files(found: Checked, done: int) -> None:
    for name in (STORED, "retrained.pt"):
        if check_tensors(found.path / name, found, name) is not None:
            found.add(name, OK, "weights")
    for name in ("carry.pt", "carry.previous.pt"):
        carry = check_tensors(found.path / name, found, name)
        if carry is not None:
            number = carry.get("round") if isinstance(carry, dict) else None
            known = isinstance(number, int) and number in (done - 1, done, done + 1)
            found.add(name, OK if known else DAMAGED, f"the end of round {number}, of {done} that are done")
    for path in sorted(found.path.glob("round-*/ticket.pt")):
        name = f"{path.parent.name}/ticket.pt"
        content = check_tensors(path, found, name)
        if content is not None:
            with found.reading(name):
                found.add(name, OK, f"masks of {_count(content)} weights")


def _count(content: Any) -> int:
    try:
        bits, shapes = content["bits"], content["shapes"]
        for name, shape in shapes.items():
            packed = bits[name]
            if not isinstance(packed, Tensor) or packed.numel() != -(-math.prod(shape) // 8):
                raise ArtefactError(f"its mask of {name} has another size than {shape}")
        return len(shapes)
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtefactError("it is no ticket") from error
