"""The artefacts under results/: read, and measured if the data is there.

CIFAR-10 is looked for in $PARETORCH_DATA, ./data and ~/.cache/paretorch. Without it the same check runs on the digits.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from paretorch import deploy, zoo
from paretorch.errors import DataError
from paretorch.report import report
from paretorch.training import ImageClassification, Runtime, train
from paretorch.training.recipe_values import recipe_from
from paretorch.zoo.data import Images

_ROOT = Path(__file__).parents[2]
_SLACK = 0.002  # of accuracy: a GPU in bf16 and a CPU in fp32 may disagree on some images of ten thousand
_BYTES, _AIM = 48_000, 0.91


def _cifar10() -> Images:
    for place in (os.environ.get("PARETORCH_DATA"), _ROOT / "data", None):
        try:
            return zoo.data.load("cifar10", place)
        except DataError:
            continue
    pytest.skip("CIFAR-10 is not here: pare data cifar10 --download --root data")


def _artefacts() -> list[Path]:
    return sorted((_ROOT / "results").glob("*/*.pare"))


def check(path: Path, images: Images, slack: float) -> float:
    """The accuracy of what the file holds, which must be the one that the file says it has."""
    recorded = report(path).accuracy
    assert recorded is not None, f"{path.name} does not say its accuracy"
    measured = ImageClassification(images, batch=64).evaluate(deploy.load(path).eval())["test_accuracy"]
    assert measured == pytest.approx(recorded, abs=slack)
    return measured


@pytest.mark.parametrize("path", _artefacts(), ids=lambda path: path.name)
def test_the_committed_artefact_is_as_accurate_as_it_says(path: Path) -> None:
    measured = check(path, _cifar10(), _SLACK)
    if path.stat().st_size <= _BYTES and (report(path).accuracy or 0.0) >= _AIM:
        assert measured >= _AIM


def test_48_kilobytes_suffice_for_91_percent() -> None:
    fits = [path for path in _artefacts() if path.stat().st_size <= _BYTES]
    assert fits, f"no artefact of at most {_BYTES:,} bytes"
    assert max(report(path).accuracy or 0.0 for path in fits) >= _AIM


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artefact as the study leaves it, of a network that a CPU trains in seconds."""
    recipe = recipe_from(
        {
            "network": "digits-cnn",
            "network_options": {"width": 4},
            "data.name": "digits",
            "epochs": 2,
            "finetune": 1,
            "data.batch": 64,
            "optimizer.lr": 0.05,
            "compression.budget": 1600,
            "compression.norms": "bf16",
            "compression.precision_options": {"scale": "auto"},
        }
    )
    folder = tmp_path_factory.mktemp("run")
    train(recipe, folder, Runtime(device="cpu", progress="quiet"))
    return folder / "model.pare"


def test_the_check_passes_what_is_right(digits: Path) -> None:
    assert check(digits, zoo.data.load("digits"), 1e-4) > 0.3


def test_the_check_finds_what_is_wrong(digits: Path, tmp_path: Path) -> None:
    network = deploy.load(digits)
    claimed = tmp_path / "claimed.pare"
    deploy.save(network, claimed, summary={"accuracy": 0.999})
    with pytest.raises(AssertionError):
        check(claimed, zoo.data.load("digits"), _SLACK)
    silent = tmp_path / "silent.pare"
    deploy.save(network, silent)
    with pytest.raises(AssertionError, match="does not say"):
        check(silent, zoo.data.load("digits"), _SLACK)
    images = zoo.data.load("digits")
    mirrored = replace(images, test=(images.test[0].flip(-1), images.test[1]))
    with pytest.raises(AssertionError):
        check(digits, mirrored, _SLACK)


def test_missing_data_is_a_clean_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARETORCH_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    if (_ROOT / "data" / "cifar-10-batches-bin").exists() or (_ROOT / "data" / "cifar-10-batches-py").exists():
        assert _cifar10().classes == 10
        return
    with pytest.raises(pytest.skip.Exception, match="pare data cifar10"):
        _cifar10()
