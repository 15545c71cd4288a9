"""The engine under a plan: effective weights and gradients of all layers, made together once per step.

    forward, backward    the layers' tensors hold W = f(θ, s): plain tensors, whose gradients are ∂L/∂W
    optimizer.step()     before it, ∂L/∂W becomes ∂L/∂θ in the same place, ∂L/∂s goes to the decisions, and θ takes the place of W
    plan.step()          decisions and schedules advance; W of the next step is written

Every line is a few multi-tensor launches for the whole network. The swap needs no word from the user: torch calls a hook before
the step of any optimizer. A closure, which optimizers call inside of their step, runs with W in place.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from paretorch.core.attach.fused import FusedBatch
from paretorch.core.attach.weights import Batch, RelaxedWeight, batches, store
from paretorch.core.relaxation import unflatten
from paretorch.errors import ConfigError, warn
from paretorch.support.sharded import is_sharded, local, reshard, shard_like

_SMALL = 2**22
"""Decisions whose gradients have a place of their own, at most."""
_MARK = "_paretorch_closure"
OF_DECISIONS = "_paretorch_decisions"
"""The attribute of optimizers that hold no weights, but decisions: of a plan's own."""
_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()
_hooks: list[Any] = []


@dataclass(frozen=True)
class Scaling:
    """What a gradient scaler has multiplied gradients by, and whether some of them are not finite."""

    scale: Tensor
    overflow: Tensor | None = None

    def undone(self, gradient: Tensor) -> Tensor:
        """The gradient itself; zeros if there was an overflow."""
        gradient = gradient / self.scale
        return gradient if self.overflow is None else torch.where(self.overflow > 0, 0.0, gradient)


class Engine:
    """Computes for all relaxed weights of one model.

    Args:
        root: the model.
        weights: its relaxed weights.
        decided: the kinds whose decisions are trained.
    """

    def __init__(self, root: nn.Module, weights: Sequence[RelaxedWeight], decided: frozenset[str]) -> None:
        self.root, self.weights, self.decided = root, list(weights), decided
        self.version = 0
        """Counts how often the batches were made: what others prepare for them is prepared anew then."""
        self._batches: list[Batch] | None = None
        self._stepping = False
        self._warned = False
        # ∂L/∂s until the plan's step: in the decisions themselves, an optimizer of all parameters would use them.
        self._found: dict[int, tuple[nn.Parameter, Tensor]] = {}
        self._trained: list[nn.Parameter] = []
        self._kept: dict[int, Tensor] = {}
        self._register()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None, "_trained": [], "_kept": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)  # of a deep copy
        self._found = {id(decision): (decision, gradient) for decision, gradient in self._found.values()}
        self._register()

    def _register(self) -> None:
        _engines.add(self)
        if not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(_before_step))
            _hooks.append(register_optimizer_step_post_hook(_after_step))

    def close(self) -> None:
        """Leave the optimizers alone from now on."""
        _engines.discard(self)
        self._batches = None

    def batches(self) -> list[Batch]:
        """The weights in batches, as they are and where they are now."""
        if self._batches is None or not all(batch.is_current() for batch in self._batches):
            self._follow_sharding()
            self._batches = batches(self.weights, fuse=True)
            self._kept = {}
            self.version += 1
            for member in self.weights:
                member.status.is_stale = False
        return self._batches

    def known_batches(self) -> list[Batch]:
        """The batches without another look at every weight: inside of a step that has looked already."""
        return self.batches() if self._batches is None else self._batches

    def invalidate(self) -> None:
        """The phase has changed, or decisions were replaced."""
        self._batches = None

    def is_resized(self, held: set[int]) -> bool:
        """Whether layers have another shape than when they were compressed; raises if an optimizer of these tensors holds them.

        There is no step for them any more. Called once a step has failed: it costs time.
        """
        try:
            for member in self.weights:
                member.check_shape()
        except ConfigError:
            self.close()  # the steps of other networks go on
            if any(id(member.tensor) in held for member in self.weights):
                raise
            return True
        return False

    def _follow_sharding(self) -> None:
        """θ and the decisions lie as the layers' tensors do, which FSDP2 may have sharded."""
        if any(is_sharded(member.latent) and not is_sharded(member.tensor) for member in self.weights):
            reshard(self.root)  # gathered for a forward pass without a backward pass
        for member in self.weights:
            member.follow_sharding()

    # The step of the user's optimizer

    def before_step(self, held: set[int], closure: Callable[[], Any] | None, scaling: "Scaling | None") -> Any:
        """θ in place of W for those of the weights that an optimizer holds; returns a closure that runs with W."""
        chosen = self._chosen(held)
        if not chosen:
            return closure
        if closure is None:
            self._to_latent(chosen, scaling)
            self._stepping = True
            return None
        if hasattr(closure, _MARK):  # a step that calls that of its base class
            return closure

        def with_weights() -> Any:
            if any(member.holds_latent for batch in chosen for member in batch.members):
                self.settle()  # an optimizer that calls its closure several times
                self._forget()
            result = closure()
            self._to_latent(self._chosen(held), scaling)
            return result

        setattr(with_weights, _MARK, True)
        return with_weights

    def _chosen(self, held: set[int]) -> list[Batch]:
        """The batches of weights that an optimizer holds."""
        found = []
        for batch in self.batches():
            if batch.ids <= held:
                found.append(batch)
                continue
            members = [member for member, one in zip(batch.members, batch.tensors, strict=True) if id(one) in held]
            if members:
                found.append(Batch(members))
        return found

    def after_step(self) -> None:
        """The optimizer is done; once decisions are rounded, W follows at once."""
        self._stepping = False
        is_hard = any(own[0].hard for batch in self.known_batches()[:1] for own in batch.places)
        stepped = [batch for batch in self.batches() if batch.holds_latent] if is_hard else []
        if stepped and all(own[0].hard for own in stepped[0].places):
            with torch.no_grad(), _exactly(self.weights):
                for batch in stepped:
                    self._keep_latent(batch)
                    batch.write(clip=True)

    def _to_latent(self, chosen: Sequence[Batch], scaling: "Scaling | None") -> None:
        if not self._stepping:
            late = [batch for batch in chosen if batch.holds_latent]
            for batch in late:
                self._keep_latent(batch)
                self._warn_late()
            if not any(one.status.holds_latent or one.is_pulled for one in self.weights):
                self._forget()
        with torch.no_grad(), _exactly(self.weights):
            for batch in chosen:
                if batch.holds_latent:
                    continue
                if not self._pull_batch(batch, scaling, swap=True):
                    store(batch.tensors, [local(one) for one in batch.latents] if batch.is_sharded else batch.latents)
                for status in batch.statuses:
                    status.holds_latent = True
                if batch.has_frozen:
                    for member, tensor in zip(batch.members, batch.tensors, strict=True):
                        if member.frozen:
                            tensor.grad = None  # optimizers pass over it

    def _forget(self) -> None:
        """Gradients of decisions that no step of the plan has used."""
        for member in self.weights:
            member.status.pulled = None
        self._found.clear()

    def _warn_late(self) -> None:
        if not self._warned:
            self._warned = True
            warn("optimizer.step() was called again before plan.step(): call plan.step() after each optimizer.step()")

    # Gradients

    def pull(self, members: Sequence[RelaxedWeight], scaling: "Scaling | None" = None) -> None:
        """From ∂L/∂W in the tensors' gradients to ∂L/∂θ in the same place and ∂L/∂s in the decisions'."""
        for batch in self._chosen({id(member.tensor) for member in members}):
            self._pull_batch(batch, scaling)

    def _pull_batch(self, batch: Batch, scaling: "Scaling | None", swap: bool = False) -> bool:
        """As `pull`; with `swap`, θ may take the place of W on the way: returns whether it has."""
        if batch.fused is not None and scaling is None and self._pull_fused(batch, batch.fused, swap):
            return swap
        due = [
            tensor.grad is not None and not m.is_pulled for m, tensor in zip(batch.members, batch.tensors, strict=True)
        ]
        if not all(due):
            members = [member for member, one in zip(batch.members, due, strict=True) if one]
            if not members:
                return False
            batch = Batch(members)
        elif batch.fused is not None:
            batch = Batch(batch.members)
        targets = [tensor.grad for tensor in batch.tensors if tensor.grad is not None]
        parts = batch.parts()
        if len(parts) == 1:
            for place, found in self._pull_part(batch, targets, scaling):
                self._add_all(batch, place, found)
        else:
            self._pull_parts(batch, parts, targets, scaling)
        for member, tensor in zip(batch.members, batch.tensors, strict=True):
            member.status.pulled = tensor.grad
        return False

    def _pull_parts(
        self, batch: Batch, parts: Sequence[Batch], targets: Sequence[Tensor], scaling: "Scaling | None"
    ) -> None:
        """Of one large weight: the gradients of its decisions are put together from those of its parts."""
        together: dict[int, Tensor] = {}
        for part in parts:
            for place, (found,) in self._pull_part(part, part.read(targets), scaling):
                if place not in together:
                    (grid,) = batch.grids()[place]
                    together[place] = torch.empty_like(grid, dtype=torch.float32)
                together[place][part.rows].copy_(found)
        for place, gradient in together.items():
            self._add_all(batch, place, [gradient])

    def _pull_part(
        self, batch: Batch, targets: Sequence[Tensor], scaling: "Scaling | None"
    ) -> list[tuple[int, list[Tensor]]]:
        """∂L/∂θ in place of ∂L/∂W; returns ∂L/∂s of each relaxation whose decisions are trained, by its place."""
        decided = []
        given = gradients = batch.blanked(batch.read(targets))
        values, outputs, grids = batch.values(len(batch.places) - 1), batch.read(batch.tensors), batch.grids()
        for place in reversed(range(len(batch.places))):
            own = batch.places[place]
            decide = own[0].kind in self.decided and not own[0].hard
            gradients, found = type(own[0]).pull_all(own, grids[place], values[place], outputs, gradients, decide)
            outputs = values[place]
            if found is not None:
                decided.append((place, found if scaling is None else [scaling.undone(one) for one in found]))
        if not batch.is_flat:
            changed = [pair for pair in zip(targets, gradients, strict=True) if pair[0] is not pair[1]]
            store([target for target, _ in changed], [gradient for _, gradient in changed])
        elif gradients[0] is not given[0]:
            store(targets, batch.apart(gradients))
        return decided

    def _pull_fused(self, batch: Batch, fused: FusedBatch, swap: bool) -> bool:
        """By the kernels, unless some gradients are pulled already, are to be added to others, or lie in another order."""
        gradients = [tensor.grad for tensor in batch.tensors]
        if any(status.pulled is not None for status in batch.statuses) or not fused.takes(gradients):
            return False
        if self._found and any(id(decision) in self._found for own in batch.decisions for decision in own):
            return False
        decide = [own[0].kind in self.decided and not own[0].hard for own in batch.places]
        for decisions, found in zip(batch.decisions, fused.pull(gradients, decide, swap), strict=True):
            for decision, gradient in zip(decisions, found or (), strict=False):
                self._add(decision, gradient)
        for status, own in zip(batch.statuses, gradients, strict=True):
            status.pulled = own
        return True

    def _add_all(self, batch: Batch, place: int, found: list[Tensor]) -> None:
        decisions = batch.decisions[place]
        if not batch.is_flat:
            for decision, gradient in zip(decisions, found, strict=False):
                self._add(decision, laid_like(gradient, decision))
            return
        for decision, gradient in zip(decisions, unflatten(found[0], decisions), strict=True):
            self._add(decision, gradient)

    def _add(self, decision: nn.Parameter, gradient: Tensor) -> None:
        _, before = self._found.get(id(decision), (decision, None))  # of another weight with this decision
        self._found[id(decision)] = decision, gradient if before is None else before + gradient

    # The step of the plan

    def collect(self, skip: bool, scaling: "Scaling | None", is_hard: bool) -> None:
        """Before the decisions' update: gradients of weights that no optimizer has stepped, and θ after its step.

        Args:
            skip: gradients have overflown, and are not used.
            scaling: of a gradient scaler, for weights that no optimizer holds.
            is_hard: decisions are rounded, so that W is not written at this step.
        """
        for batch in self.batches():
            stepped = [status.holds_latent for status in batch.statuses]
            if not all(stepped) and not skip:
                self._pull_rest(
                    [member for member, one in zip(batch.members, stepped, strict=True) if not one], scaling
                )
            if all(stepped) and batch.fused is not None and not is_hard:
                for status in batch.statuses:  # the kernel that writes W reads θ from there
                    status.is_deferred = True
            elif any(stepped):
                self._keep_latent(batch)
        self._trained = [decision for decision, _ in self._found.values()]
        for decision, gradient in self._found.values():
            decision.grad = gradient
        self._forget()

    def keep_gradients(self) -> bool:
        """Move the gradients of the decisions to where they are at every step, for a recording; not if they are too large to keep."""
        found = [one for one in self._trained if one.grad is not None]
        if not found or sum(one.numel() for one in found) > _SMALL:
            return False
        for one in found:
            if id(one) not in self._kept:
                self._kept[id(one)] = torch.empty_like(one, memory_format=torch.preserve_format)
        kept = [self._kept[id(one)] for one in found]
        torch._foreach_copy_(kept, [one.grad for one in found if one.grad is not None])
        for one, gradient in zip(found, kept, strict=True):
            one.grad = gradient
        return True

    def _pull_rest(self, members: Sequence[RelaxedWeight], scaling: "Scaling | None") -> None:
        """Of weights that no optimizer has stepped; their own gradients stay what they are until one uses them."""
        members = [member for member in members if member.tensor.grad is not None]
        kept = [None if member.frozen or member.is_pulled else _copy_of(member) for member in members]
        self.pull(members, scaling)
        for member, gradient in zip(members, kept, strict=True):
            if member.frozen or gradient is not None:
                member.tensor.grad = gradient

    @contextmanager
    def sample(self) -> Iterator[None]:
        """One of several forward and backward passes of a step, with W of its own: gradients add up over them."""
        if not any(member.is_pulled for member in self.weights):
            self._forget()
        before = [member.tensor.grad for member in self.weights]
        for member in self.weights:
            member.tensor.grad = None
        self.write()
        yield
        with torch.no_grad(), _exactly(self.weights):
            self.pull(self.weights)
            for member, gradient in zip(self.weights, before, strict=True):
                if gradient is not None:
                    own = member.tensor.grad
                    member.tensor.grad = gradient if own is None else gradient.add_(own)
                member.mark_pulled()

    def settle(self) -> None:
        """W in place of θ, for whoever reads the network between the optimizer's step and the plan's."""
        with torch.no_grad():
            for batch in self.batches():
                if batch.holds_latent:
                    self._keep_latent(batch)
                    batch.write()

    def take_loaded(self) -> None:
        """A state was loaded, θ into the layers' tensors: W takes its place."""
        self.invalidate()
        self._forget()
        for member in self.weights:
            member.status.holds_latent = False
        self.write()

    def _keep_latent(self, batch: Batch) -> None:
        """Take the optimizer's result for θ."""
        pairs = zip(batch.statuses, batch.latents, batch.tensors, strict=True)
        stepped = [(latent, tensor) for status, latent, tensor in pairs if status.holds_latent]
        with torch.no_grad():
            if len(stepped) == len(batch.latents) and not batch.is_sharded:
                torch._foreach_copy_([*batch.latents], [*batch.tensors])
            elif batch.is_sharded:
                store([local(latent) for latent, _ in stepped], [local(tensor.detach()) for _, tensor in stepped])
            else:
                store([latent for latent, _ in stepped], [tensor for _, tensor in stepped])
        for status in batch.statuses:
            status.is_deferred = False

    @property
    def is_fused(self) -> bool:
        """Whether kernels compute all weights, always in the same memory, on one GPU."""
        batches = self.known_batches()
        devices = {batch.latents[0].device for batch in batches}
        return len(devices) == 1 and all(batch.fused is not None for batch in batches)

    @property
    def is_deferred(self) -> bool:
        """Whether θ of all weights is in the layers' tensors alone."""
        return all(status.is_deferred for batch in self.known_batches() for status in batch.statuses)

    def note_written(self) -> None:
        """W was written, by a recording perhaps."""
        for batch in self.known_batches():
            batch.note_written()

    @torch.no_grad()
    def write(self, clip: bool = False) -> None:
        """W of all weights; if `clip`, θ is kept within the limits of its relaxations first, in place."""
        for batch in self.batches():
            batch.write(clip)


def _copy_of(member: RelaxedWeight) -> Tensor | None:
    gradient = member.tensor.grad
    return None if gradient is None else gradient.clone()


def laid_like(gradient: Tensor, decision: nn.Parameter) -> Tensor:
    """A gradient on a decision's grid, whole or this rank's part, laid out as the decision is."""
    gradient = gradient.to(torch.float32)
    if not is_sharded(decision):
        return gradient.reshape(decision.shape)
    return gradient if is_sharded(gradient) else _sharded_as(gradient, decision)


def _sharded_as(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, or this rank's part of one, as a part of a sharded one."""
    if value.numel() == like.numel():
        return shard_like(value.reshape(like.shape), like)
    from torch.distributed.tensor import DTensor

    sharded: Any = like
    return DTensor.from_local(
        value, sharded.device_mesh, sharded.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _exactly(members: Sequence[RelaxedWeight]) -> torch.autocast:
    """Gradients are not computed in the precision of a loop's autocast."""
    device = members[0].latent.device.type if members else "cpu"
    return torch.autocast(device, enabled=False)


def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _engines or getattr(optimizer, OF_DECISIONS, False):
        return None
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    given = args[1] if len(args) > 1 else kwargs.get("closure")
    closure = given if callable(given) else None
    wrapped = closure
    scale = getattr(optimizer, "grad_scale", None)  # of fused optimizers, which divide by it themselves
    scaling = None if scale is None else Scaling(scale, getattr(optimizer, "found_inf", None))
    for engine in list(_engines):
        try:
            wrapped = engine.before_step(held, wrapped, scaling)
        except (RuntimeError, ConfigError):
            if not engine.is_resized(held):
                raise
    if wrapped is closure:
        return None
    if len(args) > 1:
        return (args[0], wrapped, *args[2:]), kwargs
    return args, {**kwargs, "closure": wrapped}


def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if getattr(optimizer, OF_DECISIONS, False):
        return
    for engine in list(_engines):
        engine.after_step()
