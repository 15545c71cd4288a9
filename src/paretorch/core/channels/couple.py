"""From a model and an example to its coupled channels, tried out before anything is trained.

A trial removes channels from a copy and compares with zeroing them. If it fails (a width is written into the forward
pass, or a shortcut is padded), the layers whose channels cannot go are searched for by halves and left alone.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from paretorch.core.channels.coupling import Coupling
from paretorch.core.channels.labels import Network
from paretorch.core.channels.trace import trace
from paretorch.edits.keep_channels import channel_edits
from paretorch.errors import ConfigError
from paretorch.support.eval_mode import doubles, in_eval, run_example
from paretorch.support.inputs import Example, ModelCall, read_example, tensors_in

_TOLERANCE = 1e-4  # of the largest output: sums of fewer terms are rounded differently


def couple(model: nn.Module, example: Example, chosen: set[str], asked_by: str) -> Coupling:
    """The coupled channels whose producing weights are all among the chosen.

    Args:
        example: a batch of inputs; its first row is used.
        chosen: names of weights whose channels may be removed.
        asked_by: who is named by an error.
    """
    parameter = next(model.parameters())
    call = read_example(example).first().to(parameter.device)
    with in_eval(model):
        run_example(model, call)
    net = trace(model, call)
    _fix_tied(net, model)
    for layer in net.layers.values():
        if layer.weight not in chosen:
            net.fix(layer.rows)
    coupling = Coupling(net, model, chosen)
    if coupling.count and not _Trial(model, call, coupling).holds(coupling.parts):
        exact, call = _in_double(model, call)
        trial = _Trial(exact, call, coupling)
        if exact is model or not trial.holds(coupling.parts):
            coupling = _without_what_fails(net, trial, chosen)
    if not coupling.count:
        raise ConfigError(
            f"{asked_by} finds no channel that can be removed: every one is tied to the inputs, the outputs or a layer that is "
            "not followed (attention, layer norm, group norm of one group, recurrence), is excluded, has outputs that are quantized "
            "with no level at zero, or has two names"
            f'{_named_twice(model)}; use group="weight"'
        )
    return coupling


def _named_twice(model: nn.Module) -> str:
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


def _without_what_fails(net: Network, trial: "_Trial", chosen: set[str]) -> Coupling:
    """The coupling without the channels of layers that fail; a few trials find each such layer."""
    parts = trial.coupling.parts
    for search in (_failing, _failing_alone):
        for part in search(trial, parts):
            trial.coupling.fix(net, part)
        left = Coupling(net, trial.model, chosen)
        if not left.count or _Trial(trial.model, trial.example, left).holds(left.parts):
            return left
    raise ConfigError("the channels of this model cannot be removed: its forward pass depends on its widths")


def _failing(trial: "_Trial", parts: list[Tensor]) -> list[Tensor]:
    """Those of some parts that fail alone, given that they fail together.

    Two halves are tried, and the halves of one that fails. Neighbours go to different halves: two branches of a block
    that both lose equally many channels can hide that neither may lose any.
    """
    if len(parts) == 1:
        return parts
    halves = (parts[0::2], parts[1::2])
    return [part for half in halves if not trial.holds(half) for part in _failing(trial, half)]


def _failing_alone(trial: "_Trial", parts: list[Tensor]) -> list[Tensor]:
    """The same, one by one: slower, but no part can hide behind another."""
    return [part for part in parts if not trial.holds([part])]


def _in_double(model: nn.Module, example: ModelCall) -> tuple[nn.Module, ModelCall]:
    """A copy in float64 to try things out with, so that bfloat16 or TF32 are not taken for a difference; if that runs."""
    coarse = any(parameter.dtype.itemsize < 4 for parameter in model.parameters())
    if not (coarse or any(tensor.is_cuda for tensor in example.tensors)):
        return model, example
    try:
        exact = example.double()
        twin = copy.deepcopy(model).double()
        with in_eval(twin):
            exact(twin)
    except Exception:  # a type is written into the forward pass, or the device has no such numbers
        return model, example
    return twin, exact


class _Trial:
    """Whether removing channels of a model does what zeroing them does."""

    def __init__(self, model: nn.Module, example: ModelCall, coupling: Coupling) -> None:
        self.model, self.example, self.coupling = model, example, coupling
        self._shaken = copy.deepcopy(model).eval()
        _shake(self._shaken)
        self._choices = _choices(coupling)

    def holds(self, parts: Iterable[Tensor]) -> bool:
        """Try to remove channels of these parts."""
        may_go = torch.zeros(self.coupling.count, dtype=torch.bool)
        for part in parts:
            may_go[part] = True
        return all(self._same(~(going & may_go)) for going in self._choices)

    def _same(self, keep: Tensor) -> bool:
        with torch.no_grad():
            masked = _shallow_copy(self._shaken)
            for name in self.coupling.gates:
                owner, _, attribute = name.rpartition(".")
                tensor = getattr(masked.get_submodule(owner), attribute)
                mask = self.coupling.mask(name, keep, tensor.dim())
                tensor.data = tensor.data * mask.to(tensor)  # not in place: other trials read the old one
            cut = _shallow_copy(masked)
            try:
                for edit in channel_edits(self.coupling.kept(keep)):
                    edit.apply(cut)
                # The smaller network first: it is the one that may fail, and the faster.
                other, one = (_tensors(_drawn_alike(net, self.example)) for net in (cut, masked))
            except Exception:  # whatever a forward pass says to a width that it does not expect
                return False
        return len(one) == len(other) and all(map(_close, one, other))


def _choices(coupling: Coupling) -> list[Tensor]:
    """What goes: two choices by chance, every other channel of a layer, its first half.

    A forward pass that takes halves of its channels (chunk, a shuffle) goes well as long as both lose equally many.
    Those by chance come first, since they are the likeliest to fail.
    """
    generator = torch.Generator().manual_seed(0)
    choices = []
    for choice in range(4):
        going = torch.zeros(coupling.count, dtype=torch.bool)
        for part in coupling.parts:
            by_chance = part[torch.rand(len(part), generator=generator) < 0.5] if choice < 2 else part
            going[(by_chance, by_chance, part[1::2], part[: len(part) // 2])[choice]] = True
        for one in coupling.sets:
            going[one[-1]] &= not bool(going[one].all())
        choices.append(going)
    return choices


def _shallow_copy(model: nn.Module) -> nn.Module:
    """A copy with parameters of its own, that share their memory with the model's until they get other data."""
    memo: dict[int, object] = {
        id(parameter): nn.Parameter(parameter.detach(), parameter.requires_grad)
        for parameter in model.parameters()
        if type(parameter) is nn.Parameter
    }
    # Every module has a dozen dicts for hooks, mostly empty: deepcopy would spend most of its time on them.
    for module in model.modules():
        memo |= {id(own): OrderedDict() for own in vars(module).values() if type(own) is OrderedDict and not own}
    return copy.deepcopy(model, memo)


def _drawn_alike(model: nn.Module, example: ModelCall) -> object:
    """The outputs; what the model draws by chance is the same each time."""
    with torch.random.fork_rng(devices={tensor.device for tensor in example.tensors if tensor.is_cuda}):
        return example(model)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.numel():
        return one.shape == other.shape
    finite = one[one.isfinite()].abs()
    largest = float(finite.max()) if len(finite) else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=_TOLERANCE * largest)


def _shake(model: nn.Module) -> None:
    """Move biases and statistics away from the zeros and ones they start with, so that nothing hides behind these."""
    generator = torch.Generator().manual_seed(0)
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor) and tensor.dim() == 1 and tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)


def _tensors(output: object) -> list[Tensor]:
    return [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
