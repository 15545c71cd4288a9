"""Damaged files in a storage end in a sentence that says what to remove, never in a traceback or in other tickets."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from paretorch.errors import ArtefactError, ConfigError
from paretorch.training import Runtime
from paretorch.training.recipe_values import PLACES, by_place, changed, recipe_from
from paretorch.workflows.tickets import IMP, Search, Storage, collect, read_ticket, work

RECIPE = recipe_from(
    {
        "network": "digits-cnn",
        "network_options": {"width": 2},
        "data.name": "digits",
        "epochs": 1,
        "data.batch": 128,
        "optimizer.lr": 0.05,
        "data.validation": 200,
    }
)
CPU = Runtime(device="cpu")
SEARCH = Search(IMP(), 2)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    work(Storage.join(folder, RECIPE, [SEARCH]), CPU)
    return folder


@pytest.fixture
def copied(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "copied"))


@pytest.mark.parametrize("content", [b"{oops", b"[]", b"{}", b"\xff\xfe"])
@pytest.mark.parametrize(
    "name", [f"{SEARCH.name}/search.json", f"{SEARCH.name}/rounds.jsonl", "dense-seed0/dense.json"]
)
def test_a_damaged_record_is_told_with_its_folder(copied: Path, name: str, content: bytes) -> None:
    (copied / name).write_bytes(content)
    storage = Storage.open(copied)
    with pytest.raises(ArtefactError, match=f"{name} is missing or damaged; remove .*{Path(name).parent} and"):
        work(storage, CPU)
    with pytest.raises(ArtefactError, match="is missing or damaged"):
        collect(storage)


def test_a_storage_with_a_flat_recipe_is_continued(copied: Path) -> None:
    """Recipes were flat until 0.1.0."""
    path = copied / "recipe.json"
    places = by_place(json.loads(path.read_text()))
    path.write_text(json.dumps({name: places[place] for name, place in PLACES.items()}))
    storage = Storage.join(copied, RECIPE, [SEARCH, Search(IMP(), 1, seed=1)])
    assert storage.recipe == Storage.open(copied).recipe == RECIPE
    with pytest.raises(ConfigError, match=r"optimizer.lr \(there 0.05, now 0.1\)"):
        Storage.join(copied, changed(RECIPE, {"optimizer.lr": 0.1}), [SEARCH])


def test_what_it_says_helps(copied: Path) -> None:
    before = collect(Storage.open(copied))
    path = copied / SEARCH.name / "rounds.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    (copied / SEARCH.name / "carry.pt").write_bytes(b"")
    (copied / SEARCH.name / "carry.previous.pt").unlink(missing_ok=True)
    # To resume would not: with its folder the search itself is forgotten.
    with pytest.raises(ArtefactError, match=f"remove .*{SEARCH.name} and give the command that began the search again"):
        work(Storage.open(copied), CPU)
    shutil.rmtree(copied / SEARCH.name)
    storage = Storage.join(copied, RECIPE, [SEARCH])
    work(storage, CPU)
    assert collect(storage) == before


@pytest.mark.parametrize(
    "content", ["{", "{}", "[]", "null", '{"network": "digits-cnn"}', '{"network": 1, "data": "digits"}']
)
def test_a_damaged_recipe_costs_no_folder(copied: Path, content: str) -> None:
    (copied / "recipe.json").write_text(content)
    for use in (lambda: Storage.open(copied), lambda: Storage.join(copied, RECIPE, [SEARCH])):
        with pytest.raises(ArtefactError, match=r"recipe\.json is damaged; begin again in another folder"):
            use()


OTHER: list[Any] = [
    [],
    {},
    torch.zeros(3),
    {"weight": torch.zeros(3)},
    {"round": 2},
    {"round": 2, "end": {}, "found": {}},
    {"round": 2, "end": {"weights": {}, "decisions": {}, "masks": {}}, "found": {"accuracy": 0.5}},
    {"round": 2, "end": [1, 2, 3], "found": 4},
    {"bits": {"weight": 3}, "shapes": {"weight": [3]}},
]


@pytest.mark.parametrize("name", ["carry.pt", "stored.pt"])
@pytest.mark.parametrize("content", OTHER)
def test_tensors_of_something_else_are_told_with_their_folder(copied: Path, name: str, content: Any) -> None:
    path = copied / SEARCH.name / "rounds.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    torch.save(content, copied / SEARCH.name / name)
    with pytest.raises(ArtefactError, match=f"{name} is missing or damaged; remove .*{SEARCH.name} and"):
        work(Storage.open(copied), CPU)


@pytest.mark.parametrize("name", ["end.weights", "end.decisions", "end.masks", "stored.pt", "retrained.pt"])
def test_tensors_of_another_network_are_told_with_their_folder(copied: Path, name: str) -> None:
    """One name is missing, or one shape is another: what a round would begin with is no longer this network."""
    folder = copied / SEARCH.name
    (folder / "rounds.jsonl").write_text((folder / "rounds.jsonl").read_text().splitlines(keepends=True)[0])
    carry = torch.load(folder / "carry.pt", weights_only=True)
    if name.startswith("end"):
        carry["end"][name[4:]].popitem()
    elif name == "retrained.pt":
        carry["round"] = 1  # round 2 reads it
    torch.save(carry, folder / "carry.pt")
    if name.endswith(".pt"):
        state = torch.load(folder / name, weights_only=True)
        key = next(iter(state))
        torch.save({**state, key: state[key][:1, :1]}, folder / name)
    file = name if name.endswith(".pt") else "carry.pt"
    with pytest.raises(ArtefactError, match=f"{file} is missing or damaged; remove .*{SEARCH.name} and"):
        work(Storage.open(copied), CPU)


@pytest.mark.parametrize("name", ["round-1/ticket.pt", "stored.pt"])
@pytest.mark.parametrize("content", OTHER)
def test_a_ticket_of_something_else_is_told(copied: Path, name: str, content: Any) -> None:
    folder = copied / SEARCH.name
    torch.save(content, folder / name)
    with pytest.raises(ArtefactError, match=f"{name} is missing or damaged"):
        read_ticket(folder, 1)


@pytest.mark.parametrize("left", [0, 1])
def test_rows_that_are_gone_are_not_made_of_a_later_round(copied: Path, left: int) -> None:
    path = copied / SEARCH.name / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:left]))
    if left:
        (copied / SEARCH.name / "carry.pt").unlink()
    with pytest.raises(ArtefactError, match="are not of the same round"):
        work(Storage.open(copied), CPU)
