"""What decides a run's result: one frozen record, readable from TOML or JSON.

Where and how it runs (device, compilation, checkpoints) is kept apart, in `Runtime`: a run may be resumed under another
runtime but never under another recipe.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paretorch.errors import ArtefactError, ConfigError
from paretorch.training.schedules import SCHEDULES

OPTIMIZERS = (
    "sgd",
    "adam",
    "amsgrad",
    "adamw",
    "radam",
    "avagrad",
    "avagradw",
    "delayed-adam",
    "adabound",
    "adabelief",
    "adashift",
)

PRUNING = ("cs", "mp", "gmp", "st3", "dnw", "str", "l0", "slimming", "stochastic", "amc")
QUANTIZATION = ("smol", "smol-printed", "uniform", "dorefa", "pact", "lsq", "lqnets", "dsq", "slb", "bsq", "given")
LEARNED = ("smol", "smol-printed")
ACTIVATIONS = ("smol", "pact", "fixed")
NORMS = ("fp32", "bf16")
THROUGH = "through"
_ONE_SHOT = ("mp", "amc")  # these prune a trained network, and need not train it themselves


@dataclass(frozen=True)
class Recipe:
    """Network, data, optimizer, schedule and what to compress.

    network, network_options: a zoo network and the options of its builder.
    start: an artefact of that network (model.pare of a dense run, say) whose weights to begin with; None: fresh ones.
    data, validation: a zoo data set, and how many training images to hold out and evaluate on instead of the test set;
        text and translation have a validation part, which any number above 0 chooses. The test set is then met once, at
        the very end.
    data_options: ptb and ptb-char: bptt, the tokens of a chunk; multi30k: vocabulary, and bleu (true or false);
        shortest-paths: limit, the most moves between two points, or limits, one for each of several phases of equal
        length, count, test_count and size of the grids; the network
        dcgan-generator: loss (hinge or bce), critic_steps, critic_width, samples, and features, a classifier's artefact.
    batch: images or grids, columns of text, or (translation) tokens a side, per step.
    epochs, finetune: epochs until decisions are rounded, and epochs after that; 0 and some prune the network in `start`
        right away, by mp or amc.
    optimizer, lr, momentum, nesterov, betas, eps, weight_decay: `momentum` is for sgd, `betas` and `eps` are for the
        others; an eps of None is the optimizer's own.
    clip_norm: the gradient of all weights together is scaled down to this norm; None: not at all.
    schedule, milestones, factor, warmup: see `paretorch.training.schedules`; milestones and warmup are in epochs.
    finetune_lr, finetune_schedule, finetune_milestones: the rate after rounding, None is a tenth of lr; milestones are in
        epochs after rounding. The finetune_schedule "through": none of its own, `schedule` goes on over both.
    pad, flip, cutout, label_smoothing: augmentation of a training epoch, and the loss; for pad and flip None is what
        suits the data: 4 and mirroring, but 1 and no mirroring for digits.
    sparsity, bits, budget: targets for the fraction of zeros, the bits per weight and the bytes of the artefact; None
        leaves that decision out. `sparsity_options` and `precision_options` go to the methods as they are, but for what
        `paretorch.training.compression` takes, such as samples: K, the samples of the noise a step.
    pruning: the method that drops weights, cs or one of its rivals (see `paretorch.training.methods`); None: cs where
        sparsity or budget ask for one. Where it is given without a sparsity, the method's own options decide that.
    quantization: the method that gives bits, smol or one of its rivals (see `paretorch.training.methods`); None: smol
        where bits or budget ask for one. smol-printed and bsq have no target, their penalty decides: they begin with `bits`.
    activation_bits, activations, activation_options: the bits per activation, None: they stay as they are; by smol (learned,
        on target), pact (a learned range, from the first step on) or fixed (from rounding on); None: smol.
    sharing_options: options of SoftSharing, such as templates, recurrence, solver; None: as the network says (swrn-28-10-2),
        which for most is no sharing at all.
    norms: how the artefact has batch norms: "fp32" or "bf16" for the two vectors that eval mode needs (bf16 is rounded, and
        what the run tells is measured after that); None: all four, as they were trained, so that training can go on.
    dtype: "fp32", "bf16" (autocast), or "auto": bf16 on a GPU and fp32 elsewhere.
    """

    network: str = "resnet20"
    network_options: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    data: str = "cifar10"
    validation: int = 0
    data_options: Mapping[str, Any] | None = None  # None and no empty table: so older runs can be resumed
    epochs: int = 200
    finetune: int = 0
    batch: int = 128
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float | None = None
    weight_decay: float = 5e-4
    clip_norm: float | None = None
    schedule: str = "cosine"
    milestones: tuple[float, ...] = ()
    factor: float = 0.1
    warmup: float = 0.0
    finetune_lr: float | None = None
    finetune_schedule: str = "cosine"
    finetune_milestones: tuple[float, ...] | None = None
    pad: int | None = None
    flip: bool | None = None
    cutout: int = 0
    label_smoothing: float = 0.0
    sparsity: float | None = None
    pruning: str | None = None
    sparsity_options: Mapping[str, Any] = field(default_factory=dict)
    bits: float | None = None
    quantization: str | None = None
    precision_options: Mapping[str, Any] = field(default_factory=dict)
    budget: int | None = None
    activation_bits: float | None = None
    activations: str | None = None
    activation_options: Mapping[str, Any] | None = None
    sharing_options: Mapping[str, Any] | None = None  # None and no empty table: so older runs can be resumed
    norms: str | None = None
    dtype: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if self.finetune_milestones is not None:
            object.__setattr__(self, "finetune_milestones", tuple(self.finetune_milestones))
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("finetune_schedule", self.finetune_schedule, (*SCHEDULES, THROUGH))
        _one_of("dtype", self.dtype, ("auto", "bf16", "fp32"))
        if self.norms is not None:
            _one_of("norms", self.norms, NORMS)
        if self.pruning is not None:
            _one_of("pruning", self.pruning, PRUNING)
        if self.quantization is not None:
            _one_of("quantization", self.quantization, QUANTIZATION)
        if self.activations is not None:
            _one_of("activations", self.activations, ACTIVATIONS)
        trained = self.start is not None and self.finetune > 0 and self.pruning in _ONE_SHOT
        _at_least("epochs", self.epochs, 0 if trained else 1)
        _at_least("batch", self.batch, 1)
        for name in ("finetune", "validation", "lr", "weight_decay", "factor", "warmup", "cutout", "seed"):
            _at_least(name, getattr(self, name), 0)
        for name in ("eps", "finetune_lr"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 0)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas must be two numbers from 0 to just below 1, not {list(self.betas)}.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must be a number from 0 to just below 1, not {self.momentum}.")
        if not 0 <= self.label_smoothing <= 1:
            raise ConfigError(f"label_smoothing must be a number from 0 to 1, not {self.label_smoothing}.")
        if self.seed >= 2**64:
            raise ConfigError(f"seed must be below 2^64, not {self.seed}.")
        if self.schedule == "steps" and not self.milestones:
            raise ConfigError("The schedule 'steps' needs milestones in epochs, for example milestones = [80, 120].")
        if self.finetune_schedule == "steps" and not self.finetune_milestones:
            raise ConfigError("finetune_schedule 'steps' needs finetune_milestones, in epochs after rounding.")
        if self.finetune_schedule == THROUGH and self.finetune_lr is not None:
            raise ConfigError(
                "finetune_schedule 'through' goes on with the rate before rounding: leave finetune_lr out."
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm must be above 0, not {self.clip_norm}.")
        if self.pad is not None:
            _at_least("pad", self.pad, 0)
        if "samples" in self.precision_options and self.quantization in (None, *LEARNED):
            self._check_samples()
        if self.finetune and not self.compresses:
            raise ConfigError("finetune needs something to round first: set sparsity, bits, activation_bits or budget.")

    @property
    def compresses(self) -> bool:
        """Whether any decision is trained beside the weights."""
        weights = (self.sparsity, self.pruning, self.bits, self.quantization, self.budget)
        asked = (*weights, self.activation_bits, self.activations)
        return self.shares or any(each is not None for each in asked)

    @property
    def shares(self) -> bool:
        """Whether layers are mixed from templates."""
        from paretorch.zoo.registry import shares

        return self.sharing_options is not None or shares(self.network)

    @property
    def samples(self) -> int:
        """K: how many samples of the noise a step takes, each on a part of the batch."""
        if self.quantization not in (None, *LEARNED):
            return 1  # their options are their own
        count: int = self.precision_options.get("samples", 1)
        return count

    def _check_samples(self) -> None:
        from paretorch.methods.precision.samples import MOST

        count = self.samples
        if type(count) is not int or not 1 <= count <= MOST or self.batch % count:
            raise ConfigError(
                f"precision_options.samples is {count!r}; give a whole number from 1 to {MOST} that divides the batch of {self.batch}."
            )
        if self.bits is None and self.quantization is None and (self.budget is None or self.sparsity is not None):
            raise ConfigError("precision_options.samples are of the noise of learned precisions: set bits.")

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON would give them back."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain


@dataclass(frozen=True)
class Runtime:
    """Where and how a run is executed; none of it belongs to the recipe.

    root, download: the folder of the data sets (None: the zoo's own choice), and whether to fetch what is missing.
    device: "auto" is the first GPU, else the CPU.
    compile, graph: `torch.compile` and one CUDA graph per step, both on a GPU only; None: compile where the run is so long
        that it pays.
    checkpoint_epochs, checkpoint_steps: a checkpoint every so many epochs, and every so many steps within an epoch (0:
        none within).
    progress: "auto" is a bar on a terminal and a line an epoch elsewhere.
    tensorboard: whether the folder of the run has its metrics for TensorBoard too.
    """

    root: str | None = None
    download: bool = False
    device: str = "auto"
    compile: bool | None = None
    graph: bool = True
    checkpoint_epochs: int = 1
    checkpoint_steps: int = 0
    progress: str = "auto"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        _one_of("progress", self.progress, ("auto", "bar", "plain", "quiet"))
        _at_least("checkpoint_epochs", self.checkpoint_epochs, 1)
        _at_least("checkpoint_steps", self.checkpoint_steps, 0)


def recipe_from(values: Mapping[str, Any], source: str = "the configuration") -> Recipe:
    """A recipe from plain values; unknown names and wrong types are refused by name."""
    known = {each.name: each.type for each in dataclasses.fields(Recipe)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigError(f"{source} has unknown fields: {', '.join(unknown)}; known are {', '.join(sorted(known))}.")
    return Recipe(**{name: _typed(name, known[name], value, source) for name, value in values.items()})


def stored_recipe(values: Any, source: str) -> Recipe:
    """The recipe that a run has kept, from plain values; without its network and data it is that of no run."""
    if not isinstance(values, Mapping) or not {"network", "data"} <= values.keys():
        raise ArtefactError(
            f"{source} is damaged: it does not name the network and the data of a run; put it back, or choose another folder."
        )
    return recipe_from(values, source)


def read_config(path: Path) -> dict[str, Any]:
    """The values of a TOML or JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error}.") from error
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a table of fields, such as lr = 0.1.")
    return values


_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "KIB": 1024, "MIB": 1024**2}


def parse_bytes(text: str | int) -> int:
    """'48KB' (1000 bytes a KB) or '48KiB' (1024) or '48000' as a number of bytes."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", str(text))
    if match is None or match[2].upper() not in _UNITS:
        raise ConfigError(f"{text!r} is no size; write it like 48KB, 48KiB, 1.5MB or 48000.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _typed(name: str, kind: Any, value: Any, source: str) -> Any:
    """Loose where nothing is lost (1 for 1.0, lists for tuples, '48KB' for bytes), strict elsewhere."""
    if name == "budget" and value is not None:
        return parse_bytes(value)
    wanted = str(kind if isinstance(kind, str) else getattr(kind, "__name__", kind))
    if value is None:
        fits = "None" in wanted
    elif "tuple" in wanted:
        fits = isinstance(value, list | tuple) and all(_is_number(each) for each in value)
    elif "Mapping" in wanted:
        fits = isinstance(value, Mapping)
    elif "float" in wanted:
        fits = _is_number(value)
    elif wanted.startswith("int"):
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = isinstance(value, bool if "bool" in wanted else str)
    if not fits:
        raise ConfigError(f"{source}: {name} should be of type {wanted}, not {value!r}.")
    return float(value) if "float" in wanted and _is_number(value) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(choices)}.")


def _at_least(name: str, value: float, bound: float) -> None:
    if not value >= bound:
        raise ConfigError(f"{name} must be at least {bound}, not {value}.")
