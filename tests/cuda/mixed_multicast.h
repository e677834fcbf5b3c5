/* Common code of tests of mixed collectives by multicast, inside a node and between nodes. */
#ifndef TESTS_CUDA_MIXED_MULTICAST_H
#define TESTS_CUDA_MIXED_MULTICAST_H

#include <signal.h>
#include <unistd.h>

#include "cuda/gpu_mixed.h"
#include "cuda/gpu_multicast.h"
#include "mixed/modes.h"

#define ELEMS_MOST 6000
#define MOST_BYTES 8192 /* longer calls need several launches */

typedef struct series {
    uint64_t seed;
    grid_sizes sizes;
    int calls;
    bool threads;                   /* share an environment, set already */
    uint64_t elems_most, max_bytes; /* 0: as above */
    int block_size;                 /* most threads; 0: the default */
} series;

static inline void enter(mixed_case *c, banyan_world *world, const series *of, DLDataType dtype)
{
    banyan_mixed_options options = options_of(&of->sizes, dtype);
    options.max_bytes = of->max_bytes ? of->max_bytes : MOST_BYTES;
    options.max_block_size = of->block_size;
    if (of->block_size)
        options.min_block_size = of->block_size;
    gpu_case_open(c, world, options, of->elems_most ? of->elems_most : ELEMS_MOST);
}

/* Call it first in a program of several nodes. */
static inline void nodes_tests_begin(const char *devices)
{
    setenv("BANYAN_EMULATED_DEVICES", devices, 1);
    multicast_tests_begin();
    setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 1);
    setenv("BANYAN_NCCL", "/nonexistent", 1); /* an installed NCCL would need a real driver */
}

static inline void wait_and_check(mixed_case *c, const mixed_one *call)
{
    gpu_stream_wait(c->device, c->stream);
    CHECK_OK(banyan_mixed_status(c->mixed));
    case_check(c, call);
}

#define KINDS 3
static const data_kind kinds[KINDS] = {DATA_WHOLE, DATA_RANDOM, DATA_SPECIAL};

static inline banyan_mixed_mode by_multicast(banyan_mixed_mode mode)
{
    return (banyan_mixed_mode)((int)mode + BANYAN_MIXED_ONE_SHOT_MULTICAST - BANYAN_MIXED_ONE_SHOT);
}

/* True if a multicast reaches several ranks of the node. */
static inline bool is_cast(const mixed_case *c, banyan_mixed_op op)
{
    bool scatters = op == BANYAN_MIXED_REDUCESCATTER || op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE;
    return !scatters || c->grid.local_tp > 1;
}

/* Make the call by unicast and by multicast, on equal data: the results are bitwise equal, on all
 * ranks. */
static inline void compare(mixed_case *c, mixed_one call)
{
    size_t bytes = (size_t)(output_elems(c, &call) * banyan_dtype_bytes(c->dtype));
    char *by_unicast = malloc(bytes);
    CHECK(by_unicast != NULL);
    case_fill(c, &call);
    CHECK_OK(case_call(c, &call));
    wait_and_check(c, &call);
    memcpy(by_unicast, case_fetch(c, &call) + GUARD, bytes);
    gpu_fill(c->output, POISON, bytes + 2 * GUARD);
    call.mode = by_multicast(call.mode);
    uint64_t before = accesses(c->world);
    CHECK_OK(case_call(c, &call));
    wait_and_check(c, &call);
    CHECK((accesses(c->world) > before) == is_cast(c, call.op), "%s, %s",
          banyan_mixed_op_name(call.op), banyan_mixed_mode_name(call.mode));
    CHECK(memcmp(by_unicast, case_fetch(c, &call) + GUARD, bytes) == 0,
          "%s, %s: other bits than by unicast", banyan_mixed_op_name(call.op),
          banyan_mixed_mode_name(call.mode));
    case_check_bits(c, &call);
    free(by_unicast);
}

/* Without a table. */
static inline void check_defaults(const mixed_case *c, banyan_mixed_op op)
{
    for (uint64_t bytes = 1; bytes < UINT64_C(1) << 32; bytes *= 2) {
        banyan_mixed_mode mode;
        CHECK_OK(banyan_mixed_select_autotune_mode(c->mixed, op, bytes, &mode));
        CHECK(!mode_is_multicast(mode), "%s", banyan_mixed_mode_name(mode));
    }
}

static inline void run_each_op(banyan_world *world, const series *of,
                               void (*run)(mixed_case *c, random_state *random, banyan_mixed_op op))
{
    random_state random = random_from(of->seed);
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    size_t count;
    mixed_case c;
    enter(&c, world, of, draw_dtype(&random));
    CHECK_OK(banyan_mixed_valid_ops(c.mixed, ops, BANYAN_MIXED_OPS, &count));
    for (size_t i = 0; i < count; i++)
        run(&c, &random, ops[i]);
    gpu_case_close(&c);
}

/* Autotuning measures the valid modes, and its choice runs. */
static inline void run_autotuned(banyan_world *world, void *context)
{
    const series *of = context;
    banyan_mixed_timing timing;
    size_t valid, measured = 0, cast = 0, count, expected = 0;
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    mixed_case c;
    begin(&all_have_it);
    enter(&c, world, of, BANYAN_BF16);
    CHECK_OK(banyan_mixed_run_autotune(c.mixed));
    CHECK_OK(banyan_mixed_valid_ops(c.mixed, ops, BANYAN_MIXED_OPS, &count));
    for (size_t i = 0; i < count; i++) {
        CHECK_OK(banyan_mixed_valid_modes(c.mixed, ops[i], NULL, 0, &valid));
        expected += valid * 2; /* 1 KiB and 2 KiB */
    }
    for (; banyan_mixed_timing_at(c.mixed, measured, &timing) == BANYAN_OK; measured++)
        cast += mode_is_multicast(timing.mode);
    CHECK(measured == expected && cast > 0, "%zu measurements of %zu, %zu by multicast", measured,
          expected, cast);
    for (size_t i = 0; i < count; i++) {
        mixed_one call = {.op = ops[i], .mode = BANYAN_MIXED_AUTO, .rows = 5, .row_elems = 101};
        case_run(&c, &call);
    }
    gpu_case_close(&c);
}

/* Sometimes use addresses that are not multiples of 16 and differ between ranks. */
static inline void run_anywhere(mixed_case *c, random_state *own, const mixed_one *call)
{
    uint64_t elem = banyan_dtype_bytes(c->dtype);
    bool moved = random_between(own, 0, 3) == 0;
    uint64_t in = moved ? elem * (uint64_t)random_between(own, 0, 7) : 0;
    uint64_t out = moved ? elem * (uint64_t)random_between(own, 0, 7) : 0;
    c->input += in;
    c->output += out;
    case_run(c, call);
    c->input -= in;
    c->output -= out;
}

static inline void run_series(banyan_world *world, void *context)
{
    const series *of = context;
    random_state random = random_from(of->seed);
    random_state own = random_from(of->seed + 1 + (uint64_t)banyan_world_rank(world));
    int cast = 0, others = 0;
    mixed_case c;
    if (!of->threads)
        begin(&all_have_it);
    enter(&c, world, of, draw_dtype(&random));
    for (int i = 0; i < of->calls; i++) {
        mixed_one call = draw_call(&c, &random, (of->elems_most ? of->elems_most : ELEMS_MOST) / 4);
        run_anywhere(&c, &own, &call);
        cast += mode_is_multicast(call.mode);
        others += mode_is_fused(call.mode) && !mode_is_multicast(call.mode);
    }
    CHECK(cast > 0 && others > 0, "%d by multicast, %d by unicast", cast, others);
    gpu_case_close(&c);
}

typedef struct late_case {
    series of;
    mixed_one call;
} late_case;

/* Rank 1 of two or more does not come to the second call. */
static inline void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    late_case *late = context;
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(2500000000));
    mixed_case c;
    begin(&all_have_it);
    enter(&c, world, &late->of, BANYAN_BF16);
    case_run(&c, &late->call);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        usleep(3500000);
        _exit(0);
    }
    CHECK_OK(case_call(&c, &late->call));
    gpu_stream_wait(c.device, c.stream);
    CHECK_FAILS(banyan_mixed_status(c.mixed), BANYAN_ERR_TIMEOUT, "for rank 1 in ");
    CHECK_FAILS(case_call(&c, &late->call), BANYAN_ERR_TIMEOUT,
                banyan_mixed_mode_name(late->call.mode));
    banyan_mixed_close(c.mixed);
    banyan_world_close(world);
}

/* Rank 1 dies before the second call. */
static inline void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    late_case *late = context;
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(30000000000));
    mixed_case c;
    begin(&all_have_it);
    enter(&c, world, &late->of, BANYAN_F32);
    case_run(&c, &late->call);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        usleep(200000); /* the others leave the barrier */
        raise(SIGKILL);
    }
    gpu_case_lose_peer(&c, &late->call);
    banyan_mixed_close(c.mixed);
    banyan_world_close(world);
}

#endif
