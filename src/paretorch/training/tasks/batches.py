"""Training on batches that a user's code or a data set of tables gives: classification, regression, language, or a loss of their own.

A batch is (inputs..., labels), or a dict of keyword arguments with labels in it, or (for language) a tensor of tokens. An epoch is
read as a whole; batches whose shapes differ from the first, such as a last one with fewer rows, are left out of training.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from paretorch.errors import ConfigError, DataError, DivergenceError, PareError
from paretorch.support.eval_mode import first_sentence, in_eval
from paretorch.support.inputs import LABELS, ModelCall, main_output, parameters_of, parts_of
from paretorch.training.tasks import Batch, derive_seed
from paretorch.zoo.user_code import load_function

TASKS = ("classify", "language", "regress")
_IGNORED = -100  # the label of a row that does not count, for torch and transformers
_LARGEST = 700.0  # beyond, exp overflows

Loss = Callable[[nn.Module, Any], tuple[Tensor, dict[str, Tensor]]]


def inputs_and_labels(batch: Any) -> tuple[ModelCall, Tensor | None]:
    """The call of the model that a batch stands for, and its labels."""
    if isinstance(batch, Mapping):
        name = next((one for one in LABELS if one in batch), None)
        return ModelCall((), {key: one for key, one in batch.items() if key != name}), (
            None if name is None else batch[name]
        )
    if isinstance(batch, tuple | list) and len(batch) > 1:
        first = batch[0]
        if len(batch) == 2 and isinstance(first, Mapping):
            return ModelCall((), dict(first)), batch[1]
        return ModelCall(tuple(batch[:-1])), batch[-1]
    return ModelCall(tuple(batch) if isinstance(batch, tuple | list) else (batch,)), None


def _labelled(batch: Any) -> tuple[ModelCall, Tensor]:
    call, labels = inputs_and_labels(batch)
    if not isinstance(labels, Tensor):
        raise ConfigError('a batch has no labels: give (inputs, labels), or a dict with "labels"')
    return call, labels


def classify(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy of logits [rows, ..., classes] and labels [rows, ...]."""
    logits, labels = _logits_and_labels(model, batch)
    if not labels.is_cuda or not torch.is_grad_enabled():  # a step of training waits for no GPU
        _require_classes(labels, logits.shape[-1])
    logits, labels = logits.flatten(0, -2), labels.flatten().long()
    counts = labels != _IGNORED
    right = ((logits.detach().argmax(1) == labels) & counts).sum() / counts.sum().clamp_min(1)
    return F.cross_entropy(logits, labels, ignore_index=_IGNORED), {"accuracy": right}


def _logits_and_labels(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return the logits and labels of a batch; raise if their shapes do not match."""
    call, labels = _labelled(batch)
    logits = main_output(call(model)).float()
    if labels.is_floating_point() or logits.dim() != labels.dim() + 1 or logits.shape[:-1] != labels.shape:
        raise ConfigError(
            f"--task classify takes logits [rows, classes] and whole labels [rows]; the model gives {tuple(logits.shape)}, "
            f"the labels are {tuple(labels.shape)} of {labels.dtype}"
        )
    return logits, labels


def _require_classes(labels: Tensor, classes: int) -> None:
    """Raise if a label is none of the classes."""
    wrong = labels[(labels != _IGNORED) & ((labels < 0) | (labels >= classes))]
    if len(wrong):
        raise DataError(
            f"there is the label {int(wrong[0])}, and the model gives {classes} classes, 0 to {classes - 1}"
        )


def regress(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean squared error."""
    call, labels = _labelled(batch)
    found = main_output(call(model)).float()
    if found.numel() != labels.numel() or found.shape[0] != labels.shape[0]:
        raise ConfigError(
            f"--task regress takes outputs of the labels' shape; the model gives {tuple(found.shape)}, the labels are "
            f"{tuple(labels.shape)}"
        )
    return F.mse_loss(found.reshape(labels.shape), labels.float()), {}


def language(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy of the next token; of a model that takes labels, as those of transformers do, the loss that it returns."""
    call, labels = inputs_and_labels(batch)
    tokens = call.kwargs.get("input_ids", call.tensors[0] if call.tensors else None)
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dim() != 2:
        raise ConfigError("--task language takes tokens, whole numbers [rows, length], as a tensor or as input_ids")
    if "labels" in {one.name for one in parameters_of(model)}:
        outputs = ModelCall(call.args, {**call.kwargs, "labels": tokens if labels is None else labels})(model)
        loss = parts_of(outputs).get("loss")
        if isinstance(loss, Tensor):
            return loss.float(), {}
        raise ConfigError("--task language: the model takes labels and returns no loss")
    logits = main_output(call(model)).float()
    if logits.shape[:2] != tokens.shape or logits.dim() != 3:
        raise ConfigError(
            f"--task language takes logits [rows, length, vocabulary]; the model gives {tuple(logits.shape)} for tokens "
            f"{tuple(tokens.shape)}"
        )
    targets = tokens[:, 1:] if labels is None else labels[:, 1:]
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=_IGNORED), {}


def find_loss(name: str) -> Loss:
    """The loss of a task by its name, or by that of a user's function of (model, batch)."""
    known: dict[str, Loss] = {"classify": classify, "language": language, "regress": regress}
    if name in known:
        return known[name]
    if ":" not in name:
        raise ConfigError(f"--task is one of {', '.join(TASKS)} or FILE.py:FUNCTION, not {name!r}")
    own = load_function(name, "--task")

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        found = own(model, batch)
        value, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        if not isinstance(value, Tensor) or value.dim() or not isinstance(metrics, Mapping):
            raise ConfigError(
                f"--task {name} must return a loss, a tensor of no dimensions, or (loss, metrics by name)"
            )
        return value, {str(key): torch.as_tensor(one, device=value.device).detach() for key, one in metrics.items()}

    return loss


class BatchTask:
    """A task on batches of any signature.

    Args:
        train: Read once per epoch, with torch's seed set from (seed, epoch).
        test: To evaluate on.
        kind: A name of `TASKS`, or that of a user's function.
        source: What errors name, such as "--data mine.py:loaders".
    """

    fixed_shapes = False
    compiles = False

    def __init__(
        self,
        train: Iterable[Any],
        test: Iterable[Any],
        *,
        kind: str = "classify",
        source: str = "--data",
        seed: int = 0,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        self._train, self._test, self._kind, self._source = train, test, kind, source
        self._device, self._seed, self._autocast = torch.device(device), seed, autocast
        self._loss = find_loss(kind)
        self._network = "the network"
        self._first, self._spec = self._batches(0)
        self.steps = len(self._first)
        self.tallies: tuple[str, ...] = ("accuracy",) if kind == "classify" else ()
        if next(iter(test), None) is None:
            raise DataError(f"{source}: the test part has no batches")

    def check(self, model: nn.Module, network: str) -> None:
        """Run one batch of each part and raise what is wrong; also reads what a user's own task reports."""
        self._network = network
        with in_eval(model), self._refusals():
            _, metrics = self._run(model, self._rebuilt(self._first[0]))
            if self._kind == "classify":
                self._check_labels(model)
            self._run(model, self._placed(next(iter(self._test))))
        self.tallies = tuple(metrics)

    def _check_labels(self, model: nn.Module) -> None:
        """Look at the labels of a whole epoch: a GPU that meets a wrong one in training ends the process."""
        classes = _logits_and_labels(model, self._rebuilt(self._first[0]))[0].shape[-1]
        for leaves in self._first:
            _require_classes(_labelled(self._rebuilt(leaves))[1], classes)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn what a batch or a network of a user raises into one sentence that names both."""
        try:
            yield
        except DivergenceError:
            raise
        except PareError as error:
            raise ConfigError(f"{self._network} on {self._source}: {error}") from error
        except Exception as error:  # what a forward pass raises is not ours to list
            raise ConfigError(
                f"{self._network} cannot take a batch of {self._source}: {type(error).__name__}: {first_sentence(error)}"
            ) from error

    def epoch(self, number: int) -> Batch:
        batches, _ = self._batches(number)
        if len(batches) != self.steps:
            raise DataError(f"{self._source} gave {self.steps} batches, and {len(batches)} in epoch {number}")
        return tuple(torch.stack(leaf) for leaf in zip(*batches, strict=True))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        loss, metrics = self._run(model, self._rebuilt(batch))
        return loss, tuple(metrics[name].float().mean() for name in self.tallies)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        totals: dict[str, float] = {}
        count = 0
        with torch.no_grad():
            for batch in self._test:
                placed = self._placed(batch)
                rows = max(1, inputs_and_labels(placed)[0].batch)
                with self._refusals():
                    loss, metrics = self._run(model, placed)
                for name, value in {"loss": loss, **metrics}.items():
                    totals[name] = totals.get(name, 0.0) + rows * float(value)
                count += rows
        found = {f"test_{name}": value / count for name, value in totals.items()}
        if self._kind == "language":
            found["test_perplexity"] = math.exp(min(found["test_loss"], _LARGEST))
        return found

    def example(self) -> Any:
        """A small input as the model sees it: a tensor, or a call if the model takes several."""
        call = inputs_and_labels(self._rebuilt(self._first[0]))[0].rows(lambda tensor: tensor[:2])
        return call.args[0] if len(call.args) == 1 and not call.kwargs and isinstance(call.args[0], Tensor) else call

    def inputs(self, number: int, count: int) -> list[Any]:
        """Up to `count` training batches of an epoch as the model sees them, without labels."""
        calls = [inputs_and_labels(self._rebuilt(leaves))[0] for leaves in self._batches(number)[0][:count]]
        return [
            dict(call.kwargs) if call.kwargs else call.args[0] if len(call.args) == 1 else call.args for call in calls
        ]

    def _run(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            return self._loss(model, batch)

    def _placed(self, batch: Any) -> Any:
        plain = dict(batch) if isinstance(batch, Mapping) else batch  # a tokenizer's is no dict
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(self._device), plain)

    def _rebuilt(self, leaves: Iterable[Tensor]) -> Any:
        return pytree.tree_unflatten(list(leaves), self._spec)

    def _batches(self, number: int) -> tuple[list[list[Tensor]], Any]:
        """The batches of an epoch as tensors, all of one shape, and how to put one together again."""
        found: list[list[Tensor]] = []
        spec: Any = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self._seed, number, 0))
            for batch in self._train:
                leaves, own = pytree.tree_flatten(self._placed(batch))
                if not all(isinstance(leaf, Tensor) for leaf in leaves) or not leaves:
                    raise DataError(f"{self._source}: a batch holds something else than tensors")
                spec = spec or own
                if not found or [leaf.shape for leaf in leaves] == [leaf.shape for leaf in found[0]]:
                    found.append(leaves)
        if not found:
            raise DataError(f"{self._source}: the training part has no batches")
        return found, spec
