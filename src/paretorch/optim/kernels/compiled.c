/* The update on a CPU: p, g, m, v are read once, p, m, v written once, and Σ η² for the next step is summed in the same
   pass.

   Compiled and called by compiled.py, once with REAL as float and once as double. A bucket is a list of chunks, which
   threads take from a shared counter. Every chunk has its own place for its sums, so that the result does not depend on
   which thread took which chunk. */

#include <pthread.h>
#include <stdint.h>
#include <tgmath.h>

enum { UPDATE, PREVIEW, MEASURE };
enum { MAX_THREADS = 256 };

/* The thread pool of OpenMP, if torch has loaded it: its threads are awake after a backward pass, and new threads would
   have to share the cores with them. */
#if defined(__linux__) && !defined(OWN_THREADS)
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
#define HAVE_THREAD_POOL (GOMP_parallel != 0)
#else
#define GOMP_parallel(call, work, threads, flags)
#define HAVE_THREAD_POOL 0
#endif

typedef struct {
    REAL *p, *g, *m, *v; /* g is null if there is no gradient; the chunk is then not changed */
    int64_t length;
    double squares; /* κ² Σ η² of the new v ... */
    double live;    /* ... and how many of its coordinates are above 0 */
} Chunk; /* _CHUNK_DTYPE in compiled.py */

typedef struct {
    double rate, kept, beta1, beta2, eps, decay, sign, kappa;
    int64_t mode, delayed, normalised;
} Numbers; /* _Numbers in compiled.py */

typedef struct {
    Chunk *chunks;
    int64_t count, next;
    const Numbers *numbers;
} Work;

/* Always inlined with constant mode, delayed and normalised, so that the loop has no branch on them. */
static inline __attribute__((always_inline)) void
step(Chunk *c, const Numbers *n, int mode, int delayed, int normalised) {
    REAL *restrict p = c->p, *restrict m = c->m, *restrict v = c->v;
    const REAL *restrict g = c->g;
    const REAL rate = n->rate, kept = n->kept, eps = n->eps, decay = n->decay, sign = n->sign, kappa = n->kappa;
    /* Subtracted in double: in fp32, 1 − 0.999 has four digits. */
    const REAL beta2 = n->beta2, share1 = 1 - n->beta1, share2 = 1 - n->beta2;
    const int64_t length = c->length;
    REAL squares = 0, live = 0;
#pragma omp simd reduction(+ : squares, live)
    for (int64_t i = 0; i < length; i++) {
        REAL new;
        if (mode == MEASURE) {
            new = v[i];
        } else {
            const REAL grad = sign * g[i] + decay * p[i], old = mode == PREVIEW ? 0 : v[i];
            new = beta2 * old + share2 * grad * grad;
            if (mode == UPDATE) {
                const REAL moment = m[i] + share1 * (grad - m[i]);
                const REAL used = delayed && old > 0 ? old : new; /* a coordinate without history uses its first v */
                p[i] = kept * p[i] - rate * moment / (sqrt(used) + eps);
                m[i] = moment;
                v[i] = new;
            }
        }
        if (normalised) {
            const REAL eta = new > 0 ? kappa / (sqrt(new) + eps) : 0;
            squares += eta * eta;
            live += new > 0 ? 1 : 0;
        }
    }
    c->squares = squares;
    c->live = live;
}

static void step_chunk(Chunk *c, const Numbers *n) {
    if (n->mode == MEASURE)
        step(c, n, MEASURE, 0, 1);
    else if (n->mode == PREVIEW)
        step(c, n, PREVIEW, 0, 1);
    else if (n->delayed && n->normalised)
        step(c, n, UPDATE, 1, 1);
    else if (n->delayed)
        step(c, n, UPDATE, 1, 0);
    else if (n->normalised)
        step(c, n, UPDATE, 0, 1);
    else
        step(c, n, UPDATE, 0, 0);
}

static void step_all(void *given) {
    Work *work = given;
    for (;;) {
        const int64_t i = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (i >= work->count)
            return;
        if (work->chunks[i].g || work->numbers->mode == MEASURE)
            step_chunk(&work->chunks[i], work->numbers);
    }
}

static void *run_thread(void *work) {
    step_all(work);
    return 0;
}

void adaptive_step(Chunk *chunks, int64_t count, const Numbers *numbers, int64_t threads) {
    Work work = {chunks, count, 0, numbers};
    if (HAVE_THREAD_POOL && threads > 1) {
        GOMP_parallel(step_all, &work, (unsigned)threads, 0);
        return;
    }
    pthread_t others[MAX_THREADS];
    int64_t started = 0;
    while (started < threads - 1 && started < MAX_THREADS && !pthread_create(&others[started], 0, run_thread, &work))
        started++;
    step_all(&work);
    while (started > 0)
        pthread_join(others[--started], 0);
}
