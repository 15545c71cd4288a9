"""What a network takes in each runtime."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from paretorch.core.attach.sites import find_sites
from paretorch.deploy.runtimes.read import read_stored
from paretorch.deploy.runtimes.registry import RUNTIMES, Runtime


def runtime_sizes(model: nn.Module) -> dict[str, int]:
    """Return bytes of the tensors by runtime, for those that have codes for some of the weights of a plain network.

    The network is not copied, and nothing is written. Vectors count in fp32.
    """
    found = {name: _size(model, runtime) for name, runtime in RUNTIMES.items()}
    return {name: size for name, size in found.items() if size is not None}


def _size(model: nn.Module, runtime: Runtime) -> int | None:
    stored = read_stored(model, runtime)
    if all(one.form is None or one.form.is_half for one in stored.values()):
        return None
    weights = sum(one.size for one in stored.values())
    own = {id(site.weight) for site in find_sites(model)}
    state: Iterable[Tensor] = model.state_dict(keep_vars=True).values()
    rest = {id(t): t for t in state if id(t) not in own and t.is_floating_point()}
    return weights + 4 * sum(t.numel() for t in rest.values())
