# mypy: ignore-errors
# Written in Triton's language, whose types are those of its compiler. Import this module only if triton is installed.
"""y = x Wᵀ from packed weights: a stream of tiles, unpacked in registers on the way to the tensor cores.

A program computes the rows of one row tile. Its WARPS warps take one tile each at a time, adjacent in memory, and SPLITS
programs share a row tile. Tiles of 8 bits come first, then those of 4, then 2; each width is a loop that the compiler
pipelines. Code i of the words of a tile meets a contiguous piece of x, so a tile is 16/p small products, none of which moves
a weight between threads. With SPLITS > 1 every program stores its sums and takes a ticket; the program with the last ticket
adds all sums, in a fixed order, so that results repeat exactly, in one launch.

Tensor cores multiply by at least 8 columns. A batch of one has a single column, so the 16/p pieces of x are used as columns:
every product multiplies all pieces, with sums of its own, and of product i column i is kept. So x is loaded once, not 8 times
with 7 rows of zeros.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def _line(text, index):
    return text.split("\n")[index]


@triton.jit(do_not_specialize=["tiles"])
def packed_linear(
    x, out, bias, rows, exponents, words8, words4, words2, places8, places4, places2, spans, partial, tickets,
    batch, outputs, inputs, x_stride, tiles,
    HAS8: tl.constexpr, HAS4: tl.constexpr, HAS2: tl.constexpr, ODD: tl.constexpr, FULL: tl.constexpr,
    REGULAR: tl.constexpr, WHOLE: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BATCH: tl.constexpr, WARPS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
    ASM8: tl.constexpr, ASM4: tl.constexpr, ASM2: tl.constexpr,
):  # fmt: skip
    """x (batch, inputs), out (batch, outputs); BATCH is batch rounded up to 1, 8 or 16.

    spans: for each row tile the first and last tile of each width, unless it has all of one width (FULL). places: which
    columns a tile covers, unless its number says so (REGULAR). rows: which output a packed row is.
    EARLY: this kernel may start before the previous one has ended. Until then it only requests the tiles of its first EARLY
    turns, if it knows which they are. It lets the next kernel start when all programs are done with their tiles: sooner,
    programs of the next kernel would occupy multiprocessors unevenly while they wait.
    """
    split, tile = tl.program_id(0), tl.program_id(1)
    if EARLY > 0:
        if FULL:
            WIDTH: tl.constexpr = 8 * HAS8 + 4 * HAS4 + 2 * HAS2
            words = words8 if HAS8 else words4 if HAS4 else words2
            _prefetch(words, tile, split, inputs, WIDTH, ROWS, COLUMNS, WARPS, SPLITS, EARLY)
        tl.extra.cuda.gdc_wait()
    r, b = tl.arange(0, ROWS), tl.arange(0, BATCH)
    # Load at the start what is needed at the end, to hide the latency of memory.
    row = tl.load(rows + tile * ROWS + r)
    inside = row < outputs  # padding rows of the last tile have no output
    exponent, padded, span = exponents + tile * ROWS + r, tiles * ROWS, spans + tile * 6
    offset = tl.zeros((ROWS,), tl.float32)
    if BIAS:
        offset = tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)
    sums = tl.zeros((WARPS, ROWS, BATCH if BATCH > 1 else 8), tl.float32)
    if HAS8:
        sums += _unit(exponent) * _stream(
            x, words8, places8, span, tile, split, batch, inputs, x_stride,
            8, ODD, FULL, REGULAR, WHOLE, ROWS, COLUMNS, BATCH, WARPS, SPLITS, STAGES, ASM8,
        )  # fmt: skip
    if HAS4:
        sums += _unit(exponent + padded) * _stream(
            x, words4, places4, span + 2, tile, split, batch, inputs, x_stride,
            4, ODD, FULL, REGULAR, WHOLE, ROWS, COLUMNS, BATCH, WARPS, SPLITS, STAGES, ASM4,
        )  # fmt: skip
    if HAS2:
        sums += _unit(exponent + 2 * padded) * _stream(
            x, words2, places2, span + 4, tile, split, batch, inputs, x_stride,
            2, ODD, FULL, REGULAR, WHOLE, ROWS, COLUMNS, BATCH, WARPS, SPLITS, STAGES, ASM2,
        )  # fmt: skip
    if EARLY > 0:
        tl.extra.cuda.gdc_launch_dependents()
    if BATCH == 1:
        sums = tl.sum(sums, axis=2, keep_dims=True)
    total = tl.sum(sums, axis=0)
    present = b[None, :] < batch
    target = out + b[None, :] * outputs + row[:, None]
    if SPLITS == 1:
        tl.store(target, (total + offset[:, None]).to(out.dtype.element_ty), mask=present & inside[:, None])
    else:
        mine = partial + tile * SPLITS * batch * ROWS + b[None, :] * ROWS + r[:, None]
        tl.store(mine + split * batch * ROWS, total, mask=present)
        tl.debug_barrier()
        if tl.atomic_add(tickets + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
            tl.store(tickets + tile, 0)
            # Bypass the first-level cache, which does not see what other programs wrote.
            total = tl.zeros((ROWS, BATCH), tl.float32)
            for part in tl.static_range(SPLITS):
                total += tl.load(mine + part * batch * ROWS, mask=present, other=0.0, cache_modifier=".cg")
            tl.store(target, (total + offset[:, None]).to(out.dtype.element_ty), mask=present & inside[:, None])


@triton.jit
def _stream(
    x, words, places, span, tile, split, batch, inputs, x_stride,
    WIDTH: tl.constexpr, ODD: tl.constexpr, FULL: tl.constexpr, REGULAR: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BATCH: tl.constexpr, WARPS: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Σ integer · x over this program's tiles of one width, for each of its warps (first dimension)."""
    LENGTH: tl.constexpr = COLUMNS * WIDTH // 16  # words of one row of a tile
    PARTS: tl.constexpr = 16 // WIDTH
    LANES: tl.constexpr = BATCH if BATCH > 1 else 8
    if FULL:
        blocks = tl.cdiv(inputs, COLUMNS)
        first, last = tile * blocks, tile * blocks + blocks
    else:
        first, last = tl.load(span), tl.load(span + 1)
    warp, b, j = tl.arange(0, WARPS), tl.arange(0, LANES)[None, None, :], tl.arange(0, LENGTH)[None, :]
    r = tl.arange(0, ROWS)[None, :, None]
    at = (warp[:, None, None] * ROWS + r) * LENGTH + j[:, None, :]
    zeros = tl.zeros((WARPS, ROWS, LANES), tl.float32)
    sums = ()
    for _ in tl.static_range(PARTS if BATCH == 1 else 1):
        sums += (zeros,)
    for i in tl.range(first + split * WARPS, last, SPLITS * WARPS, num_stages=STAGES):
        own = i + warp
        here = own < last
        if REGULAR:
            column = (own - first) * COLUMNS
        else:
            column = tl.load(places + own, mask=here, other=0) * COLUMNS
        w = tl.load(words + tl.cast(i, tl.int64) * (ROWS * LENGTH) + at, mask=here[:, None, None], other=0)
        k = (column[:, None] + j)[:, :, None]
        if BATCH == 1:
            k += b * LENGTH
            piece = _load(x + k, here[:, None, None] & (b < PARTS), k, inputs, WHOLE)
            more = ()
            for part in tl.static_range(PARTS):
                more += (_product(w, piece, sums[part], WIDTH, part, ODD, ASM),)
            sums = more
        else:
            for part in tl.static_range(PARTS):
                present = here[:, None, None] & (b < batch)
                piece = _load(x + k + b * x_stride, present, k, inputs, WHOLE)
                sums = (_product(w, piece, sums[0], WIDTH, part, ODD, ASM),)
                k += LENGTH
    total = sums[0]
    if BATCH == 1:
        total = zeros
        for part in tl.static_range(PARTS):
            total += tl.where(b == part, sums[part], 0.0)
    return total


@triton.jit
def _load(pointer, wanted, k, inputs, WHOLE: tl.constexpr):
    if not WHOLE:
        wanted = wanted & (k < inputs)
    return tl.load(pointer, mask=wanted, other=0.0)


@triton.jit
def _prefetch(
    words, tile, split, inputs, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WARPS: tl.constexpr,
    SPLITS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Prefetch the tiles of the first turns into the second-level cache: one thread, one instruction per turn."""
    SIZE: tl.constexpr = ROWS * COLUMNS * WIDTH // 16  # words of a tile
    blocks = tl.cdiv(inputs, COLUMNS)
    for turn in tl.static_range(TURNS):
        block = (turn * SPLITS + split) * WARPS
        size = tl.maximum(tl.minimum(blocks - block, WARPS), 0) * (2 * SIZE)  # bytes
        address = (words + (tile * blocks + block).to(tl.int64) * SIZE).to(tl.int64)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.ne.s32 p, $2, 0; setp.eq.and.u32 p, t, 0, p; "
            "@p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
            "=r,l,r", [address, size], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def _unit(exponent):
    """Return 2^e, by the exponent bits of an fp32 number; −127 gives 0."""
    return ((tl.load(exponent) + 127) << 23).to(tl.float32, bitcast=True)[None, :, None]


@triton.jit
def _product(w, x, sums, WIDTH: tl.constexpr, INDEX: tl.constexpr, ODD: tl.constexpr, ASM: tl.constexpr):
    """sums + integers of code INDEX · x; without assembly, as the interpreter needs it, in plain words and fp32."""
    if ASM is not None:
        integers = tl.inline_asm_elementwise(_line(ASM, INDEX), "=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=2)
        sums = tl.dot(integers, x, sums)
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
        sums = tl.dot(integers.to(tl.float32), x.to(tl.float32), sums, input_precision="ieee")
    return sums
