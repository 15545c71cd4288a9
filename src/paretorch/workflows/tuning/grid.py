"""The 21 x 21 settings of (α, ε) over which the thesis tunes on CIFAR (section 6.3, Training)."""

from __future__ import annotations


def alpha_grid() -> list[float]:
    """α = 5e-7, 1e-6, 5e-6, ..., 1000, 5000: 21 values."""
    return [_number(digit, k) for k in range(-7, 4) for digit in (1, 5)][1:]


def eps_grid(optimizer: str = "AvaGrad") -> list[float]:
    """ε = 1e-8, 2e-8, 1e-7, ..., 20, 100: 21 values; for AdaBelief, whose ε acts on v, all are 1e-8 times smaller."""
    shift = -8 if optimizer.lower() == "adabelief" else 0
    return [_number(digit, k + shift) for k in range(-8, 3) for digit in (1, 2)][:-1]


def _number(digit: int, exponent: int) -> float:
    return float(f"{digit}e{exponent}")
