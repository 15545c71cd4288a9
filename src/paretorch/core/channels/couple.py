"""From a model and an example to its coupled channels, tried out before anything is trained.

The trial removes channels from a copy and compares with zeroing them. Where it fails (a forward pass with a width
written into it, a padded shortcut), the channels behind it are found one set at a time and left alone.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from paretorch.core.channels.coupling import Coupling
from paretorch.core.channels.cut import channel_edits, keep_channels
from paretorch.core.channels.labels import Network
from paretorch.core.channels.trace import follow
from paretorch.errors import ConfigError
from paretorch.support.eval_mode import doubles, in_eval, run_example

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
    everything = torch.ones(coupling.count, dtype=torch.bool)
    if coupling.count and not _holds(model, coupling, example, everything):
        exact, example = _in_double(model, example)
        if exact is model or not _holds(exact, coupling, example, everything):
            coupling = _without_what_fails(net, exact, coupling, example, chosen)
    if not coupling.count:
        raise ConfigError(
            f"{asked_by} finds no channel that can be removed: every one is tied to the inputs, the outputs or a layer that is "
            "not followed (attention, layer norm, group norm of one group, recurrence), is excluded, has outputs that are quantized "
            "with no level at zero, or has two names"
            f'{_told_twice(model)}; use group="weight"'
        )
    return coupling


def _told_twice(model: nn.Module) -> str:
    """An example of a module with two names, if there is one with parameters."""
    twice = ((one, other) for one, other in doubles(model).items() if model.get_submodule(one)._parameters)
    return next((f" ({other} is {one} again)" for one, other in twice), "")


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
    for one in coupling.parts:
        only = torch.zeros(coupling.count, dtype=torch.bool)
        only[one] = True
        if not _holds(model, coupling, example, only):
            coupling.fix(net, one)
    left = Coupling(net, model, chosen)
    if left.count and not _holds(model, left, example, torch.ones(left.count, dtype=torch.bool)):
        raise ConfigError("the channels of this model cannot be removed: its forward pass depends on its widths")
    return left


def _in_double(model: nn.Module, example: Tensor) -> tuple[nn.Module, Tensor]:
    """A copy to try things out with, so that bfloat16 or TF32 are not taken for a difference; where that runs."""
    coarse = any(parameter.dtype.itemsize < 4 for parameter in model.parameters())
    if not (coarse or example.is_cuda):
        return model, example
    exact = example.double() if example.is_floating_point() else example
    try:
        twin = copy.deepcopy(model).double()
        with in_eval(twin):
            twin(exact)
    except Exception:  # a type is written into the forward pass, or the device has no such numbers
        return model, example
    return twin, exact


def _holds(model: nn.Module, coupling: Coupling, example: Tensor, may_go: Tensor) -> bool:
    """Whether removing channels does what zeroing them does, of those that may go."""
    return all(_same(model, coupling, example, ~(going & may_go)) for going in _trials(coupling))


def _trials(coupling: Coupling) -> Iterator[Tensor]:
    """What goes: every other channel of a layer, its first half, and two choices by chance.

    A forward pass that takes halves of its channels (chunk, a shuffle) goes well as long as both lose equally many.
    """
    generator = torch.Generator().manual_seed(0)
    for trial in range(4):
        going = torch.zeros(coupling.count, dtype=torch.bool)
        for one in coupling.parts:
            first = (one[1::2], one[: len(one) // 2])
            going[first[trial] if trial < 2 else one[torch.rand(len(one), generator=generator) < 0.5]] = True
        for one in coupling.sets:
            going[one[-1]] &= not bool(going[one].all())
        yield going


def _same(model: nn.Module, coupling: Coupling, example: Tensor, keep: Tensor) -> bool:
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
            one, other = (_tensors(_drawn_alike(net, example)) for net in (masked, cut))
        except Exception:  # whatever a forward pass says to a width that it does not expect
            return False
    return len(one) == len(other) and all(map(_close, one, other))


def _drawn_alike(model: nn.Module, example: Tensor) -> object:
    """The outputs; what the model draws by chance is the same each time."""
    with torch.random.fork_rng(devices=[example.device] if example.is_cuda else []):
        return model(example)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.numel():
        return one.shape == other.shape
    finite = one[one.isfinite()].abs()
    largest = float(finite.max()) if len(finite) else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=_TOLERANCE * largest)


def _shake(model: nn.Module) -> None:
    """Biases and statistics away from the zeros and ones they start with, so that nothing hides behind these."""
    generator = torch.Generator().manual_seed(0)
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor) and tensor.dim() == 1 and tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)


def _tensors(output: object) -> list[Tensor]:
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for one in output for tensor in _tensors(one)]
    return [output] if isinstance(output, Tensor) and output.is_floating_point() else []
