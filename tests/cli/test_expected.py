"""What a dry run says of the file is what comes of it, by and large."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from paretorch.cli.train import expected_bytes
from paretorch.errors import PareWarning
from paretorch.training import Recipe, Runtime, train
from paretorch.training.recipe_values import changed, recipe_from
from paretorch.training.run import prepare

_RECIPE = recipe_from(
    {"network": "digits-cnn", "data.name": "digits", "epochs": 6, "data.batch": 64, "optimizer.lr": 0.05}
)
_RUNTIME = Runtime(device="cpu", progress="quiet")


def _expected(recipe: Recipe) -> list[str]:
    return expected_bytes(recipe, prepare(recipe, _RUNTIME))


def _number(line: str) -> int:
    return int(re.findall(r"[\d,]+", line)[0].replace(",", ""))


@pytest.mark.parametrize(
    "changes",
    [
        {"sparsity": 0.8},
        {"bits": 2.5},
        {"bits": 3.0, "precision_options": {"group": "channel"}, "norms": "bf16"},
        {"sparsity": 0.8, "bits": 0.8},
        {"bits": 4, "quantization": "lsq"},
        pytest.param({"bits": 2, "quantization": "uniform"}, marks=pytest.mark.contract),
        pytest.param({"bits": 3, "quantization": "dsq"}, marks=pytest.mark.contract),
        {},
        {"network": "swrn-16-1-1", "network_options": {"channels": 1}, "epochs": 1},
    ],
    ids=lambda changes: "-".join([*changes, *(v for v in changes.values() if isinstance(v, str))]) or "dense",
)
def test_the_file_is_about_as_large_as_expected(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = changed(_RECIPE, changes)
    told = _expected(recipe)
    real = train(recipe, tmp_path / "run", _RUNTIME)["bytes"]
    assert _number(told[0]) == pytest.approx(real, rel=0.2)


def test_what_a_budget_leaves_of_the_targets_is_told(tmp_path: Path) -> None:
    """Targets that take more than the budget are lowered by rounding: better to know before training for them."""
    recipe = changed(_RECIPE, {"compression.sparsity": 0.5, "compression.bits": 2.0, "compression.budget": 6000})
    size, left = _expected(recipe)
    assert 5500 < _number(size) <= 6000
    zeros, bits = (float(number) for number in re.findall(r"[\d.]+", left))
    result = train(recipe, tmp_path / "run", _RUNTIME)
    assert zeros == pytest.approx(100 * result["sparsity"], abs=8)
    assert bits == pytest.approx(result["bits"], rel=0.25)
    assert zeros > 55
    (line,) = _expected(changed(recipe, {"compression.budget": None}))
    assert _number(line) > 6000


def test_a_dry_run_is_the_same_every_time_and_warns_of_nothing() -> None:
    recipe = changed(_RECIPE, {"compression.sparsity": 0.8, "compression.bits": 0.8})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PareWarning)
        assert _expected(recipe) == _expected(recipe)
    assert not [one for one in caught if issubclass(one.category, PareWarning)]
