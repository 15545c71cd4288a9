"""Examples and batches as calls of a model, and outputs as tensors.

| an example is         | the call is                                      |
|-----------------------|--------------------------------------------------|
| a tensor              | model(x)                                         |
| a tuple or a list     | model(*parts): positional arguments              |
| a mapping             | model(**parts): keyword arguments, such as those of a tokenizer |

Arguments may be nested tuples, lists and dicts of tensors. If the only argument of a model is a list or a dict, give it in a
tuple of one: ([a, b],). A batch of a data loader is read the same way, but may have labels: see `batch_call`.
"""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from paretorch.errors import ConfigError

LABELS = ("labels", "label", "label_ids", "targets", "target")
"""Keys of a batch that are left out if the model does not take them."""

_HINT = (
    "give a batch of inputs as the model takes it: a tensor, a tuple of its arguments or a dict of keyword arguments, with "
    "tensors whose first dimension is the batch, with at least one row"
)


@dataclass(frozen=True)
class ModelCall:
    """The arguments of one call: `call(model)` is `model(*args, **kwargs)`."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, model: Callable[..., Any]) -> Any:
        return model(*self.args, **self.kwargs)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments, in order."""
        return [leaf for leaf in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Tensor)]

    def map(self, change: Callable[[Tensor], Tensor]) -> "ModelCall":
        """Return the same call with `change` applied to every tensor."""
        args, kwargs = pytree.tree_map_only(Tensor, change, (self.args, dict(self.kwargs)))
        return ModelCall(args, kwargs)

    def to(self, place: torch.device | str | None) -> "ModelCall":
        """Return the same call on a device; None: unchanged."""
        return self if place is None else self.map(lambda tensor: tensor.to(place))

    def double(self) -> "ModelCall":
        """Return the same call in double precision."""
        return self.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)

    @property
    def batch(self) -> int:
        """The batch size: the first dimension of most tensors, or of the first tensor if there is a tie; 0 without dimensions."""
        lengths = Counter(len(tensor) for tensor in self.tensors if tensor.dim())
        return lengths.most_common(1)[0][0] if lengths else 0  # ties come in the order of the tensors

    def has_batch(self, tensor: Tensor) -> bool:
        """Return whether the first dimension of one of the tensors is the batch: whether it is as long."""
        return tensor.dim() > 0 and len(tensor) == self.batch

    def rows(self, change: Callable[[Tensor], Tensor]) -> "ModelCall":
        """Return the same call with `change` applied to every tensor that has a batch."""
        return self.map(lambda tensor: change(tensor) if self.has_batch(tensor) else tensor)

    def first(self) -> "ModelCall":
        """Return the call with the first row only."""
        return self.rows(lambda tensor: tensor[:1])

    @property
    def sequence(self) -> int | None:
        """The length of the sequences of tokens: the second dimension of the first whole numbers that have a batch; None: there are none."""
        tokens = (t for t in self.tensors if self.has_batch(t) and t.dim() > 1 and not t.is_floating_point())
        return next((t.shape[1] for t in tokens), None)

    def has_sequence(self, tensor: Tensor) -> bool:
        """Return whether the second dimension of one of the tensors is the sequence: whether it is as long."""
        return self.has_batch(tensor) and tensor.dim() > 1 and tensor.shape[1] == self.sequence

    def shortened(self, length: int) -> "ModelCall":
        """Return the call with the beginning of each sequence only."""
        return self.map(lambda tensor: tensor[:, :length] if self.has_sequence(tensor) else tensor)

    def arguments(self, model: nn.Module) -> dict[str, Any]:
        """Return all arguments by name."""
        return {**dict(zip(_positions(model, len(self.args)), self.args, strict=True)), **self.kwargs}

    def names(self, model: nn.Module) -> list[str]:
        """Return a name for each tensor: that of its argument, with a number if it has several tensors; "input" for one."""
        if len(self.tensors) == len(self.args) == 1 and not self.kwargs:
            return ["input"]
        found: list[str] = []
        for name, part in self.arguments(model).items():
            count = sum(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(part))
            for own in [name] if isinstance(part, Tensor) else [f"{name}_{i}" for i in range(count)]:
                found.append(own if own not in found else f"{own}_{len(found)}")
        return found


Example = Tensor | Sequence[Any] | Mapping[str, Any] | ModelCall
"""What `example=` may be."""


def read_example(example: Any, *, dims: int = 1) -> ModelCall:
    """Return the call that an example stands for; raise `ConfigError` if it is not an example.

    Args:
        dims: The fewest dimensions of the tensor that has most, including the batch; 0: no batch is needed.

    Example:
        >>> read_example({"x": torch.zeros(2, 3)}).batch
        2
    """
    if isinstance(example, ModelCall):
        call = example
    elif isinstance(example, Tensor):
        call = ModelCall((example,))
    elif isinstance(example, Mapping) and all(isinstance(key, str) for key in example):
        call = ModelCall((), dict(example))
    elif isinstance(example, tuple | list):
        call = ModelCall(tuple(example))
    else:
        raise ConfigError(f"example: {_HINT}")
    if not call.tensors or (dims and not call.batch) or max(tensor.dim() for tensor in call.tensors) < dims:
        raise ConfigError(f"example: {_HINT}")
    return call


def batch_call(model: nn.Module, batch: Any, like: ModelCall | None = None) -> ModelCall:
    """Return the call that a batch of a data loader stands for, without the labels that it may contain.

    A tensor is the only argument. Of a tuple or list, such as (x, y), as many parts are passed as the model's `forward`
    has arguments without a default, but at least one; arguments with a default can be given by name, in a dict. A mapping is
    passed by name: labels only if `forward` takes them; any other name that it does not take raises. A tuple that begins with
    such a mapping is read as the mapping. Anything else is passed as the only argument.

    Args:
        like: An example of the same model. If given, it determines how many parts of a tuple, or which names, are inputs.
    """
    if isinstance(batch, tuple | list) and batch and _goes_by_name(model, batch[0]):
        batch = batch[0]
    if isinstance(batch, Mapping):
        return _by_name(model, batch, like)
    if not isinstance(batch, tuple | list):
        return ModelCall((batch,))
    count = max(1, _required(model)) if like is None else len(like.args)
    if len(batch) < count or not count:
        raise ConfigError(
            f"A batch has {len(batch)} parts, and {type(model).__name__} takes {_count(model, like)}: give as many, or a dict"
        )
    return ModelCall(tuple(batch[:count]))


def _by_name(model: nn.Module, batch: Mapping[str, Any], like: ModelCall | None) -> ModelCall:
    if like is not None:
        args = [
            _taken(batch, name, one) for name, one in zip(_positions(model, len(like.args)), like.args, strict=True)
        ]
        return ModelCall(tuple(args), {name: _taken(batch, name, one) for name, one in like.kwargs.items()})
    names = _names(model)
    if names is None:
        return ModelCall((), dict(batch))
    kept = {name: value for name, value in batch.items() if name in names or name not in LABELS}
    if unknown := [name for name in kept if name not in names]:
        raise ConfigError(
            f"A batch has {unknown[0]!r}, which {type(model).__name__} does not take: it takes {', '.join(names)}; if its only "
            f"argument is a dict, give the dict in a tuple"
        )
    return ModelCall((), kept)


def _taken(batch: Mapping[str, Any], name: str, example: Any) -> Any:
    """Return an argument of a batch; the example's if the batch does not have it and it has no tensors."""
    if name not in batch and tensors_in(example):
        raise ConfigError(f"A batch has no {name!r}, which the example has: it has {', '.join(map(str, batch))}")
    return batch.get(name, example)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameters_of(model: nn.Module) -> list[inspect.Parameter]:
    """Return the parameters of a model's `forward`; an empty list if it has no signature."""
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return []


def _positions(model: nn.Module, count: int) -> list[str]:
    """Return the names of the first positional arguments."""
    known = [one.name for one in parameters_of(model) if one.kind in _POSITIONAL]
    return [known[i] if i < len(known) else f"input_{i}" for i in range(count)]


def _required(model: nn.Module) -> int:
    return sum(one.kind in _POSITIONAL and one.default is one.empty for one in parameters_of(model))


def _names(model: nn.Module) -> list[str] | None:
    """Return the names that `forward` takes; None: any."""
    parameters = parameters_of(model)
    if not parameters or any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in parameters if one.kind in named]


def _goes_by_name(model: nn.Module, part: Any) -> bool:
    known = {one.name for one in parameters_of(model)}
    return isinstance(part, Mapping) and bool(part) and set(part) <= known


def _count(model: nn.Module, like: ModelCall | None) -> str:
    if like is None:
        return f"{_required(model)} arguments"
    return f"{len(like.args)} arguments in the example" if like.args else "keyword arguments in the example"


def tensors_in(tree: Any) -> list[Tensor]:
    """Return all tensors of an output, in order; see `named_tensors`."""
    return list(named_tensors(tree).values())


def named_tensors(output: Any) -> dict[str, Tensor]:
    """Return the tensors of an output by name. It may be a tensor, tuple, mapping, dataclass or transformers output, nested.

    Other objects, such as the cache of a language model, are skipped. A single tensor is "output". The parts of a tuple are
    "output_0" and so on, those of a mapping have their keys, and names of nested parts are joined: "states_0".

    Example:
        >>> list(named_tensors({"logits": torch.zeros(2), "states": (torch.zeros(1), torch.zeros(1))}))
        ['logits', 'states_0', 'states_1']
    """
    found: dict[str, Tensor] = {}
    for path, tensor in _walk(output, ()):
        name = "_".join(path if path and not path[0].isdigit() else ("output", *path))
        while name in found:
            name += "_"
        found[name] = tensor
    return found


def _walk(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    if isinstance(tree, Tensor):
        yield path, tree
        return
    for name, part in parts_of(tree).items():
        yield from _walk(part, (*path, name))


def parts_of(tree: Any) -> dict[str, Any]:
    """Return the parts of an output by name, one level down; an empty dict for a tensor or an object that is no container."""
    if isinstance(tree, Mapping):
        return {str(name): part for name, part in tree.items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {one.name: getattr(tree, one.name) for one in dataclasses.fields(tree)}
    if isinstance(tree, tuple) and (names := getattr(tree, "_fields", None)):
        return dict(zip(names, tree, strict=True))
    parts = pytree.tree_leaves(tree, is_leaf=lambda one: one is not tree)
    return {} if len(parts) == 1 and parts[0] is tree else {str(i): part for i, part in enumerate(parts)}


class TensorFunction(nn.Module):
    """A model as a function from tensors to a tuple of tensors, for exporters that support no other types.

    Takes the tensors of the call in order; other arguments keep the values that they have in the call.
    """

    PREFIX = "model."
    """The prefix of the names of the model's parameters and buffers."""

    def __init__(self, model: nn.Module, call: ModelCall) -> None:
        super().__init__()
        self.model = model
        leaves, self._spec = pytree.tree_flatten((call.args, dict(call.kwargs)))
        self._rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = list(self._rest)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        found: list[Tensor] = []
        for tensor in tensors_in(self.model(*args, **kwargs)):
            # Exporters give a tensor one name, so an output that is an input or another output is copied.
            again = any(tensor is other for other in (*tensors, *found))
            found.append(tensor.clone() if again else tensor)
        return tuple(found)


def main_output(output: Any) -> Tensor:
    """Return the main tensor of an output: itself, its `logits`, or the first tensor of a tuple; raise if there is none."""
    if isinstance(output, Tensor):
        return output
    parts = parts_of(output)
    if isinstance(parts.get("logits"), Tensor):
        logits: Tensor = parts["logits"]
        return logits
    found = [part for part in parts.values() if isinstance(part, Tensor)]
    if not found or (len(found) > 1 and not isinstance(output, tuple | list)):
        raise ConfigError(
            f"The model returns {type(output).__name__} with {', '.join(parts) or 'no tensors'}: return the logits alone, first in "
            'a tuple, or as "logits"'
        )
    return found[0]
