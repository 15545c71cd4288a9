# mypy: ignore-errors
# The functions below are written in Triton's language, which mypy does not know. Import this module only if triton is
# installed.
"""The update on a GPU in one pass: p, g, m, v are read once, p, m, v written once, Σ η² for the next step summed meanwhile.

All tensors of a bucket are one launch, because launches dominate the cost of small networks. `table` has one row each for
the addresses of p, g, m, v, the lengths, and the rounding keys of m and v; `chunks` assigns a tensor and a part of it to
each program. Every program writes its sums to its own place and takes a ticket. The program with the last ticket adds up
all sums, in a fixed order so that runs repeat, and counts the step.
"""

import triton
import triton.language as tl

UPDATE = tl.constexpr(0)
PREVIEW = tl.constexpr(1)
MEASURE = tl.constexpr(2)


@triton.jit(do_not_specialize=["now"])
def adaptive_step(
    table,
    chunks,
    sums,
    total,
    result,
    ticket,
    lr,
    eps,
    now,
    grad_scale,
    found_inf,
    beta1,
    beta2,
    weight_decay,
    kappa,
    tensors,
    programs,
    P: tl.constexpr,
    S: tl.constexpr,
    MODE: tl.constexpr,
    DELAYED: tl.constexpr,
    NORMALISED: tl.constexpr,
    DECOUPLED: tl.constexpr,
    DECAY: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    LR_ON_DEVICE: tl.constexpr,
    EPS_ON_DEVICE: tl.constexpr,
    NOW_ON_DEVICE: tl.constexpr,
    COUNTING: tl.constexpr,
    SCALED: tl.constexpr,
    SKIPPING: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Process one chunk: update it (UPDATE), or only sum η² of v₁ (PREVIEW) or of v as it is (MEASURE).

    `total` is (Σ η², d) of the whole network. `result` receives that of these tensors; it may be the same tensor. If
    COUNTING, `now` is the number of steps before this one, and the kernel adds this one.
    """
    program = tl.program_id(0)
    tensor = tl.load(chunks + program)
    first = tl.load(chunks + programs + program).to(tl.int64) * CHUNK
    row = table + tensor
    g_address = tl.load(row + tensors)
    # Without a gradient, or if the gradient scaler found an infinity, weights, moments and sums are not changed.
    taken = True
    if SKIPPING:
        taken = tl.load(found_inf) == 0
    present = taken
    if MODE != MEASURE:
        present = taken & (g_address != 0)
    p_ptr = _pointer(tl.load(row), P, ALIGNED) + first
    g_ptr = _pointer(g_address, P, ALIGNED) + first
    m_ptr = _pointer(tl.load(row + 2 * tensors), S, ALIGNED) + first
    v_ptr = _pointer(tl.load(row + 3 * tensors), S, ALIGNED) + first
    left = tl.minimum(tl.load(row + 4 * tensors) - first, CHUNK).to(tl.int32)
    left = tl.where(present, left, 0)
    m_key = tl.load(row + 5 * tensors).to(tl.uint32)
    v_key = tl.load(row + 6 * tensors).to(tl.uint32)

    if LR_ON_DEVICE:
        lr = tl.load(lr).to(tl.float32)
    if EPS_ON_DEVICE:
        eps = tl.load(eps).to(tl.float32)
    if NOW_ON_DEVICE:
        time = tl.load(now).to(tl.int32)
        if COUNTING:
            time += 1
    else:
        time = now
    m_salt, v_salt = _mix(m_key ^ time), _mix(v_key ^ time)
    unscale = 1.0
    if SCALED:
        unscale = 1.0 / tl.load(grad_scale).to(tl.float32)
    if MAXIMIZE:
        unscale = -unscale
    rate = lr
    if NORMALISED and MODE == UPDATE:
        live = tl.load(total + 1)
        rms = tl.where(live > 0, tl.sqrt(tl.load(total) / tl.maximum(live, 1.0)), 1.0)
        rate = lr / rms.to(tl.float32)
    keep = 1.0 - lr * weight_decay

    squares = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.int32)
    whole = left // BLOCK * BLOCK
    # Full blocks need no mask; without a mask, loads and stores are 16 bytes wide.
    for start in range(0, whole, BLOCK):
        at = start + tl.arange(0, BLOCK)
        squares, count = _block(
            p_ptr, g_ptr, m_ptr, v_ptr, at, left, first, squares, count,
            rate, keep, eps, unscale, beta1, beta2, weight_decay, kappa, m_salt, v_salt,
            S, MODE, DELAYED, NORMALISED, DECOUPLED, DECAY, False,
        )  # fmt: skip
    if whole < left:
        at = whole + tl.arange(0, BLOCK)
        squares, count = _block(
            p_ptr, g_ptr, m_ptr, v_ptr, at, left, first, squares, count,
            rate, keep, eps, unscale, beta1, beta2, weight_decay, kappa, m_salt, v_salt,
            S, MODE, DELAYED, NORMALISED, DECOUPLED, DECAY, True,
        )  # fmt: skip
    if NORMALISED:
        # κη ≤ 1e13, so that the sums of one chunk fit fp32; across chunks they are fp64.
        tl.store(sums + program, tl.sum(squares, axis=0).to(tl.float64) / kappa / kappa, mask=present)
        tl.store(sums + programs + program, tl.sum(count, axis=0).to(tl.float64), mask=present)
    if NORMALISED or COUNTING:
        # A program takes its ticket after its last read, so the program with the last ticket may overwrite all inputs.
        tl.debug_barrier()
        if tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu") == programs - 1:
            tl.store(ticket, 0)
            if NORMALISED:
                tl.store(result, _add_up(sums, programs, BLOCK))
                tl.store(result + 1, _add_up(sums + programs, programs, BLOCK))
            if COUNTING:
                tl.store(now, tl.load(now) + 1, mask=taken)


@triton.jit
def _add_up(values, length, BLOCK: tl.constexpr):
    """The sum of `values`, read past the first level cache, which does not see the writes of other programs."""
    parts = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        parts += tl.load(values + at, mask=at < length, other=0.0, cache_modifier=".cg")
    return tl.sum(parts, axis=0)


@triton.jit
def _block(
    p_ptr, g_ptr, m_ptr, v_ptr, at, left, first, squares, count,
    rate, keep, eps, unscale, beta1, beta2, weight_decay, kappa, m_salt, v_salt,
    S: tl.constexpr, MODE: tl.constexpr, DELAYED: tl.constexpr, NORMALISED: tl.constexpr, DECOUPLED: tl.constexpr,
    DECAY: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    if MODE == MEASURE:
        new = _load(v_ptr, at, left, MASKED)
    else:
        p = _load(p_ptr, at, left, MASKED)
        g = _load(g_ptr, at, left, MASKED) * unscale
        if DECAY and not DECOUPLED:
            g += weight_decay * p
        if MODE == PREVIEW:
            new = (1 - beta2) * g * g
        else:
            m = _load(m_ptr, at, left, MASKED)
            old = _load(v_ptr, at, left, MASKED)
            m += (1 - beta1) * (g - m)
            new = beta2 * old + (1 - beta2) * g * g
            if DELAYED:
                used = tl.where(old > 0, old, new)  # a coordinate without history uses its first v
            else:
                used = new
            if DECAY and DECOUPLED:
                p *= keep
            p -= rate * m / (tl.sqrt(used) + eps)
            _store(p_ptr, at, p, left, MASKED)
            place = (at + first).to(tl.uint32)
            if S == tl.bfloat16:  # noqa: SIM300
                m = _round_to_bf16(m, place, m_salt)
                new = _round_to_bf16(new, place, v_salt)
            _store(m_ptr, at, m, left, MASKED)
            _store(v_ptr, at, new, left, MASKED)
    if NORMALISED:
        alive = new > 0
        if MASKED:
            alive = alive & (at < left)
        eta = tl.where(alive, kappa / (tl.sqrt(new) + eps), 0.0)
        squares += eta * eta
        count += alive.to(tl.int32)
    return squares, count


@triton.jit
def _pointer(address, T: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = address.to(tl.pointer_type(T))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _load(ptr, at, left, MASKED: tl.constexpr):
    if MASKED:
        value = tl.load(ptr + at, mask=at < left, other=0.0)
    else:
        value = tl.load(ptr + at)
    return value.to(tl.float32)


@triton.jit
def _store(ptr, at, value, left, MASKED: tl.constexpr):
    value = value.to(ptr.dtype.element_ty)
    if MASKED:
        tl.store(ptr + at, value, mask=at < left)
    else:
        tl.store(ptr + at, value)


@triton.jit
def _mix(x):
    """The hash of rounding.py."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _round_to_bf16(value, place, salt):
    """Stochastic rounding to a value that bf16 can represent, as in rounding.py."""
    bits = value.to(tl.uint32, bitcast=True) + (_mix(place ^ salt) & 0xFFFF)
    return (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
