"""From a model and an example to its coupled channels, tried out before anything is trained.

The trial removes channels from a copy and compares with zeroing them. Where it fails (a forward pass with a width
written into it, a padded shortcut), the channels behind it are found one set at a time and left alone.
"""

import copy

import torch
from torch import Tensor, nn

from paretorch.core.channels import Coupling
from paretorch.core.cut import channel_edits, keep_channels
from paretorch.core.follow import follow
from paretorch.core.labels import Network
from paretorch.core.looking import in_eval, run_example
from paretorch.errors import ConfigError

_TOLERANCE = 1e-4  # of the largest output: sums of fewer terms are rounded differently


def couple(model: nn.Module, example: Tensor, chosen: set[str], asked_by: str) -> Coupling:
    """The coupled channels whose producing weights are all among the chosen."""
    parameter = next(model.parameters())
    example = example[:1].to(parameter.device)
    with in_eval(model):
        run_example(model, example)
    net = follow(model, example)
    _fix_tied(net, model)
    for layer in net.layers.values():
        if layer.weight not in chosen:
            net.fix(layer.rows)
    coupling = Coupling(net, model, chosen)
    if coupling.count and not _holds(model, coupling, example, torch.ones(coupling.count, dtype=torch.bool)):
        coupling = _without_what_fails(net, model, coupling, example, chosen)
    if not coupling.count:
        raise ConfigError(
            f"{asked_by} finds no channel that can be removed: every one is tied to the inputs, the outputs or a layer "
            'that is not followed (attention, layer norm, recurrence) or excluded; use group="weight"'
        )
    return coupling


def _fix_tied(net: Network, model: nn.Module) -> None:
    owners: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
    for names in owners.values():
        for name in names if len(names) > 1 else ():
            if name in net.layers:
                layer = net.layers[name]
                net.fix(layer.rows if layer.columns is None else torch.cat([layer.rows, layer.columns]))
            if name in net.vectors:
                net.fix(net.vectors[name])


def _without_what_fails(
    net: Network, model: nn.Module, coupling: Coupling, example: Tensor, chosen: set[str]
) -> Coupling:
    for one in coupling.sets:
        only = torch.zeros(coupling.count, dtype=torch.bool)
        only[one] = True
        if not _holds(model, coupling, example, only):
            coupling.fix(net, one)
    left = Coupling(net, model, chosen)
    if left.count and not _holds(model, left, example, torch.ones(left.count, dtype=torch.bool)):
        raise ConfigError("the channels of this model cannot be removed: its forward pass depends on its widths")
    return left


def _holds(model: nn.Module, coupling: Coupling, example: Tensor, may_go: Tensor) -> bool:
    """Whether removing every other channel of those that may go does what zeroing them does."""
    keep = torch.ones(coupling.count, dtype=torch.bool)
    for one in coupling.sets:
        going = one[1::2] if len(one) > 1 else one[:0]
        keep[going[may_go[going]]] = False
    masked = copy.deepcopy(model).eval()
    _shake(masked)
    state = dict(masked.state_dict())
    with torch.no_grad():
        for name, tensor in state.items():
            if name in coupling.gates:
                mask = coupling.grouping(name, tensor.shape).expand(keep.to(tensor.dtype)).to(tensor.device)
                tensor.mul_(mask)
        cut = copy.deepcopy(masked)
        try:
            for edit in channel_edits(coupling.kept(keep)):
                keep_channels(cut, edit)
            one, other = masked(example), cut(example)
        except (RuntimeError, ValueError, TypeError, ConfigError):
            return False
    pairs = zip(_tensors(one), _tensors(other), strict=True)
    return all(a.shape == b.shape and bool((a - b).abs().max() <= _TOLERANCE * a.abs().max()) for a, b in pairs)


def _shake(model: nn.Module) -> None:
    """Biases and statistics away from the zeros and ones they start with, so that nothing hides behind these."""
    generator = torch.Generator().manual_seed(0)
    for tensor in model.state_dict().values():
        if tensor.dim() == 1 and tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)


def _tensors(output: object) -> list[Tensor]:
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for one in output for tensor in _tensors(one)]
    return [output] if isinstance(output, Tensor) and output.is_floating_point() else []
