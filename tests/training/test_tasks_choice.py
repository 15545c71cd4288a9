"""From a recipe's data to its task; what the task and the recipe ask of the loop; the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError, DataError
from paretorch.training import Recipe, Runtime, optimizers, prepare
from paretorch.training.optimizers import clip_gradients
from paretorch.training.recipe import OptimizerRecipe
from paretorch.training.recipe_values import recipe_from
from paretorch.training.run import choose_device
from paretorch.training.tasks import runtime_for
from paretorch.training.tasks.language import LanguageModel
from paretorch.training.tasks.shortest_paths import ShortestPaths
from paretorch.training.tasks.translation import Translation

from .test_tasks_promises import RECIPES, root

__all__ = ["root"]  # the fixture


@pytest.mark.parametrize(
    ("data", "kind"),
    [("ptb", LanguageModel), ("ptb-char", LanguageModel), ("multi30k", Translation), ("shortest-paths", ShortestPaths)],
)
@pytest.mark.parametrize("validation", [0, 5])
def test_data_chooses_the_task_and_shapes_the_network(root: Path, data: str, kind: type, validation: int) -> None:
    if data == "multi30k":
        pytest.importorskip("tokenizers")
    recipe = recipe_from({"data": data, "validation": validation, **RECIPES[data]})
    setup = prepare(recipe, Runtime(root=str(root), device="cpu"))
    assert isinstance(setup.task, kind)
    assert all(value > 0 for value in setup.task.evaluate(setup.model.eval()).values())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": "ptb"}, "ptb is learned by the network lstm-300, not by 'resnet20'"),
        ({"data": "pbt"}, r"no image set 'pbt'.*multi30k, ptb, ptb-char, shortest-paths"),
        ({"data": "digits", "network": "resnet20"}, r"resnet20 .*images of digits: .*\(1, 1, 8, 8\).* 3 channels"),
        ({"data": "digits", "network": "resnet20"}, r'try network_options={"channels": 1}$'),
        ({"data": "digits", "network": "resnet18"}, r"3 channels, but got 1 channels instead$"),
        ({"data": "digits", "data_options": {"bptt": 3}}, "digits has no data option 'bptt'; it has: none"),
        ({"data": "ptb", "network": "lstm-6", "data_options": {"limit": 3}}, "it has: bptt"),
        ({"data": "ptb", "network": "lstm-6", "data_options": {"bptt": 0}}, "a whole number from 1, not 0"),
        ({"data": "ptb", "network": "lstm-6", "data_options": {"bptt": True}}, "a whole number from 1, not True"),
        ({"data": "multi30k", "network": "transformer", "data_options": {"bleu": 1}}, "true or false, not 1"),
    ],
)
def test_what_does_not_fit_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(recipe_from(values), Runtime(device="cpu"))


@pytest.mark.parametrize(
    ("data", "network", "options", "message"),
    [
        ("digits", "digits-cnn", {"classes": 3}, "for digits classes must be at least 10, not 3"),
        ("ptb-char", "lstm-6", {"vocabulary": 2}, r"for ptb-char vocabulary must be at least \d+, not 2"),
        ("ptb-char", "lstm-6", {"dropout_weight": 2.0}, "a number from 0 to 1, not 2.0"),
        ("ptb-char", "lstm-6", {"layers": 0}, "1 or more layers, not 0"),
    ],
)
def test_networks_that_cannot_learn_the_data_are_refused(
    root: Path, data: str, network: str, options: dict[str, Any], message: str
) -> None:
    recipe = recipe_from({**RECIPES.get(data, {}), "data": data, "network": network, "network_options": options})
    with pytest.raises(ConfigError, match=message):
        prepare(recipe, Runtime(root=str(root), device="cpu"))


def test_a_network_may_have_more_classes_than_the_data() -> None:
    recipe = recipe_from(
        {"network": "digits-cnn", "data.name": "digits", "network_options": {"width": 2, "classes": 12}}
    )
    assert prepare(recipe, Runtime(device="cpu")).model.head.out_features == 12  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "network", "message"),
    [
        ("ptb", "lstm-6", r"put Mikolov's files ptb.\{train,valid,test\}.txt into .*nowhere/ptb"),
        ("ptb-char", "lstm-6", r"ptb.char.\{train,valid,test\}.txt into .*nowhere/ptb"),
        ("multi30k", "transformer", r"nowhere/multi30k lacks train.de, .*put the raw text of Multi30k there"),
    ],
)
def test_missing_data_names_the_folder_and_the_files(tmp_path: Path, data: str, network: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(
            recipe_from({"data.name": data, "network": network}), Runtime(root=str(tmp_path / "nowhere"), device="cpu")
        )


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="no cuda:2 here: the GPUs are numbered from 0 to 1"):
        choose_device("cuda:2")


def test_a_run_on_another_gpu_than_the_first_makes_it_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    with pytest.raises(DataError):
        prepare(recipe_from({"data.name": "cifar10"}), Runtime(root=str(tmp_path / "nowhere"), device="cuda:1"))
    assert current == [torch.device("cuda:1")]


@pytest.mark.parametrize(
    ("data", "graph", "compile"),
    [("ptb", True, False), ("multi30k", False, False), ("shortest-paths", True, None)],
)
def test_a_task_has_no_graph_and_no_compiler_where_they_cannot_be(
    root: Path, data: str, graph: bool, compile: bool | None
) -> None:
    if data == "multi30k":
        pytest.importorskip("tokenizers")
    task = prepare(recipe_from({"data.name": data, **RECIPES[data]}), Runtime(root=str(root), device="cpu")).task
    found = runtime_for(Runtime(checkpoint_steps=7), task)
    assert found == Runtime(checkpoint_steps=7, graph=graph, compile=compile)
    off = runtime_for(Runtime(graph=False, compile=False), task)
    assert not off.graph
    assert not off.compile


@pytest.mark.parametrize("name", ["sgd", "adam", "avagrad"])
@pytest.mark.parametrize(("norm", "length"), [(0.5, 0.5), (1e6, 5.0)])
def test_the_gradient_of_all_weights_together_is_clipped(name: str, norm: float, length: float) -> None:
    model = nn.ParameterList([torch.zeros(1), torch.zeros(1)])
    optimizer = optimizers.build(OptimizerRecipe(name=name), optimizers.dense_groups(model, 0.0), 0.1)
    clip_gradients(optimizer, norm)
    model[0].grad, model[1].grad = torch.tensor([3.0]), torch.tensor([4.0])
    optimizer.step()
    seen = torch.cat([weight.grad for weight in model if weight.grad is not None])
    assert seen.norm().item() == pytest.approx(length, rel=1e-4)
    assert (seen[1] / seen[0]).item() == pytest.approx(4 / 3, rel=1e-4)


@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_a_norm_to_clip_to_is_above_0(value: float) -> None:
    with pytest.raises(ConfigError, match="clip_norm must be above 0"):
        recipe_from({"optimizer.clip_norm": value})


def test_new_fields_do_not_keep_an_older_run_from_being_resumed() -> None:
    plain = Recipe().as_dict()
    assert (plain["data"]["options"], plain["optimizer"]["clip_norm"]) == (
        None,
        None,
    )  # what a recipe without them is compared as


def _pare(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_a_language_model_from_the_command_line(root: Path, tmp_path: Path) -> None:
    words = ["train", "--network", "lstm-6", "--data", "ptb-char", "--root", str(root), "--epochs", "1", "--batch", "3"]
    words += ["--device", "cpu", "--out", str(tmp_path / "run"), "--set", 'data_options={"bptt": 20}']
    assert "(1 epochs of" in _pare(*words, "--dry-run")
    assert not (tmp_path / "run").exists()
    assert "bits per character" in _pare(*words, "--set", "clip_norm=0.25", "--sparsity", "0.5")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["test_bpc"] > 0
    assert result["bytes"] == (tmp_path / "run" / "model.pare").stat().st_size
    assert "carried" not in _pare("report", str(tmp_path / "run"))
    assert "bits per character" in _pare("train", "--out", str(tmp_path / "run"), "--resume", "--root", str(root))


@pytest.mark.parametrize(
    ("data", "told"), [("ptb", "different ones"), ("multi30k", "5, 5, 5 pairs"), ("shortest-paths", "made when")]
)
def test_data_is_checked_from_the_command_line(root: Path, data: str, told: str) -> None:
    if data == "multi30k":
        pytest.importorskip("tokenizers")
    assert told in _pare("data", data, "--root", str(root))
