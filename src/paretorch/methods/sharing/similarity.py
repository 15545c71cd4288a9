"""How alike layers are: the layer similarity matrix (chapter 3), and what can be done with coefficients as such.

    S_l,l' = |⟨a_l, a_l'⟩| / (‖a_l‖ ‖a_l'‖)      S = |Â Âᵀ| for all pairs at once, Â the rows of norm 1

What differs: norms have a floor (a layer of zeros is like no other), and where |·| has no slope, at orthogonal layers, its
slope is taken as +1, so that the recurrence regulariser moves an orthogonal start.
"""

import torch
from torch import Tensor

from paretorch.errors import ConfigError

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

    templates: k × anything. coefficients: one row a layer (the transpose of the thesis' α). change: B, k × k.
    """
    k = len(templates)
    change = torch.as_tensor(change)
    if change.shape != (k, k):
        raise ConfigError(f"B has the shape {tuple(change.shape)}: give a square matrix for {k} templates, {k} × {k}")
    if coefficients.dim() != 2 or coefficients.shape[1] != k:
        shape = tuple(coefficients.shape)
        raise ConfigError(f"the coefficients have the shape {shape}: give one row a layer, of {k}, one a template")
    exact = change.double().to(templates.device)
    finite = bool(torch.isfinite(exact).all())
    values = torch.linalg.svdvals(exact) if finite else torch.zeros(1)
    if float(values[-1]) <= _SINGULAR * float(values[0]):
        raise ConfigError("B is singular: only an invertible change of templates leaves the network as it is")
    flat = exact @ templates.double().flatten(1)
    mixed = torch.linalg.solve(exact.T.to(coefficients.device), coefficients.double().T).T
    return flat.view(templates.shape).to(templates.dtype), mixed.to(coefficients.dtype)


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(_FLOOR)
    return unit
