# mypy: ignore-errors
# The functions below are written in Triton's language, which mypy does not know. Import this module only if triton is
# installed.
"""Effective weights, and gradients from ∂L/∂W, of all weights of a batch in one pass over memory each.

A weight has up to two relaxations, v = inner(w) and W = outer(v):

    inner   NOISE  v = w + r ε      STEPS  v = Δ round(w/Δ)      GRID  v = 2^k Q(w / 2^k, p)
    outer   GATE   W = c σ(β(s + τ)) v                           OPEN  W = c 1{s + τ > 0} v

r = 2^k σ(s) with one decision per weight; else r, Δ and c σ(·) are coefficients per row, a run of neighbours that share a decision.

`table` has one row each for the addresses of W, ∂L/∂W, θ, the inner and the outer decision, k, the keys of the noise, the positions of each
tensor's first element in `inner_found` and `outer_found`, and the sizes that turn a place in memory into one in the tensor.
`segments` names the tensor, start, length and rows of each program. Programs write sums over their segment, which `add_up` adds in a
fixed order, so that runs repeat.
"""

import triton
import triton.language as tl

NONE = tl.constexpr(0)
NOISE = tl.constexpr(1)
STEPS = tl.constexpr(2)
GRID = tl.constexpr(3)
GATE = tl.constexpr(1)
OPEN = tl.constexpr(2)

_STEP = tl.constexpr(0x1E3779B97F4A7C15)
_PLACE = tl.constexpr(0x3243F6A8885A308D)
_FIRST = tl.constexpr(0x3F58476D1CE4E5B9)
_SECOND = tl.constexpr(0x14D049BB133111EB)


@triton.jit
def pull(
    table, segments, programs, tensors, base, scalars, step, inner_rows, outer_rows, inner_found, outer_found, squares,
    factor,
    T: tl.constexpr, INNER: tl.constexpr, INNER_ROWS: tl.constexpr, OUTER: tl.constexpr, OUTER_ROWS: tl.constexpr,
    FOLLOWED: tl.constexpr, LAGS: tl.constexpr, DECIDE_INNER: tl.constexpr, DECIDE_OUTER: tl.constexpr, SQUARES: tl.constexpr,
    SWAP: tl.constexpr, PERMUTED: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """∂L/∂θ in place of ∂L/∂W, the gradients of decisions, and, if SWAP, θ in place of W.

    With one decision per weight the founds are gradients; with rows, they are Σ ∂L/∂v (v − w) (inner) and Σ ∂L/∂W v (outer).
    """
    program = tl.program_id(0)
    tensor, start, length, inner_row, outer_row = _segment(segments, program, programs, EVEN)
    column = table + tensor
    gradient_address = tl.load(column + tensors)
    present = gradient_address != 0
    w_ptr, g_ptr = _pointer(tl.load(column), T, EVEN), _pointer(gradient_address, T, EVEN)
    latent_ptr = _pointer(tl.load(column + 2 * tensors), T, EVEN)
    inner_s = _pointer(tl.load(column + 3 * tensors), tl.float32, EVEN)
    outer_s = _pointer(tl.load(column + 4 * tensors), tl.float32, EVEN)
    inner_first, outer_first = tl.load(column + 7 * tensors), tl.load(column + 8 * tensors)
    if EVEN:
        inner_first, outer_first = tl.multiple_of(inner_first, 16), tl.multiple_of(outer_first, 16)
    scale, key = _noise(column, tensors, step, INNER, INNER_ROWS)
    row_reach, gate = 1.0, 1.0
    if INNER_ROWS:
        row_reach = tl.load(inner_rows + inner_row)
    if OUTER_ROWS:
        gate = tl.load(outer_rows + outer_row)
    shift, slope = 0.0, 0.0
    if OUTER != NONE and not OUTER_ROWS:
        shift, slope = tl.load(scalars + 1), tl.load(scalars + 2 * LAGS)

    inner_sum, outer_sum = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    square_sum = tl.zeros((BLOCK,), tl.float32)
    for offset in range(0, length, BLOCK):
        part = offset + tl.arange(0, BLOCK)
        inside, at = part < length, start + part
        w = tl.load(latent_ptr + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + at, mask=inside & present, other=0.0).to(tl.float32)
        v, s, reach = w, w, row_reach
        if INNER == NOISE:
            if not INNER_ROWS:
                s = tl.load(inner_s + at, mask=inside, other=0.0)
                reach = scale * tl.sigmoid(s)
            if OUTER == NONE:
                v = tl.load(w_ptr + at, mask=inside, other=0.0).to(
                    tl.float32
                )  # W is v: cheaper than to draw the noise again
            elif DECIDE_INNER or DECIDE_OUTER:
                v = w + reach * _uniform(_place(at, column, tensors, PERMUTED), key)
        elif INNER == STEPS and (DECIDE_INNER or DECIDE_OUTER):
            v = _rounded(w, reach)
        own = g
        if OUTER != NONE:
            if OUTER_ROWS:
                own = g * gate
                if DECIDE_OUTER:
                    outer_sum += g * v
            else:
                mask = tl.load(outer_s + at, mask=inside, other=0.0) + shift
                if OUTER == OPEN:
                    own = tl.where(mask > 0.0, g * factor, 0.0)
                else:
                    mask = tl.sigmoid(slope * mask)
                    own = g * (mask * factor)
                    if DECIDE_OUTER:
                        moved = g * v * factor
                        if not FOLLOWED:
                            moved *= (mask - mask * mask) * slope
                        tl.store(outer_found + outer_first + at, moved, mask=inside)
            tl.store(g_ptr + at, own.to(T), mask=inside & present)
        if DECIDE_INNER:
            moved = (v - w) * own
            if INNER_ROWS:
                inner_sum += moved
            else:
                tl.store(inner_found + inner_first + at, moved * tl.sigmoid(-s), mask=inside)
        if SQUARES:
            square_sum += own * own
        if SWAP:
            tl.store(w_ptr + at, w.to(T), mask=inside)
    if INNER_ROWS and DECIDE_INNER:
        tl.store(inner_found + base + program, tl.sum(inner_sum, axis=0))
    if OUTER_ROWS and DECIDE_OUTER:
        tl.store(outer_found + base + program, tl.sum(outer_sum, axis=0))
    if SQUARES:
        tl.store(squares + base + program, tl.sum(square_sum, axis=0))


@triton.jit
def write(
    table, segments, programs, tensors, scalars, step, inner_rows, outer_rows, bounds, factor,
    T: tl.constexpr, INNER: tl.constexpr, INNER_ROWS: tl.constexpr, OUTER: tl.constexpr, OUTER_ROWS: tl.constexpr,
    CLIP: tl.constexpr, KEEP: tl.constexpr, PERMUTED: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """W from θ; if CLIP, θ is held within ±(2^(k+1) − r) first; if KEEP, θ comes from where W is written."""
    program = tl.program_id(0)
    tensor, start, length, inner_row, outer_row = _segment(segments, program, programs, EVEN)
    column = table + tensor
    w_ptr, latent_ptr = _pointer(tl.load(column), T, EVEN), _pointer(tl.load(column + 2 * tensors), T, EVEN)
    inner_s = _pointer(tl.load(column + 3 * tensors), tl.float32, EVEN)
    levels = _pointer(tl.load(column + 3 * tensors), tl.uint8, EVEN)
    outer_s = _pointer(tl.load(column + 4 * tensors), tl.float32, EVEN)
    scale, key = _noise(column, tensors, step, INNER, INNER_ROWS)
    row_reach, row_bound, gate = 1.0, 0.0, 1.0
    if INNER_ROWS:
        row_reach = tl.load(inner_rows + inner_row)
        if CLIP:
            row_bound = tl.load(bounds + inner_row)
    if OUTER_ROWS:
        gate = tl.load(outer_rows + outer_row)
    temperature, shift = 0.0, 0.0
    if OUTER != NONE and not OUTER_ROWS:
        temperature, shift = tl.load(scalars), tl.load(scalars + 1)

    for offset in range(0, length, BLOCK):
        part = offset + tl.arange(0, BLOCK)
        inside, at = part < length, start + part
        w = tl.load((w_ptr if KEEP else latent_ptr) + at, mask=inside, other=0.0).to(tl.float32)
        unit, reach, bound = w, row_reach, row_bound
        if INNER == NOISE and not INNER_ROWS:
            reach = scale * tl.sigmoid(tl.load(inner_s + at, mask=inside, other=0.0))
            bound = 2.0 * scale - reach
        if INNER == GRID:
            unit = _power(1 - tl.load(levels + at, mask=inside, other=1).to(tl.int32))
            bound = scale * (2.0 - unit)
        if CLIP:
            w = tl.where(w > bound, bound, w)
            w = tl.where(w < -bound, -bound, w)
        if CLIP or KEEP:
            tl.store(latent_ptr + at, w.to(T), mask=inside)
            w = w.to(T).to(tl.float32)
        value = w
        if INNER == NOISE:
            value = w + reach * _uniform(_place(at, column, tensors, PERMUTED), key)
        elif INNER == STEPS:
            value = _rounded(w, reach)
        elif INNER == GRID:
            top = 2.0 - unit
            value = (tl.floor(w / scale / (2.0 * unit)) * 2.0 + 1.0) * unit
            value = scale * tl.where(value > top, top, tl.where(value < -top, -top, value))
        if OUTER != NONE:
            if OUTER_ROWS:
                value = value * gate
            else:
                mask = tl.load(outer_s + at, mask=inside, other=0.0) + shift
                if OUTER == OPEN:
                    value = tl.where(mask > 0.0, value * factor, 0.0 * value)
                else:
                    value = value * (tl.sigmoid(temperature * mask) * factor)
        tl.store(w_ptr + at, value.to(T), mask=inside)


@triton.jit
def add_prices(
    table, segments, programs, tensors, scalars, price, inner_found,
    OUTER: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The price of bits, per weight: d(λ Σ keep · bits)/ds, added to the gradients of the inner decisions."""
    program = tl.program_id(0)
    tensor, start, length, _inner, _outer = _segment(segments, program, programs, EVEN)
    column = table + tensor
    inner_s = _pointer(tl.load(column + 3 * tensors), tl.float32, EVEN)
    outer_s = _pointer(tl.load(column + 4 * tensors), tl.float32, EVEN)
    first = tl.load(column + 7 * tensors)
    if EVEN:
        first = tl.multiple_of(first, 16)
    rate = tl.load(price)
    temperature, shift = 0.0, 0.0
    if OUTER != NONE:
        temperature, shift = tl.load(scalars), tl.load(scalars + 1)
    for offset in range(0, length, BLOCK):
        part = offset + tl.arange(0, BLOCK)
        inside, at = part < length, start + part
        s = tl.load(inner_s + at, mask=inside, other=0.0)
        slope = tl.sigmoid(-s) * -1.4426950408889634 * rate
        if OUTER != NONE:
            mask = tl.load(outer_s + at, mask=inside, other=0.0) + shift
            slope *= tl.sigmoid(temperature * mask)
        found = tl.load(inner_found + first + at, mask=inside, other=0.0)
        tl.store(inner_found + first + at, found + slope, mask=inside)


@triton.jit
def add_up(parts, firsts, counts, sums, rows, BLOCK: tl.constexpr):
    """The sum of each row over its segments, one after the other."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    first = tl.load(firsts + row, mask=inside, other=0)
    count = tl.load(counts + row, mask=inside, other=0)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(tl.max(count, axis=0)):
        total += tl.load(parts + first + part, mask=inside & (part < count), other=0.0)
    tl.store(sums + row, total, mask=inside)


@triton.jit
def add_up_rows(parts, firsts, counts, sums, BLOCK: tl.constexpr):
    """As `add_up`, one program per row: for rows of many segments."""
    row = tl.program_id(0)
    first, count = tl.load(firsts + row), tl.load(counts + row)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        part = start + tl.arange(0, BLOCK)
        total += tl.load(parts + first + part, mask=part < count, other=0.0)
    tl.store(sums + row, tl.sum(total, axis=0))


@triton.jit
def gather(layers, places, addresses, lengths, strides, step, found, count, BLOCK: tl.constexpr):
    """Values of decisions at the places of a sample, which move with the steps in layers of which every k-th weight is taken.

    `layers` and `places` have one entry per value; `addresses` (0: no decision), `lengths` and `strides` (k; 1: places stay) one per layer.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    layer = tl.load(layers + at, mask=inside, other=0)
    address = tl.load(addresses + layer, mask=inside, other=0)
    length = tl.load(lengths + layer, mask=inside, other=1)
    place = tl.load(places + at, mask=inside, other=0)
    place += (tl.load(step) % tl.load(strides + layer, mask=inside, other=1)).to(tl.int32)
    place = tl.where(place >= length, place - length, place)
    value = tl.load(address.to(tl.pointer_type(tl.float32)) + place, mask=inside & (address != 0), other=float("inf"))
    tl.store(found + at, value, mask=inside)


@triton.jit
def _segment(segments, program, programs, EVEN: tl.constexpr):
    row = segments + program
    tensor = tl.load(row)
    start, length = tl.load(row + programs), tl.load(row + 2 * programs)
    if EVEN:
        start, length = tl.multiple_of(start, 16), tl.multiple_of(length, 16)
    return tensor, start, length, tl.load(row + 3 * programs), tl.load(row + 4 * programs)


@triton.jit
def _pointer(address, T: tl.constexpr, EVEN: tl.constexpr):
    """The pointer; if EVEN, it is a multiple of 16 bytes, and the compiler may read words of 16 bytes."""
    pointer = address.to(tl.pointer_type(T))
    if EVEN:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _noise(column, tensors, step, INNER: tl.constexpr, ROWS: tl.constexpr):
    """The scale 2^k of the grid, and the key of the noise at this step."""
    scale, key = 1.0, tl.load(column + 6 * tensors)
    if INNER == NOISE:
        key += tl.load(step).to(tl.int64) * _STEP
    if (INNER == NOISE and not ROWS) or INNER == GRID:
        scale = _power(tl.load(_pointer(tl.load(column + 5 * tensors), tl.int32, False)))
    return scale, key


@triton.jit
def _power(exponent):
    """2^exponent, exactly."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _place(at, column, tensors, PERMUTED: tl.constexpr):
    """Where the element at a place in memory is in the tensor, rows first: images may lie with their channels innermost."""
    place = at.to(tl.int64)
    if PERMUTED:
        channels = tl.load(column + 9 * tensors)
        area = tl.load(column + 10 * tensors)
        image = place // (channels * area)
        rest = place - image * channels * area
        pixel = rest // channels
        place = (image * channels + rest - pixel * channels) * area + pixel
    return place


@triton.jit
def _uniform(place, key):
    """The hash of `paretorch.core.step.noise`."""
    x = (place ^ key) * _PLACE
    x = _fold(x) * _FIRST + key
    x = _fold(x) * _SECOND
    bits = (x >> 41) & 0x7FFFFF
    return (bits.to(tl.float32) + 0.5) * 2.384185791015625e-07 - 1.0


@triton.jit
def _fold(x):
    return x ^ ((x >> 32) & 0xFFFFFFFF)


@triton.jit
def _rounded(w, step):
    """Δ round(w/Δ), ties to even: adding 1.5 · 2²³ leaves no digits behind the point."""
    ratio = tl.div_rn(w, step)
    near = (ratio + 12582912.0) - 12582912.0
    near = tl.where(tl.abs(ratio) < 4194304.0, near, ratio)
    return near * step
