"""What a finished run says: before and after rounding, and on images that nothing was chosen by."""

import json
from pathlib import Path

import pytest

from paretorch import deploy, zoo
from paretorch.errors import ConfigError
from paretorch.report import report
from paretorch.training import ImageClassification, Recipe, Runtime, train
from paretorch.training.finish import rounding
from paretorch.training.recipe_values import changed, recipe_from

_DIGITS = recipe_from(
    {"network": "digits-cnn", "network_options": {"width": 4}, "data.name": "digits", "epochs": 2, "optimizer.lr": 0.05}
)
_QUIET = Runtime(device="cpu", progress="quiet")


def _changed(**changes: object) -> Recipe:
    return changed(_DIGITS, changes)


def _test_accuracy(folder: Path) -> float:
    task = ImageClassification(zoo.data.load("digits"), batch=128)
    return task.evaluate(deploy.load(folder / "model.pare").eval())["test_accuracy"]


@pytest.mark.parametrize("validation", [0, 200])
def test_a_compressed_run_says_soft_hard_and_final_accuracy(tmp_path: Path, validation: int) -> None:
    result = train(_changed(sparsity=0.6, finetune=1, validation=validation), tmp_path, _QUIET)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    soft, hard, final = rows[1:]
    assert [row["phase"] for row in rows] == ["search", "search", "harden", "finetune"]
    assert result["soft_accuracy"] == soft["test_accuracy"]
    assert result["hard_accuracy"] == hard["test_accuracy"]
    assert result["test_accuracy"] == pytest.approx(final["test_accuracy"])
    assert result["sparsity"] == pytest.approx(0.6, abs=1e-3)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    layers = {layer.name: layer for layer in report(tmp_path / "model.pare").layers}
    assert result["layers"] == {name: pytest.approx(layer.sparsity, abs=1e-5) for name, layer in layers.items()}
    assert result["layers"]["head.weight"] == 0.0 < max(result["layers"].values())


def test_bits_of_each_layer_are_in_the_result(tmp_path: Path) -> None:
    result = train(_changed(bits=2.0, activation_bits=4.0, finetune=1), tmp_path, _QUIET)
    layers = {layer.name: layer for layer in report(tmp_path / "model.pare").layers}
    assert result["layer_bits"] == {name: pytest.approx(layer.size.bits, abs=1e-3) for name, layer in layers.items()}
    weights = {name: sum(counts.values()) for name, counts in result["layer_precisions"].items()}
    assert weights == {name: layer.size.numel for name, layer in layers.items()}
    bits = sum(int(p) * count for counts in result["layer_precisions"].values() for p, count in counts.items())
    assert bits / sum(weights.values()) == pytest.approx(result["bits"], abs=0.01)
    assert len(result["activation_layers"]) > 1
    assert json.loads((tmp_path / "result.json").read_text()) == result
    dense = train(_DIGITS, tmp_path / "dense", _QUIET)
    assert not {"layers", "layer_bits", "layer_precisions", "activation_layers", "similarities"} & dense.keys()


def test_with_held_out_images_the_test_set_is_met_at_the_end(tmp_path: Path) -> None:
    result = train(_changed(validation=200), tmp_path / "held", _QUIET)
    assert result["evaluated_on"] == "validation"
    assert result["final_test_accuracy"] == pytest.approx(_test_accuracy(tmp_path / "held"))
    assert result["test_accuracy"] * 200 == pytest.approx(round(result["test_accuracy"] * 200))
    assert "final_test_accuracy" not in (tmp_path / "held" / "metrics.jsonl").read_text()

    plain = train(_DIGITS, tmp_path / "plain", _QUIET)
    assert plain["evaluated_on"] == "test"
    assert plain["test_accuracy"] == pytest.approx(_test_accuracy(tmp_path / "plain"))
    assert "final_test_accuracy" not in plain
    assert "soft_accuracy" not in plain


def test_amc_needs_held_out_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="never by the test set"):
        train(_changed(pruning="amc", sparsity=0.5), tmp_path / "run", _QUIET)
    assert not (tmp_path / "run").exists()


def test_a_metric_that_is_no_accuracy_has_its_own_name() -> None:
    rows = [{"phase": "search", "test_bpc": 2.0}, {"phase": "harden", "test_bpc": 2.5}, {"phase": "finetune"}]
    assert rounding(rows) == {"soft_bpc": 2.0, "hard_bpc": 2.5}
    assert rounding(rows[:1]) == rounding([]) == {}


def test_the_result_of_another_recipe_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Without its checkpoint, which may be removed for its size, a finished run is still a run."""
    result = train(_DIGITS, tmp_path, _QUIET)
    (tmp_path / "checkpoint.pt").unlink()
    artefact = (tmp_path / "model.pare").read_bytes()
    assert train(_DIGITS, tmp_path, _QUIET, resume=True) == result
    with pytest.raises(ConfigError, match=r"lr \(there 0.05, now 0.01\)"):
        train(_changed(lr=0.01), tmp_path, _QUIET, resume=True)
    with pytest.raises(ConfigError, match="already holds a run"):
        train(_changed(lr=0.01), tmp_path, _QUIET)
    assert (tmp_path / "model.pare").read_bytes() == artefact
