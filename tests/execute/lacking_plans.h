/* One rank fails each allocation in turn while symmetric memory is allocated, a plan is loaded or
 * a communicator is opened: that fails on all ranks at once, and a retry succeeds. */
#ifndef TESTS_EXECUTE_LACKING_PLANS_H
#define TESTS_EXECUTE_LACKING_PLANS_H

#include <banyan/collective.h>
#include <banyan/execute.h>

#include "support/gpu/gpu_stream.h"
#include "support/lacking.h"

#define ELEMS 5000
#define TRIES 500 /* more than there are allocations */

typedef struct rig {
    banyan_world *world;
    DLDevice device;
    void *stream;
    banyan_memory *memory;
    banyan_executor *executor;
    banyan_plan *plan;
    banyan_loaded_plan *loaded;
    banyan_comm *comm;
} rig;

/* Each step is collective; its objects are destroyed, and created again for the later steps. */
typedef struct step {
    const char *name;
    banyan_status (*make)(rig *r);
    void (*unmake)(rig *r);
} step;

static banyan_status take_memory(rig *r)
{
    return banyan_memory_alloc_on(r->world, r->device, 2 * ELEMS * sizeof(float), &r->memory);
}

static void give_back_memory(rig *r)
{
    banyan_memory_free(r->memory);
}

static banyan_status open_executor(rig *r)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    options.device = r->device;
    return banyan_executor_open(r->world, &options, &r->executor);
}

static void close_executor(rig *r)
{
    banyan_executor_close(r->executor);
}

static banyan_status load(rig *r)
{
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = ELEMS * sizeof(float);
    options.input = options.output = r->memory;
    return banyan_loaded_plan_open(r->executor, r->plan, &options, &r->loaded);
}

static void unload(rig *r)
{
    CHECK_OK(banyan_loaded_plan_close(r->loaded));
}

static banyan_status open_comm(rig *r)
{
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    options.device = r->device;
    return banyan_comm_create(r->world, &options, &r->comm);
}

static void close_comm(rig *r)
{
    CHECK_OK(banyan_comm_destroy(r->comm));
}

static const step steps[] = {
    {"memory", take_memory, give_back_memory},
    {"an executor", open_executor, close_executor},
    {"a plan", load, unload},
    {"a communicator", open_comm, close_comm},
};
#define STEPS ((int)(sizeof steps / sizeof *steps))

static void make_at_last(rig *r, const step *one)
{
    bool lacked = true;
    for (int n = 0; lacked; n++) {
        CHECK(n < TRIES, "%s: no end of allocations", one->name);
        lack_begin(r->world, LACK_ANY, n);
        lacked = lack_end(r->world, one->make(r), BANYAN_ERR_NO_MEMORY);
    }
    one->unmake(r);
    CHECK_OK(one->make(r));
}

/* Sums of small whole numbers are exact. */
static void check_sums(const rig *r, const char *what)
{
    static float sums[ELEMS];
    int size = banyan_world_size(r->world);
    CHECK_OK(
        banyan_memory_copy(sums, (float *)banyan_memory_local(r->memory) + ELEMS, sizeof sums));
    for (int i = 0; i < ELEMS; i++)
        CHECK(sums[i] == (float)(size * (size + 1) / 2 + size * (i % 100)), "%s: %d is %g", what, i,
              (double)sums[i]);
}

static void fill(const rig *r)
{
    static float values[2 * ELEMS];
    memset(values, 0xC9, sizeof values);
    for (int i = 0; i < ELEMS; i++)
        values[i] = (float)(banyan_world_rank(r->world) + 1 + i % 100);
    CHECK_OK(banyan_memory_copy(banyan_memory_local(r->memory), values, sizeof values));
    CHECK_OK(banyan_world_barrier(r->world));
}

static void finish_stream(const rig *r)
{
    if (!device_is_host(r->device))
        gpu_stream_wait(r->device, r->stream);
}

static void run_both(const rig *r)
{
    float *input = banyan_memory_local(r->memory), *output = input + ELEMS;
    fill(r);
    CHECK_OK(banyan_loaded_plan_run(r->loaded, input, output, ELEMS * sizeof(float), BANYAN_F32,
                                    r->stream));
    finish_stream(r);
    CHECK_OK(banyan_loaded_plan_status(r->loaded));
    check_sums(r, "the plan");
    fill(r);
    CHECK_OK(banyan_comm_register(r->comm, r->memory));
    CHECK_OK(
        banyan_comm_allreduce(r->comm, input, output, ELEMS, BANYAN_F32, BANYAN_SUM, r->stream));
    finish_stream(r);
    check_sums(r, "the communicator");
}

/* The rank whose n-th allocation fails, in a run of a new size, makes no later run either: the
 * others would take it for the previous one. False: no allocation failed, and all ranks have made
 * the run. */
static bool lack_in_run(rig *r, int n)
{
    float *input = banyan_memory_local(r->memory), *output = input + ELEMS;
    uint64_t bytes = ELEMS / 2 * sizeof(float);
    banyan_status status = BANYAN_OK;
    bool lacked = false;
    lack_begin(r->world, LACK_ANY, n);
    if (banyan_world_rank(r->world) == LACKING)
        status = banyan_loaded_plan_run(r->loaded, input, output, bytes, BANYAN_F32, r->stream);
    lack.is_looking = false;
    if (banyan_world_rank(r->world) == LACKING) {
        lacked = lack.has_lacked;
        CHECK(status == (lacked ? BANYAN_ERR_NO_MEMORY : BANYAN_OK), "%s", banyan_last_error());
    }
    if (lacked)
        CHECK_FAILS(banyan_loaded_plan_run(r->loaded, input, output, bytes, BANYAN_F32, r->stream),
                    BANYAN_ERR_NO_MEMORY, "rank 1 could not begin a run of plan");
    CHECK_OK(banyan_world_broadcast(r->world, &lacked, sizeof lacked, LACKING));
    if (!lacked && banyan_world_rank(r->world) != LACKING)
        CHECK_OK(banyan_loaded_plan_run(r->loaded, input, output, bytes, BANYAN_F32, r->stream));
    finish_stream(r);
    if (lacked)
        CHECK_OK(banyan_loaded_plan_reset(r->loaded));
    return lacked;
}

typedef struct lacking_plans {
    bool on_gpus;
    const char *algorithm;
} lacking_plans;

static void lack_for_plans(banyan_world *world, void *context)
{
    const lacking_plans *test = context;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    rig r = {.world = world, .device = BANYAN_HOST};
    params.ranks = banyan_world_size(world);
    CHECK_OK(banyan_algorithm_compile(test->algorithm, &params, &r.plan));
    if (test->on_gpus) {
        r.device = gpu_device_for(banyan_world_rank(world));
        r.stream = gpu_stream_create(r.device);
    }
    for (int i = 0; i < STEPS; i++)
        make_at_last(&r, &steps[i]);
    int lacked = 0;
    while (test->on_gpus && lack_in_run(&r, lacked))
        CHECK(++lacked < TRIES, "a run has no end of allocations");
    CHECK(lacked > 0 || !test->on_gpus);
    run_both(&r);
    for (int i = STEPS; i > 0; i--)
        steps[i - 1].unmake(&r);
    if (test->on_gpus)
        gpu_stream_destroy(r.device, r.stream);
    banyan_plan_destroy(r.plan);
}

#endif
