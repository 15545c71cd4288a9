"""A batch of weights on one GPU, computed by the kernels of `fused_kernel.py`: each tensor is read once and written once.

Eager operations would read and write every tensor of the network a dozen times, and need as much memory again for what lies between.
Relaxations say by their `form` how the kernels compute them; those that have none, and other devices, are computed by torch operations.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from paretorch.core.forms import Form
from paretorch.core.relaxation import Relaxation, unflatten
from paretorch.support.addresses import AddressTable
from paretorch.support.sharded import is_sharded

BLOCK, SHORT = 1024, 128
"""Elements that a program holds at a time, of long and of short segments."""
SEGMENT = 1 << 13
"""Elements that a program goes through, at most."""
PROGRAMS = 1 << 11
"""Programs that keep a large GPU busy: small networks are cut into shorter segments, to have as many."""
MANY = 32
"""Segments of a row from which on one program adds up one row."""
_LANES = 16
"""Elements that segments must begin and end at multiples of, for memory to be read in words of 16 bytes."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST = 2**31 - 2**17  # weights of a tensor: places are 32 bit numbers
_INNER = {"": 0, "noise": 1, "steps": 2, "grid": 3}
_OUTER = {"": 0, "gate": 1, "open": 2}


@cache
def has_triton() -> bool:
    """Whether Triton is installed, as it is with torch's builds for GPUs."""
    return find_spec("triton") is not None


def runs_on(device: torch.device) -> bool:
    """Whether the kernels run on this device."""
    return device.type == "cuda" and has_triton()


def on_device(device: torch.device) -> Any:
    """A context in which kernels are launched on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else torch.no_grad()


def layout(latent: Tensor, tensor: Tensor, relaxations: Sequence[Relaxation]) -> tuple[type | None, ...] | None:
    """Which kind of rows share a decision of each relaxation, None: no rows do; None altogether: the kernels cannot compute this weight."""
    if not (runs_on(latent.device) and latent.dtype in _DTYPES and 0 < latent.numel() < _MOST):
        return None
    if is_sharded(latent) or not _lie_alike(latent, tensor):
        return None
    if not {r.kind for r in relaxations} <= {"precision", "sparsity"} or not all(r.can_fuse for r in relaxations):
        return None
    found: list[type | None] = []
    for r in relaxations:
        run = r.grouping.run
        if r.grouping.is_single:
            fits = _lie_alike(latent, r.decision)
        else:  # in channels_last, rows of the first dimension alone are neighbours
            fits = run is not None and (latent.is_contiguous() or run >= latent[0].numel())
        if not fits or r.decision.dtype != torch.float32:
            return None
        found.append(None if r.grouping.is_single else type(r.grouping))
    return tuple(found)


def _order_of(tensor: Tensor) -> torch.memory_format | None:
    """In which order a tensor without gaps lies in memory; None: in another one."""
    if tensor.is_contiguous():
        return torch.contiguous_format
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else None


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    order = _order_of(one)
    return order is not None and one.shape == other.shape and other.is_contiguous(memory_format=order)


class _Launch(NamedTuple):
    """Programs that are launched together.

    base: The place of the first segment among all.
    programs: How many there are, one per segment.
    block: Elements that a program holds at a time.
    is_even: Whether all segments begin and end at multiples of `_LANES`.
    segments: One column per program.
    """

    base: int
    programs: int
    block: int
    is_even: bool
    segments: Tensor


class FusedBatch:
    """Weights whose kernels are launched together.

    Args:
        tensors: W.
        latents: θ.
        places: The relaxations, innermost first, each of all weights.
        forms: How the kernels compute them.
    """

    def __init__(
        self,
        tensors: Sequence[nn.Parameter],
        latents: Sequence[nn.Parameter],
        places: Sequence[Sequence[Any]],
        forms: Sequence[Form],
    ) -> None:
        self._tensors, self._latents, self._places = list(tensors), list(latents), places
        self._device = latents[0].device
        same = Form("")
        inner = next((i for i, form in enumerate(forms) if places[i][0].kind == "precision"), None)
        outer = next((i for i, form in enumerate(forms) if places[i][0].kind == "sparsity"), None)
        self._inner_place, self._outer_place = inner, outer
        self._inner = same if inner is None else forms[inner]
        self._outer = same if outer is None else forms[outer]
        self._orders = [_order_of(one) or torch.contiguous_format for one in latents]
        self._permuted = any(order is torch.channels_last for order in self._orders)
        sizes = [one.numel() for one in latents]
        self._total = sum(sizes)
        starts = [0, *accumulate(sizes)][:-1]
        inner_s, outer_s = self._decisions_of(inner), self._decisions_of(outer)
        levels = zip(latents, self._inner.levels, strict=False)
        self._levels = [torch.empty_like(one, dtype=torch.uint8).copy_(bits) for one, bits in levels]
        if self._levels:
            inner_s = [one.data_ptr() for one in self._levels]
        areas = [
            (one.shape[1], one[0, 0].numel()) if order is torch.channels_last else None
            for one, order in zip(latents, self._orders, strict=True)
        ]
        self._table = AddressTable(
            [
                [one.data_ptr() for one in tensors],
                [one.data_ptr() for one in latents],
                inner_s,
                outer_s,
                [one.data_ptr() for one in self._inner.powers] or [0] * len(sizes),
                list(self._inner.keys) or [0] * len(sizes),
                starts,
                starts,
                [area[0] if area else 1 for area in areas],
                [area[1] if area else max(size, 1) for area, size in zip(areas, sizes, strict=True)],
            ],
            self._device,
            addressed=4,
        )
        self._found: Tensor | None = None
        self._owned = [*self._tensors, *self._latents, *(r.decision for own in places for r in own)]
        self._addresses = self._where()
        self._cut(sizes)
        self._unused = torch.zeros(1, device=self._device)
        self._unused_step = torch.zeros((), dtype=torch.int64, device=self._device)

    def _decisions_of(self, place: int | None) -> list[int]:
        if place is None or not self._places[place][0].grouping.is_single:
            return [0] * len(self._latents)
        return [r.decision.data_ptr() for r in self._places[place]]

    def _cut(self, sizes: Sequence[int]) -> None:
        """Cut all tensors into segments, none of which reaches into a second row."""
        runs = [
            [
                None if form.rows is None or place is None else self._places[place][index].grouping.run
                for form, place in ((self._inner, self._inner_place), (self._outer, self._outer_place))
            ]
            for index in range(len(sizes))
        ]
        pieces: list[Tensor] = []
        rows_before = [0, 0]
        most = max(BLOCK, min(SEGMENT, BLOCK * -(-self._total // (BLOCK * PROGRAMS))))
        for index, (size, own) in enumerate(zip(sizes, runs, strict=True)):
            run = min([one for one in own if one is not None], default=size)
            within = torch.arange(0, run, most)
            start = (torch.arange(0, size, run)[:, None] + within).flatten()
            length = (run - within).clamp_max(most).repeat(size // run)
            columns = [torch.full_like(start, index), start, length]
            for which, one in enumerate(own):
                columns.append(torch.zeros_like(start) if one is None else rows_before[which] + start // one)
                rows_before[which] += 0 if one is None else size // one
            pieces.append(torch.stack(columns))
        segments = torch.cat(pieces, 1)
        is_short = segments[2] <= SHORT
        order = torch.argsort(is_short.to(torch.int8), stable=True)  # each launch has its own, next to each other
        self._launches: list[_Launch] = []
        starts_evenly = all(size % _LANES == 0 for size in sizes)
        count = int((~is_short).sum())
        for first, stop, block in ((0, count, BLOCK), (count, len(order), SHORT)):
            if stop > first:
                chosen = segments[:, order[first:stop]]
                is_even = starts_evenly and bool((chosen[1:3] % _LANES == 0).all())
                sent = chosen.to(torch.int32).contiguous().to(self._device)
                self._launches.append(_Launch(first, stop - first, block, is_even, sent))
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        self._segments = len(order)
        self._row_sums = [
            None if one is None else RowSums(segments[3 + which], place, rows_before[which], self._device)
            for which, one in enumerate((self._inner.rows, self._outer.rows))
        ]

    def is_current(self) -> bool:
        """Whether all tensors lie where they did: assigning to `.data` moves them and leaves the object."""
        return self._where() == self._addresses

    def _where(self) -> list[int]:
        return [one.data_ptr() for one in self._owned]

    def takes(self, gradients: Sequence[Tensor | None]) -> bool:
        """Whether gradients lie in memory as their weights do, in the same precision."""
        dtype = self._latents[0].dtype
        if not self._permuted:
            return all(one is None or (one.is_contiguous() and one.dtype is dtype) for one in gradients)
        pairs = zip(gradients, self._orders, strict=True)
        return all(
            one is None or (one.dtype is dtype and one.is_contiguous(memory_format=order)) for one, order in pairs
        )

    def pull(self, gradients: Sequence[Tensor | None], decide: Sequence[bool], swap: bool) -> list[list[Tensor] | None]:
        """∂L/∂θ in place of ∂L/∂W; returns the gradients of the decisions of each place that is to decide.

        Args:
            gradients: ∂L/∂W of each weight; None: it has none.
            decide: Whether the decisions of each place are trained.
            swap: Write θ in place of W.
        """
        from paretorch.core.attach import fused_kernel as kernel

        inner, outer = self._inner, self._outer
        decide_inner = self._inner_place is not None and decide[self._inner_place] and inner.kind in ("noise", "steps")
        decide_outer = self._outer_place is not None and decide[self._outer_place] and outer.kind == "gate"
        if not outer.kind and not decide_inner and not swap:
            return [None] * len(self._places)
        addresses = [0 if one is None else one.data_ptr() for one in gradients]
        table, is_aligned = self._table.with_gradients(addresses)
        founds = [self._room_for(inner, decide_inner), self._room_for(outer, decide_outer)]
        squares = self._room_for(inner, decide_inner) if inner.squares else None
        self._found = founds[0] if inner.kind == "noise" else None
        rows = [self._unused if form.rows is None else form.rows.backward() for form in (inner, outer)]
        with on_device(self._device):
            for base, count, block, is_even, segments in self._launches:
                kernel.pull[(count,)](
                    table, segments, count, len(self._tensors), base, self._scalars(), self._step(),
                    rows[0], rows[1], self._given(founds[0]), self._given(founds[1]), self._given(squares), outer.factor,
                    T=self._dtype(), INNER=_INNER[inner.kind], INNER_ROWS=inner.rows is not None,
                    OUTER=_OUTER[outer.kind], OUTER_ROWS=outer.rows is not None, FOLLOWED=outer.is_followed, LAGS=outer.lags,
                    DECIDE_INNER=decide_inner, DECIDE_OUTER=decide_outer, SQUARES=squares is not None, SWAP=swap,
                    PERMUTED=self._permuted, EVEN=is_even and is_aligned, BLOCK=block, num_warps=_warps(block),
                )  # fmt: skip
        increment_version([one for one in gradients if one is not None])
        if swap:
            increment_version(self._tensors)
        found: list[list[Tensor] | None] = [None] * len(self._places)
        for place, which, form in ((self._inner_place, 0, inner), (self._outer_place, 1, outer)):
            values = founds[which]
            if place is None or values is None:
                continue
            if form.rows is None:
                found[place] = self._like_decisions(values, place)
            else:
                sums = self._row_sums[which]
                assert sums is not None
                found[place] = form.rows.gradients(sums.of(values), None if squares is None else sums.of(squares))
        return found

    def write(self, clip: bool = False, keep: bool = False) -> None:
        """W from θ; if `clip`, θ is held within its limits first; if `keep`, θ is in the layers' tensors, and copied from there."""
        from paretorch.core.attach import fused_kernel as kernel

        inner, outer = self._inner, self._outer
        clip = clip and inner.clips
        table = self._table.sent
        rows, bounds = (self._unused, None) if inner.rows is None else inner.rows.forward()
        gates = self._unused if outer.rows is None else outer.rows.forward()[0]
        with on_device(self._device):
            for _base, count, block, is_even, segments in self._launches:
                kernel.write[(count,)](
                    table, segments, count, len(self._tensors), self._scalars(), self._step(), rows, gates,
                    self._given(bounds), outer.factor,
                    T=self._dtype(), INNER=_INNER[inner.kind], INNER_ROWS=inner.rows is not None,
                    OUTER=_OUTER[outer.kind], OUTER_ROWS=outer.rows is not None,
                    CLIP=clip, KEEP=keep, PERMUTED=self._permuted, EVEN=is_even and self._table.is_aligned, BLOCK=block, num_warps=_warps(block),
                )  # fmt: skip

    def add_prices(self, price: Tensor) -> bool:
        """The price of bits, added to the gradients that `pull` has found; False: the kernel cannot do it."""
        from paretorch.core.attach import fused_kernel as kernel

        place, found = self._inner_place, self._found
        if place is None or found is None or self._inner.rows is not None or self._outer.rows is not None:
            return False
        gradient = self._places[place][0].decision.grad
        if gradient is None or gradient.data_ptr() != found.data_ptr() or self._outer.kind == "open":
            return False
        with on_device(self._device):
            for _base, count, block, is_even, segments in self._launches:
                kernel.add_prices[(count,)](
                    self._table.sent, segments, count, len(self._tensors), self._scalars(), price, found,
                    OUTER=_OUTER[self._outer.kind], EVEN=is_even and self._table.is_aligned, BLOCK=block, num_warps=_warps(block),
                )  # fmt: skip
        self._found = None
        return True

    def _room_for(self, form: Form, decide: bool) -> Tensor | None:
        if not decide:
            return None
        size = self._total if form.rows is None else self._segments
        return torch.empty(size, dtype=torch.float32, device=self._device)

    def _like_decisions(self, values: Tensor, place: int) -> list[Tensor]:
        """The parts of a flat tensor that belong to each decision, in its shape and order in memory."""
        own = [r.decision for r in self._places[place]]
        if not self._permuted:
            return unflatten(values, own)
        parts = values.split([one.numel() for one in self._latents])
        return [part.as_strided(one.shape, one.stride()) for part, one in zip(parts, own, strict=True)]

    def _given(self, values: Tensor | None) -> Tensor:
        return self._unused if values is None else values

    def _scalars(self) -> Tensor:
        return self._given(self._outer.scalars)

    def _step(self) -> Tensor:
        return self._unused_step if self._inner.step is None else self._inner.step

    def _dtype(self) -> Any:
        import triton.language as tl

        return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[
            self._latents[0].dtype
        ]


class RowSums:
    """Adds the sums over segments up to sums over rows.

    Args:
        rows: The row of each segment, in order.
        places: Where the programs write the sum of each segment.
        count: How many rows there are.
    """

    def __init__(self, rows: Tensor, places: Tensor, count: int, device: torch.device) -> None:
        counts = torch.bincount(rows, minlength=count)
        self._order = None if torch.equal(places, torch.arange(len(places))) else places.to(device)
        self._single = bool((counts == 1).all())
        self._is_long = bool((counts > MANY).any())
        self._count = count
        self._counts = counts.to(torch.int32).to(device)
        self._firsts = (torch.cumsum(counts, 0) - counts).to(torch.int32).to(device)

    def of(self, parts: Tensor) -> Tensor:
        """The sum of each row, given those of the segments as the programs have written them."""
        from paretorch.core.attach import fused_kernel as kernel

        if self._order is not None:
            parts = parts[self._order]
        if self._single:
            return parts
        sums = torch.empty(self._count, dtype=torch.float32, device=parts.device)
        given = parts, self._firsts, self._counts, sums
        if self._is_long:
            kernel.add_up_rows[(self._count,)](*given, BLOCK=SHORT, num_warps=1)
        else:
            kernel.add_up[(-(-self._count // SHORT),)](*given, self._count, BLOCK=SHORT, num_warps=1)
        return sums


def _warps(block: int) -> int:
    return max(1, min(4, block // 128))
