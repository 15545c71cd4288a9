"""Decisions of a trained network: s is the logarithm of each weight's running saliency.

    q = |θ ∂L/∂θ| + δ · mean |θ ∂L/∂θ| · |θ| / mean |θ|,   eˢ ← (1 − ρ) eˢ + ρ q / mean q,   ρ = max(1/t, 10/steps)

|θ ∂L/∂θ| is how much the loss changes, to first order, if the weight is dropped. A mask σ(β(s + τ)) = vᵝ / (vᵝ + e⁻ᵝᵗ) then compares the running
saliency v = eˢ with a threshold. Nothing here depends on the scale of the loss, the size of the network, the parametrisation of a layer (batch norm
cancels its scale) or the number of steps. The second part of q, in which means are those of the layer, ranks weights that the data never reaches
(rows of an embedding, say) by their magnitude; it is also where s starts from. For a group of weights θ ∂L/∂θ is summed within the group.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.support.arithmetic import block_size, blocks, exact, row_blocks
from paretorch.support.sharded import gather, is_sharded, local

_UNSEEN = 0.05  # δ
_WINDOW = 0.1  # of the steps, that the running saliency looks back
_LEAST = 1e-7  # of the mean: s stays above -17
_TAILS = 3.1  # kurtosis: a normal distribution has 3, a uniform one 1.8, trained weights have more
_ENOUGH = 2**16  # weights of a layer suffice for its kurtosis


def is_trained(model: nn.Module, sites: Iterable[Site]) -> bool:
    """Whether the weights look trained: norms have seen batches; without such norms, the weights' tails are heavy."""
    seen = [int(count) for name, count in model.named_buffers() if name.endswith("num_batches_tracked")]
    if seen:
        return max(seen) > 0
    weighted = [(site.weight.numel(), _kurtosis(site.weight)) for site in sites]
    return sum(n * tails for n, tails in weighted) > _TAILS * sum(n for n, _ in weighted)


def _kurtosis(weight: Tensor) -> float:
    flat = weight.detach().flatten()
    values = flat[:: -(-flat.numel() // _ENOUGH)].abs() if flat.is_complex() else flat[:: -(-flat.numel() // _ENOUGH)]
    values = exact(values)
    centred = values - values.mean()
    square = centred.square().mean()
    return float(centred.pow(4).mean() / square.square()) if square > 0 else 0.0


def log_magnitude(weight: Tensor, grouping: Grouping) -> Tensor:
    """ln(|θ| / mean |θ|) on the grid of decisions: where they start."""
    size = grouping.reduce(weight.detach().abs().to(torch.float32)) / grouping.sizes
    return (size / size.mean().clamp_min(torch.finfo(torch.float32).tiny)).clamp_min(_LEAST).log()


class Saliency(torch.optim.Optimizer):
    """Moves decisions s to the logarithm of the running saliency.

    Args:
        parameters: the decisions; the gradient of each is Σ θ ∂L/∂θ of its group.
        steps: of the search.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], steps: int) -> None:
        super().__init__(parameters, {"lr": 1.0, "least": min(1.0, 1.0 / (_WINDOW * steps))})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [one for one in group["params"] if one.grad is not None]
            if not parameters:
                continue
            states = [self._state_of(one) for one in parameters]
            for state in states:
                state["step"].add_(1.0)
            rate = states[0]["step"].reciprocal().clamp_min(group["least"])
            within, overall = _means(parameters)
            starts = [local(state["start"]) for state in states]
            for values, gradients, own, share in _in_blocks(parameters, starts, within):
                _move(values, _saliencies(gradients, own, share, overall), rate)

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["start"] = parameter.detach().exp()
        return state


def _means(parameters: Sequence[nn.Parameter]) -> tuple[list[Tensor], Tensor]:
    """δ times the mean |gradient| of each tensor over that of all, and that of all."""
    gradients = [one.grad.detach() for one in parameters if one.grad is not None]
    sums, counts = [_magnitude(one) for one in gradients], [float(one.numel()) for one in gradients]
    overall = (torch.stack(sums).sum() / sum(counts)).clamp_min(torch.finfo(torch.float32).tiny)
    # Counts stay on the host, as numbers: a CUDA graph could not hold a copy of them.
    within = torch._foreach_div(torch._foreach_mul(sums, [_UNSEEN / count for count in counts]), overall)
    return list(within), overall


def _magnitude(gradient: Tensor) -> Tensor:
    if is_sharded(gradient) or gradient.numel() <= block_size(gradient.device):
        return gather(gradient.abs().sum())
    total = gradient.new_zeros(())
    for block in blocks(gradient):
        total += block.abs().sum()  # a list of sums, each behind its block, would keep the memory of all blocks apart
    return total


Blocks = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def _in_blocks(
    parameters: Sequence[nn.Parameter], starts: Sequence[Tensor], within: Sequence[Tensor]
) -> Iterator[Blocks]:
    """Decisions, their gradients, what they started from and the shares of their tensors: of many small tensors, or of some rows."""
    found: Blocks = ([], [], [], [])
    size, most = 0, block_size(parameters[0].device)
    for parameter, start, share in zip(parameters, starts, within, strict=True):
        assert parameter.grad is not None
        whole = local(parameter.detach()), local(parameter.grad.detach()), start
        shape = tuple(whole[0].shape)
        for rows in row_blocks(shape, most) if whole[0].numel() > most else [...]:
            value, gradient, own = (one[rows] for one in whole)
            if size and size + value.numel() > most:
                yield found
                found, size = ([], [], [], []), 0
            for column, one in zip(found, (value, gradient, own, share), strict=True):
                column.append(one)
            size += value.numel()
    if size:
        yield found


def _saliencies(
    gradients: Sequence[Tensor], starts: Sequence[Tensor], within: Sequence[Tensor], overall: Tensor
) -> list[Tensor]:
    """q / mean q, of this rank's part of each tensor."""
    own = torch._foreach_abs(list(gradients))
    torch._foreach_div_(own, overall)
    torch._foreach_add_(own, torch._foreach_mul(list(starts), list(within)))
    torch._foreach_add_(own, _LEAST)
    return list(own)


def _move(values: list[Tensor], found: list[Tensor], rate: Tensor) -> None:
    """s + ln(1 + ρ (q e⁻ˢ − 1)), in place: the running mean of q, in logarithms."""
    ratio = torch._foreach_mul(torch._foreach_exp(torch._foreach_neg(values)), found)
    torch._foreach_sub_(ratio, 1.0)
    torch._foreach_mul_(ratio, rate)
    torch._foreach_clamp_min_(ratio, _LEAST - 1.0)  # the first step has ρ = 1 and leaves nothing of the start
    torch._foreach_add_(values, torch._foreach_log1p(ratio))
    torch._foreach_clamp_min_(values, -17.0)
