"""How alike the layers of a network that shares have become, kept at a few epochs of a run for its pictures."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paretorch.core.plan import Plan

_WHEN = (0.125, 0.25, 0.5, 0.75, 1.0)  # of the epochs


def similarities(plan: "Plan | None", epoch: int, epochs: int) -> dict[str, Any]:
    """Matrices for the row of an epoch, one a group of layers; nothing at other epochs, and where nothing is shared."""
    due = {max(1, round(share * epochs)) for share in _WHEN}
    if plan is None or plan.is_hard or epoch not in due or all(one.room != "sharing" for one in plan.methods()):
        return {}
    from paretorch.methods.sharing import layer_similarity

    found = layer_similarity(plan.model)
    return {"similarities": [[[round(value, 3) for value in row] for row in one.matrix.tolist()] for one in found]}
