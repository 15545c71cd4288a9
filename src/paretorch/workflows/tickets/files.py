"""What a search keeps on disk: tensors and rows, each file whole or not there at all."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paretorch.errors import ArtefactError
from paretorch.support.checked_files import DamagedError, read_newest
from paretorch.support.files import parse_json, read_text
from paretorch.training.files import save_tensors, write_atomically
from paretorch.workflows.tickets.state import Masks, Weights

Row = dict[str, Any]

STORED = "stored.pt"
"""θ̂, in the folder of a search."""
NEEDED = ("search", "method", "seed", "round", "sparsity", "accuracy", "epochs")
"""What is read from a row again."""
_TICKET = "ticket.pt"


def save(path: Path, content: Any, *, generations: int = 1) -> None:
    """Write tensors and plain values, with a checksum; of two generations the file that was there is kept beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, content, generations=generations)


def load(path: Path, like: Any) -> Any:
    """Read them again, on the CPU; no code in the file is run. like: what is in there, by names, shapes and types."""
    try:
        content = read_newest(path)
    except DamagedError as error:
        raise damaged(path) from error
    if not _is_like(content, like):
        raise damaged(path)
    return content


def _is_like(content: Any, like: Any) -> bool:
    if isinstance(like, dict):
        names = isinstance(content, dict) and content.keys() == like.keys()
        return names and all(_is_like(content[name], one) for name, one in like.items())
    if isinstance(like, torch.Tensor):
        return isinstance(content, torch.Tensor) and content.shape == like.shape
    return isinstance(content, like)


def read_records(path: Path, needed: Collection[str] = (), *, lines: bool = False) -> list[Row]:
    """The JSON object in a file, or one a line, each with the fields that are needed."""
    try:
        text = read_text(path)
        found = [parse_json(one) for one in (text.splitlines() if lines else [text])]
        whole = all(isinstance(one, dict) and set(needed) <= one.keys() for one in found)
    except (OSError, ValueError) as error:
        raise damaged(path) from error
    if not whole:
        raise damaged(path)
    return found


def damaged(path: Path) -> ArtefactError:
    """What to do about a file that is not as it was written."""
    return ArtefactError(
        f"{path} is missing or damaged; remove {path.parent} and give the command that began the search again."
    )


def read_rows(folder: Path) -> list[Row]:
    """The rounds that are done."""
    path = folder / "rounds.jsonl"
    return read_records(path, NEEDED, lines=True) if path.exists() else []


def write_rows(folder: Path, rows: list[Row]) -> None:
    """Replace the rounds that are done: all of them, or none where the disk is full."""
    write_atomically(folder / "rounds.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


def round_folder(folder: Path, number: int) -> Path:
    """Where one round of a search is."""
    return folder / f"round-{number}"


def save_ticket(folder: Path, number: int, masks: Masks) -> None:
    """Keep the masks of a round's ticket, one bit a weight."""
    bits = {name: torch.from_numpy(np.packbits(mask.numpy())) for name, mask in masks.items()}
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    save(round_folder(folder, number) / _TICKET, {"bits": bits, "shapes": shapes})


def read_ticket(folder: Path, number: int) -> tuple[Weights, Masks]:
    """The ticket (θ̂, m) of a round: a plain state to load into the network, and its masks."""
    path = round_folder(folder, number) / _TICKET
    stored = load(path, {"bits": dict, "shapes": dict})
    masks: Masks = {}
    try:
        for name, shape in stored["shapes"].items():
            bits = np.unpackbits(stored["bits"][name].numpy(), count=int(np.prod(shape)))
            masks[name] = torch.from_numpy(bits).bool().view(shape)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise damaged(path) from error
    weights = load(folder / STORED, dict)
    if not _is_like({name: weights.get(name) for name in masks}, masks):
        raise damaged(folder / STORED)
    return weights, masks
