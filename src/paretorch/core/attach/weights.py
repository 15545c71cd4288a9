"""Relaxed weights: a layer's own tensor holds W = f(θ, decisions), and θ and the decisions stand beside it.

The forward and backward pass read a plain Parameter, so that nothing in the network, in `torch.compile`, DDP or FSDP2 knows of
the relaxation. θ (`latent`) takes the place of W while the user's optimizer steps; who swaps them is `paretorch.core.step.engine`.

A `RelaxedWeight` is a child of the first module that owns the tensor. Its own tensors are Parameters that need no gradient: they
move, copy and average with the model, DDP sends them to all ranks at its start, and optimizers pass over them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from paretorch.core.attach.fused import FusedBatch, layout
from paretorch.core.attach.sites import Site, Template
from paretorch.core.relaxation import PREFIX, Chain, Relaxation, flatten, unflatten
from paretorch.errors import ConfigError
from paretorch.support.arithmetic import block_size
from paretorch.support.sharded import is_sharded, local, shard_like, whole, write

# What `fully_shard` asks a module for to learn whether it may manage it. The tensors of a relaxed weight are sharded by the engine
# and never gathered for a forward pass, which needs W alone.
_COMPOSABLE_STATE = "__composable_api_state_key"


class Status:
    """Where a weight is in a step. Not in the module itself, where every attribute that is set is looked at."""

    __slots__ = ("holds_latent", "is_deferred", "is_stale", "pulled")

    def __init__(self) -> None:
        self.holds_latent = False
        self.is_deferred = False
        """Whether θ is in the layer's tensor alone: what writes W copies it to `latent` on the way."""
        self.is_stale = True
        """Whether what was prepared for this weight must be prepared anew."""
        self.pulled: Tensor | None = None
        """The gradient that is that of θ already."""


class RelaxedWeight(Chain):
    """All relaxations of one weight, innermost first, with the trained values θ that they start from.

    Args:
        site: the weight, and every module that holds it.
        relaxations: at most one per kind.
    """

    def __init__(self, site: Site, relaxations: Sequence[Relaxation]) -> None:
        super().__init__(list(relaxations))
        weight = site.weight.detach()
        self.latent = nn.Parameter(weight.clone(memory_format=torch.preserve_format), requires_grad=False)
        self.name = site.name
        # Tuples: a module would register a bare module or Parameter as its own.
        self._owners = ((site.home, site.name),) if isinstance(site, Template) else tuple(o[:2] for o in site.owners)
        self.names = (site.name,) if isinstance(site, Template) else tuple(_joined(n, a) for _, a, n in site.owners)
        self.is_template = isinstance(site, Template)
        self.frozen = not site.weight.requires_grad
        self.status = Status()
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
    def holds_latent(self) -> bool:
        """Whether the layer's tensor is θ: from the optimizer's step to the plan's."""
        return self.status.holds_latent

    @property
    def is_pulled(self) -> bool:
        """Whether the tensor's gradient is that of θ already, and the decisions have theirs."""
        pulled = self.status.pulled
        return pulled is not None and pulled is self.tensor.grad

    @property
    def theta(self) -> nn.Parameter:
        """θ, where it is now."""
        return self.tensor if self.status.is_deferred else self.latent

    def mark_pulled(self) -> None:
        """The tensor's gradient is that of θ from now on."""
        self.status.pulled = self.tensor.grad

    @property
    def is_local(self) -> bool:
        """Whether each rank can compute its own part of the weight: it is not sharded, or everything is elementwise."""
        return not is_sharded(self.latent) or (self.blank is None and all(r.is_elementwise for r in self.relaxations()))

    def fused_layout(self) -> tuple[type | None, ...] | None:
        """Which rows share decisions, if the kernels for GPUs can compute this weight."""
        return None if self.blank is not None else layout(self.latent, self.tensor, self.relaxations())

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

    def check_shape(self) -> None:
        """Refuse a layer that has another shape than when it was compressed."""
        if self.is_attached() and self.tensor.shape != self.latent.shape:
            raise ConfigError(
                f"{self.name} is {tuple(self.tensor.shape)} now, and was {tuple(self.latent.shape)} when it was compressed: "
                "resize layers, such as token embeddings, before compress or after finalize"
            )

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
        self.status.is_stale |= changed
        if (
            changed
            and not self.holds_latent
            and self.is_attached()
            and any(r.differs_in_eval for r in self.relaxations())
        ):
            write_weights([self])
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.status.is_stale = True  # on another device or of another dtype, perhaps
        super()._apply(fn, recurse)
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


class Batch:
    """Weights that are computed together, with all that a step reads of them at hand: a step is then few lines of Python.

    fuse: compute them by kernels, if they can.
    """

    def __init__(self, members: Sequence[RelaxedWeight], fuse: bool = False) -> None:
        self.members = list(members)
        self.is_local = members[0].is_local
        self.rows = slice(None)
        """Which rows of its weights: all."""
        self.is_sharded = is_sharded(members[0].latent)
        self.tensors = [member.tensor for member in members]
        self.latents = [member.latent for member in members]
        chains = [member.relaxations() for member in members]
        self.places: list[list[Any]] = [list(own) for own in zip(*chains, strict=True)]
        """The relaxations, innermost first, each of all members."""
        self.decisions: list[list[nn.Parameter]] = [[r.decision for r in own] for own in self.places]
        self._grids = [] if self.is_sharded else [[r.grid(r.decision.detach()) for r in own] for own in self.places]
        self._blank = any(member.blank is not None for member in members)
        self.fused = _fused(self) if fuse else None
        """The kernels that compute the members in one launch; None: torch operations do."""
        self.is_flat = self.fused is None and len(members) > 1 and all(map(_is_flat, members))
        """Whether the members are computed end to end, as one flat tensor: lists then have one item, not one per member."""
        self.statuses = [member.status for member in members]
        self.ids = frozenset(map(id, self.tensors))
        self.has_frozen = any(member.frozen for member in members)
        self._watched = [
            (member.status, member._owners[0][0]._parameters, member._owners[0][1], tensor)
            for member, tensor in zip(members, self.tensors, strict=True)
        ]

    def is_current(self) -> bool:
        """Whether everything is still what it was: tensors may be replaced, moved or sharded."""
        for status, parameters, name, tensor in self._watched:
            if status.is_stale or parameters[name] is not tensor:
                return False
        return self.fused is None or self.fused.is_current()

    def grids(self) -> list[list[Tensor]]:
        """The decisions on their grids, of each relaxation."""
        if self.is_flat:
            return [[flatten(own)] for own in self._grids]
        if not self.is_sharded:
            return self._grids
        return [list(own) for own in zip(*(member.decisions() for member in self.members), strict=True)]

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the weights' shapes: whole, or this rank's parts."""
        if self.is_flat:
            return [flatten(tensors)]
        if not self.is_sharded:
            return list(tensors)
        return [member.read(one) for member, one in zip(self.members, tensors, strict=True)]

    def blanked(self, values: list[Tensor]) -> list[Tensor]:
        """The values with zeros in the rows that stay zero."""
        if not self._blank:
            return values
        return [member.blanked(value) for member, value in zip(self.members, values, strict=True)]

    def apart(self, values: list[Tensor]) -> list[Tensor]:
        """The values of each member, out of one flat tensor if they are that."""
        return unflatten(values[0], self.latents) if self.is_flat else values

    def gradients(self, place: int) -> list[Tensor]:
        """The gradients of the decisions of a relaxation."""
        return [decision.grad for decision in self.decisions[place] if decision.grad is not None]

    def parts(self) -> "Sequence[Batch]":
        """The batch, or runs of rows if it is one large weight: temporary tensors are as large as what is computed together."""
        if self.fused is not None or self.is_sharded or len(self.members) > 1:
            return [self]
        parts = self.members[0].parts()
        return [Part(self, rows, chain) for rows, chain in parts] if len(parts) > 1 else [self]

    def values(self, stop: int | None = None) -> list[list[Tensor]]:
        """θ, and what each relaxation makes of it in turn: the last is W. stop: how many relaxations to apply."""
        values = [self.read(self.latents)]
        for own, grids in zip(self.places[:stop], self.grids(), strict=False):
            values.append(type(own[0]).apply_all(own, grids, values[-1]))
        return values

    def write(self, clip: bool = False) -> None:
        """Write W = f(θ, decisions) into the layers' own tensors; if `clip`, keep θ within the limits of its relaxations first."""
        if self.fused is not None:
            self.fused.write(clip, keep=all(status.is_deferred for status in self.statuses))
        else:
            for part in self.parts():
                if clip:
                    part._clip()
                store(part.tensors, part.apart(part.blanked(part.values()[-1])))
        self.note_written()

    @property
    def holds_latent(self) -> bool:
        """Whether some of the layers' tensors are θ."""
        return any(status.holds_latent for status in self.statuses)

    def note_written(self) -> None:
        """The layers' tensors hold W."""
        if self.fused is not None:
            increment_version(self.tensors)  # which writes to addresses are not seen by
        for status in self.statuses:
            status.holds_latent = status.is_deferred = False

    def _clip(self) -> None:
        for own, grids in zip(self.places, self.grids(), strict=True):
            bounds = type(own[0]).limit_all(own, grids)
            if bounds is None:
                continue
            if not self.is_local:
                for latent, bound in zip(self.latents, bounds, strict=True):
                    part = local(shard_like(bound.expand(latent.shape).to(latent.dtype), latent))
                    local(latent.data).clamp_(-part, part)
                continue
            latents: list[Tensor] = [local(one.data) for one in self.latents] if self.is_sharded else list(self.latents)
            if bounds[0].dtype != latents[0].dtype:
                bounds = [bound.to(latents[0].dtype) for bound in bounds]
            lower = self.apart(list(torch._foreach_neg(bounds)))
            torch._foreach_clamp_max_(latents, self.apart(bounds))
            torch._foreach_clamp_min_(latents, lower)


class Part(Batch):
    """Some rows of the only weight of a batch, as views.

    Args:
        batch: of one weight.
        rows: which.
        chain: the relaxations of these rows.
    """

    def __init__(self, batch: Batch, rows: slice, chain: Chain) -> None:
        self.members, self.rows = batch.members, rows
        self.is_local, self.is_sharded, self.is_flat, self.fused = True, False, False, None
        self.tensors: list[Any] = [tensor.detach()[rows] for tensor in batch.tensors]
        self.latents: list[Any] = [latent.detach()[rows] for latent in batch.latents]
        own = chain.relaxations()
        self.places = [[r] for r in own]
        self.decisions = [[r.decision] for r in own]
        self._grids = [[r.grid(r.decision.detach())] for r in own]
        self._chain, self._of = chain, batch

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """These rows of whole tensors, or what holds these rows alone."""
        here = self.latents[0].shape
        return [one if one.shape == here else one.detach()[self.rows] for one in tensors]

    def blanked(self, values: list[Tensor]) -> list[Tensor]:
        """The values with zeros in a row that stays zero."""
        return [self._chain.blanked(value) for value in values]

    def gradients(self, place: int) -> list[Tensor]:
        """These rows of the gradient of a decision."""
        (whole,) = self._of.gradients(place)
        return [whole[self.rows]]


def _fused(batch: Batch) -> FusedBatch | None:
    if batch.members[0].fused_layout() is None:
        return None
    forms = [type(own[0]).form(own) for own in batch.places]
    return FusedBatch(batch.tensors, batch.latents, batch.places, forms)


def _is_flat(member: RelaxedWeight) -> bool:
    """Whether the weight may be a part of a flat tensor: everything lies in the same order, and has its own decisions."""
    latent = member.latent
    own = [latent, member.tensor, *(r.decision for r in member.relaxations())]
    return (
        latent.dtype == torch.float32
        and member.blank is None
        and all(r.is_flat for r in member.relaxations())
        and all(one.is_contiguous() and not is_sharded(one) for one in own)
    )


def batches(members: Sequence[RelaxedWeight], fuse: bool = False) -> list[Batch]:
    """The weights in batches that can be computed together: the same kinds of relaxations, dtype and device, not too many.

    fuse: for many steps, so that it pays to prepare kernels where there are some.
    """
    for member in members:
        member.check_shape()
    groups: dict[Any, list[list[RelaxedWeight]]] = {}
    sizes: dict[Any, int] = {}
    for member in members:
        latent = member.latent
        kinds = tuple((type(r), r.batch_key()) for r in member.relaxations())
        layout = member.fused_layout() if fuse else None
        key = kinds, latent.device, latent.dtype, member.is_local, layout, layout is None and _is_flat(member)
        group, size = groups.setdefault(key, [[]]), sizes.get(key, 0) + latent.numel()
        if group[-1] and size > block_size(latent.device) and layout is None:
            group.append([])
            size = latent.numel()
        group[-1].append(member)
        sizes[key] = size
    return [Batch(own, fuse) for group in groups.values() for own in group]


@torch.no_grad()
def write_weights(members: Sequence[RelaxedWeight]) -> None:
    """Write W = f(θ, decisions) into the layers' own tensors."""
    for batch in batches(members):
        batch.write()


def store(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into tensors, in place: whole ones into whole or sharded tensors, parts into this rank's part."""
    if not targets:
        return
    if not any(map(is_sharded, targets)):
        torch._foreach_copy_(list(targets), list(values))
    elif any(value.shape == one.shape and is_sharded(one) for one, value in zip(targets, values, strict=True)):
        for one, value in zip(targets, values, strict=True):
            write(one, value)
    else:
        torch._foreach_copy_([local(one.detach()) for one in targets], list(values))
