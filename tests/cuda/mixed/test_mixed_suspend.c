/* Suspended mixed collectives: the GPUs' memory is free and comes back, graphs stay valid, and
 * impossible calls are refused. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "core/deadline.h"
#include "cuda/gpu_mixed.h"
#include "mixed/mixed.h"

#define ELEMS 5000
#define MOST_BYTES (1 << 17)

static const grid_sizes grids[] = {{1, 2, 2, 1, 1}, {1, 4, 1, 1, 1}, {1, 1, 2, 1, 1}};

static void enter(mixed_case *c, banyan_world *world, const grid_sizes *sizes)
{
    banyan_mixed_options options = options_of(sizes, BANYAN_BF16);
    options.max_bytes = MOST_BYTES;
    gpu_case_open(c, world, options, ELEMS);
}

/* Run every operation and mode that is valid now, twice. */
static int run_all(mixed_case *c)
{
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t op_count, mode_count;
    int runs = 0;
    CHECK_OK(banyan_mixed_valid_ops(c->mixed, ops, BANYAN_MIXED_OPS, &op_count));
    for (size_t i = 0; i < op_count; i++) {
        CHECK_OK(
            banyan_mixed_valid_modes(c->mixed, ops[i], modes, BANYAN_MIXED_MODES, &mode_count));
        for (size_t m = 0; m < 2 * mode_count; m++, runs++) {
            mixed_one one = {.op = ops[i], .mode = modes[m / 2], .rows = 7, .row_elems = 100};
            case_run(c, &one);
        }
    }
    return runs;
}

static mixed_one first_op(const mixed_case *c, banyan_mixed_mode mode)
{
    mixed_one one = {.mode = mode, .rows = 5, .row_elems = 130};
    size_t count;
    CHECK_OK(banyan_mixed_valid_ops(c->mixed, &one.op, 1, &count));
    return one;
}

static void *capture(mixed_case *c, const mixed_one *one)
{
    case_run(c, one); /* communicators load their plans */
    return gpu_case_capture(c, one);
}

static size_t bytes_of(const mixed_case *c)
{
    size_t bytes = banyan_memory_bytes(c->mixed->memory);
    for (size_t i = 0; i < c->mixed->staging.count; i++)
        bytes += c->mixed->staging.data[i].mapped_bytes;
    return bytes;
}

/* A number that differs if a rank's memory has another address or size here. */
static uint64_t addresses_of(const mixed_case *c)
{
    uint64_t mixed_up = 0;
    for (int local = 0; local < c->grid.local_size; local++) {
        void *address;
        size_t bytes;
        CHECK_OK(banyan_mixed_peer_memory(c->mixed, local, &address, &bytes));
        CHECK(address && bytes > 0);
        mixed_up = 31 * mixed_up + (uint64_t)(uintptr_t)address + bytes;
    }
    return mixed_up + (uint64_t)(uintptr_t)banyan_mixed_multicast_memory(c->mixed, false);
}

static void suspend_and_resume(banyan_world *world, void *context)
{
    mixed_case c;
    enter(&c, world, context);
    mixed_one fused = first_op(&c, BANYAN_MIXED_ONE_SHOT), by_comm = fused;
    by_comm.mode = BANYAN_MIXED_SINGLE;
    CHECK(run_all(&c) > 2);
    void *fused_graph = capture(&c, &fused), *comm_graph = capture(&c, &by_comm);
    for (int round = 0; round < 3; round++) {
        gpu_case_replay(&c, &fused, fused_graph);
        size_t free_before = gpu_free_bytes(world), mapped_before = gpu_mapped_here();
        uint64_t before = addresses_of(&c);
        CHECK_OK(banyan_mixed_suspend(c.mixed));
        size_t freed = gpu_free_bytes(world) - free_before;
        CHECK(freed >= bytes_of(&c), "%zu bytes were freed of %zu", freed, bytes_of(&c));
        if (gpu_is_emulated())
            CHECK(mapped_before - gpu_mapped_here() >=
                      (size_t)c.grid.local_size * banyan_memory_bytes(c.mixed->memory),
                  "peers' memory is still mapped");
        CHECK_OK(banyan_mixed_status(c.mixed));
        CHECK_OK(banyan_mixed_resume(c.mixed, round % 2 ? world : NULL));
        CHECK(gpu_free_bytes(world) == free_before);
        CHECK(addresses_of(&c) == before, "peers' memory has other addresses");
        gpu_case_replay(&c, &fused, fused_graph);
        gpu_case_replay(&c, &by_comm, comm_graph);
        run_all(&c);
    }
    gpu_graph_destroy(c.device, fused_graph);
    gpu_graph_destroy(c.device, comm_graph);
    CHECK_OK(banyan_mixed_suspend(c.mixed));
    gpu_case_close(&c);
}

static void memory_is_freed_and_graphs_stay_valid(void **state)
{
    (void)state;
    for (size_t i = 0; i < (gpu_worlds_are_cheap() ? sizeof grids / sizeof *grids : 1); i++) {
        int ranks = grids[i].local_tp * grids[i].local_dp;
        if (ranks <= gpu_count())
            ranks_run(ranks, suspend_and_resume, (void *)&grids[i]);
    }
}

/* The emulated driver counts by process, so `mapped` would include other ranks. */
static void suspend_as_threads(banyan_world *world, void *context)
{
    mixed_case c;
    enter(&c, world, context);
    for (int round = 0; round < 2; round++) {
        run_all(&c);
        CHECK_OK(banyan_mixed_suspend(c.mixed));
        CHECK_OK(banyan_mixed_resume(c.mixed, NULL));
    }
    run_all(&c);
    gpu_case_close(&c);
}

static void ranks_may_be_threads(void **state)
{
    (void)state;
    if (gpu_worlds_are_cheap())
        ranks_run_threads(2, suspend_as_threads, (void *)&grids[2]);
    else
        skip();
}

static void resume_elsewhere(banyan_world *world, void *context)
{
    mixed_case c;
    banyan_world *now = world_like(world);
    enter(&c, now, context);
    mixed_one fused = first_op(&c, BANYAN_MIXED_ONE_SHOT);
    run_all(&c);
    void *graph = capture(&c, &fused);
    for (int round = 0; round < 4; round++) {
        bool closes_first = round % 2 == 0;
        CHECK_OK(banyan_mixed_suspend(c.mixed));
        if (closes_first) {
            CHECK_OK(banyan_world_close(now));
            CHECK_FAILS(banyan_mixed_resume(c.mixed, NULL), BANYAN_ERR_INVALID, "is closed");
            CHECK_FAILS(case_call(&c, &fused), BANYAN_ERR_INVALID, "are suspended");
            CHECK_OK(banyan_mixed_status(c.mixed));
        }
        banyan_world *next = world_like(world);
        CHECK_OK(banyan_mixed_resume(c.mixed, next));
        if (!closes_first)
            CHECK_OK(banyan_world_close(now));
        c.world = now = next;
        gpu_case_replay(&c, &fused, graph);
        run_all(&c);
        gpu_case_replay(&c, &fused, graph);
    }
    gpu_graph_destroy(c.device, graph);
    gpu_case_close(&c);
    CHECK_OK(banyan_world_close(now));
}

static void a_new_world_takes_the_old_ones_place(void **state)
{
    (void)state;
    ranks_run(2, resume_elsewhere, (void *)&grids[2]);
    if (gpu_worlds_are_cheap())
        ranks_run(4, resume_elsewhere, (void *)&grids[0]);
}

static void refuse_worlds(banyan_world *world, void *context)
{
    mixed_case c;
    int rank = banyan_world_rank(world), turned[] = {1, 0};
    banyan_world *now = world_like(world), *alone, *other;
    enter(&c, now, context);
    mixed_one by_comm = first_op(&c, BANYAN_MIXED_SINGLE);
    run_all(&c);
    CHECK_OK(banyan_mixed_suspend(c.mixed));
    CHECK_OK(banyan_world_split(world, &rank, 1, &alone));
    CHECK_FAILS(banyan_mixed_resume(c.mixed, alone), BANYAN_ERR_INVALID, "as rank 0 of 1 on 1");
    CHECK_OK(banyan_world_close(alone));
    CHECK_OK(banyan_world_split(world, turned, 2, &other));
    CHECK_FAILS(banyan_mixed_resume(c.mixed, other), BANYAN_ERR_INVALID, "as rank");
    CHECK_OK(banyan_world_close(other));
    CHECK_OK(banyan_mixed_resume(c.mixed, NULL));
    void *graph = capture(&c, &by_comm);
    CHECK_OK(banyan_mixed_suspend(c.mixed));
    other = world_like(world);
    CHECK_FAILS(banyan_mixed_resume(c.mixed, other), BANYAN_ERR_UNSUPPORTED, "graphs hold");
    CHECK_OK(banyan_mixed_resume(c.mixed, now));
    gpu_case_replay(&c, &by_comm, graph);
    CHECK_OK(banyan_mixed_suspend(c.mixed));
    CHECK_OK(banyan_world_close(now));
    CHECK_FAILS(banyan_mixed_resume(c.mixed, other), BANYAN_ERR_UNSUPPORTED, "graphs hold");
    gpu_graph_destroy(c.device, graph);
    gpu_case_close(&c);
    CHECK_OK(banyan_world_close(other));
}

static void worlds_that_will_not_do_are_refused(void **state)
{
    (void)state;
    ranks_run(2, refuse_worlds, (void *)&grids[2]);
}

static void refuse_calls(banyan_world *world, void *context)
{
    mixed_case c;
    banyan_mixed_mode mode;
    size_t count;
    uint64_t ns;
    enter(&c, world, context);
    mixed_one one = first_op(&c, BANYAN_MIXED_ONE_SHOT);
    CHECK_FAILS(banyan_mixed_resume(c.mixed, NULL), BANYAN_ERR_INVALID, "are not suspended");
    CHECK_OK(banyan_mixed_suspend(c.mixed));
    CHECK_FAILS(banyan_mixed_suspend(c.mixed), BANYAN_ERR_INVALID, "suspended already");
    CHECK_FAILS(case_call(&c, &one), BANYAN_ERR_INVALID, "call banyan_mixed_resume first");
    CHECK_FAILS(banyan_mixed_run_autotune(c.mixed), BANYAN_ERR_INVALID, "are suspended");
    CHECK_FAILS(banyan_mixed_measure(c.mixed, one.op, NULL, NULL, one.mode, &ns),
                BANYAN_ERR_INVALID, "are suspended");
    CHECK_FAILS(banyan_mixed_save_autotune(c.mixed, "/tmp"), BANYAN_ERR_INVALID, "are suspended");
    CHECK_OK(banyan_mixed_valid_modes(c.mixed, one.op, &mode, 1, &count));
    CHECK(count == 0, "%zu modes are valid", count);
    gpu_case_close(&c);
    banyan_mixed_options options = options_of(context, BANYAN_F32);
    CHECK_OK(banyan_mixed_open(world, &options, &c.mixed));
    CHECK_FAILS(banyan_mixed_suspend(c.mixed), BANYAN_ERR_UNSUPPORTED, "on the host");
    CHECK_OK(banyan_mixed_close(c.mixed));
    options.device = gpu_device_for(banyan_world_rank(world));
    options.nodes = 2;
    options.local_tp = options.local_dp = options.inter_tp = options.inter_dp = 0;
    CHECK_OK(banyan_mixed_open_empty(world, &options, &c.mixed));
    CHECK_FAILS(banyan_mixed_suspend(c.mixed), BANYAN_ERR_UNSUPPORTED, "of 2 nodes");
    CHECK_OK(banyan_mixed_close(c.mixed));
}

static void wrong_calls_are_named(void **state)
{
    (void)state;
    ranks_run(2, refuse_calls, (void *)&grids[2]);
}

static void resume_without_room(banyan_world *world, void *context)
{
    mixed_case c;
    void *taken = NULL;
    enter(&c, world, context);
    run_all(&c);
    CHECK_OK(banyan_mixed_suspend(c.mixed));
    size_t free_bytes = gpu_free_bytes(world);
    if (banyan_world_rank(world) == 1)
        taken = gpu_plain_alloc(c.device, free_bytes - bytes_of(&c) / 2);
    for (int attempt = 0; attempt < 2; attempt++) {
        CHECK_FAILS(banyan_mixed_resume(c.mixed, NULL), BANYAN_ERR_NO_MEMORY,
                    "rank 1 could not allocate");
        size_t free_now = gpu_free_bytes(world);
        if (!taken)
            CHECK(free_now == free_bytes, "memory is kept of what failed");
        mixed_one one = {.mode = BANYAN_MIXED_ONE_SHOT, .rows = 1, .row_elems = 1};
        one.op = BANYAN_MIXED_ALLGATHER;
        CHECK_FAILS(case_call(&c, &one), BANYAN_ERR_INVALID, "are suspended");
    }
    if (taken)
        gpu_plain_free(c.device, taken);
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_mixed_resume(c.mixed, NULL));
    run_all(&c);
    gpu_case_close(&c);
}

static void all_hear_of_a_rank_without_room_and_may_try_again(void **state)
{
    (void)state;
    if (gpu_count() < 2 || !gpu_is_emulated())
        skip(); /* real GPUs have more memory than this returns */
    ranks_run(2, resume_without_room, (void *)&grids[2]);
}

/* As after a resume in which a rank of a group ran out of memory. */
static void resume_after_the_end_of_a_group(banyan_world *world, void *context)
{
    mixed_case c;
    enter(&c, world, context);
    mixed_one fused = first_op(&c, BANYAN_MIXED_ONE_SHOT), by_comm = fused;
    by_comm.mode = BANYAN_MIXED_SINGLE;
    void *graph = capture(&c, &fused), *comm_graph;
    for (int group = 0; group < MIXED_GROUPS; group++) {
        CHECK_OK(banyan_mixed_suspend(c.mixed));
        if (banyan_world_rank(world) == 0)
            CHECK_OK(banyan_world_abort(c.mixed->setup.worlds[group], "it lacks memory"));
        CHECK_OK(banyan_mixed_resume(c.mixed, NULL));
        CHECK_OK(banyan_mixed_status(c.mixed));
        gpu_case_replay(&c, &fused, graph);
        run_all(&c);
    }
    comm_graph = capture(&c, &by_comm);
    CHECK_OK(banyan_mixed_suspend(c.mixed));
    if (banyan_world_rank(world) == 0)
        CHECK_OK(banyan_world_abort(c.mixed->setup.worlds[MIXED_TP], "it lacks memory"));
    CHECK_FAILS(banyan_mixed_resume(c.mixed, NULL), BANYAN_ERR_UNSUPPORTED, "graphs hold");
    CHECK_OK(banyan_world_check(world));
    gpu_graph_destroy(c.device, comm_graph);
    gpu_graph_destroy(c.device, graph);
    (void)banyan_mixed_close(c.mixed);
    case_release(&c, c.input);
    case_release(&c, c.output);
    free(c.host);
    gpu_stream_destroy(c.device, c.stream);
}

static void groups_that_ended_are_opened_again(void **state)
{
    (void)state;
    if (gpu_count() < 4 || !gpu_worlds_are_cheap())
        skip();
    ranks_run(4, resume_after_the_end_of_a_group, (void *)&grids[0]);
}

#define DEATHS 8
#define VICTIM 3

static void *die_soon(void *delay_us)
{
    usleep(*(const useconds_t *)delay_us);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void lose_one_meanwhile(int rank, int count, const banyan_unique_id *id, void *context)
{
    mixed_case c;
    pthread_t thread;
    enter(&c, ranks_open_world(rank, count, id, 60 * NS_PER_S), &grids[0]);
    mixed_one call = first_op(&c, BANYAN_MIXED_SEPARATE);
    case_run(&c, &call);
    banyan_status status = BANYAN_OK;
    for (int round = 0; status == BANYAN_OK; round++) {
        status = banyan_mixed_suspend(c.mixed);
        if (rank == VICTIM && round == 0) /* all ranks have ended their call */
            CHECK(pthread_create(&thread, NULL, die_soon, context) == 0);
        if (status == BANYAN_OK)
            status = banyan_mixed_resume(c.mixed, NULL);
    }
    uint64_t began_ns = time_now_ns();
    CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED, "%s",
          banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 3 "), "%s", banyan_last_error());
    (void)banyan_mixed_close(c.mixed);
    banyan_world_close(c.world);
    CHECK(time_now_ns() - began_ns < 5 * NS_PER_S, "closing took too long");
}

static void a_death_meanwhile_ends_it_for_all(void **state)
{
    (void)state;
    if (gpu_count() < 4 || !gpu_worlds_are_cheap())
        skip();
    random_state random = random_from(random_seed());
    uint64_t began_ns = time_now_ns();
    for (int i = 0; i < DEATHS; i++) {
        int statuses[4];
        useconds_t delay_us = (useconds_t)random_between(&random, 0, 20000);
        ranks_fork(4, lose_one_meanwhile, &delay_us, statuses);
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(statuses[rank], rank == VICTIM ? SIGKILL : 0);
    }
    assert_true(time_now_ns() - began_ns < 30 * NS_PER_S); /* no rank has waited for a deadline */
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_freed_and_graphs_stay_valid),
        cmocka_unit_test(ranks_may_be_threads),
        cmocka_unit_test(a_new_world_takes_the_old_ones_place),
        cmocka_unit_test(worlds_that_will_not_do_are_refused),
        cmocka_unit_test(wrong_calls_are_named),
        cmocka_unit_test(all_hear_of_a_rank_without_room_and_may_try_again),
        cmocka_unit_test(groups_that_ended_are_opened_again),
        cmocka_unit_test(a_death_meanwhile_ends_it_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
