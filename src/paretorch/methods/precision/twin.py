"""Two networks from one search ("Zero Precision Allocation", section 5.3): the same s, rounded in two ways.

plan = compress(model, SMOL(penalty=1e-6), steps=N)                              # … search …
twin = compress(build(), SMOL(penalty=1e-6, zero_precision=True), steps=N)
take_search(twin, model.state_dict())
plan.harden(optimizer); twin.harden()                                            # fine-tune either
"""

from collections.abc import Mapping

from torch import Tensor

from paretorch.core.plan import Plan
from paretorch.core.relaxation import PREFIX
from paretorch.errors import ConfigError

_ROUNDING = frozenset({"zero_precision", "target_bits", "penalty", "rounding", "allowed_bits"})


def take_search(plan: Plan, state: Mapping[str, Tensor]) -> None:
    """Put the plan where another's search has ended, or is: weights, decisions and step, in place.

    state: of the other's model, before `harden`; a checkpoint will do. Both plans are of the same network with the same
    options, but for those that say how precisions are rounded: `zero_precision`, `target_bits`, `rounding`, `allowed_bits`
    (and `penalty`, which a target replaces).
    """
    own, config = plan.model.state_dict(), f"{PREFIX}config"
    if config not in state:
        raise ConfigError("this state has no plan in it: give that of a compressed model, before finalize")
    if int(state[f"{PREFIX}phase"]):
        raise ConfigError("the decisions of this state are rounded already: give one from before harden")
    if plan.is_hard:
        raise ConfigError("the plan is hardened already: make a new one with compress")
    if found := [key for key in plan._state.differences(state[config]) if not _is_rounding(key)]:
        raise ConfigError(f"the two plans differ in more than rounding: {', '.join(found)}; make them alike")
    # Which weights are zeros is found at `harden`; until then the flags are empty, whatever their shape.
    mine = {key: value for key, value in own.items() if key == config or key.endswith(".zero")}
    plan.model.load_state_dict({**state, **mine})


def _is_rounding(key: str) -> bool:
    room, _, option = key.partition(".")
    return room in ("precision", "activations") and option in _ROUNDING
