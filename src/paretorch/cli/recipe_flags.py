"""The flags of a command that set fields of the recipe, declared once for all commands, and the recipe that they give.

A command names those it has, and receives what was given, by the places of the recipe:

    @recipe_flags("network", "data", "epochs")
    def train(flags: RecipeFields, out: Path | None = None) -> None: ...
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from paretorch.cli.options import DATA, HOW, SMALL, WHAT, assignments, numbers
from paretorch.errors import ConfigError
from paretorch.support.text import parse_bytes
from paretorch.training.distillation import ALPHA
from paretorch.training.recipe import ACTIVATIONS, OPTIMIZERS, PRUNING, QUANTIZATION, Recipe
from paretorch.training.recipe_values import by_place, place_of, read_config, recipe_from
from paretorch.training.schedules import SCHEDULES
from paretorch.training.tasks.batches import TASKS
from paretorch.zoo.networks import names as network_names
from paretorch.zoo.user_code import allow_code

RecipeFields = dict[str, Any]
"""Fields of a recipe by their dotted places."""

# Training images that are held out if a command judges by them. Of text, and of data of a user's own that have a validation part,
# any number above 0 chooses that part; of a folder of images, 1 is a tenth.
_HELD_OUT = {"digits": 200, "ptb": 1, "ptb-char": 1, "multi30k": 1}
_HELD_OUT_OWN, _HELD_OUT_OTHERS = 1, 5000
HELD_OUT_SHOWN = "5000, digits 200, of a folder a tenth"
"""What --help says of these."""
_DEFAULTS = by_place(Recipe().as_dict())


@dataclass(frozen=True)
class Flag:
    """A flag of the command line for one field of the recipe.

    Args:
        name: The flag without its dashes, with "_" in place of "-"; also the flat name of the field.
        kind: What typer reads.
        help: One line.
        panel: The panel of --help.
        default: What --help shows; None: the default of the field.
        parse: From the text to the value, if typer does not do it.
        field: The dotted place of the field, if it is not that of the flat name.
        names: How the option is written, if not as `name`.
    """

    name: str
    kind: type
    help: str
    panel: str
    default: str | None = None
    parse: Callable[[str], Any] | None = None
    field: str | None = None
    names: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it goes in the recipe."""
        return self.field or place_of(self.name)

    def parameter(self) -> inspect.Parameter:
        """The parameter from which typer makes the option; one that is left out is None, and leaves its field as it is."""
        default = _DEFAULTS.get(self.place) if self.default is None else self.default
        shown = False if default is None or default == [] else str(default)
        option = typer.Option(*self.names, help=self.help, show_default=shown, rich_help_panel=self.panel)
        annotation = Annotated[self.kind | None, option]  # type: ignore[name-defined]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


FLAGS = (
    Flag(
        "network",
        str,
        f"{', '.join(network_names())}; wrn, swrn and lstm with any numbers; FILE.py:FUNCTION, hf:NAME or timm:NAME.",
        WHAT,
    ),
    Flag("data", str, f"{', '.join(DATA)}; folder:PATH, webdataset:PATTERN, FILE.py:FUNCTION or hf:NAME.", WHAT),
    Flag("task", str, f"{', '.join(TASKS)} or FILE.py:FUNCTION.", WHAT, default="that of the data"),
    Flag("validation", int, "Training images held out; of text its validation part.", WHAT),
    Flag("start", str, "Weights to begin with: .safetensors, .pt or .pare.", WHAT, names=("--weights", "--start")),
    Flag("seed", int, "Decides every random number.", WHAT),
    Flag("epochs", int, "Epochs until decisions are rounded.", HOW),
    Flag("finetune", int, "Epochs after that.", HOW),
    Flag("batch", int, "Images, grids, columns of text or (multi30k) tokens per side, per step.", HOW),
    Flag("optimizer", str, f"{', '.join(OPTIMIZERS)}.", HOW),
    Flag("lr", float, "Learning rate.", HOW),
    Flag("weight_decay", float, "Weight decay.", HOW),
    Flag("schedule", str, f"{', '.join(SCHEDULES)}.", HOW),
    Flag(
        "milestones",
        str,
        "Epochs of the drops, such as 80,120.",
        HOW,
        parse=functools.partial(numbers, flag="--milestones"),
    ),
    Flag(
        "teacher",
        str,
        "A network to learn from: a model.pare, or the checkpoint.pt of a dense run.",
        HOW,
        field="distillation.teacher",
    ),
    Flag(
        "teacher_weight",
        float,
        "Weight of the teacher's loss; the rest is the task's.",
        HOW,
        default=str(ALPHA),
        field="distillation.alpha",
    ),
    Flag("sparsity", float, "Fraction of zeros, such as 0.95.", SMALL),
    Flag("pruning", str, f"By which method: {', '.join(PRUNING)}.", SMALL, default="cs"),
    Flag("bits", float, "Bits per weight, such as 2.0.", SMALL),
    Flag("quantization", str, f"By which method: {', '.join(QUANTIZATION)}.", SMALL, default="smol"),
    Flag("activation_bits", float, "Bits per activation, such as 4.0.", SMALL),
    Flag("activations", str, f"By which method: {', '.join(ACTIVATIONS)}.", SMALL, default="smol"),
    Flag("budget", str, "Bytes of the artefact, such as 48KB.", SMALL, parse=parse_bytes),
)
_MAY_BE_CODE = ("network", "data.name", "task")
_BY_NAME = {flag.name: flag for flag in FLAGS}

_NETWORK_OPTIONS = inspect.Parameter(
    "network_options",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of the network's builder, such as width=32; may be given several times.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ],
)
_SET = inspect.Parameter(
    "set_",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other recipe field: NAME=VALUE, such as optimizer.momentum=0.8 or sparsity_options.group=channel.",
            rich_help_panel=HOW,
        ),
    ],
)


def recipe_flags(
    *names: str, help: Mapping[str, str] | None = None, default: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these flags, and --set, at the place of its parameter `flags`, which receives the fields by place.

    Next to --network there is --network-options.

    Args:
        names: Names of `FLAGS`.
        help, default: What --help says instead, by name, if a flag means something more special here.
    """
    chosen = [
        replace(
            _BY_NAME[name],
            help=(help or {}).get(name, _BY_NAME[name].help),
            default=(default or {}).get(name, _BY_NAME[name].default),
        )
        for name in names
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            fields = {flag.place: _value(flag, given.pop(flag.name)) for flag in chosen}
            texts = given.pop(_SET.name)
            built = assignments(given.pop(_NETWORK_OPTIONS.name, None), "--network-options width=32")
            left = {place: value for place, value in fields.items() if value is not None}
            fields = by_place(
                left, assignments(texts), {f"{_NETWORK_OPTIONS.name}.{name}": built[name] for name in built}
            )
            allow_code(*(fields.get(place) for place in _MAY_BE_CODE))  # the user typed these names
            command(**given, flags=fields)

        parameters = []
        for one in inspect.signature(command, eval_str=True).parameters.values():
            own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
            parameters += [*_options_of(chosen), _SET] if one.name == "flags" else own
        # typer reads both.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _options_of(chosen: Sequence[Flag]) -> list[inspect.Parameter]:
    """The options for these flags, in their order."""
    found = []
    for flag in chosen:
        found += [flag.parameter(), _NETWORK_OPTIONS] if flag.name == "network" else [flag.parameter()]
    return found


def _value(flag: Flag, given: Any) -> Any:
    return given if given is None or flag.parse is None else flag.parse(given)


def make_recipe(config: Path | None, flags: Mapping[str, Any], *, holds_out: bool = False) -> Recipe:
    """Defaults, then the file, then the flags; `holds_out`: with data to judge by, if neither says how much."""
    values: dict[str, Any] = {} if config is None else read_config(config)
    if isinstance(values.get("recipe"), dict):  # the config.json of a run
        values = by_place(values["recipe"])
        if values.get("data.validation") == 0:  # it has every field, whether anybody asked for it or not
            del values["data.validation"]
    values = by_place(values, flags)
    recipe = recipe_from(with_held_out(values) if holds_out else values, source_of(config))
    require_drops(recipe, flags)
    return recipe


def require_drops(recipe: Recipe, flags: Mapping[str, Any]) -> None:
    """Refuse milestones that were asked for if the schedule has no drops; files may have them for other schedules."""
    if by_place(flags).get("schedule.milestones") and recipe.schedule.name != "steps":
        raise ConfigError(f"The schedule {recipe.schedule.name} has no drops at milestones: add --schedule steps")


def with_held_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, by place, with the number of training images to judge by, if they have none; a 0 that was asked for stays."""
    name = str(values.get("data.name"))
    usual = _HELD_OUT.get(name, _HELD_OUT_OWN if ":" in name else _HELD_OUT_OTHERS)
    return {"data.validation": usual, **values}


def source_of(config: Path | None) -> str:
    """What to name in errors: the file, if there is one."""
    return "the command line" if config is None else str(config)
