"""Output sites: outputs of activation modules, on which a decision may sit as on a weight.

An output site is a site whose "weight" is one feature map, without the batch: it has a shape and no values. Its relaxations are
a child of the activation module, and a forward hook hands them the module's output. The hook is a plain function that
finds them through the module, so `deepcopy`, wrappers and the compiler follow it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Selection, Site
from paretorch.core.relaxation import PREFIX, Chain, Relaxation
from paretorch.edits import QuantizeActivation
from paretorch.edits.quantize_activation import has_state, replace_module
from paretorch.errors import ConfigError
from paretorch.support.eval_mode import Hook, run_example, watched
from paretorch.support.inputs import Example, read_example

BOUNDED: tuple[type[nn.Module], ...] = (nn.Sigmoid, nn.Hardsigmoid, nn.Tanh, nn.Softsign, nn.Hardtanh)  # ReLU6 is one
_CHILD = f"{PREFIX}activation"
_HANDLE = "_paretorch_handle"


@dataclass(frozen=True, eq=False)
class OutputSite(Site):
    """The output of one module: `weight` has the shape of a feature map; `shapes`, of every call; the largest value seen."""

    shapes: tuple[tuple[int, ...], ...]
    largest: float
    device: torch.device

    @property
    def channel_axis(self) -> int:
        """Channels come right after the batch."""
        return 0

    @property
    def is_usual(self) -> bool:
        """An activation whose range is known, or learned (ReLU)."""
        return isinstance(self.module, (nn.ReLU, *BOUNDED))

    @property
    def module(self) -> nn.Module:
        return self.owners[0][0]


class OutputRelaxation(Relaxation):
    """A relaxation of an output; it says what stays in the network once the plan is gone."""

    @property
    def keeps_zero(self) -> bool:
        """Whether the output of what stays is zero where that of the activation is, as removed channels need it."""
        return True

    @abstractmethod
    def plain(self, inner: nn.Module) -> nn.Module:
        """The ordinary module that takes the activation's place, with the rounded decisions."""

    @abstractmethod
    def edit(self, modules: tuple[str, ...]) -> QuantizeActivation:
        """The structural edit that makes such a module of the activation under these names."""


def find_output_sites(model: nn.Module, example: Example | None, asked_by: str) -> list[OutputSite]:
    """Every leaf module that the example passes, in order of names; the model itself is none."""
    try:
        call = read_example(example, dims=2)
    except ConfigError:
        raise ConfigError(
            f"{asked_by} needs example=, a batch of inputs as the model takes them, to know the shapes of its activations"
        ) from None
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and not module._modules:
            names.setdefault(module, []).append(name)
    seen: dict[nn.Module, list[tuple[torch.Size, float, torch.device]]] = {module: [] for module in names}
    with watched(model, {module: _recorder(calls) for module, calls in seen.items()}):
        run_example(model, call)
    outputs = []
    for module, calls in seen.items():
        if calls:
            size, _, device = calls[0]
            feature_map = nn.Parameter(torch.empty(size[1:], device="meta"), requires_grad=False)
            owners = tuple((module, "output", name) for name in names[module])
            shapes, largest = tuple(tuple(one[1:]) for one, *_ in calls), max(top for _, top, _ in calls)
            outputs.append(OutputSite(names[module][0], feature_map, owners, shapes, largest, device))
    return outputs


def _recorder(calls: list[tuple[torch.Size, float, torch.device]]) -> Hook:
    def record(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
            calls.append((output.shape, float(output.max()), output.device))

    return record


def attach_output(site: OutputSite, chain: Chain) -> None:
    """Make the module give chain(output)."""
    module = site.module
    module.add_module(_CHILD, chain)
    module.__dict__[_HANDLE] = module.register_forward_hook(_relaxed)


def _relaxed(module: nn.Module, _: Any, output: Tensor) -> Tensor:
    value: Tensor = module._modules[_CHILD](output)  # type: ignore[misc]
    return value


def detach_output(model: nn.Module, site: OutputSite, chain: Chain) -> None:
    """Put the plain module of the chain's relaxation in the activation's place, under all its names."""
    module = site.module
    module.__dict__.pop(_HANDLE).remove()
    del module._modules[_CHILD]
    replace_module(model, [name for *_, name in site.owners], only(chain).plain(module))


def state_of(site: OutputSite, chain: Chain) -> dict[str, Tensor]:
    """What the plain module will add to the model's state."""
    own = only(chain).plain(nn.Identity()).state_dict()
    return {f"{name}.{key}": value for *_, name in site.owners for key, value in own.items()}


def edit_of(site: OutputSite, chain: Chain) -> QuantizeActivation:
    """The structural edit that does the same to a fresh model."""
    return only(chain).edit(tuple(name for *_, name in site.owners))


def only(chain: Chain) -> OutputRelaxation:
    """The relaxation of an output, which has one."""
    (relaxation,) = chain.relaxations()
    assert isinstance(relaxation, OutputRelaxation)
    return relaxation


def check_output(site: OutputSite, method: Selection, cut: bool) -> None:
    """Refuse an output that cannot be relaxed. cut: channels will be removed."""
    if len(set(site.shapes)) > 1:
        raise ConfigError(
            f"{site.name} gives outputs of different shapes, {site.shapes[0]} and {site.shapes[-1]}: "
            "use a module of its own at each place, or exclude it"
        )
    if has_state(site.module):  # which would get other keys
        raise ConfigError(
            f"{site.name}, a {type(site.module).__name__}, has weights or statistics of its own: exclude it, or put an "
            "activation behind it, such as nn.Identity(), and quantize the output of that"
        )
    if cut and method.group not in ("layer", "network"):
        raise ConfigError(
            f'{type(method).__name__}(group={method.group!r}) does not go with channels that are removed: use group="layer"'
        )


@contextmanager
def zeros_moved(outputs: Sequence[tuple[OutputSite, Chain]]) -> Iterator[None]:
    """Let outputs that will have no level at zero be off zero, so that no channel that is read behind them is removed."""
    handles = [site.module.register_forward_hook(_moved) for site, chain in outputs if not only(chain).keeps_zero]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _moved(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output + 1.0
