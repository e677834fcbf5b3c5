/* Runs plans in shuffled order repeatedly, and counts wrong results. */
#ifndef TESTS_EXECUTE_SHUFFLED_H
#define TESTS_EXECUTE_SHUFFLED_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "execute/collective_check.h"

typedef struct shuffled_case {
    collective_case c;
    uint64_t first_seed;
    int seeds;
    bool stops; /* at the first seed with a wrong result */
    /* Results, of all ranks. */
    _Atomic uint64_t wrong;      /* elements */
    _Atomic uint64_t wrong_seed; /* 0: none */
} shuffled_case;

static inline uint64_t shuffled_count_wrong(const collective_case *c, const case_buffers *b,
                                            int rank, int run)
{
    size_t elem = banyan_dtype_bytes(c->dtype);
    uint64_t elems = b->input_bytes / elem, out = b->output_bytes / elem, wrong = 0;
    banyan_plan_info info = banyan_plan_describe(c->plan);
    if (info.collective == BANYAN_REDUCE && rank != info.root)
        return 0;
    for (uint64_t i = 0; i < out; i++) {
        uint64_t bits = element_bits(c->dtype, case_output(c, &info, rank, i, run, elems, out)),
                 got = 0;
        memcpy(&got, b->output + i * elem, elem);
        wrong += got != bits;
    }
    return wrong;
}

/* There is no barrier between the runs of a seed, and every caller changes its buffers at once. */
static inline uint64_t shuffled_run_seed(banyan_world *world, const collective_case *c,
                                         uint64_t seed)
{
    int rank = banyan_world_rank(world);
    banyan_executor_options how = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    uint64_t wrong = 0;
    how.shuffle_seed = seed;
    how.workers = c->workers ? c->workers : 1;
    CHECK_OK(banyan_executor_open(world, &how, &executor));
    case_buffers b = case_take(c, world);
    options.max_message_bytes = c->message_bytes;
    options.input = options.output = b.memory;
    CHECK_OK(banyan_loaded_plan_open(executor, c->plan, &options, &loaded));
    for (int run = 0; run < c->runs; run++) {
        case_fill(c, &b, rank, run);
        CHECK_OK(
            banyan_loaded_plan_run(loaded, b.input, b.output, c->message_bytes, c->dtype, NULL));
        wrong += shuffled_count_wrong(c, &b, rank, run);
    }
    CHECK_OK(banyan_loaded_plan_close(loaded));
    case_give_back(c, &b);
    banyan_executor_close(executor);
    return wrong;
}

static inline void shuffled_run_seeds(banyan_world *world, void *context)
{
    shuffled_case *s = context;
    for (int i = 0; i < s->seeds; i++) {
        uint64_t seed = s->first_seed + (uint64_t)i;
        uint64_t wrong = shuffled_run_seed(world, &s->c, seed);
        atomic_fetch_add(&s->wrong, wrong);
        CHECK_OK(banyan_world_barrier(world));
        if (atomic_load(&s->wrong) > 0 && atomic_load(&s->wrong_seed) == 0)
            atomic_store(&s->wrong_seed, seed);
        bool stop = s->stops && atomic_load(&s->wrong) > 0;
        CHECK_OK(banyan_world_barrier(world));
        if (stop)
            return;
    }
}

/* Run it with each seed; returns the number of wrong elements, and the first such seed. The ranks'
 * process is not the test's own. */
static inline uint64_t shuffled_run(const shuffled_case *of, uint64_t *seed)
{
    int ranks = banyan_plan_describe(of->c.plan).ranks;
    shuffled_case *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    *shared = *of;
    ranks_run_threads(ranks, shuffled_run_seeds, shared);
    uint64_t wrong = atomic_load(&shared->wrong);
    *seed = atomic_load(&shared->wrong_seed);
    munmap(shared, sizeof *shared);
    return wrong;
}

/* A seed is never 0, which means none. */
static inline uint64_t shuffled_first_seed(void)
{
    return random_seed() % 1000000 + 1;
}

#endif
