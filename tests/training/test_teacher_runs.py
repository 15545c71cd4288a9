"""Runs with a teacher: from which files, what the loss is, and what is refused before training."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

import paretorch as pt
from paretorch import zoo
from paretorch.cli.app import app
from paretorch.errors import ConfigError
from paretorch.training import Runtime, prepare, train
from paretorch.training.distillation import Teacher
from paretorch.training.recipe_values import recipe_from
from paretorch.training.run import trainer_of
from paretorch.training.tasks.language import CARRIED, CARRIED_TEACHER, LanguageModel
from paretorch.training.tasks.translation import Translation
from paretorch.zoo.data.translation import PAD
from tests.training.test_tasks_language import _network, _text
from tests.training.test_tasks_translation import _network as _transformer
from tests.training.test_tasks_translation import _pairs

_QUICK = {"network": "digits-cnn", "data.name": "digits", "epochs": 1, "data.batch": 256, "optimizer.lr": 0.05}
_RUNTIME = Runtime(device="cpu", progress="quiet")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense") / "run"
    train(recipe_from(_QUICK), folder, _RUNTIME)
    return folder


def taught(teacher: Path, **options: Any) -> dict[str, Any]:
    return {**_QUICK, "distillation.teacher": str(teacher), **options}


@pytest.mark.parametrize("file", ["model.pare", "checkpoint.pt"])
def test_the_loss_is_mixed(dense: Path, file: str) -> None:
    recipe = recipe_from(
        taught(dense / file, **{"distillation.alpha": 0.3, "distillation.temperature": 2.0, "seed": 1})
    )
    setup = prepare(recipe, _RUNTIME)
    model = setup.model.eval()
    pixels, labels = (rows[0] for rows in setup.task.epoch(0))
    teacher = pt.load(dense / "model.pare").eval()
    logits, other = (setup.task._logits(one, pixels) for one in (model, teacher))
    expected = 0.3 * pt.distillation_loss(logits, other, 2.0) + 0.7 * F.cross_entropy(logits, labels)
    torch.testing.assert_close(setup.task.loss(model, (pixels, labels))[0], expected)
    plain = prepare(recipe_from({**_QUICK, "seed": 1}), _RUNTIME)
    torch.testing.assert_close(
        plain.task.loss(plain.model.eval(), (pixels, labels))[0], F.cross_entropy(logits, labels)
    )


def test_a_run_learns_from_its_teacher_and_keeps_the_recipe(dense: Path, tmp_path: Path) -> None:
    values = taught(dense / "model.pare", start=str(dense / "model.pare"), **{"compression.bits": 3.0})
    result = train(recipe_from(values), tmp_path / "run", _RUNTIME)
    assert result["bits"] == pytest.approx(3.0, abs=0.05)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert stored["distillation"] == {"teacher": str(dense / "model.pare"), "alpha": 0.9, "temperature": 1.0}
    assert "distillation" not in json.loads((dense / "config.json").read_text())["recipe"]
    assert result["parameters"] == json.loads((dense / "result.json").read_text())["parameters"], (
        "no teacher in the file"
    )


def test_a_run_with_a_teacher_goes_on_where_it_was_stopped(dense: Path, tmp_path: Path) -> None:
    recipe = recipe_from(taught(dense / "model.pare", epochs=2))
    whole = train(recipe, tmp_path / "whole", _RUNTIME)
    from paretorch.training import RunFolder

    setup = prepare(recipe, _RUNTIME)
    trainer = trainer_of(setup, recipe, RunFolder(tmp_path / "part", recipe), _RUNTIME)
    trainer.after_step = lambda taken: trainer._stop() if taken == setup.task.steps + 2 else None
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert train(recipe, tmp_path / "part", _RUNTIME, resume=True) == whole
    assert (tmp_path / "part" / "model.pare").read_bytes() == (tmp_path / "whole" / "model.pare").read_bytes()


def test_a_file_without_a_name_has_the_weights_of_the_network(tmp_path: Path) -> None:
    network = zoo.build("digits-cnn")
    network.zoo_name = None
    pt.save(network, tmp_path / "plain.pare")
    setup = prepare(recipe_from(taught(tmp_path / "plain.pare")), _RUNTIME)
    assert isinstance(setup.task.teacher, Teacher)
    assert torch.equal(next(setup.task.teacher.model.parameters()), next(network.parameters()))


def test_teachers_that_do_not_fit_are_told_before_training(dense: Path, tmp_path: Path) -> None:
    def refused(told: str, **values: Any) -> None:
        with pytest.raises(ConfigError, match=told) as error:
            train(recipe_from({**_QUICK, **values}), tmp_path / "run", _RUNTIME)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()

    refused("there is no teacher .*nowhere.pare: give a model.pare", **taught(tmp_path / "nowhere.pare"))
    pt.save(zoo.build("digits-cnn", classes=7), tmp_path / "seven.pare")
    refused(
        r"seven.pare does not fit digits-cnn: the outputs do not match: logits of the student has shape \(2, 10\)",
        **taught(tmp_path / "seven.pare"),
    )
    (tmp_path / "broken.pt").write_bytes(b"no checkpoint")
    refused("broken.pt is not a checkpoint of a run that can be read", **taught(tmp_path / "broken.pt"))
    small = {**_QUICK, "compression.bits": 3.0}
    train(recipe_from(small), tmp_path / "small", _RUNTIME)
    refused(
        "checkpoint of a compressed run: give the model.pare beside it", **taught(tmp_path / "small" / "checkpoint.pt")
    )
    grids = {"network": "shortest-paths-cnn", "data.name": "shortest-paths", "data.batch": 2}
    options = {"data.options": {"count": 4, "test_count": 2, "size": 8}}
    refused("shortest-paths is not learned from a teacher", **taught(dense / "model.pare", **grids, **options))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"distillation.alpha": 0.5}, "need a teacher"),
        ({"distillation.teacher": "x", "distillation.alpha": 1.5}, "alpha must be a number from 0 to 1"),
        ({"distillation.teacher": "x", "distillation.temperature": 0.0}, "temperature must be above 0"),
        ({"distillation": "x"}, "distillation should be a table of fields"),
        ({"distillation.teachers": "x"}, "unknown fields: distillation.teachers"),
    ],
)
def test_recipes_that_cannot_be_meant(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        recipe_from(values)


def test_the_command_line_has_flags_for_it(dense: Path, tmp_path: Path) -> None:
    words = [
        "--network",
        "digits-cnn",
        "--data",
        "digits",
        "--epochs",
        "1",
        "--batch",
        "512",
        "--device",
        "cpu",
        "--quiet",
    ]
    more = ["--teacher", str(dense / "model.pare"), "--teacher-weight", "0.5", "--set", "distillation.temperature=3"]
    done = CliRunner().invoke(app, ["train", *words, *more, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert stored["distillation"] == {"teacher": str(dense / "model.pare"), "alpha": 0.5, "temperature": 3.0}


# Translation: padding does not count


def test_a_teacher_of_translation_leaves_padding_out() -> None:
    task, model, other = Translation(_pairs(), tokens=20), _transformer().eval(), _transformer().eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    task.teacher = Teacher(other, alpha=1.0)
    padded = 0
    for rows, sizes in zip(*task.epoch(0), strict=True):
        count, *lengths = sizes.tolist()
        source, target = (row[: count * n].view(count, n) for row, n in zip(rows, lengths, strict=True))
        with torch.no_grad():
            kept = target[:, 1:] != PAD
            logits, taught_logits = (one(source, target[:, :-1])[kept] for one in (model, other))
        expected = float(pt.distillation_loss(logits, taught_logits))
        assert float(task.loss(model, (rows, sizes))[0].detach()) == pytest.approx(expected, rel=1e-4)
        padded += int((~kept).sum())
    assert padded


# Language: the teacher reads on where it was, as the student does


def test_a_teacher_of_text_carries_a_state_of_its_own() -> None:
    task, model = LanguageModel(_text(), characters=True, batch=2, bptt=7), _network().eval()
    torch.manual_seed(9)
    other = zoo.build("lstm-6", vocabulary=5, embedding=4, layers=1)
    task.teacher = Teacher(other, alpha=1.0)
    task.attach(model)
    rows, goes_on = task.epoch(0)
    found = [float(task.loss(model, (rows[i], goes_on[i]))[0]) for i in range(2)]
    text = torch.cat([rows[0][:-1], rows[1][:-1]])
    with torch.no_grad():
        logits, taught_logits = (one(text)[0] for one in (model, other.eval()))
        expected = [float(pt.distillation_loss(logits[part], taught_logits[part])) for part in (slice(7), slice(7, 14))]
    assert found == pytest.approx(expected, rel=1e-4)
    assert {CARRIED, CARRIED_TEACHER} <= set(model.state_dict())
    task.release(model)
    assert not {CARRIED, CARRIED_TEACHER} & set(model.state_dict())
