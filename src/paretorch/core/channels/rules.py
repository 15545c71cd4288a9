"""What each operation of torch does to labels of channels.

A rule gets an operation and its arguments (labels in place of tensors) and returns the labels of its result, or None if
it does not know: then the labels that it was given are fixed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.channels.labels import (
    FIXED,
    Layer,
    Named,
    Network,
    Value,
    along,
    is_constant,
    is_wide,
    leaves,
    mapped,
    unlabelled,
)
from paretorch.support.eval_mode import doubles

MOVES = frozenset({
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "flatten", "unflatten", "unsqueeze", "squeeze",
    "expand", "slice", "select", "narrow", "split", "chunk", "split_with_sizes", "cat", "stack", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "roll", "flip", "pad", "constant_pad_nd", "repeat",
    "unbind", "movedim", "moveaxis", "swapaxes", "contiguous", "clone", "detach", "alias", "lift_fresh_copy",
})  # fmt: skip
CASTS = frozenset({"to", "_to_copy"})  # labels keep their type: few numbers are whole in half precision
SPATIAL = frozenset(
    f"{name}{d}d"
    for d in (1, 2, 3)
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "upsample_nearest", "feature_dropout")
) | {"upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_nearest_exact2d"}  # fmt: skip
# Elementwise, though some versions of torch do not say so.
POINTWISE = frozenset({
    "dropout", "feature_dropout", "hardswish", "hardsigmoid", "hardtanh", "relu6", "mish", "gelu", "silu", "elu", "selu",
    "celu", "softplus", "leaky_relu", "softsign", "logsigmoid",
})  # fmt: skip
NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)
REDUCTIONS = frozenset({"mean", "sum", "amax", "amin"})


class Rules:
    """The rules, and the network that they write down."""

    def __init__(self, model: nn.Module, parameters: set[str]) -> None:
        self.net, self.parameters = Network(), parameters
        self.doubles = doubles(model)  # a state has them twice, an edit would not
        self.modules = {name: one for name, one in model.named_modules() if name not in self.doubles}
        self.read_elsewhere: set[str] = set()  # parameters that something else than their layer reads, too

    def rule(self, name: str, node: torch.fx.Node) -> Callable[[torch.fx.Node, dict[str, Any]], Any] | None:
        """What an operation does to labels; None: it is not known."""
        if name in ("conv1d", "conv2d", "conv3d"):
            return lambda n, a: self._layer(n, a, transposed=False)
        if name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
            return lambda n, a: self._layer(n, a, transposed=True)
        rules = {"linear": self._linear, "prelu": self._slopes}
        rules |= dict.fromkeys(("batch_norm", "instance_norm", "group_norm"), self._norm)
        if name in rules:
            return rules[name]
        if name in POINTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ()):
            return self._pointwise
        return self._move if name in MOVES | CASTS else self._spatial if name in SPATIAL else self._reduce if name in REDUCTIONS else None  # fmt: skip

    # Layers

    def _layer(self, node: torch.fx.Node, given: dict[str, Any], transposed: bool) -> Value | None:
        x, weight, groups = given["input"], given["weight"], given["groups"]
        shape = node.meta["val"].shape
        owned = isinstance(weight, Named) and isinstance(self._owner(weight), nn.modules.conv._ConvNd)
        if not owned or not isinstance(x, Value) or x.labels.dim() != len(weight.shape):
            return None
        inputs, out, count = self._read(x, 1), shape[1], x.labels.shape[1]
        uses = (x.labels[0, 0] if transposed else torch.empty(shape[2:], device="meta")).numel()
        entries = weight.shape[2:].numel()
        if groups == count > 1 and not transposed:
            rows = inputs.repeat_interleave(out // count)
            columns = None
        elif groups == 1:
            rows, columns = self.net.new(out), inputs
        else:  # the same channels go from every group
            first = inputs[: count // groups]
            self.net.join(inputs.view(groups, -1), first)
            rows, columns = self.net.new(out // groups).repeat(groups), first
            if transposed:
                return self._made(node, given, Layer(weight.name, 1, rows[: out // groups], inputs, entries, uses), rows, 1)  # fmt: skip
        return self._made(node, given, Layer(weight.name, int(transposed), rows, columns, entries, uses), rows, 1)

    def _linear(self, node: torch.fx.Node, given: dict[str, Any]) -> Value | None:
        x, weight = given["input"], given["weight"]
        owned = isinstance(weight, Named) and isinstance(self._owner(weight), nn.Linear)
        if not owned or not isinstance(x, Value):
            return None
        axis = x.labels.dim() - 1
        inputs, rows = self._read(x, axis), self.net.new(weight.shape[0])
        layer = Layer(weight.name, 0, rows, inputs, 1, x.labels.numel() // len(inputs))
        return self._made(node, given, layer, rows, axis)

    def _made(self, node: torch.fx.Node, given: dict[str, Any], layer: Layer, outputs: Tensor, axis: int) -> Value:
        before = self.net.layers.get(layer.weight)
        if before is not None:  # used again: the same rows and columns
            self.net.join(before.rows, layer.rows)
            if before.columns is not None and layer.columns is not None:
                self.net.join(before.columns, layer.columns)
            layer = Layer(**{**vars(before), "positions": before.positions + layer.positions})
        self.net.layers[layer.weight] = layer
        zero = given["bias"] is None or self._vector(given["bias"], outputs)
        return Value(along(outputs, axis, node.meta["val"].shape), zero)

    def _norm(self, node: torch.fx.Node, given: dict[str, Any]) -> Value | None:
        x = given["input"]
        vectors = [given.get(key) for key in ("weight", "bias", "running_mean", "running_var")]
        named = [one for one in vectors if isinstance(one, Named)]
        if not isinstance(x, Value) or any(one is not None and one not in named for one in vectors):
            return None
        name = named[0].name.rpartition(".")[0] if named else _caller(node)
        owned = all(isinstance(self._owner(one), NORMS) for one in named)
        if not owned or name in self.doubles:
            return None
        held = isinstance(self.modules.get(name), NORMS)  # not: a function, which has nothing to cut
        labels = self._read(x, 1, zero=False)
        if "num_groups" in given:
            groups = given["num_groups"]
            if groups == 1 or not held:
                return None
            # What goes from a group changes the statistics of what stays: all of it goes, or none.
            self.net.join(labels.view(groups, -1), labels.view(groups, -1)[:, :1])
        for one in named:
            self._vector(one, labels)
        if held:
            self._pass(name, labels)
        gated = vectors[0] in named and all(one.name in self.net.gated for one in named if one in vectors[:2])
        plain = not named  # without γ, β and statistics of before, what was zero still is
        return Value(along(labels, 1, node.meta["val"].shape), gated or (plain and x.zero))

    def _slopes(self, node: torch.fx.Node, given: dict[str, Any]) -> Value | None:
        x, slope = given["self"], given["weight"]
        if not isinstance(x, Value) or not isinstance(slope, Named):
            return None
        if slope.shape.numel() == 1:  # one for all: nothing to cut
            return Value(x.labels, x.zero)
        if not isinstance(self._owner(slope), nn.PReLU):
            return None
        labels = self._read(x, 1, zero=False)
        self._vector(slope, labels, gate=False)
        self._pass(slope.name.rpartition(".")[0], labels)
        return Value(x.labels, x.zero)

    # Everything else

    def _pointwise(self, node: torch.fx.Node, given: dict[str, Any]) -> Value | None:
        names = [key for key, value in given.items() if isinstance(value, Value | Named)]
        values = [self.plain(given[key]) for key in names]
        if not values or not isinstance(node.meta["val"], Tensor):
            return None
        shape = node.meta["val"].shape
        labels = max(values, key=lambda one: one.labels.numel()).labels.expand(shape)
        kinds = arguments_of(node, lambda leaf: leaf.meta["val"].dtype)
        masks = {key for key in names if kinds[key] == torch.bool}  # may be either, whatever the others are

        def probe(at: list[float]) -> bool:
            for mask in (False, True):
                numbers = [mask if key in masks else value for key, value in zip(names, at, strict=True)]
                tried = {key: torch.full((1,), n, dtype=kinds[key]) for key, n in zip(names, numbers, strict=True)}
                if bool((_run(node, given, tried) != 0).any()):
                    return False
            return True

        kept = probe([0.0] * len(values)) and all(
            value.zero for key, value in zip(names, values, strict=True) if key not in masks
        )
        for i, value in enumerate(values):
            if is_wide(value.labels, labels):
                self.net.join(labels, value.labels.expand(shape))
                kept = kept or (value.zero and probe([0.0 if j == i else 1.25 for j in range(len(values))]))
            else:
                self.net.fix(value.labels)
        return Value(labels, kept)

    def _move(self, node: torch.fx.Node, given: dict[str, Any]) -> Any:
        found = [one for one in leaves(given) if isinstance(one, Value | Named)]
        zero = all(self.plain(one).zero or bool((self.plain(one).labels == FIXED).all()) for one in found)
        labels = mapped(given, lambda one: self.plain(one).labels)
        if operation_name(node) == "view":  # of what is expanded there is none
            labels["self"] = labels["self"].contiguous()
        if "value" in labels:  # what is padded with is no label
            labels["value"] = float(FIXED)
        moved = labels["self"] if operation_name(node) in CASTS else _run(node, labels, {})
        return [Value(one, zero) for one in moved] if isinstance(moved, list | tuple) else Value(moved, zero)

    def _spatial(self, node: torch.fx.Node, given: dict[str, Any]) -> Value | None:
        x = next(iter(given.values()))
        if not isinstance(x, Value) or not isinstance(node.meta["val"], Tensor):
            return None
        return Value(along(self._read(x, 1, zero=False), 1, node.meta["val"].shape), x.zero)

    def _reduce(self, node: torch.fx.Node, given: dict[str, Any]) -> Value | None:
        x, dims = next(iter(given.values())), given.get("dim")
        if not isinstance(x, Value) or not dims:
            return None
        highest, lowest = (one(x.labels, dims, given.get("keepdim", False)) for one in (torch.amax, torch.amin))
        return Value(highest, x.zero) if torch.equal(highest, lowest) else None

    # Small things

    def _read(self, x: Value, axis: int, zero: bool = True) -> Tensor:
        """The labels along one axis; fixed where they differ elsewhere, or where a removed channel would change the result."""
        first = x.labels.movedim(axis, 0).flatten(1)[:, 0]
        others = (d for d in range(x.labels.dim()) if d != axis)
        if (zero and not x.zero) or not all(is_constant(x.labels, d) for d in others):
            self.net.fix(x.labels)
            return torch.zeros_like(first)
        return first

    def _pass(self, module: str, labels: Tensor) -> None:
        """Note a module that loses the channels that pass it."""
        if module in self.net.passed:
            self.net.join(self.net.passed[module], labels)
        self.net.passed[module] = labels

    def _vector(self, vector: Any, labels: Tensor, gate: bool = True) -> bool:
        """Note a bias or norm vector with its channels; whether it can be gated or cut with them."""
        if not isinstance(vector, Named):
            self.net.fix(labels)
            return False
        if vector.name in self.net.vectors:
            self.net.join(self.net.vectors[vector.name], labels)
        self.net.vectors[vector.name] = labels
        if gate and vector.name in self.parameters:
            self.net.gated.add(vector.name)
        return True

    def _owner(self, one: Named) -> nn.Module | None:
        return self.modules.get(one.name.rpartition(".")[0])

    def plain(self, one: Value | Named) -> Value:
        """Labels also of a parameter that something else than its layer reads: no channel of it may go."""
        if isinstance(one, Named):
            self.read_elsewhere.add(one.name)
            return unlabelled(one.shape)
        return one


def arguments_of(node: torch.fx.Node, read: Callable[[Any], Any]) -> dict[str, Any]:
    """The arguments of an operation by name, in the order of its schema; `read` says what stands for a node."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    positional = dict(zip((one.name for one in schema), node.args, strict=False))
    default = {one.name: one.default_value for one in schema if one.has_default_value()}
    given = {**default, **positional, **node.kwargs}
    return {one.name: mapped(given[one.name], read, torch.fx.Node) for one in schema if one.name in given}


def _run(node: torch.fx.Node, given: dict[str, Any], instead: dict[str, Any]) -> Any:
    """Do what an operation does, with some of its arguments replaced."""
    assert callable(node.target)
    keyword = {one.name for one in node.target._schema.arguments if one.kwarg_only}  # type: ignore[attr-defined]
    values = {**given, **instead}
    return node.target(
        *(value for key, value in values.items() if key not in keyword),
        **{key: values[key] for key in keyword & set(node.kwargs)},
    )


def operation_name(node: torch.fx.Node) -> str:
    """The name of an operation of torch without its overload."""
    return getattr(getattr(node.target, "overloadpacket", None), "__name__", "")


def _caller(node: torch.fx.Node) -> str:
    """The module in whose forward pass an operation stands."""
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    name: str = list(stack.values())[-1][0]
    return name.partition(".")[2]  # the model itself is a child of a TensorFunction
