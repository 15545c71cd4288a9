# mypy: ignore-errors
# Written in Triton's language, whose types are those of its compiler. Import this module only where triton is there.
"""y = x Wᵀ from packed weights: a stream of tiles, unpacked in registers on the way to the tensor cores.

A program owns the rows of one row tile and every SPLITS-th of its tiles, first those of 8 bits, then 4, then 2; each of the
three loops is pipelined by the compiler. Code i of the words of a tile meets a contiguous piece of x, so a tile is 16/p
small products, none of which moves a weight between threads. With SPLITS > 1 every program leaves its sums and takes a
ticket; the one that takes the last adds them up, in a fixed order, so that runs repeat, and there is one launch.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def _line(text, index):
    return text.split("\n")[index]


@triton.jit
def packed_linear(
    x, out, bias, rows, exponents, words8, words4, words2, places8, places4, places2, spans, partial, tickets,
    batch, outputs, inputs, x_stride, tiles,
    HAS8: tl.constexpr, HAS4: tl.constexpr, HAS2: tl.constexpr, ODD: tl.constexpr, REGULAR: tl.constexpr, WHOLE: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BATCH: tl.constexpr, SPLITS: tl.constexpr,
    ASM8: tl.constexpr, ASM4: tl.constexpr, ASM2: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """x (batch, inputs), out (batch, outputs); BATCH is batch rounded up. `spans`: for each row tile the first and last
    tile of each width; `places`: which columns an (irregular) tile covers; `rows`: where a packed row belongs."""
    split, tile = tl.program_id(0), tl.program_id(1)
    r, b = tl.arange(0, ROWS), tl.arange(0, BATCH)
    exponent = exponents + tile * ROWS + r
    span = spans + tile * 6
    padded = tiles * ROWS
    total = tl.zeros((ROWS, BATCH), tl.float32)
    if HAS8:
        total += _unit(exponent) * _stream(
            x, words8, places8, span, split, batch, inputs, x_stride,
            8, ODD, REGULAR, WHOLE, ROWS, COLUMNS, BATCH, SPLITS, ASM8, STAGES,
        )  # fmt: skip
    if HAS4:
        total += _unit(exponent + padded) * _stream(
            x, words4, places4, span + 2, split, batch, inputs, x_stride,
            4, ODD, REGULAR, WHOLE, ROWS, COLUMNS, BATCH, SPLITS, ASM4, STAGES,
        )  # fmt: skip
    if HAS2:
        total += _unit(exponent + 2 * padded) * _stream(
            x, words2, places2, span + 4, split, batch, inputs, x_stride,
            2, ODD, REGULAR, WHOLE, ROWS, COLUMNS, BATCH, SPLITS, ASM2, STAGES,
        )  # fmt: skip
    present = b[None, :] < batch
    if SPLITS == 1:
        _finish(total, out, bias, rows, tile, outputs, present, r, b, BIAS, ROWS)
    else:
        mine = partial + tile * SPLITS * batch * ROWS + b[None, :] * ROWS + r[:, None]
        tl.store(mine + split * batch * ROWS, total, mask=present)
        tl.debug_barrier()
        if tl.atomic_add(tickets + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
            tl.store(tickets + tile, 0)
            # Read past the first level cache, which does not see what other programs wrote.
            total = tl.zeros((ROWS, BATCH), tl.float32)
            for part in tl.static_range(SPLITS):
                total += tl.load(mine + part * batch * ROWS, mask=present, other=0.0, cache_modifier=".cg")
            _finish(total, out, bias, rows, tile, outputs, present, r, b, BIAS, ROWS)


@triton.jit
def _stream(
    x, words, places, span, split, batch, inputs, x_stride,
    WIDTH: tl.constexpr, ODD: tl.constexpr, REGULAR: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BATCH: tl.constexpr, SPLITS: tl.constexpr, ASM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Σ code · x over this program's tiles of one width."""
    LENGTH: tl.constexpr = COLUMNS * WIDTH // 16  # words of one row of a tile
    first, last = tl.load(span), tl.load(span + 1)
    j, b = tl.arange(0, LENGTH), tl.arange(0, BATCH)
    at = tl.arange(0, ROWS)[:, None] * LENGTH + j[None, :]
    total = tl.zeros((ROWS, BATCH), tl.float32)
    for i in tl.range(first + split, last, SPLITS, num_stages=STAGES):
        if REGULAR:
            column = (i - first) * COLUMNS
        else:
            column = tl.load(places + i) * COLUMNS
        w = tl.load(words + tl.cast(i, tl.int64) * (ROWS * LENGTH) + at)
        for part in tl.static_range(16 // WIDTH):
            k = column + part * LENGTH + j
            present = b[None, :] < batch
            if not WHOLE:
                present = present & (k[:, None] < inputs)
            activations = tl.load(x + k[:, None] + b[None, :] * x_stride, mask=present, other=0.0)
            total = _product(w, activations, total, WIDTH, part, ODD, ASM)
    return total


@triton.jit
def _unit(exponent):
    """2^e by the exponent bits of an fp32 number; −127 gives 0."""
    return ((tl.load(exponent) + 127) << 23).to(tl.float32, bitcast=True)[:, None]


@triton.jit
def _product(w, x, total, WIDTH: tl.constexpr, INDEX: tl.constexpr, ODD: tl.constexpr, ASM: tl.constexpr):
    """total + integers of code INDEX · x; without assembly, as the interpreter needs it, in plain words and fp32."""
    if ASM is not None:
        integers = tl.inline_asm_elementwise(_line(ASM, INDEX), "=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=2)
        total = tl.dot(integers, x, total)
    else:
        code = (w.to(tl.int32) >> (WIDTH * INDEX)) & ((1 << WIDTH) - 1)
        if WIDTH == 8:
            size = code & 127
            if ODD:
                size = 2 * size + 1
            integers = tl.where(code >= 128, -size, size)
        elif ODD:
            integers = 2 * code + 1 - (1 << WIDTH)
        else:
            integers = code - (1 << (WIDTH - 1))
        total = tl.dot(integers.to(tl.float32), x.to(tl.float32), total, input_precision="ieee")
    return total


@triton.jit
def _finish(total, out, bias, rows, tile, outputs, present, r, b, BIAS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.load(rows + tile * ROWS + r)
    inside = row < outputs  # rows that fill up the last tile belong nowhere
    if BIAS:
        total += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)[:, None]
    tl.store(out + b[None, :] * outputs + row[:, None], total.to(out.dtype.element_ty), mask=present & inside[:, None])
