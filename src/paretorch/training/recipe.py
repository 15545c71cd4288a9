"""What decides a run's result: one frozen record with a section each for data, optimizer, schedule, compression, distillation.

Where and how it runs (device, compilation, checkpoints) is kept apart, in `Runtime`: a run may be resumed under another
runtime but never under another recipe. Recipes are read from plain values by `paretorch.training.recipe_values`.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paretorch.errors import ConfigError
from paretorch.methods.precision.noisy import MOST
from paretorch.methods.registry import entries
from paretorch.support.checks import require_at_least, require_one_of
from paretorch.training.distillation import ALPHA
from paretorch.training.schedules import SCHEDULES
from paretorch.zoo.networks import shares

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
    "muon",
    "soap",
    "schedule-free",
)

PRUNING = tuple(entries("sparsity"))
QUANTIZATION = tuple(entries("precision"))
ACTIVATIONS = tuple(entries("activations"))
LEARNED = tuple(name for name, entry in entries("precision").items() if entry.learned)
NORMS = ("fp32", "bf16")
THROUGH = "through"
_MOST_EPOCHS = 10**9
_ONE_SHOT = tuple(name for name, entry in entries("sparsity").items() if entry.one_shot)


@dataclass(frozen=True)
class DataRecipe:
    """The data set, what is held out of it, its batches and its augmentation.

    Args:
        name: A data set of the zoo, folder:PATH, webdataset:PATTERN, hf:NAME_OR_FOLDER, or FILE.py:FUNCTION.
        options: folder: size, test_percent, split_seed, and stream (true: read from the disk as needed) with resize, min_area and jitter, which
            imagenet and webdataset have too; webdataset: test, the pattern of the test files, and classes; FILE.py:FUNCTION: its arguments; ptb and ptb-char: bptt, the tokens of a chunk; multi30k: vocabulary, and bleu (true or false);
            shortest-paths: limit, the most moves between two points, or limits, one for each of several phases of equal
            length, count, test_count and size of the grids; the network dcgan-generator: loss (hinge or bce),
            critic_steps, critic_width, samples, and features, a classifier's artefact.
        validation: How many training images to hold out and evaluate on instead of the test set, which is then evaluated
            once, at the very end. Text and translation have a validation part, which any number above 0 chooses.
        batch: Images or grids, columns of text, or (translation) tokens per side, per step.
        pad, flip: Augmentation of images; None is what suits the data: 4 and mirroring, but 1 and no mirroring for digits,
            and neither for a user's own.
        cutout: Side of the square that is cut out of an image; 0: none.
        label_smoothing: Of the loss.
    """

    name: str = "cifar10"
    options: Mapping[str, Any] | None = None  # None and no empty table: so older runs can be resumed
    validation: int = 0
    batch: int = 128
    pad: int | None = None
    flip: bool | None = None
    cutout: int = 0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_at_least("data.batch", self.batch, 1)
        require_at_least("data.validation", self.validation, 0)
        require_at_least("data.cutout", self.cutout, 0)
        if self.pad is not None:
            require_at_least("data.pad", self.pad, 0)
        if not 0 <= self.label_smoothing <= 1:
            raise ConfigError(f"data.label_smoothing must be a number from 0 to 1, not {self.label_smoothing}")


@dataclass(frozen=True)
class OptimizerRecipe:
    """The optimizer of the weights; decisions have an optimizer of their own.

    Args:
        name: One of `OPTIMIZERS`.
        lr: Learning rate before the schedule.
        momentum, nesterov: For sgd.
        betas, eps: For all others; an eps of None is the optimizer's own.
        weight_decay: Weight decay.
        clip_norm: The gradient of all weights together is scaled down to this norm; None: not at all.
    """

    name: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float | None = None
    weight_decay: float = 5e-4
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        require_one_of("optimizer.name", self.name, OPTIMIZERS)
        require_at_least("optimizer.lr", self.lr, 0)
        require_at_least("optimizer.weight_decay", self.weight_decay, 0)
        if self.eps is not None:
            require_at_least("optimizer.eps", self.eps, 0)
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimizer.betas must be two numbers from 0 to just below 1, not {list(self.betas)}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"optimizer.momentum must be a number from 0 to just below 1, not {self.momentum}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ConfigError(f"optimizer.clip_norm must be above 0, not {self.clip_norm}")


@dataclass(frozen=True)
class ScheduleRecipe:
    """The learning rate over time, before rounding and after it; see `paretorch.training.schedules`.

    Args:
        name: One of `SCHEDULES`.
        milestones: Epochs of the drops of "steps".
        factor: What a drop multiplies the rate by.
        warmup: Epochs of a linear ramp at the start.
        finetune_lr: The rate after rounding; None: a tenth of `optimizer.lr`.
        finetune_name: The schedule after rounding; "through": none of its own, `name` goes on over both.
        finetune_milestones: Epochs after rounding.
    """

    name: str = "cosine"
    milestones: tuple[float, ...] = ()
    factor: float = 0.1
    warmup: float = 0.0
    finetune_lr: float | None = None
    finetune_name: str = "cosine"
    finetune_milestones: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if self.finetune_milestones is not None:
            object.__setattr__(self, "finetune_milestones", tuple(self.finetune_milestones))
        require_one_of("schedule.name", self.name, SCHEDULES)
        require_one_of("schedule.finetune_name", self.finetune_name, (*SCHEDULES, THROUGH))
        for milestone in (*self.milestones, *(self.finetune_milestones or ())):
            require_at_least("schedule.milestones: a milestone", milestone, 0)
        require_at_least("schedule.factor", self.factor, 0)
        require_at_least("schedule.warmup", self.warmup, 0)
        if self.finetune_lr is not None:
            require_at_least("schedule.finetune_lr", self.finetune_lr, 0)
        if self.name == "steps" and not self.milestones:
            raise ConfigError("The schedule 'steps' needs milestones in epochs, for example milestones = [80, 120]")
        if self.finetune_name == "steps" and not self.finetune_milestones:
            raise ConfigError("schedule.finetune_name 'steps' needs finetune_milestones, in epochs after rounding")
        if self.finetune_name == THROUGH and self.finetune_lr is not None:
            raise ConfigError(
                "schedule.finetune_name 'through' goes on with the rate before rounding: leave finetune_lr out"
            )


@dataclass(frozen=True)
class CompressionRecipe:
    """What is decided beside the weights, how small it is to get, and by which method.

    The options go to the methods as they are, except those that `paretorch.training.compression` takes.

    Args:
        sparsity: Target for the fraction of zeros; None leaves that decision out.
        pruning: The method that drops weights; None: cs if sparsity or budget ask for one. If it is given without a
            sparsity, the method's own options decide that.
        bits: Target for the bits per weight; None leaves that decision out.
        quantization: The method that gives bits; None: smol if bits or budget ask for one. smol-printed and bsq have no
            target, their penalty decides: they begin with `bits`.
        budget: Target for the bytes of the artefact.
        activation_bits: Bits per activation; None: activations stay as they are.
        activations: The method that gives bits to activations; None: smol.
        sharing_options: Options of SoftSharing, such as templates, recurrence, solver; None: as the network says
            (swrn-28-10-2), which for most is no sharing at all.
        norms: How the artefact has batch norms: "fp32" or "bf16" for the two vectors that eval mode needs (bf16 is
            rounded, and what the run reports is measured after that); None: all four, so that training can go on.
    """

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

    def __post_init__(self) -> None:
        choices = {"pruning": PRUNING, "quantization": QUANTIZATION, "activations": ACTIVATIONS, "norms": NORMS}
        for name, known in choices.items():
            if getattr(self, name) is not None:
                require_one_of(f"compression.{name}", getattr(self, name), known)

    @property
    def budget_alone(self) -> bool:
        """Whether a byte budget is the only target, which leaves the trade between zeros and bits to the plan."""
        return self.budget is not None and self.sparsity is None and self.bits is None

    @property
    def pruning_method(self) -> str | None:
        """The name of the method that drops weights; None: no weights are dropped."""
        return self.pruning or ("cs" if self.sparsity is not None or self.budget_alone else None)

    @property
    def quantization_method(self) -> str | None:
        """The name of the method that gives bits; None: weights keep theirs."""
        return self.quantization or ("smol" if self.bits is not None or self.budget_alone else None)

    @property
    def activation_method(self) -> str | None:
        """The name of the method that gives bits to activations; None: they keep theirs."""
        return self.activations or ("smol" if self.activation_bits is not None else None)

    @property
    def samples(self) -> int:
        """K: how many samples of the noise a step takes, each on a part of the batch."""
        if self.quantization not in (None, *LEARNED):
            return 1  # their options are their own
        count: int = self.precision_options.get("samples", 1)
        return count


@dataclass(frozen=True)
class DistillationRecipe:
    """The network to learn from, and how much of the loss is its; see `paretorch.training.distillation`.

    Args:
        teacher: A file of it: an artefact (model.pare), or the checkpoint.pt of a dense run; None: there is no teacher.
        alpha: The weight of the teacher's loss, from 0 to 1; the rest is the task's.
        temperature: Of the logits, above 0.
    """

    teacher: str | None = None
    alpha: float = ALPHA
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"distillation.alpha must be a number from 0 to 1, not {self.alpha}")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"distillation.temperature must be above 0, not {self.temperature}")
        if self.teacher is None and (self.alpha, self.temperature) != (ALPHA, 1.0):
            raise ConfigError(
                "distillation.alpha and distillation.temperature need a teacher: set distillation.teacher"
            )


@dataclass(frozen=True)
class Recipe:
    """Network, data, optimizer, schedule and what to compress.

    Args:
        network, network_options: A zoo network, or another by `paretorch.training.networks`, and the options of its builder.
        start: A file of that network (model.pare of a dense run, say, .safetensors or .pt) whose weights to begin with; None:
            those that it is built with.
        task: What is learned: classify, language, regress, or FILE.py:FUNCTION; None: what the data are for.
        epochs, finetune: Epochs until decisions are rounded, and epochs after that; 0 and some prune the network in
            `start` right away, by mp or amc.
        dtype: "fp32", "bf16" (autocast), or "auto": bf16 on a GPU and fp32 elsewhere.
        seed: Decides every random number.
        data, optimizer, schedule, compression, distillation: The sections.

    Example:
        >>> recipe = Recipe("digits-cnn", epochs=12, data=DataRecipe("digits"), optimizer=OptimizerRecipe(lr=0.05))
        >>> recipe.compresses
        False
    """

    network: str = "resnet20"
    network_options: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    epochs: int = 200
    finetune: int = 0
    dtype: str = "auto"
    seed: int = 0
    task: str | None = None
    data: DataRecipe = field(default_factory=DataRecipe)
    optimizer: OptimizerRecipe = field(default_factory=OptimizerRecipe)
    schedule: ScheduleRecipe = field(default_factory=ScheduleRecipe)
    compression: CompressionRecipe = field(default_factory=CompressionRecipe)
    distillation: DistillationRecipe = field(default_factory=DistillationRecipe)

    def __post_init__(self) -> None:
        require_one_of("dtype", self.dtype, ("auto", "bf16", "fp32"))
        trained = self.start is not None and self.finetune > 0 and self.compression.pruning in _ONE_SHOT
        require_at_least("epochs", self.epochs, 0 if trained else 1)
        require_at_least("finetune", self.finetune, 0)
        if max(self.epochs, self.finetune) > _MOST_EPOCHS:
            raise ConfigError(f"epochs and finetune must be at most {_MOST_EPOCHS:,}: steps are counted in 64 bits")
        require_at_least("seed", self.seed, 0)
        if self.seed >= 2**64:
            raise ConfigError(f"seed must be below 2^64, not {self.seed}")
        if "samples" in self.compression.precision_options and self.compression.quantization in (None, *LEARNED):
            self._check_samples()
        if self.finetune and not self.compresses:
            raise ConfigError("finetune needs something to round first: set sparsity, bits, activation_bits or budget")

    @property
    def compresses(self) -> bool:
        """Whether any decision is trained beside the weights."""
        asked = self.compression
        methods = (asked.pruning_method, asked.quantization_method, asked.activation_method)
        return self.shares or asked.budget is not None or any(name is not None for name in methods)

    @property
    def shares(self) -> bool:
        """Whether layers are mixed from templates."""
        return self.compression.sharing_options is not None or shares(self.network)

    def _check_samples(self) -> None:
        count, batch = self.compression.samples, self.data.batch
        if type(count) is not int or not 1 <= count <= MOST or batch % count:
            raise ConfigError(
                f"precision_options.samples is {count!r}; give a whole number from 1 to {MOST} that divides the batch of {batch}"
            )
        if self.compression.quantization_method is None:
            raise ConfigError("precision_options.samples are of the noise of learned precisions: set bits")

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON would give them back, a table per section; distillation only if there is a teacher."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        if self.distillation.teacher is None:  # as in runs and storages that were begun before there were teachers
            del plain["distillation"]
        if self.task is None:
            del plain["task"]
        return plain
