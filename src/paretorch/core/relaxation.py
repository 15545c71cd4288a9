"""One decision on one weight: the piece of a method that sits in the network while it trains.

A relaxation is an `nn.Module` f(weight, decision). While `hard` is False the decision is continuous and trained;
afterwards it is read as rounded. Its state is fp32 and keeps its keys through all phases.
"""

import copy
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.forms import Form
from paretorch.core.groups import Grouping
from paretorch.support.arithmetic import block_size, row_blocks
from paretorch.support.sharded import gather, is_sharded, whole

PREFIX = "paretorch_"


def scalars_of(root: nn.Module, kind: str) -> Tensor:
    """A kind's schedule values (temperature, price …): fp32, kept as int32 bits so that `.half()` leaves them alone."""
    buffer: Tensor = getattr(root, f"{PREFIX}{kind}")
    return buffer.view(torch.float32)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of the tensors, end to end."""
    flat: Tensor = torch._C._nn.flatten_dense_tensors(list(tensors))
    return flat.detach()


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat tensor as views that have the shapes of these tensors."""
    return list(torch._C._nn.unflatten_dense_tensors(flat, list(like)))


class Relaxation(nn.Module):
    """W = f(w, s). Subclasses give `forward`, and what the plan needs to price, clip and round the decision."""

    kind: ClassVar[str]
    s: nn.Parameter | None

    def __init__(self, grouping: Grouping, start: float, device: torch.device) -> None:
        super().__init__()
        self.grouping = grouping.to(device)
        self.s = nn.Parameter(torch.full(grouping.grid, start, dtype=torch.float32, device=device))
        self.hard = False
        self._root: tuple[nn.Module, ...] = ()
        self._shared = ""

    def bind(self, root: nn.Module, shared: str = "") -> None:
        """Tell where the plan's scalars live, and the name of a decision that several weights share."""
        self._root, self._shared = (root,), shared
        if shared:
            self.s = None

    def adopt(self, options: Any) -> None:
        """Take the options of the method with which a loaded state was begun."""

    def match_layout(self, weight: Tensor) -> None:
        """Lay a decision per weight out in memory as the weight is (channels_last, say), so that both are read in one go."""
        if self.s is not None and self.s.shape == weight.shape:
            self.s.data = torch.empty_like(weight, dtype=torch.float32).copy_(self.s.data)

    @property
    def decision(self) -> nn.Parameter:
        """The trained variable, on this weight's grid or shared by name."""
        own = self._parameters["s"]  # not by attribute, which a module looks for in several places
        if own is not None:
            return own
        shared: nn.Parameter = getattr(self._root[0], self._shared)
        return shared

    def grid(self, decision: Tensor | None = None) -> Tensor:
        """The decision (or values of its shape), whole, laid out on this weight's grid."""
        value = self.decision if decision is None else decision
        return gather(value).view(self.grouping.grid)  # still sharded outside of a forward pass

    def scalar(self, index: int) -> Tensor:
        """One of the kind's schedule values, a 0-dim tensor on the device."""
        return scalars_of(self._root[0], self.kind)[index]

    @property
    def step(self) -> Tensor:
        counter: Tensor = getattr(self._root[0], f"{PREFIX}step")
        return counter

    def of_rows(self, part: slice) -> Self | None:
        """The same relaxation of some rows of the weight, on views of its tensors; None: it is computed whole only."""
        return None

    def _of_rows(self, part: slice, *buffers: str) -> Self | None:
        """`of_rows`, where these buffers are on the grid or of the weight's shape, and no others are."""
        own, grouping = self._parameters["s"], self.grouping.of_rows(part)
        if own is None or grouping is None or is_sharded(own):
            return None
        found = copy.copy(self)
        s = nn.Parameter(own.detach()[part], requires_grad=False)
        views: dict[str, Tensor | None] = {name: getattr(self, name)[part] for name in buffers}
        found.__dict__["_parameters"] = {**self._parameters, "s": s}
        found.__dict__["_modules"] = {**self._modules, "grouping": grouping}
        found.__dict__["_buffers"] = {**self._buffers, **views}
        return found

    # Many weights at once. These are what the engine calls; by default each weight is computed on its own.

    differs_in_eval: ClassVar[bool] = False
    """Whether W is another one in training (noise, say) than in evaluation."""

    def batch_key(self) -> Hashable:
        """What must be equal for weights to be computed together."""
        return (self.hard, self.training)

    @property
    def is_flat(self) -> bool:
        """Whether `…_all` also take all weights of a batch, end to end, as one flat tensor, and their decisions as another."""
        return False

    @property
    def can_fuse(self) -> bool:
        """Whether `form` says how the kernels for GPUs compute this relaxation."""
        return False

    @classmethod
    def form(cls, members: Sequence[Self]) -> Form:
        """How the kernels for GPUs compute several weights."""
        raise AssertionError("can_fuse says that there is none")

    @property
    def is_elementwise(self) -> bool:
        """Whether a part of W follows from the same part of θ and of the decision."""
        return False

    @classmethod
    def apply_all(cls, members: Sequence[Self], grids: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """f(w, s) of several weights; grids: their decisions."""
        return [one(weight) for one, weight in zip(members, weights, strict=True)]

    @classmethod
    def pull_all(
        cls,
        members: Sequence[Self],
        grids: Sequence[Tensor],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        decide: bool,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """From ∂L/∂W to ∂L/∂w and, if `decide`, ∂L/∂s on the grids; by default through autograd."""
        pulled = [
            one._pull(weight, gradient, decide)
            for one, weight, gradient in zip(members, inputs, gradients, strict=True)
        ]
        decisions = [gradient for _, gradient in pulled if gradient is not None]
        return [gradient for gradient, _ in pulled], decisions if decide else None

    def _pull(self, weight: Tensor, gradient: Tensor, decide: bool) -> tuple[Tensor, Tensor | None]:
        leaf, decision = weight.detach().requires_grad_(), self.decision
        trained = decision.requires_grad
        decision.requires_grad_(decide)
        try:
            with torch.enable_grad():
                value = self(leaf)
            wanted = [leaf, decision] if decide else [leaf]
            found = torch.autograd.grad(value, wanted, gradient.to(value.dtype), allow_unused=True)
        finally:
            decision.requires_grad_(trained)
        own = torch.zeros_like(weight) if found[0] is None else found[0]
        if not decide:
            return own, None
        return own, self.grid(torch.zeros_like(decision) if found[1] is None else found[1])

    @classmethod
    def limit_all(cls, members: Sequence[Self], grids: Sequence[Tensor]) -> list[Tensor] | None:
        """The largest |w| allowed for each of several weights; None: any."""
        found = [bound for one, s in zip(members, grids, strict=True) if (bound := one.limit(s)) is not None]
        return found or None

    @classmethod
    def keep_all(cls, members: Sequence[Self], grids: Sequence[Tensor]) -> list[Tensor] | None:
        """`keep` of several weights."""
        found = [kept for one, s in zip(members, grids, strict=True) if (kept := one.keep(s)) is not None]
        return found or None

    @classmethod
    def bits_all(cls, members: Sequence[Self], grids: Sequence[Tensor]) -> list[Tensor] | None:
        """`bits` of several weights."""
        found = [bits for one, s in zip(members, grids, strict=True) if (bits := one.bits(s)) is not None]
        return found or None

    @classmethod
    def slopes_all(cls, members: Sequence[Self], grids: Sequence[Tensor]) -> list[Tensor]:
        """`price_slope` of several weights."""
        return [one.price_slope(s) for one, s in zip(members, grids, strict=True)]

    # What the plan asks of a relaxation; `s` is the whole decision on this weight's grid.

    def keep(self, s: Tensor) -> Tensor | None:
        """How much of each weight is kept, 0 to 1, expanded to the weight; None: all of it."""
        return None

    def threshold(self) -> Tensor | None:
        """The s below which a weight is dropped when rounded; None: this relaxation drops nothing by s."""
        return None

    def survives(self, s: Tensor) -> Tensor | None:
        """Which weights would be kept if rounded now, as 0 and 1, expanded to the weight; None: all of them."""
        return None

    def bits(self, s: Tensor) -> Tensor | None:
        """Bits of each weight, expanded to the weight; None: this relaxation decides no bits."""
        return None

    def price_slope(self, s: Tensor) -> Tensor:
        """d(price of one weight)/ds on the grid, where the price is `keep` or `bits`."""
        return torch.zeros_like(s)

    def limit(self, s: Tensor) -> Tensor | None:
        """The largest |w| allowed, broadcastable to the weight; None: any."""
        return None

    def trained(self) -> list[tuple[nn.Parameter, float]]:
        """Parameters beside the decision, which the user's optimizer trains, each with a weight decay of its own."""
        return []

    def scale_exponent(self) -> int | None:
        """k where the values are a grid times 2^k, or None where there is no grid."""
        return None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move with the model, but stay fp32 when the model changes its dtype."""
        slots: list[dict[str, Tensor | None]] = [self._parameters, self._buffers]  # type: ignore[list-item]
        before = [
            (slot, name, t.data)
            for slot in slots
            for name, t in slot.items()
            if t is not None and t.dtype == torch.float32
        ]
        super()._apply(fn, recurse)
        for slot, name, data in before:
            tensor = slot[name]
            if tensor is not None and tensor.dtype != torch.float32:
                tensor.data = data.to(tensor.device)
        return self


class Chain(nn.Module):
    """All relaxations of one weight, innermost first; this is what is registered as its parametrization."""

    def __init__(self, relaxations: list[Relaxation]) -> None:
        super().__init__()
        for relaxation in relaxations:
            self.add_module(relaxation.kind, relaxation)
        self._held: tuple[Tensor, ...] = ()  # a tuple: a module would take a bare Parameter for its own
        self.blank: int | None = None
        """A row that stays zero, whatever the relaxations make of it: the padding of an embedding, say."""

    def relaxations(self) -> list[Relaxation]:
        return [module for module in self._modules.values() if isinstance(module, Relaxation)]

    def parts(self) -> list[tuple[slice, "Chain"]]:
        """The weight some rows at a time, on views of its tensors, so that what is computed on the way stays small.

        One part is the weight itself if it is small, or if a relaxation is computed whole only.
        """
        first = self.relaxations()[0]
        shape, most = first.grouping.shape, block_size(first.decision.device)
        alone: list[tuple[slice, Chain]] = [(slice(None), self)]
        if math.prod(shape) <= most or self.loses_inputs or len(cut := row_blocks(shape, most)) < 2:
            return alone
        found = []
        for part in cut:
            rows = [one for r in self.relaxations() if (one := r.of_rows(part)) is not None]
            if len(rows) < len(self.relaxations()):
                return alone
            chain = Chain(rows)
            if self.blank is not None and part.start <= self.blank < part.stop:
                chain.blank = self.blank - part.start
            found.append((part, chain))
        return found

    def parts_of(self, relaxation: Relaxation) -> list[tuple[slice, Relaxation, "Chain"]]:
        """`parts`, with what is this relaxation in each."""
        place = self.relaxations().index(relaxation)
        return [(rows, part.relaxations()[place], part) for rows, part in self.parts()]

    def read_from(self, inputs: nn.Module) -> None:
        """Tell which of the weights read a channel that stays: `inputs()`, as 0 and 1."""
        self.add_module("inputs", inputs)

    @property
    def loses_inputs(self) -> bool:
        """Whether some of the channels that these weights read may go."""
        return "inputs" in self._modules

    def open_inputs(self) -> Tensor | None:
        """1 for weights that read a channel that would stay if rounded now, else 0; None: all channels stay."""
        inputs = self._modules.get("inputs")
        return None if inputs is None else inputs()

    def keep(self, but: Relaxation | None = None) -> Tensor | None:
        """How much of each weight all relaxations (but one) keep together; None: all of it."""
        kept: Tensor | None = None
        for relaxation in self.relaxations():
            if relaxation is not but:
                one = relaxation.keep(relaxation.grid(whole(relaxation.decision)))
                kept = one if kept is None else kept if one is None else kept * one
        return kept

    def survives(self, but: Relaxation | None = None) -> Tensor | None:
        """1 for each weight that would be kept if all relaxations (but one) rounded now, else 0; None: all are.

        A weight that reads a channel that would be removed goes with it; what is left blank is none.
        """
        kept = self.open_inputs()
        if self.blank is not None:
            first = self.relaxations()[0]
            kept = ~self._blank(first.grouping.shape, first.decision.device) * (1.0 if kept is None else kept)
        for relaxation in self.relaxations():
            if relaxation is not but:
                one = relaxation.survives(relaxation.grid(whole(relaxation.decision)))
                kept = one if kept is None else kept if one is None else kept * one
        return kept

    def forward(self, weight: Tensor) -> Tensor:
        if self._held:
            return self._held[0]
        for relaxation in self.relaxations():
            weight = relaxation(weight)
        return self.blanked(weight)

    def blanked(self, weight: Tensor) -> Tensor:
        """The weight with zeros in the row that stays zero."""
        return weight if self.blank is None else weight.masked_fill(self._blank(weight.shape, weight.device), 0.0)

    def _blank(self, shape: Sequence[int], device: torch.device) -> Tensor:
        assert self.blank is not None
        rows = torch.arange(shape[0], device=device).eq(self.blank)
        return rows.view(-1, *(1,) * (len(shape) - 1))

    def hold(self, value: Tensor | None) -> None:
        """Answer with this value until released (None): for layers that read a weight many times in one forward."""
        self._held = () if value is None else (value,)
