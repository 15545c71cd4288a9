"""What stands for tensors while channels are followed: labels in place of numbers, or a name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Value:
    """An activation: the label of each of its elements."""

    labels: Tensor
    zero: bool  # whether the elements of a removed channel are exactly zero


@dataclass(frozen=True)
class Named:
    """A parameter or buffer, by name."""

    name: str
    shape: torch.Size


def unlabelled(shape: Iterable[int]) -> Value:
    """An activation without a channel that may go."""
    return Value(torch.zeros(tuple(shape), dtype=torch.float64), False)


def along(labels: Tensor, axis: int, shape: torch.Size) -> Tensor:
    """Labels of one axis, at every element of this shape."""
    return labels.view([-1 if d == axis else 1 for d in range(len(shape))]).expand(shape)


def is_wide(labels: Tensor, full: Tensor) -> bool:
    """Whether an operand has an element of its own wherever the result's labels differ; a scalar has not."""
    shape = (1,) * (full.dim() - labels.dim()) + tuple(labels.shape)
    narrow = [d for d in range(full.dim()) if shape[d] == 1 and full.shape[d] > 1]
    return all(bool((full == full.narrow(d, 0, 1)).all()) for d in narrow) and labels.numel() > 1


def leaves(tree: Any) -> list[Any]:
    """What is in nested lists and dicts."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for one in tree for leaf in leaves(one)] if isinstance(tree, list | tuple) else [tree]


def mapped(tree: Any, function: Callable[[Any], Any], kind: Any = (Value, Named)) -> Any:
    """The same nested lists and dicts, with a function of every leaf of a kind."""
    if isinstance(tree, dict):
        return {key: mapped(value, function, kind) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        return [mapped(one, function, kind) for one in tree]
    return function(tree) if isinstance(tree, kind) else tree
