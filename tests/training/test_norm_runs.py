"""Runs whose artefact has folded batch norms: as small as the budget says, and measured as they are stored."""

from pathlib import Path

import pytest
import torch

from paretorch import deploy, zoo
from paretorch.errors import ConfigError
from paretorch.training import ImageClassification, Runtime, train
from paretorch.training.norms import fold_norms, folded_state
from paretorch.training.recipe_values import changed, recipe_from

_DIGITS = recipe_from(
    {
        "network": "resnet20",
        "network_options": {"width": 4, "channels": 1},
        "data.name": "digits",
        "epochs": 1,
        "optimizer.lr": 0.05,
    }
)
_QUIET = Runtime(device="cpu", progress="quiet")


@pytest.mark.parametrize("norms", ["fp32", "bf16"])
def test_a_folded_network_computes_the_same(norms: str) -> None:
    torch.manual_seed(0)
    model = zoo.build("resnet20", width=4)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            torch.nn.init.normal_(module.weight)
    model.eval()
    images = torch.randn(3, 3, 32, 32)
    before, kept = model(images).detach(), {name: value.clone() for name, value in model.state_dict().items()}
    fold_norms(model, norms)
    allowed = (1e-5 if norms == "fp32" else 0.05) * float(before.abs().max())
    assert torch.allclose(model(images), before, rtol=0, atol=allowed)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, kept[name])}
    assert all("bn" in name or "shortcut.1" in name for name in changed)
    assert "bn.running_mean" in changed


def test_a_state_without_batch_norms_is_left_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    state = model.state_dict()
    assert all(torch.equal(folded_state(model, state, "bf16")[name], value) for name, value in state.items())


def test_the_budget_counts_what_is_stored_and_the_result_is_of_what_is_stored(tmp_path: Path) -> None:
    recipe = changed(_DIGITS, {"finetune": 1, "compression.budget": 3000, "compression.norms": "bf16"})
    result = train(recipe, tmp_path / "bf16", _QUIET)
    assert 0.9 * 3000 <= result["bytes"] <= 3000
    assert result["bytes"] == (tmp_path / "bf16" / "model.pare").stat().st_size
    with pytest.raises(ConfigError, match=r"budget=3000: .* bytes go to what is not compressed"):
        train(changed(recipe, {"compression.norms": None}), tmp_path / "exact", _QUIET)
    loaded = deploy.load(tmp_path / "bf16" / "model.pare")
    assert torch.count_nonzero(loaded.get_buffer("bn.running_mean")) == 0
    measured = ImageClassification(zoo.data.load("digits"), batch=128).evaluate(loaded)
    assert measured["test_accuracy"] == pytest.approx(result["test_accuracy"], abs=1e-9)


def test_an_unknown_way_is_named() -> None:
    with pytest.raises(ConfigError, match="norms is 'int8'; choose one of fp32, bf16"):
        changed(_DIGITS, {"compression.norms": "int8"})
