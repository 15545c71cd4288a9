"""The decisions of a plan, read from the model's own modules: `0.paretorch_weight.precision.s` decides the bits of `0.weight`."""

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor, nn

from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.method import Method, Term
from paretorch.core.relaxation import PREFIX, Chain, Relaxation


def relaxed(model: nn.Module) -> dict[str, RelaxedWeight]:
    """θ and the relaxations behind each weight, by the name of the weight, in the order of the model."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, RelaxedWeight):
            owner, dot, attribute = path.rpartition(".")
            found[owner + dot + attribute.removeprefix(PREFIX)] = module
    return found


def relaxations(model: nn.Module, kind: str | None = None) -> list[Relaxation]:
    """The relaxations of all weights, activations and coefficients in the order of the model; of one kind, or of all."""
    chains = [module for module in model.modules() if isinstance(module, Chain)]
    found = [relaxation for chain in chains for relaxation in chain.relaxations()]
    return [relaxation for relaxation in found if kind in (None, relaxation.kind)]


def decisions(model: nn.Module, kind: str | None = None) -> list[nn.Parameter]:
    """Every decision once, though several weights may share it."""
    return list({id(one.decision): one.decision for one in relaxations(model, kind)}.values())


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [one.detach().clone() for one in tensors]


def bits(model: nn.Module) -> dict[str, Tensor]:
    """The bits of each weight if rounded now, masks aside, by the weight's name."""
    return {name: own.precision.bits(own.precision.grid().detach()) for name, own in relaxed(model).items()}


def largest_group(model: nn.Module, kind: str) -> float:
    """How many weights the largest group has that decides as one."""
    return max(float(torch.as_tensor(one.grouping.sizes).max()) for one in relaxations(model, kind))


def noting(method: Method) -> tuple[Method, list[Term]]:
    """The same method, and the term of each plan that calls its hooks."""
    terms: list[Term] = []

    class Noting(type(method)):  # type: ignore[misc]
        def schedule(self, term: Term, step: Tensor) -> None:
            if all(term is not one for one in terms):
                terms.append(term)
            super().schedule(term, step)

    return Noting(**{one.name: getattr(method, one.name) for one in fields(method) if one.init}), terms


class _Seeing(torch.optim.SGD):
    seen: list[Tensor]

    def step(self, closure: None = None) -> None:
        own = [one for group in self.param_groups for one in group["params"]]
        self.seen = [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in own]
        super().step(closure)


class Gradients:
    """As `optimizer=` of a method: SGD that keeps the gradients which `plan.step` gave to the decisions at its last step.

    They include the price, so a method without a penalty shows what came from the loss.

    Args:
        lr: of the decisions; by default they stay as they are.
    """

    def __init__(self, lr: float = 0.0) -> None:
        self.lr = lr

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        self._optimizer = _Seeing(parameters, lr=self.lr)
        return self._optimizer

    @property
    def found(self) -> list[Tensor]:
        return self._optimizer.seen
