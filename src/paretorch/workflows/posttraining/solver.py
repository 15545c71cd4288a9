"""One layer: integer codes for its weights, by second-order rounding with the price of bits in the objective.

Minimizes, over codes q with steps Δ,

    tr((W − qΔ) H (W − qΔ)ᵀ) + price · bits(q)

column by column: with U the upper Cholesky factor of H⁻¹, the change of outputs is Σ_j e_j², e_j = (w_j − q_jΔ_j) / U_jj, if
after each column the columns to come are moved by −e_j U_j: what remains of them is the best that they can do about
the error so far. Each weight takes the code with the least e² + price · −log2 p(q) among the nearest, the next towards zero,
and zero. With price 0 and a fixed number of codes this is GPTQ (Frantar et al., 2022, arXiv:2210.17323), which computes Optimal
Brain Quantization (2022, arXiv:2208.11580) with one order for all rows; GPTQ has no price.

Steps: an entropy-coded grid of step Δ has error Δ²/12 per weight and costs −log2 Δ bits more or less, so that the best step of
column j follows from the price alone, Δ_j² = (6 / ln 2) · price · U_jj² (here 14 in place of 8.7). That is one step per column; if the columns are so
alike that their steps cost more than they save, one step per layer. A batch norm behind the layer multiplies row i by a gain g_i:
then the error of a row counts g_i² times, and Δ_i ∝ 1 / g_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.support.arithmetic import exact

LIMIT = 500  # the largest code: the encoder recognises steps of up to 512 distinct magnitudes
_CLASSES = 8
_UNSEEN = 0.05  # counts of a code that does not occur yet
_TABLE_BITS = 4.0  # of one entry of a table


@dataclass(frozen=True, eq=False)
class CodeLengths:
    """Bits per code: `table` is (classes, 2 LIMIT + 1), `of` the class of each slice along `axis`: 1 rows, 2 columns."""

    table: Tensor
    of: Tensor
    axis: int
    total: float

    def look_up(self, codes: Tensor, column: int) -> Tensor:
        """Return the bits of codes (candidates, groups, rows) in one column."""
        places = codes.long() + LIMIT
        if self.axis == 2:
            return self.table[self.of[column]][places]
        return self.table.flatten()[self.of.view(codes.shape[1:]) * self.table.shape[1] + places]

    def look_up_all(self, codes: Tensor) -> Tensor:
        """Return the bits of codes (candidates, groups, rows, columns)."""
        of = self.of.view(1, 1, 1, -1) if self.axis == 2 else self.of.view(1, *codes.shape[1:3], 1)
        return self.table.flatten()[of * self.table.shape[1] + codes.long() + LIMIT]


def fit_lengths(codes: Tensor) -> CodeLengths:
    """Return the code lengths of codes (groups, rows, columns), with classes along the axis that saves more."""
    groups, rows, columns = codes.shape
    places = codes.long() + LIMIT
    found = [_fit(places, torch.zeros(columns, dtype=torch.long, device=codes.device), 2)]
    for axis, count in ((1, groups * rows), (2, columns)):
        if count >= 2 * _CLASSES and codes.numel() // count >= 4:
            other = (2,) if axis == 1 else (0, 1)
            order = codes.abs().mean(other).flatten().argsort()
            of = torch.empty_like(order)
            of[order] = torch.arange(count, device=codes.device) * _CLASSES // count
            found.append(_fit(places, of, axis))
    return min(found, key=lambda lengths: lengths.total)


def _fit(places: Tensor, of: Tensor, axis: int) -> CodeLengths:
    groups, rows, columns = places.shape
    width, classes = 2 * LIMIT + 1, int(of.max()) + 1
    spread = of.view(1, 1, columns) if axis == 2 else of.view(groups, rows, 1)
    counts = torch.bincount((spread * width + places).flatten(), minlength=classes * width).view(classes, width)
    smooth = counts.float() + _UNSEEN
    table = -(smooth / smooth.sum(1, keepdim=True)).log2()
    sizes = counts.sum(1, keepdim=True).clamp_min(1)
    exact = (counts * -(counts.clamp_min(1) / sizes).log2()).sum()
    tables = _TABLE_BITS * int((counts > 0).sum()) + (len(of) * torch.log2(torch.tensor(float(classes))))
    return CodeLengths(table, of, axis, float(exact + tables))


# For 6 / ln 2. Of 8.66, 14 and 22 the best on training rows of a small language model that calibration did not see: with the
# price of bits in the choice of codes, coarser steps are better.
STEP_CONSTANT = 14.0
_BLOCK = 64  # columns between two updates of all columns to come
_ROUNDS = 2  # code lengths and codes in turn
_STEP_BITS = 6.0  # a step of a column in the file, about: steps are rounded to quarters of an octave
_OCTAVE = 4
_LEAST = 1e-15  # steps of a layer that is all zero


@dataclass(frozen=True, eq=False)
class Curvature:
    """H of one layer, factored.

    Args:
        factor: U, upper triangular with UᵀU = H⁻¹ in the order of the columns; None if H is the identity.
        order: The order of the columns: those with large inputs first, while others can make up for their errors.
        scale: U_jj² by column, in the natural order, (groups, 1, columns).
    """

    factor: Tensor | None
    order: Tensor
    scale: Tensor


def factorize(hessian: Tensor, damping: float, ridge: float = 0.0, order: Tensor | None = None) -> Curvature:
    """Return the factors of H (groups, columns, columns).

    Args:
        damping: Times the mean diagonal of H, added to its diagonal: columns without inputs have an inverse then.
        ridge: Added to the diagonal as it is.
        order: The order of the columns; by their diagonal if None.
    """
    root, order = _root(hessian, damping, ridge, order)
    one = torch.eye(root.shape[1]).to(root).expand_as(root)
    factor = torch.linalg.solve_triangular(root, one, upper=True).to(hessian.device, torch.float32)
    return Curvature(factor, order, _scale(root, order.to(root.device)).to(hessian.device))


def measure_scale(hessian: Tensor, damping: float, ridge: float) -> tuple[Tensor, Tensor]:
    """Return `scale` and `order` of `factorize`, at a fraction of its cost."""
    root, order = _root(hessian, damping, ridge, None)
    return _scale(root, order.to(root.device)).to(hessian.device), order


def _root(hessian: Tensor, damping: float, ridge: float, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the upper triangular R with R Rᵀ = H, whose inverse is U, by the Cholesky factor of H in reverse order."""
    diagonal = hessian.diagonal(dim1=1, dim2=2)
    if order is None:
        order = diagonal.mean(0).argsort(descending=True, stable=True)
    back = order.flip(0)
    wide = exact(hessian[:, back][:, :, back])
    level = damping * exact(diagonal.mean(1)).clamp_min(_LEAST) + ridge
    wide.diagonal(dim1=1, dim2=2).add_(level[:, None])
    return torch.linalg.cholesky(wide).flip(1, 2), order


def _scale(root: Tensor, order: Tensor) -> Tensor:
    found = torch.empty_like(root[:, :1], dtype=torch.float32)
    found[:, 0, order] = root.diagonal(dim1=1, dim2=2).square().reciprocal().float()
    return found


def identity(matrix: Tensor) -> Curvature:
    """Return the curvature of a layer that is rounded by its weights alone."""
    return Curvature(None, torch.empty(0, dtype=torch.long), torch.ones_like(matrix[:, :1]))


def choose_steps(matrix: Tensor, scale: Tensor, gains: Tensor, taps: int, price: float) -> Tensor:
    """Return the steps for a price: one per input channel, one per row, or a single one, whichever saves most bits.

    No code is above the limit. The file has steps along one axis, and those of a row and a column do not go together.

    Args:
        gains: What the network makes of each row's output, (groups, rows, 1): a row of twice the gain has half the step.
        taps: Columns that belong to one input channel.
    """
    groups, rows, columns = matrix.shape
    mean_gain, mean_curvature = gains.square().mean(), (1 / scale).mean()
    base = (STEP_CONSTANT * price / (mean_gain * mean_curvature)).sqrt()
    by_column = -scale.log2().view(groups, columns // taps, taps).mean((0, 2))  # log2 of the curvature
    by_row = gains.square().log2().flatten()
    saved_by_columns = 0.5 * float(mean_curvature.log2() - by_column.mean()) * matrix.numel() - _STEP_BITS * len(
        by_column
    )
    saved_by_rows = 0.5 * float(mean_gain.log2() - by_row.mean()) * matrix.numel() - _STEP_BITS * len(by_row)
    sizes = matrix.abs()
    if max(saved_by_columns, saved_by_rows) <= 0:
        return torch.maximum(base, sizes.max() / LIMIT).clamp_min(_LEAST).bfloat16().float().view(1, 1, 1)
    if saved_by_columns > saved_by_rows:
        own = (mean_curvature / by_column.exp2()).sqrt()
        largest = sizes.amax((0, 1)).view(-1, taps).amax(1)
        return _near(base, own, largest).repeat_interleave(taps).view(1, 1, columns)
    return _near(base, (mean_gain / by_row.exp2()).sqrt(), sizes.amax(2).flatten()).view(groups, rows, 1)


def _near(base: Tensor, factors: Tensor, largest: Tensor) -> Tensor:
    """Return base · factors with factors of 2^(k/4), in bfloat16: few distinct numbers of few digits take few bytes."""
    factors = torch.maximum(factors, largest / LIMIT / base.clamp_min(_LEAST)).clamp_min(_LEAST)
    return (base.clamp_min(_LEAST) * ((factors.log2() * _OCTAVE).round() / _OCTAVE).exp2()).bfloat16().float()


def round_matrix(
    matrix: Tensor, curvature: Curvature, steps: Tensor, price: float, *, limits: tuple[int, int] = (-LIMIT, LIMIT)
) -> Tensor:
    """Return integer codes for the weights (groups, rows, columns), as floats; steps broadcast with the weights.

    Args:
        limits: The least and the largest code, if there is no price.
    """
    codes = _pass(matrix, curvature, steps, 0.0, None, limits)
    for _ in range(_ROUNDS if price > 0 else 0):
        codes = _pass(matrix, curvature, steps, price, fit_lengths(codes))
    return codes


def _pass(
    matrix: Tensor,
    curvature: Curvature,
    steps: Tensor,
    price: float,
    lengths: CodeLengths | None,
    limits: tuple[int, int] = (-LIMIT, LIMIT),
) -> Tensor:
    if curvature.factor is None:
        return _cheapest_all(matrix, steps, price, lengths).clamp(*limits)
    order, factor = curvature.order, curvature.factor
    work = matrix[:, :, order]
    ordered = steps.expand(matrix.shape[0], steps.shape[1], matrix.shape[2])[:, :, order]
    codes = torch.empty_like(work)
    columns = order.tolist()
    for start in range(0, len(columns), _BLOCK):
        end = min(start + _BLOCK, len(columns))
        errors = work.new_empty((*work.shape[:2], end - start))
        for j in range(start, end):
            own, step, root = work[:, :, j], ordered[:, :, j], factor[:, j, j, None]
            codes[:, :, j] = _cheapest(own, step, root, price, lengths, columns[j]).clamp(*limits)
            errors[:, :, j - start] = (own - codes[:, :, j] * step) / root
            if j + 1 < end:
                work[:, :, j + 1 : end] -= errors[:, :, j - start, None] * factor[:, None, j, j + 1 : end]
        work[:, :, end:] -= errors @ factor[:, start:end, end:]
    return torch.empty_like(codes).index_copy_(2, order, codes)


def _candidates(scaled: Tensor) -> Tensor:
    nearest = scaled.round().clamp(-LIMIT, LIMIT)
    return torch.stack([nearest, nearest - nearest.sign(), torch.zeros_like(nearest)])


def _cheapest(
    own: Tensor, step: Tensor, root: Tensor, price: float, lengths: CodeLengths | None, column: int
) -> Tensor:
    if lengths is None:
        return (own / step).round().clamp(-LIMIT, LIMIT)
    found = _candidates(own / step)
    cost = ((found * step - own) / root).square() + price * lengths.look_up(found, column)
    return found.gather(0, cost.argmin(0, keepdim=True))[0]


def _cheapest_all(matrix: Tensor, steps: Tensor, price: float, lengths: CodeLengths | None) -> Tensor:
    """As `_cheapest` for all columns of a layer without error feedback."""
    if lengths is None:
        return (matrix / steps).round().clamp(-LIMIT, LIMIT)
    found = _candidates(matrix / steps)
    cost = (found * steps - matrix).square() + price * lengths.look_up_all(found)
    return found.gather(0, cost.argmin(0, keepdim=True))[0]


def estimate_lengths(matrix: Tensor, scale: Tensor, steps: Tensor, price: float) -> CodeLengths:
    """Return about what the codes of `round_matrix` cost, from codes without error feedback."""
    roots = scale.sqrt()
    lengths = fit_lengths(_cheapest_all(matrix / roots, steps / roots, 0.0, None))
    return lengths if price == 0 else fit_lengths(_cheapest_all(matrix / roots, steps / roots, price, lengths))
