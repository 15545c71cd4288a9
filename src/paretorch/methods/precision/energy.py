"""What multiplications cost by the bits of their weights: the estimate of section 5.4.4.

A weight of 2 or 3 bits times an activation of 4 bits takes 2.41 or 3.83 times the power of a 1-bit weight, and 1.91 or
2.10 times the time (ripple-carry multipliers; accumulation is the same for all and left out). Averages over the
weights; energy is power times time, and hardware that mixes precisions within a layer pays about a quarter more for control.

The thesis compares 74 % of 1 bit, 24.5 % of 2 and 1.5 % of 3 with 2 bits throughout: 57.5 % of the power, 36 % less time,
62.7 % less energy, before control. By its own factors the time is 35.1 % less, the rest agrees to a tenth of a point.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import MAX_BITS
from paretorch.support.checks import require_number

_POWER = (0.0, 1.0, 2.41, 3.83)  # by bits; no bits, no multiplication
_LATENCY = (0.0, 1.0, 1.91, 2.10)


@dataclass(frozen=True)
class Energy:
    """Of one multiplication, on average, where a 1-bit weight is 1. extrapolated: the share of weights above 3 bits."""

    power: float
    latency: float
    energy: float
    extrapolated: float

    def relative_to(self, other: "Energy") -> "Energy":
        """Each number as a share of the other's; `extrapolated` is the larger of both."""
        if other.energy == 0.0:
            raise ConfigError("nothing is multiplied in what this is compared with")
        return Energy(
            self.power / other.power,
            self.latency / other.latency,
            self.energy / other.energy,
            max(self.extrapolated, other.extrapolated),
        )


def estimate_energy(precisions: Mapping[int, float], control: float = 0.25) -> Energy:
    """The cost of a layer, or of a network, from its bits p → number (or share) of weights with p bits.

    control: what mixed precisions add to the energy; none is added where all weights that are kept have equal bits.
    Above 3 bits, of which the thesis says nothing, both factors go on by their last differences (1.42 and 0.19 a bit).
    `Report.precisions`, and `TensorSize.precisions` of one layer, are such maps.
    """
    require_number("control", control, 0.0, math.inf, "give the overhead as a share, such as 0.25")
    for bits, count in precisions.items():
        require_number("bits", bits, 0, MAX_BITS, f"give whole bits from 0 to {MAX_BITS}")
        require_number(f"precisions[{bits}]", count, 0.0, math.inf, "give a number of weights, 0 or more")
        if bits != int(bits):
            raise ConfigError(f"bits={bits!r}: give whole bits from 0 to {MAX_BITS}")
    total = sum(precisions.values())
    if total <= 0:
        raise ConfigError("precisions: there are no weights; give bits -> number of weights, such as {1: 740, 2: 260}")
    power = sum(count * _factor(_POWER, bits) for bits, count in precisions.items()) / total
    latency = sum(count * _factor(_LATENCY, bits) for bits, count in precisions.items()) / total
    mixed = sum(1 for bits, count in precisions.items() if bits and count) > 1
    beyond = sum(count for bits, count in precisions.items() if bits >= len(_POWER)) / total
    return Energy(power, latency, power * latency * (1.0 + control if mixed else 1.0), beyond)


def _factor(known: tuple[float, ...], bits: float) -> float:
    last = len(known) - 1
    return known[int(bits)] if bits <= last else known[last] + (bits - last) * (known[last] - known[last - 1])
