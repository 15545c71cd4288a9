"""A folder of searches that any number of workers share, and may leave at any moment.

    recipe.json                 what every training in the folder does
    dense-seed0/                the dense network that tickets are measured against, one a seed
    cs-init-0.1-seed0/          one search: search.json, rounds.jsonl, and the state of its rounds

Each of these subfolders is one unit of work. A worker claims it while it works there (see `paretorch.workflows.queue`); the unit
of a worker that dies is taken over once that one has been silent for long enough.
"""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.checked_files import DamagedError, read_newest
from paretorch.support.files import parse_json, read_json, read_text, sweep
from paretorch.training.files import save_tensors, write_atomically, write_error
from paretorch.training.folder import read_history
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import by_place, require_same, stored_recipe
from paretorch.workflows.queue.claims import Claim, Claims, claimed
from paretorch.workflows.tickets.search import Search, search_from
from paretorch.workflows.tickets.state import Masks, Weights

Row = dict[str, Any]

STORED = "stored.pt"
"""θ̂, in the folder of a search."""
NEEDED = ("search", "method", "seed", "round", "sparsity", "accuracy", "epochs")
"""What is read from a row again."""
_TICKET = "ticket.pt"
_PAUSE = 0.05  # seconds between two looks at who writes


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
        f"{path} is missing or damaged; remove {path.parent} and give the command that began the search again"
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
    """Keep the masks of a round's ticket, one bit per weight."""
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


@dataclass(frozen=True)
class Unit:
    """One piece of work: a search, or the dense training of a seed."""

    folder: Path
    search: Search | None
    seed: int

    @property
    def name(self) -> str:
        return self.folder.name

    def rows(self) -> list[Row]:
        """The rounds that are done; of a dense training, its one row."""
        if self.search is not None:
            return read_rows(self.folder)
        path = self.folder / "dense.json"
        return read_records(path, NEEDED) if path.exists() else []

    def is_done(self) -> bool:
        return len(self.rows()) >= (1 if self.search is None else self.search.rounds)

    def epochs(self, recipe: Recipe) -> tuple[int, int]:
        """Epochs trained so far, and in all."""
        total = recipe.epochs * (1 if self.search is None else self.search.trainings())
        rows = self.rows()
        begun = [self.folder] if self.search is None else list(self.folder.glob(f"round-{len(rows) + 1}/*/"))
        running = sum(max((row["epoch"] for row in read_history(each)), default=0) for each in begun)
        return (total if self.is_done() else (rows[-1]["epochs"] if rows else 0) + running), total


class Storage:
    """The folder: what is to be done in it, and who does what."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self._claims = Claims()

    @classmethod
    def open(cls, path: Path) -> "Storage":
        """The storage that is there already."""
        try:
            return cls(path, stored_recipe(read_json(path / "recipe.json"), str(path / "recipe.json")))
        except OSError as error:
            raise ConfigError(
                f"{path} holds no ticket search; begin one with --network, --data and --method"
            ) from error
        except (ValueError, ArtefactError) as error:
            raise ArtefactError(f"{path}/recipe.json is damaged; begin again in another folder") from error

    @classmethod
    def join(cls, path: Path, recipe: Recipe, searches: Iterable[Search]) -> "Storage":
        """Add searches to the folder, new or not; one that is there already must be the same."""
        recipe = replace(recipe, seed=0)  # seeds belong to the searches
        searches = list(searches)
        for search in searches:
            search.require_fit(recipe.epochs)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(path, error) from error
        with _alone_in(path, Claims()):
            sweep(path)
            if (path / "recipe.json").exists():
                cls.open(path)  # refuses what is damaged
            _write_once(path / "recipe.json", recipe.as_dict(), path, by_place)
            for search in searches:
                (path / search.name).mkdir(exist_ok=True)
                _write_once(path / search.name / "search.json", search.as_dict(), path / search.name, _flat)
        return cls(path, recipe)

    def units(self) -> list[Unit]:
        """Everything there is to do, the dense trainings first."""
        found = []
        for path in sorted(self.path.glob("*/search.json")):
            (values,) = read_records(path)
            try:
                search = search_from(values)
            except (KeyError, TypeError, AttributeError) as error:
                raise damaged(path) from error
            found.append(Unit(path.parent, search, search.seed))
        seeds = sorted({unit.seed for unit in found})
        return [*(Unit(self.path / f"dense-seed{seed}", None, seed) for seed in seeds), *found]

    def epochs(self) -> tuple[int, int]:
        """Epochs trained so far by all workers, and in all."""
        each = [unit.epochs(self.recipe) for unit in self.units()]
        return sum(done for done, _ in each), sum(total for _, total in each)

    @contextlib.contextmanager
    def claim(self, unit: Unit) -> Iterator[Claim | None]:
        """Take a unit while inside; None if another worker has it."""
        with claimed(self._claims, unit.folder) as claim:
            if claim is not None:
                clean(unit)
            yield claim

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While inside, no other worker writes the files of the whole folder."""
        with _alone_in(self.path, self._claims):
            yield


def clean(unit: Unit) -> None:
    """Remove what killed writers have left in a unit's folders."""
    for folder in (unit.folder, *unit.folder.glob("round-*"), *unit.folder.glob("round-*/*/")):
        sweep(folder)


@contextlib.contextmanager
def _alone_in(path: Path, claims: Claims) -> Iterator[None]:
    while (claim := claims.take(path)) is None:
        time.sleep(_PAUSE)
    try:
        yield
    finally:
        claim.release()


def _write_once(
    path: Path, content: dict[str, Any], where: Path, names: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Write a file, or require that it has the same content; `names` gives the values by the names to report."""
    content = json.loads(json.dumps(content))
    if path.exists():
        (before,) = read_records(path)
        require_same(names(content), names(before), where)
    else:
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def _flat(content: dict[str, Any]) -> dict[str, Any]:
    """A search's options beside its other fields, so that what differs is named alone; one of an earlier version has defaults."""
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        content = json.loads(json.dumps(search_from(content).as_dict()))
    options = content.get("options", {})
    return {**{key: value for key, value in content.items() if key != "options"}, **options}
