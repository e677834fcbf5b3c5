/* Plans with port channels on GPUs: stream order drives the copies, with kernels between them. */
#include "execute/collective_check.h"

#include <stdlib.h>
#include <unistd.h>

#include <banyan/collective.h>
#include <banyan/program.h>

#include "core/deadline.h"
#include "execute/load/spmd.h"
#include "support/proof.h"
#include "support/ranks.h"

/* The trials, and their memory; the ordinary kind would be staged if peers access it. */
static const struct trial {
    const char *name;
    bool symmetric;
    bool apart; /* never in place */
} trials[] = {
    {"allgather_ports", true, false},         {"reducescatter_ports", true, false},
    {"reducescatter_ports", false, false},    {"allreduce_ports", true, false},
    {"allgather_ports_scratch", true, false}, {"allgather_ports_scratch", false, false},
    {"allreduce_ports_scratch", true, false}, {"allreduce_ports_scratch", false, false},
    {"alltoall_ports", true, true},           {"alltoall_ports_scratch", true, false},
    {"alltoall_ports_scratch", false, false},
};
#define TRIALS (sizeof trials / sizeof *trials)

#define BYTES 50000
#define ALIGNED_BYTES 131072 /* for the kernel that moves 16 bytes at a time */

/* A plan, and the objects for its runs. */
struct rig {
    int rank;
    banyan_world *world;
    DLDevice device;
    banyan_executor *executor;
    void *stream;
    banyan_plan *plan;
    banyan_loaded_plan *loaded;
    collective_case of;
    case_buffers buffers[2];
};

static void set_up(struct rig *r, banyan_world *world, DLDevice device)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    *r = (struct rig){.world = world, .rank = banyan_world_rank(world), .device = device};
    options.device = device;
    CHECK_OK(banyan_executor_open(world, &options, &r->executor));
    r->stream = gpu_stream_create(device);
}

static void take_down(struct rig *r)
{
    gpu_stream_destroy(r->device, r->stream);
    banyan_executor_close(r->executor);
}

static uint64_t message_of(const struct rig *r, DLDataType dtype, uint64_t bytes)
{
    uint64_t unit = banyan_dtype_bytes(dtype) * (uint64_t)banyan_world_size(r->world);
    return bytes / unit * unit;
}

static void load_plan(struct rig *r, banyan_plan *plan, const struct trial *tried, int instances,
                      bool in_place, DLDataType dtype, uint64_t bytes)
{
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    r->plan = plan;
    r->of = (collective_case){.plan = plan,
                              .dtype = dtype,
                              .symmetric = tried->symmetric,
                              .apart = !in_place,
                              .device = r->device,
                              .stream = r->stream,
                              .message_bytes = message_of(r, dtype, bytes)};
    for (int i = 0; i < 2; i++)
        r->buffers[i] = case_take(&r->of, r->world);
    /* Scratch may be longer than the message. */
    options.max_message_bytes = r->of.message_bytes * (instances > 1 ? 3 : 1);
    CHECK_OK(banyan_loaded_plan_open(r->executor, plan, &options, &r->loaded));
}

static void load(struct rig *r, const struct trial *tried, int instances, bool in_place,
                 DLDataType dtype, uint64_t bytes)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    params.ranks = banyan_world_size(r->world);
    params.instances = instances;
    params.in_place = in_place;
    CHECK_OK(banyan_algorithm_compile(tried->name, &params, &plan));
    load_plan(r, plan, tried, instances, in_place, dtype, bytes);
}

static void unload(struct rig *r)
{
    CHECK_OK(banyan_loaded_plan_close(r->loaded));
    for (int i = 0; i < 2; i++)
        case_give_back(&r->of, &r->buffers[i]);
    banyan_plan_destroy(r->plan);
}

static void queue(struct rig *r, int buffer)
{
    CHECK_OK(banyan_loaded_plan_run(r->loaded, r->buffers[buffer].input, r->buffers[buffer].output,
                                    r->of.message_bytes, r->of.dtype, r->stream));
}

static void fill(struct rig *r, int round)
{
    for (int i = 0; i < 2; i++)
        case_fill(&r->of, &r->buffers[i], r->rank, 2 * round + i);
}

static void check(struct rig *r, int round)
{
    gpu_stream_wait(r->device, r->stream);
    CHECK_OK(banyan_loaded_plan_status(r->loaded));
    for (int i = 0; i < 2; i++)
        case_check(&r->of, &r->buffers[i], r->rank, 2 * round + i);
}

/* Two runs in a graph, two without, and the graph again. */
static void run_both_ways(struct rig *r)
{
    gpu_capture_begin(r->device, r->stream);
    queue(r, 0);
    queue(r, 1);
    void *graph = gpu_capture_end(r->device, r->stream);
    for (int round = 0; round < 3; round++) {
        fill(r, round);
        if (round == 1) {
            queue(r, 0);
            queue(r, 1);
        } else {
            gpu_graph_launch(r->device, graph, r->stream);
        }
        check(r, round);
    }
    gpu_graph_destroy(r->device, graph);
}

static void run_one(struct rig *r, const struct trial *tried, int instances, uint64_t bytes,
                    int number)
{
    char seed[16];
    snprintf(seed, sizeof seed, "%d", number + 1);
    setenv("BANYAN_EMULATED_GRAPH_SEED", seed, 1); /* run nodes one by one, in any order */
    load(r, tried, instances, instances > 1 && !tried->apart, dtypes[(size_t)number % DTYPES],
         bytes);
    run_both_ways(r);
    unload(r);
}

static void run_all(banyan_world *world, DLDevice device)
{
    struct rig r;
    int number = 0;
    set_up(&r, world, device);
    for (size_t i = 0; i < TRIALS; i++) {
        run_one(&r, &trials[i], 1, BYTES, number++);
        run_one(&r, &trials[i], 5, BYTES, number++);
        run_one(&r, &trials[i], 2, ALIGNED_BYTES, number++);
    }
    take_down(&r);
}

static void run_on_own_gpus(banyan_world *world, void *context)
{
    (void)context;
    run_all(world, gpu_device_for(banyan_world_rank(world)));
}

static void run_on_one_gpu(banyan_world *world, void *context)
{
    (void)context;
    run_all(world, gpu_device_for(0));
}

static void runs_are_right_with_and_without_graphs(void **state)
{
    (void)state;
    ranks_run(gpu_count() >= 4 ? 4 : 2, run_on_own_gpus, NULL);
}

static void ranks_of_a_process_may_share_a_gpu(void **state)
{
    (void)state;
    if (!gpu_worlds_are_cheap())
        skip(); /* the device has few queues */
    ranks_run_threads(3, run_on_one_gpu, NULL);
}

/* Two thread blocks put, wait, put and wait, after the peer has begun its run. The first waits for
 * data that the peer's other thread block puts after a wait of its own. As stages, in which both
 * wait together, no rank would continue. */
static banyan_plan *compile_crossed(void)
{
    static const int waits[2][2] = {{3, 1}, {2, 0}};
    banyan_collective collective = {.kind = BANYAN_ALLGATHER, .chunk_factor = 4};
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create("crossed", &collective, 2, NULL, &program));
    banyan_program_port_channel *ways[2][4];
    for (int i = 0; i < 8; i++)
        ways[i / 4][i % 4] = banyan_program_port_channel_create(program, 1 - i / 4, i / 4);
    for (int i = 0; i < 4; i++) {
        int rank = i / 2, block = i % 2;
        banyan_program_memory_channel *begun =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        banyan_program_memory_signal_relaxed(begun, block, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait_relaxed(begun, block, BANYAN_SYNC_BOTH);
    }
    for (int i = 0; i < 8; i++) {
        int rank = i / 4, block = i / 2 % 2, way = i % 4;
        uint64_t from = (uint64_t)way, to = (uint64_t)i;
        banyan_program_port_put_with_signal_and_flush(
            ways[rank][way], banyan_program_output(program, 1 - rank, to, to + 1),
            banyan_program_input(program, rank, from, from + 1), block);
        banyan_program_port_wait(ways[rank][waits[block][i % 2]], block, BANYAN_SYNC_BOTH);
        banyan_program_copy(program, rank, banyan_program_output(program, rank, to, to + 1),
                            banyan_program_input(program, rank, from, from + 1), BANYAN_TB(block));
    }
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    proof_demand(plan, "crossed");
    bool in_step;
    CHECK_OK(plan_runs_in_lock_step(plan, &in_step));
    CHECK(plan_is_spmd(plan) && !in_step, "its thread blocks would not be staged wrongly");
    return plan;
}

static void run_crossed(banyan_world *world, void *context)
{
    struct rig r;
    (void)context;
    set_up(&r, world, gpu_device_for(banyan_world_rank(world)));
    load_plan(&r, compile_crossed(), &(struct trial){.symmetric = true}, 1, false, BANYAN_F32,
              BYTES);
    fill(&r, 0);
    CHECK_OK(banyan_world_barrier(world));
    queue(&r, 0);
    queue(&r, 1);
    check(&r, 0);
    unload(&r);
    take_down(&r);
}

static void thread_blocks_that_wait_for_later_puts_come_to_an_end(void **state)
{
    (void)state;
    ranks_run(2, run_crossed, NULL);
}

#define SHORT_NS NS_PER_S

/* Rank 1 has not come when rank 0's deadline passes, and must not accept data that was not
 * reduced. */
static void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct rig r;
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, SHORT_NS);
    set_up(&r, world, gpu_device_for(rank));
    load(&r, &(struct trial){.name = "allreduce_ports", .symmetric = true}, 2, false, BANYAN_F32,
         BYTES);
    fill(&r, 0);
    queue(&r, 0);
    queue(&r, 1);
    check(&r, 0);
    if (rank == 0) {
        queue(&r, 0);
        gpu_stream_wait(r.device, r.stream);
        CHECK_FAILS(banyan_loaded_plan_status(r.loaded), BANYAN_ERR_TIMEOUT, "rank 0 waited 1.");
    }
    if (rank == 1)
        usleep((useconds_t)(SHORT_NS / 1000)); /* its own waits are as short */
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 0) {
        usleep((useconds_t)(SHORT_NS / 1500));
    } else {
        queue(&r, 0);
        gpu_stream_wait(r.device, r.stream);
        CHECK(banyan_loaded_plan_status(r.loaded) != BANYAN_OK, "a run without rank 0 went well");
    }
    CHECK_OK(banyan_loaded_plan_reset(r.loaded));
    fill(&r, 1);
    queue(&r, 0);
    queue(&r, 1);
    check(&r, 1);
    unload(&r);
    take_down(&r);
    CHECK_OK(banyan_world_close(world));
}

static void nobody_is_told_of_copies_behind_a_failed_wait(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, be_late, NULL, statuses);
    for (int r = 0; r < 2; r++)
        assert_int_equal(statuses[r], 0);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_are_right_with_and_without_graphs),
        cmocka_unit_test(ranks_of_a_process_may_share_a_gpu),
        cmocka_unit_test(thread_blocks_that_wait_for_later_puts_come_to_an_end),
        cmocka_unit_test(nobody_is_told_of_copies_behind_a_failed_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
