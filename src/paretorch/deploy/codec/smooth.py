"""Frequencies by a formula, for wide alphabets with few samples, where a table would cost as much as it saves.

Every integer between the lowest and the highest belongs to the alphabet. Within a precision (integers with the same
number of trailing zeros) the frequency falls with the magnitude, 2 ** -(a |v|) or 2 ** -(a v**2): two small numbers per
precision, its weight and its fall, instead of one per integer. All arithmetic is in integers, the same everywhere.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from paretorch.deploy.codec.entropy import MAX_DROP, Array

FALLS = 64  # 0: flat; 1 .. 31: with |v|; 32 .. 63: with v**2
MOST = 1 << 12  # integers in such an alphabet
_STEPS = 16  # drops are in sixteenths of an octave


def _fall(magnitudes: Array, fall: int) -> Array:
    """The drop added by the magnitude."""
    if fall == 0:
        return np.zeros_like(magnitudes)
    if fall < 32:
        return np.asarray(np.minimum(magnitudes * isqrt(1 << fall) >> 8, MAX_DROP))
    return np.asarray(np.minimum(magnitudes**2 * isqrt(1 << (fall - 31)) >> 14, MAX_DROP))


def smooth_drops(alphabet: Array, levels: Array, weights: Array, falls: Array) -> Array:
    """The drop of each integer, from the drop (-1: does not occur) and the fall of each level; level -1 comes first."""
    drops = np.full(alphabet.size, -1, dtype=np.int64)
    for level, (weight, fall) in enumerate(zip(weights.tolist(), falls.tolist(), strict=True), start=-1):
        if weight >= 0:
            here = levels == level
            drops[here] = np.minimum(weight + _fall(np.abs(alphabet[here]), fall), MAX_DROP)
    return drops


def fit_smooth(alphabet: Array, levels: Array, counts: Array) -> tuple[Array, Array]:
    """The weight and the fall of each level that suit the counts best."""
    top = int(levels.max())
    falls = np.zeros(top + 2, dtype=np.int64)
    shares = np.full(top + 2, np.inf)  # -log2 of the frequency at magnitude 0, up to a constant
    for level in range(-1, top + 1):
        here = levels == level
        n = float(counts[here].sum())
        if n == 0:
            continue
        magnitudes = np.abs(alphabet[here])
        added = (
            np.stack([_fall(magnitudes, fall) for fall in range(FALLS)]) / _STEPS if level >= 0 else np.zeros((1, 1))
        )
        mass = np.log2((2.0**-added).sum(1))
        best = int((added @ counts[here] + n * mass).argmin())
        falls[level + 1] = best
        shares[level + 1] = mass[best] - np.log2(n)
    drops = np.rint((shares - shares.min()) * _STEPS)
    return np.where(np.isfinite(drops), np.minimum(drops, MAX_DROP), -1).astype(np.int64), falls
