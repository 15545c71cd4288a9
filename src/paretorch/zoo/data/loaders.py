"""Batches of a user's own: what FILE.py:FUNCTION returns, and tables of the package datasets (hf:NAME_OR_FOLDER)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paretorch.errors import ConfigError, DataError, MissingExtraError
from paretorch.support.eval_mode import first_sentence
from paretorch.zoo.user_code import call_function

_PARTS = ("train", "validation", "test")
_LABELS = ("labels", "label", "target", "targets", "fine_label")


class Loaders(NamedTuple):
    """Batches to train, validate and test with; `validation` may be missing."""

    train: Iterable[Any]
    validation: Iterable[Any] | None
    test: Iterable[Any]


def user_loaders(name: str, options: Mapping[str, Any]) -> Loaders:
    """What a user's function returns: (train, test), (train, validation, test), or a dict with these names."""
    found = call_function(name, "--data", **options)
    if isinstance(found, Mapping):
        if not {"train", "test"} <= set(found) <= set(_PARTS):
            raise ConfigError(
                f"--data {name} returns a dict with {', '.join(map(str, found))}: name the parts train and test"
            )
        parts = [found["train"], found.get("validation"), found["test"]]
    elif isinstance(found, tuple | list) and len(found) in (2, 3):
        parts = [found[0], None if len(found) == 2 else found[1], found[-1]]
    else:
        raise ConfigError(f"--data {name} returns {type(found).__name__}: return (train, test), two loaders of batches")
    for part in parts:
        if part is not None and (iter(part) is part if hasattr(part, "__iter__") else True):
            raise ConfigError(f"--data {name}: each part must be a loader or a list, which can be read again")
    return Loaders(*parts)


class Table:
    """Batches of rows of one table in memory, shuffled by torch's seed if asked for."""

    def __init__(self, columns: dict[str, Tensor], batch: int, *, shuffle: bool) -> None:
        self._columns, self._batch, self._shuffle = columns, batch, shuffle
        self._rows = len(next(iter(columns.values())))

    def __len__(self) -> int:
        return -(-self._rows // self._batch)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        order = torch.randperm(self._rows) if self._shuffle else torch.arange(self._rows)
        for part in order.split(self._batch):
            yield {name: column[part] for name, column in self._columns.items()}


def table_loaders(name: str, batch: int) -> Loaders:
    """The parts of a data set of the package datasets whose columns are numbers, such as tokens; images and text are refused."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"--data {name} needs datasets: pip install paretorch[data]") from error
    place = name.removeprefix("hf:")
    try:
        saved = Path(place, "dataset_dict.json").exists()  # as save_to_disk leaves it
        found = datasets.load_from_disk(place) if saved else datasets.load_dataset(place)
    except Exception as error:  # datasets and its hub raise many kinds
        raise ConfigError(f"--data {name} cannot be loaded: {first_sentence(error)}") from error
    parts = {part: found[part] for part in _PARTS if part in found}
    test = "test" if "test" in parts else "validation"
    if not {"train", test} <= parts.keys():
        raise DataError(f"--data {name} has the parts {', '.join(found)}: train and test are needed")
    loaders = {part: Table(_columns(rows, name), batch, shuffle=part == "train") for part, rows in parts.items()}
    return Loaders(loaders["train"], loaders.get("validation"), loaders[test])


def _columns(rows: Any, name: str) -> dict[str, Tensor]:
    columns = {}
    for column in rows.column_names:
        try:
            values = torch.tensor(list(rows[column]))
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"--data {name}: the column {column!r} is not numbers of one length per row; tokenize and pad it first, or give "
                "batches by --data FILE.py:FUNCTION"
            ) from error
        columns["labels" if column in _LABELS else column] = values
    if not columns or not len(next(iter(columns.values()))):
        raise DataError(f"--data {name} has a part without rows")
    return columns
