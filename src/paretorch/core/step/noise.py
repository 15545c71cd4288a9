"""Noise as a pure function of (seed, step, position): no generator state, so nothing to save, share or lose.

The same numbers come out of eager mode, inductor, CPU and GPU, on every rank, on every read of a weight within
one step, and after a resume. Under `torch.compile` the hash is fused into the kernel that uses it: no memory traffic.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

_STEP, _SEED, _PLACE = 0x1E3779B97F4A7C15, 0x6A09E667F3BCC909, 0x3243F6A8885A308D
_FIRST, _SECOND = 0x3F58476D1CE4E5B9, 0x14D049BB133111EB


def uniform(shape: torch.Size, step: Tensor, seed: int, start: int = 0) -> Tensor:
    """ε ~ U(−1, 1) in fp32, the same for the same (shape, step, seed); `step` is an integer tensor on the device.

    start: which number of a longer stream is the first.

    A hash of 64 bits in the manner of splitmix64: multiplications, which wrap, carry upwards, and what is above is folded down,
    twice. Each folding uses its value twice, and a compiler writes an expression out once for every use: there are as few as will do,
    and none in the key. The upper 23 bits of the last product are taken: with half a step added, fp32 holds them exactly.
    """
    key = step.to(torch.int64) * _STEP + key_of(seed)
    # Shaped before it is hashed: a compiler then draws it in the order in which the weight lies, in the kernel that adds it.
    return _hashed(torch.arange(start, start + shape.numel(), device=step.device).view(shape), key)


def _hashed(place: Tensor, key: Tensor) -> Tensor:
    # Not a multiple of the place itself: of such a compiler knows every bit, and has no room for more than 64.
    x = (place ^ key).mul_(_PLACE)
    x = _fold(x).mul_(_FIRST).add_(key)  # the key again: streams are no shifted copies of each other
    x = _fold(x).mul_(_SECOND)
    bits = x.bitwise_right_shift_(41).bitwise_and_(0x7FFFFF)
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-22).sub_(1.0)


def _fold(x: Tensor) -> Tensor:
    """The upper half into the lower one, in place. Masked, since shifts of signed integers drag the sign along."""
    return x.bitwise_xor_((x >> 32).bitwise_and_(0xFFFFFFFF))


_FLAT = 2**22  # numbers that are drawn together: temporary tensors are some times as large


def uniform_all(shapes: Sequence[torch.Size], step: Tensor, seeds: Sequence[int]) -> list[Tensor]:
    """`uniform` of several shapes, each with its own seed, the same numbers in few launches."""
    found = list[Tensor]()
    for start, stop in _runs([shape.numel() for shape in shapes]):
        found += _drawn_together(shapes[start:stop], step, seeds[start:stop])
    return found


def uniform_flat(sizes: Sequence[int], step: Tensor, seeds: Sequence[int]) -> Tensor:
    """`uniform` of tensors of these sizes, each with its own seed, end to end."""
    parts = [_flat(sizes[start:stop], step, seeds[start:stop]) for start, stop in _runs(sizes)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def spread(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """One value per tensor, repeated for each of its entries: end to end, for tensors of these sizes."""
    table = _table(tuple(sizes), (0,) * len(sizes), values.device)
    return values.repeat_interleave(table[2], output_size=sum(sizes))


def _runs(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbours that are not too large together, from … to."""
    start, taken = 0, 0
    for place, size in enumerate(sizes):
        if taken and taken + size > _FLAT:
            yield start, place
            start, taken = place, 0
        taken += size
    if sizes:
        yield start, len(sizes)


def _drawn_together(shapes: Sequence[torch.Size], step: Tensor, seeds: Sequence[int]) -> list[Tensor]:
    if len(shapes) == 1:
        return [uniform(shapes[0], step, seeds[0])]
    sizes = [shape.numel() for shape in shapes]
    flat = _flat(sizes, step, seeds)
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


def _flat(sizes: Sequence[int], step: Tensor, seeds: Sequence[int]) -> Tensor:
    total = sum(sizes)
    table = _table(tuple(sizes), tuple(seeds), step.device)
    keys = (step.to(torch.int64) * _STEP + table[0]).repeat_interleave(table[2], output_size=total)
    place = torch.arange(total, device=step.device) - table[1].repeat_interleave(table[2], output_size=total)
    return _hashed(place, keys)


@lru_cache(maxsize=256)
def _table(sizes: tuple[int, ...], seeds: tuple[int, ...], device: torch.device) -> Tensor:
    """Constants of each tensor's key, where it begins and how long it is; on the device once, as graphs are captured there."""
    keys = [key_of(seed) for seed in seeds]
    starts = list(accumulate([0, *sizes[:-1]]))
    return torch.tensor([keys, starts, sizes], dtype=torch.int64, device=device)


def _signed(x: int) -> int:
    x &= 2**64 - 1
    return x - 2**64 if x >= 2**63 else x


def key_of(seed: int) -> int:
    """What is added to a multiple of the step to get the key of a stream."""
    return _signed((seed * _SEED + 1) * _STEP)


def seed_for(seed: int, name: str) -> int:
    """One stream a weight: a stable 32-bit hash (FNV-1a) of the plan's seed and the weight's name."""
    value = 0x811C9DC5 ^ (seed & 0xFFFFFFFF)
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
