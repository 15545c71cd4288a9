"""Options that several commands have: one meaning, one place in the help, one way to read their values."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import paretorch
from paretorch.cli.app import app
from paretorch.cli.options import HOW, SEARCH, WHAT, WHERE, assignments, given, integers, numbers
from paretorch.cli.recipe_flags import FLAGS, make_recipe
from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import KINDS, recipe_from
from paretorch.workflows.tickets import METHODS
from paretorch.zoo.networks import names as network_names

_COMMANDS = ("train", "tickets", "tune")


def _options(command: str) -> dict[str, Any]:
    # Any: what typer makes of a function is of click or of its own, by its version.
    made: Any = typer.main.get_command(app)
    return {option.name: option for option in made.commands[command].params if option.name != "help"}


def test_an_option_is_called_and_placed_alike_in_every_command() -> None:
    found = [_options(command) for command in _COMMANDS]
    shared = {name for one in found for name in one if sum(name in each for each in found) > 1}
    assert {"network", "data", "epochs", "schedule", "set_", "method", "device", "compile", "quiet"} <= shared
    for name in sorted(shared):
        places = {
            (*each[name].opts, *each[name].secondary_opts, each[name].rich_help_panel) for each in found if name in each
        }
        assert len(places) == 1, name


@pytest.mark.parametrize("text", ["²", "0,①", "-1", "1.5", "", "0,,1"])
def test_what_is_no_whole_number_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds takes whole numbers"):
        integers(text, "--seeds")


@pytest.mark.parametrize("name", ["network", "weight_decay", "schedule", "set_", "device", "root", "compile", "graph"])
def test_a_shared_option_says_the_same_in_every_command(name: str) -> None:
    says = {(one.help, one.default, one.multiple) for one in (_options(command)[name] for command in _COMMANDS)}
    assert len(says) == 1


@pytest.mark.parametrize("command", _COMMANDS)
def test_panels_come_in_the_same_order(command: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    panels = [WHAT, HOW, "How small", WHERE] if command == "train" else [WHAT, HOW, SEARCH, WHERE]
    places = [told.index(f"─ {panel} ─") for panel in panels]
    assert places == sorted(places)


def test_the_help_of_tickets_names_every_method() -> None:
    assert _options("tickets")["method"].help == f"One or several of {', '.join(sorted(METHODS))}."


def test_only_what_was_given_counts() -> None:
    assert given(lr=0.0, resume=False, seeds=[], network=None) == {"lr": 0.0, "resume": False, "seeds": []}


@pytest.mark.parametrize("data", ["digits", "cifar10", "ptb", "folder:photos", "mine.py:loaders"])
def test_what_is_held_out_follows_the_data_unless_a_number_is_asked_for(data: str) -> None:
    usual = {"digits": 200, "cifar10": 5000}.get(data, 1)
    assert make_recipe(None, {"data": data}, holds_out=True).data.validation == usual
    assert make_recipe(None, {"data": data}).data.validation == 0
    for asked in (0, 7):
        assert make_recipe(None, {"data": data, "validation": asked}, holds_out=True).data.validation == asked


def test_a_zero_is_asked_for_in_a_file_of_fields_and_not_in_the_record_of_a_run(tmp_path: Path) -> None:
    asked, record = tmp_path / "asked.toml", tmp_path / "config.json"
    asked.write_text('data = "digits"\nvalidation = 0\n')
    record.write_text(json.dumps({"recipe": recipe_from({"data.name": "digits"}).as_dict()}))
    assert make_recipe(asked, {}, holds_out=True).data.validation == 0
    assert make_recipe(record, {}, holds_out=True).data.validation == 200
    assert make_recipe(record, {}) == recipe_from({"data.name": "digits"})
    record.write_text(json.dumps({"recipe": recipe_from({"data.name": "digits", "data.validation": 50}).as_dict()}))
    assert make_recipe(record, {}, holds_out=True).data.validation == 50


def test_assignments_are_json_or_text() -> None:
    assert assignments(["a-b=1e-3", "c = [1, 2]", "d=x=y", "e="]) == {"a_b": 1e-3, "c": [1, 2], "d": "x=y", "e": ""}
    assert assignments(None) == {}


def test_a_wrong_value_is_told_with_its_flag_and_a_right_one() -> None:
    with pytest.raises(ConfigError, match=r"^--set takes NAME=VALUE, such as --set cutout=8, not 'cutout'$"):
        assignments(["flip=true", "cutout"])
    with pytest.raises(ConfigError, match=r"^--option takes NAME=VALUE, such as --option penalty=1e-8, not 'x'$"):
        assignments(["x"], "--option penalty=1e-8")
    with pytest.raises(ConfigError, match=r"^--alphas takes numbers such as 80,120, not '1,,2'$"):
        numbers("1,,2", "--alphas")
    with pytest.raises(ConfigError, match=r"^--seeds takes whole numbers such as 0,1,2, not '0,-1'$"):
        integers("0,-1", "--seeds")


@pytest.mark.parametrize(
    ("words", "flag", "partner"),
    [
        (["bench", "runs", "--channels-by", "magnitude"], "--channels-by", "--prune"),
        (["bench", "runs", "--prune-by", "weights"], "--prune-by", "--prune"),
        (["bench", "runs", "--finetune", "3"], "--finetune", "--prune"),
        (["export", "model.pare", "--images", "64"], "--images", "--int8"),
        (["report", "lenet-300-100", "--batch", "8"], "--batch", "--latency"),
    ],
)
def test_an_option_about_another_is_refused_without_it(
    words: list[str], flag: str, partner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.pare").touch()
    found = CliRunner().invoke(app, words)
    assert (found.exit_code, found.stderr) == (
        2,
        f"pare: {flag} is about {partner}: give that too, or leave {flag} out\n",
    )


def test_every_flag_of_the_recipe_is_declared_once_and_has_a_place() -> None:
    names = [flag.name for flag in FLAGS]
    assert len(set(names)) == len(names)
    assert {flag.place for flag in FLAGS} <= set(KINDS)


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_shows_defaults_and_the_names_of_networks(command: str) -> None:
    options = _options(command)
    assert options["batch"].show_default == str(Recipe().data.batch)
    assert options["weight_decay"].show_default == str(Recipe().optimizer.weight_decay)
    assert all(name in options["network"].help for name in network_names())


def test_flags_and_assignments_reach_their_places(tmp_path: Path) -> None:
    words = "--network digits-cnn --data digits --lr 0.05 --set momentum=0.8 --set optimizer.eps=0.1 --sparsity 0.5"
    words += " --set sparsity_options.init=0.1 --set sparsity_options.penalty=0.2 --set network-options.width=2"
    words += f" --epochs 1 --device cpu --quiet --out {tmp_path / 'run'}"
    done = CliRunner().invoke(app, ["train", *words.split()])
    assert done.exit_code == 0, done.output
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert stored["data"]["name"] == "digits"
    assert (stored["optimizer"]["lr"], stored["optimizer"]["momentum"], stored["optimizer"]["eps"]) == (0.05, 0.8, 0.1)
    assert stored["compression"]["sparsity_options"] == {"init": 0.1, "penalty": 0.2}
    assert stored["network_options"] == {"width": 2}


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"pare {paretorch.__version__}\n"
