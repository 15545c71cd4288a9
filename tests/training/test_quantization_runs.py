"""Runs by every quantization method: chosen by name, at the bits asked for, resumed at any step."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from paretorch import SMOL, zoo
from paretorch.cli.app import app
from paretorch.errors import ConfigError
from paretorch.methods.precision.rivals import LSQ, Uniform
from paretorch.methods.precision.shuffle import precision_map
from paretorch.methods.registry import entries
from paretorch.training import Recipe, Runtime, prepare, train
from paretorch.training.recipe import QUANTIZATION
from paretorch.training.recipe_values import changed, recipe_from
from tests.decisions import relaxations

from .blobs import Make, ends_where_it_does

_RIVALS = [name for name in QUANTIZATION if name not in ("smol", "smol-printed", "given")]
_DIGITS = {"network": "digits-cnn", "network_options": {"width": 4}, "data": "digits", "batch": 256, "lr": 0.05}


def _recipe(name: str, **changes: Any) -> Recipe:
    values: dict[str, Any] = {"epochs": 3, "finetune": 1, "batch": 4, "lr": 0.05, "bits": 4.0 if name == "bsq" else 2.0}
    return recipe_from({**values | changes, "compression.quantization": name})


def test_every_name_has_a_method() -> None:
    assert tuple(entries("precision")) == QUANTIZATION


@pytest.mark.parametrize("name", ["smol", *_RIVALS])
def test_every_method_goes_through_the_loop_and_resumes(make: Make, name: str) -> None:
    whole = make(_recipe(name), name="whole")
    last = whole.run()
    assert [row["phase"] for row in whole.folder.history()] == ["search"] * 3 + ["harden", "finetune"]
    assert whole.plan is not None
    assert type(whole.plan.methods()[0]) is entries("precision")[name].method
    if name != "bsq":
        assert last["bits"] == pytest.approx(2.0, abs=0.05)

    ends_where_it_does(whole, make, _recipe(name))


def test_options_go_to_the_method_that_is_named(make: Make) -> None:
    options = {"lr": 0.5, "ends": 8, "overrides": {"0*": {"bits": 3}}}
    trainer = make(
        recipe_from(
            {
                "epochs": 1,
                "data.batch": 4,
                "compression.bits": 2.0,
                "compression.quantization": "lsq",
                "compression.precision_options": options,
            }
        )
    )
    assert trainer.plan is not None
    (method,) = trainer.plan.methods()
    assert isinstance(method, LSQ)
    assert (method.bits, method.lr) == (2, 0.5)
    widths = [own.precision for own in relaxations(trainer.model)]
    assert widths[0] == 3, "what is said by name counts more than ends"
    assert widths[-1] == (8 if len(widths) > 1 else 3)
    with pytest.raises(ConfigError, match=r"precision_options.*LSQ.*penalty"):
        make(
            recipe_from(
                {
                    "epochs": 1,
                    "data.batch": 4,
                    "compression.quantization": "lsq",
                    "compression.precision_options": {"penalty": 1},
                }
            ),
            name="other",
        )


def test_without_bits_the_method_s_own_options_decide(make: Make) -> None:
    recipe = recipe_from(
        {
            "epochs": 1,
            "data.batch": 4,
            "compression.quantization": "smol",
            "compression.precision_options": {"penalty": 1e-3},
        }
    )
    printed = changed(recipe, {"compression.quantization": "smol-printed", "compression.bits": 6.0})
    for each, start, scale in ((recipe, 8.0, "auto"), (printed, 6.0, "fit")):
        trainer = make(each, name=str(start))
        assert trainer.plan is not None
        assert trainer.plan.methods() == (SMOL(penalty=1e-3, init_bits=start, scale=scale, exclude=()),)
    other = make(recipe_from({"epochs": 1, "data.batch": 4, "compression.quantization": "uniform"}), name="other")
    assert other.plan is not None
    assert other.plan.methods()[0] == Uniform(exclude=())


def test_what_cannot_be_meant_is_refused_by_name(make: Make) -> None:
    with pytest.raises(
        ConfigError, match="choose one of smol, smol-printed, uniform, dorefa, pact, lsq, lqnets, dsq, slb, bsq, given"
    ):
        recipe_from({"compression.quantization": "lqs", "compression.bits": 2.0})
    for bits, message in (
        (2.5, "whole number of bits everywhere, not 2.5"),
        (17.0, "bits=17"),
        (-1.0, "bits=-1"),
        (float("inf"), "everywhere, not inf"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(_recipe("uniform", bits=bits))
    for bits in (-1.0, 17.0):
        with pytest.raises(ConfigError, match=f"target_bits={bits}"):
            make(_recipe("smol", bits=bits))
    with pytest.raises(ConfigError, match="zero_precision=True"):
        make(_recipe("smol", bits=0.5))
    with pytest.raises(ConfigError, match=r"precision_options\.source"):
        make(recipe_from({"epochs": 1, "data.batch": 4, "compression.quantization": "given"}))
    with pytest.raises(ConfigError, match="leave bits out"):
        make(_recipe("given"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ends": 8, "exclude": 5}, "5 selects no layer"),
        ({"ends": 8, "overrides": 5}, "overrides=5: give options by pattern"),
        ({"samples": "4"}, "unexpected keyword argument 'samples'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    recipe = recipe_from(
        {
            "network": "digits-cnn",
            "data.name": "digits",
            "compression.quantization": "lsq",
            "compression.bits": 2.0,
            "compression.precision_options": options,
        }
    )
    with pytest.raises(ConfigError, match=message):
        prepare(recipe, Runtime(device="cpu"))


@pytest.mark.parametrize("exclude", ["head", ["head"]])
def test_the_ends_are_those_of_what_is_not_excluded(exclude: Any) -> None:
    options = {"ends": 8, "exclude": exclude}
    recipe = recipe_from(
        {
            "network": "digits-cnn",
            "data.name": "digits",
            "compression.quantization": "lsq",
            "compression.bits": 2.0,
            "compression.precision_options": options,
        }
    )
    plan = prepare(recipe, Runtime(device="cpu")).plan
    assert plan is not None
    assert list(plan.methods()[0].overrides) == ["features.0.weight", "features.16.weight"]


def test_a_whole_run_of_each_arm_of_the_shuffled_precisions(tmp_path: Path) -> None:
    runtime = Runtime(device="cpu", progress="quiet")
    smol = recipe_from({**_DIGITS, "epochs": 1, "finetune": 1, "compression.bits": 2.5})
    train(smol, tmp_path / "smol", runtime)
    source = str(tmp_path / "smol" / "model.pare")
    maps = {}
    for shuffled in (False, True):
        options = {"source": source, "shuffled": shuffled}
        recipe = recipe_from(
            {
                **_DIGITS,
                "epochs": 1,
                "seed": 1,
                "compression.quantization": "given",
                "compression.precision_options": options,
            }
        )
        result = train(recipe, tmp_path / str(shuffled), runtime)
        assert result["bits"] == pytest.approx(2.5, abs=0.05)
        maps[shuffled] = precision_map(zoo_of(tmp_path / str(shuffled) / "model.pare"))
    found = precision_map(zoo_of(source))
    for name, p in found.bits.items():
        assert torch.equal(p, maps[False].bits[name])
        assert torch.equal(p.flatten().sort().values, maps[True].bits[name].flatten().sort().values)
    assert any(not torch.equal(p, maps[True].bits[name]) for name, p in found.bits.items())


def zoo_of(path: Any) -> torch.nn.Module:
    from paretorch.deploy import load

    return load(path, into=zoo.build("digits-cnn", width=4))


def test_on_the_command_line(tmp_path: Path) -> None:
    words = ["train", "--network", "digits-cnn", "--data", "digits", "--quantization", "lsq", "--bits", "2"]
    words += ["--epochs", "1", "--batch", "256", "--set", 'network_options={"width": 4}', "--device", "cpu", "--quiet"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["bits"] == 2.0
