"""How alike layers are: the layer similarity matrix (chapter 3), groups of layers that are alike, and what can stand for a group.

    S_l,l' = |⟨a_l, a_l'⟩| / (‖a_l‖ ‖a_l'‖)      S = |Â Âᵀ| for all pairs at once, Â the rows of norm 1

What differs: norms have a floor (a layer of zeros is like no other), and where |·| has no slope, at orthogonal layers, its
slope is taken as +1, so that the recurrence regulariser moves an orthogonal start.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.support.arithmetic import exact
from paretorch.support.checks import require_count, require_number

_FLOOR = 1e-12
_SINGULAR = 1e-6  # reciprocal condition number below which a matrix counts as singular


def absolute_cosine(rows: Tensor) -> Tensor:
    """S of the rows, with ones on the diagonal where a row is not zero."""
    unit = _unit(rows)
    return (unit @ unit.T).abs().clamp(max=1.0)


def recurrence(rows: Tensor) -> Tensor:
    """Σ_l,l' S_l,l'."""
    return absolute_cosine(rows).sum()


def recurrence_slope(rows: Tensor) -> Tensor:
    """dΣS/da_l = 2 (I − â_l â_lᵀ) Σ_l' sign⟨â_l, â_l'⟩ â_l' / ‖a_l‖: two products of small matrices, no loop over pairs.

    A layer of zeros has no direction to turn, and stays.
    """
    unit = _unit(rows)
    signs = torch.where(unit @ unit.T >= 0, 1.0, -1.0).to(unit.dtype)
    pull = 2.0 * (signs @ unit)
    tangent = pull - (pull * unit).sum(1, keepdim=True) * unit
    norms = rows.norm(dim=1, keepdim=True)
    return torch.where(norms > _FLOOR, tangent / norms, 0.0)


def reparametrize(templates: Tensor, coefficients: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """T' = B T and α' = B⁻ᵀ α for an invertible B: other templates, the same weights Σ α_i T_i.

    templates: k × anything. coefficients: one row per layer (the transpose of the thesis' α). change: B, k × k.
    """
    k = len(templates)
    change = torch.as_tensor(change)
    if change.shape != (k, k):
        raise ConfigError(f"B has the shape {tuple(change.shape)}: give a square matrix for {k} templates, {k} × {k}")
    if coefficients.dim() != 2 or coefficients.shape[1] != k:
        shape = tuple(coefficients.shape)
        raise ConfigError(f"the coefficients have the shape {shape}: give one row per layer, of {k}, one per template")
    change = exact(change.to(templates.device))
    finite = bool(torch.isfinite(change).all())
    values = torch.linalg.svdvals(change) if finite else torch.zeros(1)
    if float(values[-1]) <= _SINGULAR * float(values[0]):
        raise ConfigError("B is singular: only an invertible change of templates leaves the network as it is")
    flat = change @ exact(templates).flatten(1)
    mixed = torch.linalg.solve(change.T, exact(coefficients).to(change.device).T).T
    return flat.view(templates.shape).to(templates), mixed.to(coefficients)


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(_FLOOR)
    return unit


_NO_PART = 1e-9  # of the largest scale of a group
_TOLERANCE = 1e-6  # similarities are computed in fp32
_MULTIPLES = 1e-12  # 1 − S of layers that are multiples of each other but for the rounding of their fp32 coefficients


def check_limits(threshold: float | None, layers: int | None) -> None:
    """At most one of the two, within its range."""
    if threshold is not None and layers is not None:
        raise ConfigError(
            "give either threshold, the least similarity of layers that become one, or layers, how many stay"
        )
    if threshold is not None:
        require_number("threshold", threshold, 0.0, 1.0, "a similarity is from 0 to 1, such as 0.95")
    if layers is not None:
        require_count("layers", layers, 1, "give how many layers stay, 1 or more")


def cluster(matrices: Sequence[Tensor], threshold: float | None, layers: int | None) -> list[list[int]]:
    """Labels of the layers of each matrix: 0, 1 … by first appearance, once `mergers` go no further.

    That is when no two groups are alike enough, or `layers` are left in all. A threshold of 1 joins nothing but multiples, which
    takes matrices of float64: in fp32 the cosine of an angle of 1e-4 is 1.
    """
    groups = [[[i] for i in range(len(matrix))] for matrix in matrices]
    left = sum(len(matrix) for matrix in matrices)
    if layers is not None and layers < len(matrices):
        raise ConfigError(
            f"layers={layers}: {len(matrices)} groups of layers share, each for itself, so at least {len(matrices)} stay"
        )
    least = 0.0 if threshold is None else threshold - (_MULTIPLES if threshold == 1.0 else _TOLERANCE)
    for similarity, which, one, other in mergers(matrices):
        if (layers is not None and left <= layers) or similarity < least:
            break
        groups[which][one] += groups[which][other]
        groups[which][other] = []
        left -= 1
    return [_labels(parts, len(matrix)) for parts, matrix in zip(groups, matrices, strict=True)]


def mergers(matrices: Sequence[Tensor]) -> Iterator[tuple[float, int, int, int]]:
    """Which groups become one, in turn: how alike their least similar members are, the matrix, the groups.

    The most alike come first, over all matrices, first come first in ties; until each matrix is one group.
    """
    links = [matrix.to("cpu", torch.float64).clone().fill_diagonal_(-1.0) for matrix in matrices]
    for _ in range(sum(len(matrix) - 1 for matrix in matrices)):
        which = max(range(len(links)), key=lambda i: float(links[i].max()))
        link = links[which]
        similarity = float(link.max())
        one, other = divmod(int(link.argmax()), len(link))
        link[one] = link[:, one] = torch.minimum(link[one], link[other])
        link[other] = link[:, other] = link[one, one] = -1.0
        yield similarity, which, one, other


def _labels(groups: list[list[int]], count: int) -> list[int]:
    owner = {layer: number for number, members in enumerate(groups) for layer in members}
    order = list(dict.fromkeys(owner[layer] for layer in range(count)))
    return [order.index(owner[layer]) for layer in range(count)]


def collapse(rows: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """One direction u and a signed scale c_l a layer with Σ ‖W_l − c_l U‖² least, U = Σ u_i T_i: the best of rank one.

    gram: ⟨T_i, T_j⟩, so that a_l gram a_l'ᵀ = ⟨W_l, W_l'⟩. Collinear rows come back exactly, negative multiples too. The
    scale of the first layer that has a part in u is 1; one that has none (a layer of zeros, say) gets 0.
    """
    wide, metric = exact(rows), exact(gram)
    leading = torch.linalg.eigh(wide @ metric @ wide.T).eigenvectors[:, -1]
    leading = leading.where(leading.abs() > _NO_PART * leading.abs().max(), 0.0)
    first = leading[leading != 0][0]
    return first * (leading @ wide), leading / first + 0.0  # no -0
