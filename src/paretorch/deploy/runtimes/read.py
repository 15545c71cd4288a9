"""What a runtime stores of a plain network: the format of each weight, read off its values, and the bytes of the whole.

A weight has a format if codes and steps of it give every value bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paretorch.core.attach.sites import Site, find_sites, is_conv1d
from paretorch.core.formats import WeightFormat
from paretorch.deploy.codec.multiples import fit_multiples
from paretorch.deploy.runtimes.registry import HALF, RUNTIMES, Runtime

Floats = NDArray[np.float32]
Codes = NDArray[np.int16]
_AT_ONCE = 1 << 20  # values
_SAMPLE = 64  # groups that are looked at first
_ULPS = 2  # by which a step may differ from the largest value over its code


@dataclass(frozen=True, eq=False)
class Stored:
    """A weight as a runtime stores it: (outputs, groups, inputs of a group) codes and (outputs, groups) steps.

    Args:
        form: None if the weight is stored in fp32.
    """

    site: Site
    form: WeightFormat | None
    codes: Codes
    steps: Floats

    @property
    def size(self) -> int:
        """Bytes of the weight and its steps."""
        weight = self.site.weight
        if self.form is None:
            return 4 * weight.numel()
        return self.form.bytes_of(weight.numel(), weight.shape, self.site.channel_axis)

    @property
    def step_bytes(self) -> int:
        """Bytes of a step in the format."""
        return 0 if self.form is None else self.form.scale_bits // 8


_NO_CODES = np.zeros((0, 0, 0), dtype=np.int16), np.zeros((0, 0), dtype=np.float32)


def read_stored(model: nn.Module, runtime: Runtime) -> dict[str, Stored]:
    """Return every weight of two or more dimensions by name, in the smallest format of the runtime that has its values."""
    return {site.name: _read(site, runtime) for site in find_sites(model) if site.weight.is_floating_point()}


def _read(site: Site, runtime: Runtime) -> Stored:
    values = site.weight.detach().cpu().float().numpy()
    for form in runtime.formats(site) if site.is_usual else ():
        rows = in_groups(values, form, site)
        sample = rows.reshape(-1, rows.shape[2])
        if read_codes(sample[:: max(1, len(sample) // _SAMPLE)], form) is None:
            continue
        found = read_codes(sample, form)
        if found is not None:
            codes, steps = found
            return Stored(site, form, codes.reshape(rows.shape), steps.reshape(rows.shape[:2]))
    with np.errstate(over="ignore"):
        is_half = runtime.has_halves and np.array_equal(values.astype(np.float16).astype(np.float32), values)
    return Stored(site, HALF if is_half else None, *_NO_CODES)


def in_groups(values: Floats, form: WeightFormat, site: Site) -> Floats:
    """Return a weight as (outputs, groups, inputs of a group)."""
    if form.block == 0:
        moved = np.moveaxis(values, site.channel_axis, 0)
        return np.ascontiguousarray(moved.reshape(len(moved), 1, -1))
    matrix = values.T if is_conv1d(site.owners[0][0]) else values
    return np.ascontiguousarray(matrix.reshape(len(matrix), -1, form.block))


def read_codes(rows: Floats, form: WeightFormat) -> tuple[Codes, Floats] | None:
    """Return the codes and steps of groups (groups, values) in a format; None if some group has none."""
    codes, steps = np.zeros(rows.shape, dtype=np.int16), np.ones(len(rows), dtype=np.float32)
    each = max(1, _AT_ONCE // max(rows.shape[1], 1))
    for start in range(0, len(rows), each):
        part = slice(start, start + each)
        found = _read_some(rows[part], form)
        if found is None:
            return None
        codes[part], steps[part] = found
    return codes, steps


def _read_some(rows: Floats, form: WeightFormat) -> tuple[Codes, Floats] | None:
    if not np.isfinite(rows).all():
        return None
    codes, steps = np.zeros(rows.shape, dtype=np.int16), np.ones(len(rows), dtype=np.float32)
    left = np.flatnonzero(rows.any(1))
    if form.scale.itemsize == 4:
        found = fit_multiples(rows[left])
        kept = found.exact & (found.codes.max(1, initial=0) <= form.high) & (found.codes.min(1, initial=0) >= form.low)
        codes[left[kept]], steps[left[kept]] = found.codes[kept], found.steps[kept]
        left = left[~kept]
    for code in range(max(form.high, -form.low), 0, -1):
        for variant in (1, -1) if form.signed else range(-_ULPS, _ULPS + 1) if form.scale.itemsize == 4 else (1,):
            if not left.size:
                return codes, steps
            own = _step(rows[left], code, form, variant)
            with np.errstate(all="ignore"):
                numbers = np.rint(rows[left] / own[:, None])
                fits = (numbers.astype(np.float32) * own[:, None] == rows[left]).all(1)
            fits &= (numbers.max(1, initial=0) <= form.high) & (numbers.min(1, initial=0) >= form.low)
            codes[left[fits]], steps[left[fits]] = numbers[fits], own[fits]
            left = left[~fits]
    return None if left.size else (codes, steps)


def _step(rows: Floats, code: int, form: WeightFormat, variant: int) -> Floats:
    """Return the step by which the largest value of each group has this code; 1 if the format has no such step.

    Args:
        variant: The sign of a step in two bytes, or by how many units in the last place a step in fp32 differs.
    """
    exact = np.abs(rows).max(1, initial=0.0).astype(np.float64) / code
    if form.scale.itemsize == 4:
        near = exact.astype(np.float32).view(np.int32) + np.int32(variant)
        return np.asarray(near.view(np.float32))
    short = torch.from_numpy(exact).to(form.scale).double().numpy()
    return np.where(short == exact, exact * variant, 1.0).astype(np.float32)


def runtime_sizes(model: nn.Module) -> dict[str, int]:
    """Return bytes of the tensors by runtime, for those that have codes for some of the weights of a plain network.

    The network is not copied, and nothing is written. Vectors count in fp32.
    """
    found = {name: _size(model, runtime) for name, runtime in RUNTIMES.items()}
    return {name: size for name, size in found.items() if size is not None}


def _size(model: nn.Module, runtime: Runtime) -> int | None:
    stored = read_stored(model, runtime)
    if all(one.form is None or one.form.is_half for one in stored.values()):
        return None
    weights = sum(one.size * (1 if runtime.shares_ties else _kinds_of_owners(one)) for one in stored.values())
    if runtime.step_bytes is not None:
        weights += sum(one.steps.size * (runtime.step_bytes - one.step_bytes) for one in stored.values())
    own = {id(site.weight) for site in find_sites(model)}
    state: Iterable[Tensor] = model.state_dict(keep_vars=True).values()
    rest = {id(t): t for t in state if id(t) not in own and t.is_floating_point()}
    return weights + 4 * sum(t.numel() for t in rest.values())


def _kinds_of_owners(one: Stored) -> int:
    """Return 2 for a weight with codes of both an embedding and another layer, else 1."""
    return 1 if one.form is None else len({isinstance(module, nn.Embedding) for module, *_ in one.site.owners})
