"""Weights on the formats of a runtime, rounded by second order and trained straight through; what `runtime=` of `shrink` trains.

    W = Δ clip(round(θ/Δ)),   Δ = cast(Δ₀ exp(κ y)),   ∂L/∂θ = ∂L/∂W within the codes' range,   ∂L/∂y = κ Σ ∂L/∂W ⊙ (W − 1{inside} θ)

Post-training takes the steps of least squared error and makes up for the error of each column by the columns to come, as GPTQ does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.formats import FORMATS, WeightFormat
from paretorch.core.groups import Grouping, grouping
from paretorch.deploy.runtimes import restrict
from paretorch.methods.precision.smol import SMOL
from paretorch.workflows.posttraining.calibration import collect, execution_order, stages
from paretorch.workflows.posttraining.layers import Layer, find_layers
from paretorch.workflows.posttraining.solver import factorize, identity, round_matrix
from paretorch.workflows.shrink.objective import Batches

_DAMPING = 0.01
_STAGES = 12
_GROWTH = 1 / 6  # of a step, for what an optimizer moves a latent by a step
_INSIDE = 0.02  # of a step, that latents keep from the ends of their code
_WITHIN = 0.5  # how far latents go from their code to the dense weight
_LEAST = 1e-30


def formats_for(model: nn.Module, runtime: str) -> dict[str, WeightFormat]:
    """Return the format of each weight by name; warns of layers that the runtime has no codes for."""
    (method,) = restrict(model, (SMOL(),), runtime)
    return {name: FORMATS[options["format"]] for name, options in method.overrides.items()}


@torch.no_grad()
def round_to_formats(
    model: nn.Module, forms: Mapping[str, WeightFormat], batches: Batches, tell: Any
) -> dict[str, Tensor]:
    """Round the weights of a network in place, layer by layer; returns the steps of each by name."""
    layers = [layer for layer in find_layers(model) if layer.name in forms]
    ordered, once = execution_order(model, batches.calibration[0], layers)
    steps: dict[str, Tensor] = {}
    for stage in stages(ordered, _STAGES):
        moments = collect(model, batches.calibration, stage, once)
        for layer in stage:
            found = moments.pop(layer, None)
            form = forms[layer.name]
            own = _groups(layer, form)
            steps[layer.name] = form.fit(layer.weight, own)
            layer.weight.copy_(
                _rounded(layer, form, own.expand(steps[layer.name]), None if found is None else found.hessian)
            )
            tell("rounding", len(steps), len(ordered))
    return steps


def _groups(layer: Layer, form: WeightFormat) -> Grouping:
    site = layer.site
    return grouping(form.group(site), layer.name, layer.weight, site.channel_axis)


def _rounded(layer: Layer, form: WeightFormat, steps: Tensor, hessian: Tensor | None) -> Tensor:
    nearest = form.values(layer.weight, steps)
    if hessian is None or form.is_half:
        return nearest
    matrix, spread = layer.matrix(), layer.matrix(steps.expand_as(layer.weight))
    curvature = factorize(hessian, _DAMPING)
    codes = round_matrix(matrix, curvature, spread, 0.0, limits=(form.low, form.high))
    if not bool(codes.isfinite().all()):
        codes = round_matrix(matrix, identity(matrix), spread, 0.0, limits=(form.low, form.high))
    # The product again in the weight's own shape: the very values that the codes and steps give.
    return layer.tensor(codes) * steps


@dataclass(eq=False)
class _FormattedWeight:
    """One weight of the student.

    Args:
        weight: What the network computes with.
        latent: θ.
        base: Δ₀, on the grid of the groups.
        growth: y; None if there are no steps.
    """

    weight: nn.Parameter
    latent: nn.Parameter
    form: WeightFormat
    groups: Grouping
    base: Tensor
    growth: nn.Parameter | None

    @property
    def kappa(self) -> float:
        return _GROWTH / max(float(self.base.abs().mean()), _LEAST)

    @property
    def grid(self) -> Tensor:
        if self.growth is None:
            return self.base
        return self.form.cast(self.base * torch.exp(self.kappa * self.growth.detach()))

    @property
    def steps(self) -> Tensor:
        """|Δ| in a shape that broadcasts with the weight."""
        return self.groups.expand(self.grid).abs()

    def parameters(self) -> list[nn.Parameter]:
        return [self.latent] if self.growth is None else [self.latent, self.growth]

    def pull(self) -> None:
        gradient = self.weight.grad
        if gradient is None:
            return
        inside = self.form.reaches(self.latent.detach(), self.groups.expand(self.grid))
        self.latent.grad = gradient * inside
        if self.growth is not None:
            moved = gradient * (self.weight.detach() - self.latent.detach() * inside)
            self.growth.grad = self.kappa * self.groups.reduce(moved)
        self.weight.grad = None

    @torch.no_grad()
    def write(self) -> None:
        self.weight.copy_(self.form.values(self.latent.detach(), self.groups.expand(self.grid)).add_(0.0))


class FormattedWeights:
    """All weights of a student on their formats, as `Tuner` trains them. Their bytes do not change.

    Args:
        student: The rounded network.
        dense: The network that it was rounded from.
        steps: Of each weight, on its groups.
        size: Bytes of the student's file.
    """

    mu = 0.0  # the file has no price

    def __init__(
        self,
        student: nn.Module,
        dense: nn.Module,
        forms: Mapping[str, WeightFormat],
        steps: Mapping[str, Tensor],
        size: int,
    ) -> None:
        ours, theirs = {one.name: one for one in find_layers(student)}, dict(dense.named_parameters())
        self.weights = {name: _formatted(ours[name], theirs[name], forms[name], step) for name, step in steps.items()}
        own = {id(one.weight) for one in self.weights.values()}
        self.others = [p for p in student.parameters() if id(p) not in own and p.is_floating_point()]
        self._size = size

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer trains."""
        return [p for one in self.weights.values() for p in one.parameters()] + self.others

    def write(self) -> None:
        """Put the values into the network."""
        for one in self.weights.values():
            one.write()

    def pull(self) -> None:
        """Hand the gradients of the weights to the latents and steps."""
        for one in self.weights.values():
            one.pull()

    def expected(self) -> float:
        """Return the bytes of the file."""
        return self._size

    def learn_size(self, size: int) -> None:
        """Nothing is to be learned: the runtime's files have as many bytes whatever the codes are."""

    @torch.no_grad()
    def zeros_and_bits(self) -> tuple[float, float]:
        """Return the share of zeros and the mean bits of all weights."""
        every: Iterable[_FormattedWeight] = self.weights.values()
        count = sum(one.weight.numel() for one in every)
        zeros = sum(int((one.weight == 0).sum()) for one in every)
        return zeros / max(count, 1), sum(one.form.bits * one.weight.numel() for one in every) / max(count, 1)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"values": [p.detach() for p in self.parameters()]}

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint, or of `copy_state`."""
        for p, value in zip(self.parameters(), state["values"], strict=True):
            p.copy_(value)
        self.write()

    def copy_state(self) -> dict[str, Any]:
        """Return the state in memory of its own, to come back to."""
        return {"values": [value.clone() for value in self.state()["values"]]}


@torch.no_grad()
def _formatted(layer: Layer, dense: Tensor, form: WeightFormat, step: Tensor) -> _FormattedWeight:
    """Return a weight whose latents give its codes, and lie towards the dense weights within them."""
    groups, weight = _groups(layer, form), layer.weight
    step = step.to(weight.device, torch.float32)
    if form.is_half:
        return _FormattedWeight(weight, nn.Parameter(dense.detach().float().clone()), form, groups, step, None)
    spread = groups.expand(step)
    codes = (weight.detach().float() / spread).round()
    reach = 0.5 - _INSIDE
    wanted = torch.minimum(torch.maximum(dense.detach().float() / spread, codes - reach), codes + reach)
    latent = nn.Parameter(((codes + _WITHIN * (wanted - codes)) * spread).contiguous())
    return _FormattedWeight(weight, latent, form, groups, step, nn.Parameter(torch.zeros_like(step)))
