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

from paretorch.core.attach.weights import RelaxedWeight, batches, store, values_of, write_weights
from paretorch.support.sharded import is_sharded, local, reshard, shard_like
from paretorch.support.warn import warn

_MARK = "_paretorch_closure"
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
        decided: the rooms whose decisions are trained.
    """

    def __init__(self, root: nn.Module, weights: Sequence[RelaxedWeight], decided: frozenset[str]) -> None:
        self.root, self.weights, self.decided = root, list(weights), decided
        self._stepping = False
        self._warned = False
        # ∂L/∂s until the plan's step: in the decisions themselves, an optimizer of all parameters would use them.
        self._found: dict[int, tuple[nn.Parameter, Tensor]] = {}
        self._register()

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

    # The step of the user's optimizer

    def before_step(self, held: set[int], closure: Callable[[], Any] | None, scaling: "Scaling | None") -> Any:
        """θ in place of W for those of the weights that an optimizer holds; returns a closure that runs with W."""
        self.follow_sharding()
        members = [member for member in self.weights if id(member.tensor) in held]
        if not members:
            return closure
        if closure is None:
            self._to_latent(members, scaling)
            self._stepping = True
            return None
        if hasattr(closure, _MARK):  # a step that calls that of its base class
            return closure

        def with_weights() -> Any:
            again = [member for member in members if member.holds_latent]
            if again:  # an optimizer that calls its closure several times
                self.keep_latent(again)
                write_weights(again)
                self._forget()
            result = closure()
            self._to_latent(members, scaling)
            return result

        setattr(with_weights, _MARK, True)
        return with_weights

    def after_step(self) -> None:
        """The optimizer is done; once decisions are rounded, W follows at once."""
        self._stepping = False
        stepped = [member for member in self.weights if member.holds_latent]
        if stepped and all(relaxation.hard for relaxation in stepped[0].relaxations()):
            with torch.no_grad(), _exactly(stepped):
                self.keep_latent(stepped)
                self.clip(stepped)
                write_weights(stepped)

    def _to_latent(self, members: Sequence[RelaxedWeight], scaling: "Scaling | None") -> None:
        late = [member for member in members if member.holds_latent]
        if late and not self._stepping:
            self.keep_latent(late)
            self._warn_late()
        if not self._stepping and not any(one.is_pulled or one.holds_latent for one in self.weights):
            self._forget()
        fresh = [member for member in members if not member.holds_latent]
        with torch.no_grad(), _exactly(fresh):
            self.pull([member for member in fresh if not member.is_pulled], scaling)
            store([local(member.tensor) for member in fresh], [local(member.latent) for member in fresh])
        for member in fresh:
            member.holds_latent = True
            if member.frozen:
                member.tensor.grad = None  # optimizers pass over it

    def _forget(self) -> None:
        """Gradients of decisions that no step of the plan has used."""
        for member in self.weights:
            member.is_pulled = False
        self._found.clear()

    def _warn_late(self) -> None:
        if not self._warned:
            self._warned = True
            warn("optimizer.step() was called again before plan.step(): call plan.step() after each optimizer.step()")

    # Gradients

    def pull(self, members: Sequence[RelaxedWeight], scaling: "Scaling | None" = None) -> None:
        """From ∂L/∂W in the tensors' gradients to ∂L/∂θ in the same place and ∂L/∂s in the decisions'."""
        for batch in batches([member for member in members if member.tensor.grad is not None]):
            self._pull_batch(batch, scaling)
        for member in members:
            member.is_pulled = True

    def _pull_batch(self, batch: Sequence[RelaxedWeight], scaling: "Scaling | None") -> None:
        chain = batch[0].relaxations()
        values = values_of(batch, len(chain) - 1)
        outputs = [member.read(member.tensor) for member in batch]
        targets = [_gradient(member) for member in batch]
        gradients = [member.blanked(member.read(target)) for member, target in zip(batch, targets, strict=True)]
        grids = [member.decisions() for member in batch]
        for place in reversed(range(len(chain))):
            own = [member.relaxations()[place] for member in batch]
            kind, decide = type(chain[place]), chain[place].room in self.decided and not chain[place].hard
            gradients, found = kind.pull_all(
                own, [grid[place] for grid in grids], values[place], outputs, gradients, decide
            )
            outputs = values[place]
            for relaxation, gradient in zip(own, found or (), strict=False):
                self._add(relaxation.decision, gradient if scaling is None else scaling.undone(gradient))
        changed = [pair for pair in zip(targets, gradients, strict=True) if pair[0] is not pair[1]]
        if changed:
            store([target for target, _ in changed], [gradient for _, gradient in changed])

    def _add(self, decision: nn.Parameter, gradient: Tensor) -> None:
        gradient = laid_like(gradient, decision)
        _, before = self._found.get(id(decision), (decision, None))
        self._found[id(decision)] = decision, gradient if before is None else before + gradient

    def gradient_of(self, decision: nn.Parameter) -> Tensor | None:
        """∂L/∂s since the last step of the plan."""
        return self._found.get(id(decision), (decision, None))[1]

    # The step of the plan

    def collect(self, skip: bool, scaling: "Scaling | None") -> None:
        """Before the decisions' update: gradients of weights that no optimizer has stepped, and θ after its step.

        Args:
            skip: gradients have overflown, and are not used.
            scaling: of a gradient scaler, for weights that no optimizer holds.
        """
        self.follow_sharding()
        stepped = [member for member in self.weights if member.holds_latent]
        rest = [member for member in self.weights if not member.is_pulled]
        if not skip:
            kept = {id(member): _copy_of(member) for member in rest if not member.frozen}
            self.pull(rest, scaling)
            for member in rest:  # the user's gradients stay what they are until an optimizer uses them
                if id(member) in kept:
                    member.tensor.grad = kept[id(member)]
        for member in rest:
            if member.frozen:
                member.tensor.grad = None
        self.keep_latent(stepped)
        for decision, gradient in self._found.values():
            decision.grad = gradient
        self._forget()

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
                member.is_pulled = True

    def settle(self) -> None:
        """W in place of θ, for whoever reads the network between the optimizer's step and the plan's."""
        self.follow_sharding()
        stepped = [member for member in self.weights if member.holds_latent]
        self.keep_latent(stepped)
        write_weights(stepped)

    def take_loaded(self) -> None:
        """A state was loaded, θ into the layers' tensors: W takes its place."""
        for member in self.weights:
            member.is_pulled = member.holds_latent = False
        self.write()

    def keep_latent(self, members: Sequence[RelaxedWeight]) -> None:
        """Take the optimizer's result for θ."""
        if members:
            store([local(member.latent) for member in members], [local(member.tensor.detach()) for member in members])

    def clip(self, members: Sequence[RelaxedWeight] | None = None) -> None:
        """Keep θ within the limits of its relaxations, in place."""
        for batch in batches(self.weights if members is None else members):
            grids = [member.decisions() for member in batch]
            for place, first in enumerate(batch[0].relaxations()):
                own = [member.relaxations()[place] for member in batch]
                bounds = type(first).limit_all(own, [grid[place] for grid in grids])
                if bounds is not None:
                    _clamp(batch, bounds)

    def write(self) -> None:
        """W of all weights."""
        write_weights(self.weights)

    def follow_sharding(self) -> None:
        """θ and the decisions lie as the layers' tensors do, which FSDP2 may have sharded."""
        if any(is_sharded(member.latent) and not is_sharded(member.tensor) for member in self.weights):
            reshard(self.root)  # gathered for a forward pass without a backward pass
        for member in self.weights:
            member.follow_sharding()


def _gradient(member: RelaxedWeight) -> Tensor:
    gradient = member.tensor.grad
    assert gradient is not None
    return gradient


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


def _clamp(batch: Sequence[RelaxedWeight], bounds: Sequence[Tensor]) -> None:
    if not batch[0].is_local:
        for member, bound in zip(batch, bounds, strict=True):
            part = local(shard_like(bound.expand(member.latent.shape).to(member.latent.dtype), member.latent))
            local(member.latent.data).clamp_(-part, part)
        return
    latents = [local(member.latent.data) for member in batch]
    limits = [bound.to(latent.dtype) for bound, latent in zip(bounds, latents, strict=True)]
    torch._foreach_clamp_max_(latents, limits)
    torch._foreach_clamp_min_(latents, torch._foreach_neg(limits))


def _exactly(members: Sequence[RelaxedWeight]) -> torch.autocast:
    """Gradients are not computed in the precision of a loop's autocast."""
    device = members[0].latent.device.type if members else "cpu"
    return torch.autocast(device, enabled=False)


def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _engines:
        return None
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    given = args[1] if len(args) > 1 else kwargs.get("closure")
    closure = given if callable(given) else None
    wrapped = closure
    scale = getattr(optimizer, "grad_scale", None)  # of fused optimizers, which divide by it themselves
    scaling = None if scale is None else Scaling(scale, getattr(optimizer, "found_inf", None))
    for engine in list(_engines):
        wrapped = engine.before_step(held, wrapped, scaling)
    if wrapped is closure:
        return None
    if len(args) > 1:
        return (args[0], wrapped, *args[2:]), kwargs
    return args, {**kwargs, "closure": wrapped}


def _after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for engine in list(_engines):
        if any(member.holds_latent for member in engine.weights):
            engine.after_step()
