"""Relaxed weights: a layer's own tensor holds W = f(θ, decisions), and θ and the decisions stand beside it.

The forward and backward pass read a plain Parameter, so that nothing in the network, in `torch.compile`, DDP or FSDP2 knows of
the relaxation. θ (`latent`) takes the place of W while the user's optimizer steps; who swaps them is `paretorch.core.step.engine`.

A `RelaxedWeight` is a child of the first module that owns the tensor. Its own tensors are Parameters that need no gradient: they
move, copy and average with the model, DDP sends them to all ranks at its start, and optimizers pass over them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site, Template
from paretorch.core.relaxation import PREFIX, Chain, Relaxation
from paretorch.support.sharded import is_sharded, local, shard_like, whole, write

# What `fully_shard` asks a module for to learn whether it may manage it. The tensors of a relaxed weight are sharded by the engine
# and never gathered for a forward pass, which needs W alone.
_COMPOSABLE_STATE = "__composable_api_state_key"


class RelaxedWeight(Chain):
    """All relaxations of one weight, innermost first, with the trained values θ that they start from.

    Args:
        site: the weight, and every module that holds it.
        relaxations: at most one per room.
    """

    def __init__(self, site: Site, relaxations: Sequence[Relaxation]) -> None:
        super().__init__(list(relaxations))
        weight = site.weight.detach()
        self.latent = nn.Parameter(weight.clone(memory_format=torch.preserve_format), requires_grad=False)
        self.name = site.name
        # Tuples: a module would register a bare module or Parameter as its own.
        self._owners = ((site.home, site.name),) if isinstance(site, Template) else tuple(o[:2] for o in site.owners)
        self.names = (site.name,) if isinstance(site, Template) else tuple(_joined(n, a) for _, a, n in site.owners)
        self.frozen = not site.weight.requires_grad
        self.holds_latent = False
        """Whether the layer's tensor is θ: from the optimizer's step to the plan's."""
        self._pulled: tuple[Tensor, ...] = ()
        self.path = ""
        """The name of this module in the model, which its keys in a state begin with."""
        for relaxation in relaxations:
            relaxation.requires_grad_(False)
        if self.frozen:
            site.weight.requires_grad_(True)  # decisions learn from the gradient of W

    @property
    def tensor(self) -> nn.Parameter:
        """The layer's own Parameter, as it is now: sharding or loading may have replaced the object."""
        module, attribute = self._owners[0]
        parameter = module._parameters[attribute]
        assert parameter is not None
        return parameter

    @property
    def is_pulled(self) -> bool:
        """Whether the tensor's gradient is that of θ already, and the decisions have theirs."""
        return bool(self._pulled) and self._pulled[0] is self.tensor.grad

    @is_pulled.setter
    def is_pulled(self, pulled: bool) -> None:
        gradient = self.tensor.grad
        self._pulled = (gradient,) if pulled and gradient is not None else ()

    @property
    def is_local(self) -> bool:
        """Whether each rank can compute its own part of the weight: it is not sharded, or everything is elementwise."""
        return not is_sharded(self.latent) or (self.blank is None and all(r.is_elementwise for r in self.relaxations()))

    def decisions(self) -> list[Tensor]:
        """The decision of each relaxation on its grid: whole, or this rank's part if that is all that is needed."""
        if is_sharded(self.latent) and self.is_local:
            return [local(r.decision.detach()) for r in self.relaxations()]
        return [r.grid(whole(r.decision)) for r in self.relaxations()]

    def read(self, tensor: Tensor) -> Tensor:
        """A tensor of the weight's shape, detached: whole, or this rank's part."""
        return local(tensor.detach()) if self.is_local else whole(tensor)

    def follow_sharding(self) -> None:
        """Lay θ and the decisions out as the layer's tensor is, once that was sharded."""
        tensor = self.tensor
        if not is_sharded(tensor) or is_sharded(self.latent):
            return
        self.latent = nn.Parameter(shard_like(self.latent.data, tensor), requires_grad=False)
        for relaxation in self.relaxations():
            if relaxation.s is not None and relaxation.s.shape == tensor.shape:
                relaxation.s = nn.Parameter(shard_like(relaxation.s.data, tensor), requires_grad=False)

    def is_attached(self) -> bool:
        """Whether the layer's tensor is still there to be written to."""
        module, attribute = self._owners[0]
        return module._parameters.get(attribute) is not None

    def attach(self) -> None:
        """Become a child of the first owner."""
        module, attribute = self._owners[0]
        module.add_module(f"{PREFIX}{attribute}", self)
        self.path = f"{self.name.removesuffix(attribute)}{PREFIX}{attribute}"

    def detach(self, value: Tensor) -> None:
        """Leave: the layer's tensor takes the value, and needs a gradient as it did before `compress`."""
        parameter = self.tensor
        with torch.no_grad():
            parameter.copy_(value)
        parameter.requires_grad_(not self.frozen)
        parameter.grad = None if self.frozen else parameter.grad
        module, attribute = self._owners[0]
        module._modules.pop(f"{PREFIX}{attribute}", None)

    def train(self, mode: bool = True) -> "RelaxedWeight":
        """Switch between the weight of training (noise included) and that of evaluation."""
        changed = mode != self.training
        super().train(mode)
        if (
            changed
            and not self.holds_latent
            and self.is_attached()
            and any(r.differs_in_eval for r in self.relaxations())
        ):
            write_weights([self])
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith(_COMPOSABLE_STATE):
            return {"replicate": None}
        return super().__getattr__(name)


def _joined(module: str, attribute: str) -> str:
    return f"{module}.{attribute}" if module else attribute


def relaxed_weights(module: nn.Module) -> list[RelaxedWeight]:
    """The relaxed weights that are children of this module."""
    return [child for child in module._modules.values() if isinstance(child, RelaxedWeight)]


_BATCH = 2**24
"""Weights that are computed together, at most: temporary tensors are as large."""


def batches(members: Sequence[RelaxedWeight]) -> Iterator[list[RelaxedWeight]]:
    """The weights in batches that can be computed together: the same kinds of relaxations, dtype and device, not too many."""
    groups: dict[Any, list[RelaxedWeight]] = {}
    for member in members:
        latent = member.latent
        kinds = tuple((type(r), r.batch_key()) for r in member.relaxations())
        groups.setdefault((kinds, latent.device, latent.dtype, member.is_local), []).append(member)
    for group in groups.values():
        batch, size = list[RelaxedWeight](), 0
        for member in group:
            if batch and size + member.latent.numel() > _BATCH:
                yield batch
                batch, size = [], 0
            batch.append(member)
            size += member.latent.numel()
        yield batch


def values_of(batch: Sequence[RelaxedWeight], stop: int | None = None) -> list[list[Tensor]]:
    """θ of a batch, and what each relaxation makes of it in turn: the last is W. stop: how many relaxations to apply."""
    values = [[member.read(member.latent) for member in batch]]
    grids = [member.decisions() for member in batch]
    for place, first in enumerate(batch[0].relaxations()[:stop]):
        own = [member.relaxations()[place] for member in batch]
        values.append(type(first).apply_all(own, [grid[place] for grid in grids], values[-1]))
    return values


def effective_weights(batch: Sequence[RelaxedWeight]) -> list[Tensor]:
    """W of a batch, whole or this rank's part."""
    return [member.blanked(value) for member, value in zip(batch, values_of(batch)[-1], strict=True)]


@torch.no_grad()
def write_weights(members: Sequence[RelaxedWeight]) -> None:
    """Write W = f(θ, decisions) into the layers' own tensors."""
    for batch in batches(members):
        store([member.tensor for member in batch], effective_weights(batch))
    for member in members:
        member.holds_latent = False


def store(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors, in place: whole ones into whole or sharded tensors, parts into this rank's part."""
    if not targets:
        return
    if any(is_sharded(one) and value.shape == one.shape for one, value in zip(targets, values, strict=True)):
        for one, value in zip(targets, values, strict=True):
            write(one, value)
    else:
        torch._foreach_copy_([local(one.detach()) for one in targets], list(values))
