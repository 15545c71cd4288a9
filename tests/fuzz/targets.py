"""What is fuzzed: readers of files that may come from strangers, each as a function of bytes.

A target returns whether the input was accepted. The library's own errors are refusals; anything else escapes, and is a bug.
"""

import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from paretorch.cli.inputs import data_of, recipe_of, shape_of
from paretorch.deploy.artefact import open_artefact
from paretorch.deploy.codec.container import pack
from paretorch.errors import PareError
from paretorch.support.checked_files import _MARK
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.finish import read_result
from paretorch.training.folder import check_folder, read_history
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import read_config, recipe_from
from paretorch.workflows.check import check
from paretorch.workflows.studies.study import parse_study
from paretorch.workflows.tickets import Storage, collect
from paretorch.workflows.tuning import search, worker
from paretorch.zoo.data import safe_pickle
from tests.deploy.hostile import reseal

Target = Callable[[bytes], bool]
_scratch = tempfile.TemporaryDirectory()
_folder = Path(_scratch.name)
_CPU = torch.device("cpu")


def _accepts(read: Callable[[], object]) -> bool:
    try:
        read()
    except PareError as error:
        if "\n" in str(error).strip():
            raise AssertionError(f"an error of several lines: {error}") from error
        return False
    return True


def artefact(data: bytes) -> bool:
    """A `.pare` file: as it is if the first byte is even, else as a body whose checksum is made right."""
    path = _folder / "model.pare"
    path.write_bytes(data[1:] if not data or data[0] % 2 == 0 else pack(reseal(data[1:])))
    return _accepts(lambda: open_artefact(path))


def cifar_pickle(data: bytes) -> bool:
    """A file of CIFAR's Python layout; the reader's error is ValueError, which `load` makes a DataError."""
    try:
        safe_pickle.loads(data)
    except ValueError:
        return False
    return True


def recipe(data: bytes) -> bool:
    """A recipe in TOML, as `pare train --config` reads it."""
    path = _folder / "recipe.toml"
    path.write_bytes(data)
    return _accepts(lambda: recipe_from(read_config(path), "recipe.toml"))


def study(data: bytes) -> bool:
    """A study in TOML."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return _accepts(lambda: parse_study("fuzzed", text))


def run_folder(data: bytes) -> bool:
    """A run folder: config.json, metrics.jsonl and result.json, with NUL bytes between them."""
    parts = [*data.split(b"\0"), b"", b"", b""][:3]
    for name, part in zip(("config.json", "metrics.jsonl", "result.json"), parts, strict=True):
        (_folder / name).write_bytes(part)
    data_of(_folder)
    shape_of(_folder)
    found = [
        _accepts(read)
        for read in (
            lambda: recipe_of(_folder),
            lambda: read_history(_folder),
            lambda: read_result(_folder),
            lambda: check_folder(_folder, Recipe(), resume=True),
        )
    ]
    check(_folder)
    return all(found[:3])


def checkpoint(data: bytes) -> bool:
    """A checkpoint: as it is if the first byte is even, else as a body whose checksum is made right; read, and looked at."""
    path = _folder / "checkpoint.pt"
    body = data[1:]
    path.write_bytes(body if not data or data[0] % 2 == 0 else body + _MARK + hashlib.sha256(body).digest())
    try:
        check(path)
        return _accepts(lambda: Checkpoint.load(path, _CPU))
    finally:
        path.unlink()


def tickets(data: bytes) -> bool:
    """A folder of ticket searches: recipe.json, search.json and rounds.jsonl, with NUL bytes between them."""
    folder = _folder / "tickets"
    parts = [*data.split(b"\0"), b"", b"", b""][:3]
    for name, part in zip(("recipe.json", "imp-seed0/search.json", "imp-seed0/rounds.jsonl"), parts, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(part)
    check(folder)
    return _accepts(lambda: collect(Storage.open(folder)).as_dict()) and _accepts(lambda: Storage.open(folder).epochs())


def journal(data: bytes) -> bool:
    """A journal of trials; workers of whom it tells, and who are not there, are given up at once."""
    path = _folder / "trials.journal"
    path.write_bytes(data)
    check(path)
    with mock.patch.dict(os.environ, PARE_PATIENCE="0.02"), mock.patch.object(worker, "_PAUSE", 0.01):
        return _accepts(
            lambda: search(lambda a, e, beat: 1.0, [1.0, 2.0], [1.0], trials=2, method="grid", storage=path)
        )


TARGETS: dict[str, Target] = {
    "artefact": artefact,
    "pickle": cifar_pickle,
    "recipe": recipe,
    "study": study,
    "run-folder": run_folder,
    "checkpoint": checkpoint,
    "tickets": tickets,
    "journal": journal,
}


def seeds(name: str) -> list[bytes]:
    """The corpus of a target: small files that are kept beside this one."""
    return [path.read_bytes() for path in sorted((Path(__file__).parent / "corpus" / name).iterdir())]


def write_seeds() -> None:
    """Write the corpus anew: what the library itself writes."""
    import pickle

    import numpy as np

    from paretorch.deploy import save
    from paretorch.workflows.tickets import IMP, Search
    from tests.deploy.hostile import valid_blob

    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    save(network, _folder / "small.pare", summary={"accuracy": 0.5})
    config = {"recipe": Recipe("digits-cnn").as_dict(), "environment": {"torch": "2"}}
    row = {"epoch": 1, "phase": "search", "test_accuracy": 0.5, "step": 3}
    model = {"w": torch.ones(2)}
    moments = {"state": {0: {"momentum_buffer": torch.ones(2)}}, "param_groups": [{"params": [0], "lr": 0.1}]}
    stored = Checkpoint({"network": "a"}, model, moments, None, 1, 0, 0, torch.zeros(0), {"cpu": torch.zeros(3).byte()})
    stored.save(_folder / "checkpoint.pt")
    whole_file = (_folder / "checkpoint.pt").read_bytes()
    found = {
        "search": "imp-seed0",
        "method": "imp",
        "seed": 0,
        "round": 1,
        "sparsity": 0.2,
        "accuracy": 0.9,
        "epochs": 1,
    }
    ticket = {**found, "test_accuracy": 0.8, "search_epochs": 1, "layers": {"a": 0.5}}
    searched = [Recipe("digits-cnn").as_dict(), Search(IMP(), 2).as_dict(), ticket]
    search(lambda a, e, beat: a, [1.0, 2.0], [1.0], trials=2, method="grid", storage=_folder / "seed.journal")
    values = "network = 'digits-cnn'\ndata = 'digits'\nepochs = 2\nlr = 0.1\nsparsity = 0.5\nmilestones = [1, 2]\n"
    dotted = "network = 'resnet20'\nbudget = '48KB'\n[data]\nname = 'cifar10'\n[optimizer]\nlr = 0.1\n[network_options]\nwidth = 2\n"
    begin = "title = 'a'\nclaim = 'b'\nseeds = [0, 1]\n[recipe]\nnetwork = 'digits-cnn'\ndata = 'digits'\nepochs = 1\n"
    vary = "[settings.cs]\npruning = 'cs'\n[settings.cs.vary]\nsparsity = [0.9, 0.95]\n"
    done = {"bytes": 7, "dense_bytes": 9, "epochs": 1}
    content = {b"data": np.zeros((1, 3072), np.uint8)[:, :9], b"labels": [1], b"filenames": [b"a.png"]}
    whole = {
        "artefact": {
            "file": b"\0" + (_folder / "small.pare").read_bytes(),
            "body": b"\1" + valid_blob()[16:],
        },
        "pickle": {"python3": pickle.dumps(content, 2), "list": pickle.dumps([1, 2, 300, 70000, b"a", None], 2)},
        "recipe": {"flat": values.encode(), "sections": dotted.encode()},
        "study": {"plain": begin.encode(), "varied": (begin + vary).encode()},
        "run-folder": {
            "whole": b"\0".join(json.dumps(one).encode() + b"\n" for one in (config, row, done)),
        },
        "checkpoint": {"file": b"\0" + whole_file, "body": b"\1" + whole_file[:-48]},
        "tickets": {"whole": b"\0".join(json.dumps(one).encode() + b"\n" for one in searched)},
        "journal": {"whole": (_folder / "seed.journal").read_bytes()},
    }
    assert tomllib.loads(dotted)
    for name, files in whole.items():
        folder = Path(__file__).parent / "corpus" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)


if __name__ == "__main__":
    write_seeds()
