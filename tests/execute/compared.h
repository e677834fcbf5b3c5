/* Runs plans and compares every byte of input and output with the sequential result. */
#ifndef TESTS_EXECUTE_COMPARED_H
#define TESTS_EXECUTE_COMPARED_H

#include "program/interpret.h"

#include "core/containers.h"

#define COMPARED_TYPE ((DLDataType){kDLInt, 64, 1})

/* A plan with equal input and output chunks on all ranks, whose chunks are blocks (custom). */
typedef struct compared_case {
    const banyan_plan *plan;
    uint64_t chunk_elems;
    int workers;
    int runs;
    uint64_t seed;
    DLDevice device; /* where it runs; zeroed: the host */
} compared_case;

typedef struct compared_element {
    uint64_t elem;
    int run;
} compared_element;

/* Small, so that sums do not overflow; scratch begins as zeros. */
static inline uint64_t compared_value(void *context, int rank, plan_buffer buffer, uint64_t chunk)
{
    const compared_element *at = context;
    const uint64_t key[] = {(uint64_t)rank, buffer, chunk, at->elem, (uint64_t)at->run};
    return buffer == PLAN_SCRATCH ? 0 : hash_bytes(key, sizeof key, 5) % 251;
}

static inline uint64_t compared_chunks(const banyan_plan *plan, plan_buffer buffer)
{
    return plan->ranks[0].chunks[buffer];
}

static inline void compared_fill(const compared_case *c, uint64_t *memory, int rank, int run)
{
    for (int b = PLAN_INPUT; b <= PLAN_OUTPUT; b++) {
        for (uint64_t chunk = 0; chunk < compared_chunks(c->plan, (plan_buffer)b); chunk++) {
            for (uint64_t e = 0; e < c->chunk_elems; e++) {
                compared_element at = {e, run};
                *memory++ = compared_value(&at, rank, (plan_buffer)b, chunk);
            }
        }
    }
}

/* The interpreter treats every element as a separate run. */
static inline void compared_check(const compared_case *c, const uint64_t *memory, int rank, int run)
{
    for (uint64_t e = 0; e < c->chunk_elems; e++) {
        compared_element at = {e, run};
        random_state random = random_from(c->seed);
        interpreted expected = interpreted_begin(c->plan, compared_value, &at);
        interpret(&expected, &random);
        uint64_t before = 0;
        for (int b = PLAN_INPUT; b <= PLAN_OUTPUT; b++) {
            uint64_t chunks = compared_chunks(c->plan, (plan_buffer)b);
            for (uint64_t chunk = 0; chunk < chunks; chunk++) {
                uint64_t got = memory[(before + chunk) * c->chunk_elems + e];
                uint64_t wanted = expected.ranks[rank].cells[b][chunk].value;
                CHECK(got == wanted,
                      "TEST_SEED=%llu: rank %d, run %d, %s chunk %llu of %s, element %llu of %llu "
                      "is %llu, not %llu",
                      (unsigned long long)c->seed, rank, run, c->plan->name,
                      (unsigned long long)chunk, plan_buffer_name((plan_buffer)b),
                      (unsigned long long)e, (unsigned long long)c->chunk_elems,
                      (unsigned long long)got, (unsigned long long)wanted);
            }
            before += chunks;
        }
        interpreted_end(&expected);
    }
}

/* Use symmetric memory, so that no run copies behind the plan's back. Plans may read each other's
 * buffers at the beginning, so ranks synchronize between runs. */
static inline void compared_run(banyan_world *world, const compared_case *c)
{
    int rank = banyan_world_rank(world);
    uint64_t input = compared_chunks(c->plan, PLAN_INPUT) * c->chunk_elems * sizeof(uint64_t);
    uint64_t output = compared_chunks(c->plan, PLAN_OUTPUT) * c->chunk_elems * sizeof(uint64_t);
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor;
    banyan_memory *memory;
    options.workers = c->workers;
    options.device = c->device;
    CHECK_OK(banyan_executor_open(world, &options, &executor));
    CHECK_OK(banyan_memory_alloc_on(world, c->device, input + output, &memory));
    uint64_t *image = malloc(input + output + 1);
    banyan_loaded_plan_options load = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    load.max_message_bytes = input;
    load.input = load.output = memory;
    for (int run = 0; run < c->runs; run++) {
        banyan_loaded_plan *loaded;
        CHECK_OK(banyan_loaded_plan_open(executor, c->plan, &load, &loaded));
        char *local = banyan_memory_local(memory);
        compared_fill(c, image, rank, run);
        CHECK_OK(banyan_memory_copy(local, image, input + output));
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_loaded_plan_run(loaded, local, local + input, input, COMPARED_TYPE, NULL));
        CHECK_OK(banyan_loaded_plan_wait(loaded));
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(banyan_memory_copy(image, local, input + output));
        compared_check(c, image, rank, run);
        CHECK_OK(banyan_loaded_plan_close(loaded));
    }
    free(image);
    banyan_memory_free(memory);
    banyan_executor_close(executor);
}

#endif
