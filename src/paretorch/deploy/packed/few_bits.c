/* Products with weights of 2, 4 or 8 bits, as few_bits.py lays them out: 16 outputs side by side, one in each lane of a vector.

       y[o] = bias[o] + sum over groups g of  step[o, g] * sum over inputs i in g of  letter(code[o, i]) * x[i]

   A letter is a whole number: code - half, or the odd number 2 (code - half) + 1, with half = 2^(width - 1). Sums are fp32.
   Vectors are of 16 floats whatever the processor has: compilers split them. Only the lookup in a register, which AVX-512 has,
   is written for it. */

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O2") /* vectors are written out; -O3 compiles six times as long */
#endif
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#define MOST_ROWS 8
#else
#define MOST_ROWS 4
#endif

enum { LANES = 16, MAX_THREADS = 256, TASKS_PER_THREAD = 4 };
typedef float floats __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8") /* so that sums stay in registers */

/* The thread pool of OpenMP, if torch has loaded it: its threads are awake between two layers. */
#if defined(__linux__) && !defined(OWN_THREADS)
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
#define HAVE_THREAD_POOL (GOMP_parallel != 0)
#else
#define GOMP_parallel(call, work, threads, flags)
#define HAVE_THREAD_POOL 0
#endif

typedef struct {
    const uint32_t *codes; /* of 8, then 4, then 2 bits: (block, word, lane); word j of a row holds the next 32 / width inputs */
    const float *steps;    /* (block, group, lane) */
    const uint8_t *odd;    /* (block): whether letters are odd */
    const int32_t *rows;   /* (block, lane): which output it is; negative: none */
    const float *bias;     /* null: none */
    int64_t blocks[4];     /* of 8, 4, 2 and 0 bits */
    int64_t inputs, outputs, group, groups;
} Weight; /* _Weight in kernel.py */

typedef struct {
    const Weight *weight;
    const float *x;
    float *y;
    int64_t count, blocks, per_task, next;
} Work;

INLINE words load(const uint32_t *from) {
    words found;
    memcpy(&found, from, sizeof found);
    return found;
}

INLINE floats load_floats(const float *from) {
    floats found;
    memcpy(&found, from, sizeof found);
    return found;
}

typedef struct {
    floats table;
    float first, stride;
} Letters;

INLINE Letters letters(int width, int odd) {
    Letters found;
    found.stride = odd ? 2 : 1;
    found.first = odd ? 1 - (1 << width) : -(1 << (width - 1));
    for (int i = 0; i < LANES; i++) /* the bits of a code are the low ones of an index */
        found.table[i] = found.first + found.stride * (i & ((1 << width) - 1));
    return found;
}

/* The letters of the codes in the lowest bits of 16 words. */
INLINE floats decode(words codes, int width, const Letters *of) {
#ifdef __AVX512F__
    if (width <= 4)
        return (floats)_mm512_permutexvar_ps((__m512i)codes, (__m512)of->table);
#endif
    typedef int32_t ints __attribute__((vector_size(64)));
    const ints kept = (ints)(codes & ((1u << width) - 1));
    return of->first + of->stride * __builtin_convertvector(kept, floats);
}

INLINE void store(const Weight *w, const int32_t *places, floats values, float *y) {
    float found[LANES];
    memcpy(found, &values, sizeof found);
    for (int lane = 0; lane < LANES; lane++)
        if (places[lane] >= 0)
            y[places[lane]] = found[lane] + (w->bias ? w->bias[places[lane]] : 0);
}

/* `rows` inputs times one block of 16 outputs. Sums run in several chains, because an addition takes four cycles. */
INLINE void multiply_block(const Weight *w, const uint32_t *codes, const float *steps, const int32_t *places, Letters of,
                           const float *x, float *y, int width, int rows) {
    const int per = 32 / width, chains = rows <= 2 ? 4 : rows == 4 ? 2 : 1;
    floats total[MOST_ROWS];
    UNROLL for (int r = 0; r < rows; r++) total[r] = (floats){0};
    const int64_t inputs = w->inputs, group = w->group;
    for (int64_t start = 0; start < inputs; start += group, steps += LANES) {
        const int64_t end = start + group < inputs ? start + group : inputs;
        floats sum[MOST_ROWS][4];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int c = 0; c < chains; c++) sum[r][c] = (floats){0};
        int64_t i = start;
        for (; i + per <= end; i += per, codes += LANES) {
            words packed = load(codes);
#pragma GCC unroll 1
            for (int k = 0; k < per; k += 4, packed = packed >> 2 * width >> 2 * width)
                UNROLL for (int j = 0; j < 4; j++) {
                    const floats value = decode(packed >> (j * width), width, &of);
                    UNROLL for (int r = 0; r < rows; r++) sum[r][j % chains] += value * x[r * inputs + i + k + j];
                }
        }
        if (i < end) { /* the last word of a row */
            words packed = load(codes);
            codes += LANES;
            for (; i < end; i++, packed >>= width) {
                const floats value = decode(packed, width, &of);
                UNROLL for (int r = 0; r < rows; r++) sum[r][0] += value * x[r * inputs + i];
            }
        }
        const floats step = load_floats(steps);
        UNROLL for (int r = 0; r < rows; r++) {
            floats all = sum[r][0];
            UNROLL for (int c = 1; c < chains; c++) all += sum[r][c];
            total[r] += step * all;
        }
    }
    UNROLL for (int r = 0; r < rows; r++) store(w, places, total[r], y + r * w->outputs);
}

INLINE void multiply_rows(const Weight *w, const uint32_t *codes, const float *steps, const int32_t *places, int odd,
                          const float *x, float *y, int64_t count, int width) {
    const Letters of = letters(width, odd);
    const int64_t in = w->inputs, out = w->outputs;
    int64_t r = 0;
#if MOST_ROWS == 8
    for (; r + 8 <= count; r += 8)
        multiply_block(w, codes, steps, places, of, x + r * in, y + r * out, width, 8);
#endif
    for (; r + 4 <= count; r += 4)
        multiply_block(w, codes, steps, places, of, x + r * in, y + r * out, width, 4);
    for (; r + 2 <= count; r += 2)
        multiply_block(w, codes, steps, places, of, x + r * in, y + r * out, width, 2);
    for (; r < count; r++)
        multiply_block(w, codes, steps, places, of, x + r * in, y + r * out, width, 1);
}

static const int widths[3] = {8, 4, 2};

INLINE int64_t words_of_row(const Weight *w, int width) {
    const int per = 32 / width;
    return (w->inputs + per - 1) / per;
}

/* Where the codes of a block begin, and its width; 0 for a block of zeros. */
INLINE int locate(const Weight *w, int64_t block, const uint32_t **codes) {
    *codes = w->codes;
    for (int i = 0; i < 3; i++) {
        const int64_t length = words_of_row(w, widths[i]) * LANES;
        if (block < w->blocks[i]) {
            *codes += block * length;
            return widths[i];
        }
        block -= w->blocks[i];
        *codes += w->blocks[i] * length;
    }
    return 0;
}

static void multiply_one(const Weight *w, int64_t block, const float *x, float *y, int64_t count) {
    const uint32_t *codes;
    const int width = locate(w, block, &codes), odd = w->odd[block];
    const float *steps = w->steps + block * w->groups * LANES;
    const int32_t *places = w->rows + block * LANES;
    if (width == 4)
        multiply_rows(w, codes, steps, places, odd, x, y, count, 4);
    else if (width == 2)
        multiply_rows(w, codes, steps, places, odd, x, y, count, 2);
    else if (width == 8)
        multiply_rows(w, codes, steps, places, odd, x, y, count, 8);
    else
        for (int64_t r = 0; r < count; r++)
            for (int lane = 0; lane < LANES; lane++)
                if (places[lane] >= 0)
                    y[r * w->outputs + places[lane]] = w->bias ? w->bias[places[lane]] : 0;
}

static void multiply_tasks(void *given) {
    Work *work = given;
    for (;;) {
        const int64_t first = __atomic_fetch_add(&work->next, work->per_task, __ATOMIC_RELAXED);
        if (first >= work->blocks)
            return;
        const int64_t last = first + work->per_task < work->blocks ? first + work->per_task : work->blocks;
        for (int64_t block = first; block < last; block++)
            multiply_one(work->weight, block, work->x, work->y, work->count);
    }
}

static void *run_thread(void *work) {
    multiply_tasks(work);
    return 0;
}

/* y (count, outputs) = x (count, inputs) times the weight, plus the bias. */
void few_bits_multiply(const Weight *weight, const float *x, float *y, int64_t count, int64_t threads) {
    const int64_t blocks = weight->blocks[0] + weight->blocks[1] + weight->blocks[2] + weight->blocks[3];
    const int64_t tasks = threads * TASKS_PER_THREAD;
    Work work = {weight, x, y, count, blocks, threads > 1 ? (blocks + tasks - 1) / tasks : blocks, 0};
    if (threads > 1 && HAVE_THREAD_POOL) {
        GOMP_parallel(multiply_tasks, &work, (unsigned)threads, 0);
        return;
    }
    pthread_t others[MAX_THREADS];
    int64_t started = 0;
    while (started < threads - 1 && started < MAX_THREADS && !pthread_create(&others[started], 0, run_thread, &work))
        started++;
    multiply_tasks(&work);
    while (started > 0)
        pthread_join(others[--started], 0);
}

INLINE void unpack_row(const Weight *w, const uint32_t *codes, const float *steps, int odd, int lane, float *out, int width) {
    const float stride = odd ? 2 : 1, first = odd ? 1 - (1 << width) : -(1 << (width - 1));
    const int64_t per = 32 / width;
    const uint32_t mask = (1u << width) - 1;
    int64_t i = 0, begin = 0;
    for (int64_t g = 0; g < w->groups; g++) {
        const int64_t end = (g + 1) * w->group < w->inputs ? (g + 1) * w->group : w->inputs;
        const float step = steps[g * LANES + lane];
        for (; i < end; i = begin) {
            const uint32_t packed = codes[i / per * LANES + lane];
            begin = i + per < end ? i + per : end;
            for (int64_t k = 0; k < begin - i; k++)
                out[i + k] = step * (first + stride * (float)(packed >> (k * width) & mask));
        }
    }
}

/* The weights of some packed rows (block * 16 + lane), one below the other, as fp32. */
void few_bits_unpack(const Weight *w, const int64_t *packed_rows, int64_t count, float *out) {
    for (int64_t r = 0; r < count; r++, out += w->inputs) {
        const int64_t block = packed_rows[r] / LANES;
        const int lane = packed_rows[r] % LANES;
        const uint32_t *codes;
        const int width = locate(w, block, &codes);
        const float *steps = w->steps + block * w->groups * LANES;
        if (width == 4)
            unpack_row(w, codes, steps, w->odd[block], lane, out, 4);
        else if (width == 2)
            unpack_row(w, codes, steps, w->odd[block], lane, out, 2);
        else if (width == 8)
            unpack_row(w, codes, steps, w->odd[block], lane, out, 8);
        else
            memset(out, 0, w->inputs * sizeof *out);
    }
}
