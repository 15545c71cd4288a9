/* The update for CPUs: p, g, m, v are read once, p, m, v written once, and Σ η² of the next step is taken on the way.

   Compiled by _build.py, once with REAL as float and once as double, and called by _compiled.py. A bucket is a list of
   chunks, which threads take from a counter. Every chunk has a place of its own for its sums, so that these do not
   depend on who took it. */

#include <pthread.h>
#include <stdint.h>
#include <tgmath.h>

enum { UPDATE, PREVIEW, MEASURE };
enum { MOST_THREADS = 256 };

/* OpenMP's, if torch has brought it along: its threads are awake after a backward pass, and new ones would have to share
   the cores with them. */
#if defined(__linux__) && !defined(OWN_THREADS)
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
#define HAVE_POOL (GOMP_parallel != 0)
#else
#define GOMP_parallel(call, work, threads, flags)
#define HAVE_POOL 0
#endif

typedef struct {
    REAL *p, *g, *m, *v; /* without a gradient, g is null and the chunk is left as it is */
    int64_t length;
    double squares; /* κ² Σ η² of the new v ... */
    double live;    /* ... and how many of its coordinates are above 0 */
} Chunk;

typedef struct {
    double rate, kept, beta1, beta2, eps, decay, sign, kappa;
    int64_t mode, delayed, normalised;
} Numbers;

typedef struct {
    Chunk *chunks;
    int64_t count, next;
    const Numbers *numbers;
} Work;

/* Inlined with constants, so that the loop has no branch. */
static inline __attribute__((always_inline)) void
step(Chunk *c, const Numbers *n, int mode, int delayed, int normalised) {
    REAL *restrict p = c->p, *restrict m = c->m, *restrict v = c->v;
    const REAL *restrict g = c->g;
    const REAL rate = n->rate, kept = n->kept, eps = n->eps, decay = n->decay, sign = n->sign, kappa = n->kappa;
    const REAL beta2 = n->beta2, share1 = 1 - n->beta1, share2 = 1 - n->beta2; /* in fp32, 1 − 0.999 has four digits */
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
                const REAL used = delayed && old > 0 ? old : new; /* a coordinate without history: its own first v */
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

static void take(Chunk *c, const Numbers *n) {
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

static void take_all(void *given) {
    Work *work = given;
    for (;;) {
        const int64_t i = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (i >= work->count)
            return;
        if (work->chunks[i].g || work->numbers->mode == MEASURE)
            take(&work->chunks[i], work->numbers);
    }
}

static void *thread(void *work) {
    take_all(work);
    return 0;
}

void adaptive_step(Chunk *chunks, int64_t count, const Numbers *numbers, int64_t threads) {
    Work work = {chunks, count, 0, numbers};
    if (HAVE_POOL && threads > 1) {
        GOMP_parallel(take_all, &work, (unsigned)threads, 0);
        return;
    }
    pthread_t others[MOST_THREADS];
    int64_t started = 0;
    while (started < threads - 1 && started < MOST_THREADS && !pthread_create(&others[started], 0, thread, &work))
        started++;
    take_all(&work);
    while (started > 0)
        pthread_join(others[--started], 0);
}
