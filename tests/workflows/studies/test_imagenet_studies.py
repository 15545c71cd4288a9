"""The ImageNet studies end to end on a few tiny images, with tiny networks in the place of theirs."""

from pathlib import Path
from typing import Any

import pytest

from paretorch.training import Recipe, Runtime, train
from paretorch.training.folder import read_history
from paretorch.training.recipe_values import changed
from paretorch.workflows.studies import load_study, run_tickets, study_names
from paretorch.workflows.studies.study import Study
from tests.photos import write_folders

NAMES = [name for name in study_names() if name.startswith("imagenet-")]
STUDIES = {name: load_study(name) for name in NAMES}
FAMILIES = [(name, family) for name, one in STUDIES.items() if not one.tickets for family in one.families.values()]
_IN_TEST = {"imagenet-sharing/swrn", "imagenet-sparsity/printed", "imagenet-precision-resnet50/zero-printed"}
_TINY = {
    "network_options": {},
    "start": None,
    "epochs": 1,
    "batch": 6,
    "data_options": {"size": 10, "jitter": True},
    "milestones": [0.5],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("PIL")
    return write_folders(tmp_path_factory.mktemp("data") / "imagenet").parent


def _tiny(recipe: Recipe) -> Recipe:
    values: dict[str, Any] = {**_TINY, "network": "swrn-16-1-2" if recipe.shares else "wrn-10-1"}
    if recipe.compresses and not recipe.shares:
        values["finetune"] = 1
        if recipe.schedule.finetune_milestones:
            values["finetune_milestones"] = [0.5]
    return changed(recipe, values)


def _cases() -> list[Any]:
    return [
        pytest.param(name, family, marks=[] if f"{name}/{family}" in _IN_TEST else pytest.mark.contract)
        for name, family in dict.fromkeys(FAMILIES)
    ]


@pytest.mark.parametrize(("name", "family"), _cases())
def test_every_family_trains_and_is_rounded(root: Path, tmp_path: Path, name: str, family: str) -> None:
    recipe = _tiny(list(STUDIES[name].only([family]).settings.values())[-1])
    result = train(recipe, tmp_path, Runtime(root=str(root), device="cpu", progress="quiet", workers=0))
    assert {"test_accuracy", "bytes"} <= result.keys()
    phases = [row["phase"] for row in read_history(tmp_path)]
    assert ("harden" in phases) == recipe.compresses
    if recipe.compression.activations:
        assert result["activation_bits"] == 4
    if recipe.compression.sparsity is not None and family != "str":
        assert result["sparsity"] == pytest.approx(recipe.compression.sparsity, abs=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_recipes_are_those_of_the_thesis(name: str) -> None:
    for setting, recipe in STUDIES[name].settings.items():
        assert recipe.data.name == "imagenet"
        assert recipe.data.batch == 256
        assert recipe.optimizer.weight_decay == 1e-4
        assert (recipe.data.options or {})["jitter"] is True
        epochs = {"dense": 90, "sharing": 100, "sparsity": 120, "tickets": 90, "precision": 180, "optimizers": 100}
        wanted = 100 if name.endswith("precision-resnet50") else epochs[name.split("-")[1]]
        assert recipe.epochs + recipe.finetune == wanted, setting


def test_all_ten_optimizers_are_compared() -> None:
    assert len({recipe.optimizer.name for recipe in STUDIES["imagenet-optimizers"].settings.values()}) == 10


@pytest.mark.contract
def test_the_ticket_searches_run(root: Path, tmp_path: Path) -> None:
    whole = STUDIES["imagenet-tickets"]
    (recipe,) = whole.settings.values()
    small = changed(recipe, {**_TINY, "network": "wrn-10-1", "validation": 6})
    tables = ({**whole.tickets[0], "init": [0.0], "store": 1}, {**whole.tickets[1], "rounds": 2, "store": 1})
    study = Study(whole.name, whole.title, whole.claim, (0,), {"run": small}, tickets=tables)
    run_tickets(study, tmp_path / "results", tmp_path / "runs", options=("--device", "cpu", "--root", str(root)))
    rows = (tmp_path / "results" / whole.name / "tickets.jsonl").read_text().splitlines()
    assert len(rows) == 1 + 1 + 2
