"""Which channels belong together: the network is traced once, with labels in place of numbers.

Every element of every activation carries the label of the channel it came from. A convolution or linear layer gives
its outputs new labels; what only moves elements (reshape, concatenation, a channel shuffle) moves the labels with
them; what combines elements (a residual add) makes their labels one; whatever else meets a label fixes it: such a
channel is never removed. So a network that is not understood loses channels to remove, never its function.

A removed channel must be exactly zero wherever it is read. The producing rows and γ, β of every norm behind them are
gated, an activation keeps zero if f(0) = 0, which is tried out, and a layer that reads something else fixes what it reads.
A norm by groups of channels makes one label of each group; one over all of them (layer norm) fixes them.
"""

import operator
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.channels.labels import Named, Network, Value, leaves, unlabelled
from paretorch.core.channels.rules import CASTS, MOVES, Rules, arguments_of, operation_name
from paretorch.errors import ConfigError
from paretorch.support.eval_mode import first_sentence
from paretorch.support.inputs import ModelCall, TensorFunction
from paretorch.support.processes import suppress_output


def trace(model: nn.Module, call: ModelCall) -> Network:
    """Trace a call of the network, with one row, in eval mode; the model is left as it is."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad(), suppress_output():
            exported = torch.export.export(TensorFunction(model, call), tuple(call.tensors), strict=False)
    except Exception as error:
        raise ConfigError(
            f"the channels of this model cannot be followed, since torch.export fails: {first_sentence(error)}"
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    return _Tracer(model, exported).run()


class _Tracer:
    """Goes through an exported graph, operation by operation."""

    def __init__(self, model: nn.Module, exported: torch.export.ExportedProgram) -> None:
        signature = exported.graph_signature
        parameters, buffers = (
            {node: name.removeprefix(TensorFunction.PREFIX) for node, name in names.items()}
            for names in (signature.inputs_to_parameters, signature.inputs_to_buffers)
        )
        self.graph, self.named = exported.graph, {**parameters, **buffers}
        self.rules = Rules(model, set(parameters.values()))
        self.values: dict[torch.fx.Node, Any] = {}

    def run(self) -> Network:
        for node in self.graph.nodes:
            if node.op == "placeholder":
                shape = node.meta["val"].shape if isinstance(node.meta.get("val"), Tensor) else torch.Size(())
                name = self.named.get(node.name)
                self.values[node] = unlabelled(shape) if name is None else Named(name, shape)
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                self._fix_all(node.args)
        net = self.rules.net
        for name in self.rules.read_elsewhere:
            if name in net.layers:
                layer = net.layers[name]
                net.fix(layer.rows)
                if layer.columns is not None:
                    net.fix(layer.columns)
            if name in net.vectors:
                net.fix(net.vectors[name])
        return net

    def _call(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            source, index = self._value(node.args[0]), node.args[1]
            known = isinstance(source, list | tuple) and isinstance(index, int)
            return source[index] if known else self._unknown(node)
        name = operation_name(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            return self._unknown(node)  # a part of its own, such as one under autocast
        if name == "_assert_tensor_metadata":  # about a type, before a cast
            return None
        if name.endswith("_") and not name.startswith("_"):
            name = name[:-1]
            packet = getattr(torch.ops.aten, name, None)
            plain = getattr(packet, node.target._overloadname or "default", None)
            if plain is None or not _has_own_memory(node.args[0]):
                return self._unknown(node)  # in place, and what else sees the change is not known
            node.target = plain
        given = arguments_of(node, self._value)
        rule = self.rules.rule(name, node)
        try:
            result = rule(node, given) if rule is not None else None
        except (RuntimeError, TypeError, ValueError, IndexError):  # it takes no labels
            result = None
        return self._unknown(node) if result is None else result

    def _unknown(self, node: torch.fx.Node) -> Any:
        self._fix_all((node.args, node.kwargs))
        value = node.meta.get("val")
        if isinstance(value, list | tuple):
            return [unlabelled(one.shape) if isinstance(one, Tensor) else one for one in value]
        return unlabelled(value.shape) if isinstance(value, Tensor) else value

    def _fix_all(self, tree: Any) -> None:
        for leaf in leaves(tree):
            value = self._value(leaf)
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, Value | Named):
                    self.rules.net.fix(self.rules.plain(one).labels)

    def _value(self, leaf: Any) -> Any:
        return self.values.get(leaf, leaf) if isinstance(leaf, torch.fx.Node) else leaf


def _has_own_memory(source: Any) -> bool:
    """Whether a tensor is read once, by what changes it in place, and is no other tensor's memory."""
    if not isinstance(source, torch.fx.Node) or len(source.users) > 1:
        return False
    # Inputs, parameters and parts of something have none; dropout in eval mode gives what it got.
    name = operation_name(source)
    return bool(name) and name not in MOVES | CASTS and "dropout" not in name
