/* The calls of all layers, with a rank that comes after the others' deadline: they name it and
 * call again, and then everything works. */
#include "support/test.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/deadline.h"
#include "support/folder.h"
#include "world/control.h"

enum { RANKS = 4, ROWS = 64, COLUMNS = 48, ELEMS = ROWS * COLUMNS };

/* A rank's objects; each call creates the next one. */
struct objects {
    banyan_world *world;
    int rank;
    banyan_memory *memory;
    banyan_comm *comm;
    banyan_layout *rows, *columns;
    banyan_tensors *source, *destination;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    banyan_mixed *mixed;
    banyan_executor *executor;
    float sums[2 * ELEMS];
    uint64_t timeout_ns; /* of the options; 0: the world's */
};

/* In shared memory: number of waits at a gate that have timed out. */
static _Atomic int *timed_out;

typedef banyan_status (*late_call)(struct objects *with);

static banyan_status alloc_memory(struct objects *with)
{
    return banyan_memory_alloc(with->world, 4096, &with->memory);
}

static banyan_status create_comm(struct objects *with)
{
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    options.timeout_ns = with->timeout_ns;
    return banyan_comm_create(with->world, &options, &with->comm);
}

/* The first call of its kind, which loads a plan. */
static banyan_status reduce(struct objects *with)
{
    static float input[ELEMS];
    for (int i = 0; i < ELEMS; i++)
        input[i] = (float)(with->rank + i);
    banyan_status status =
        banyan_comm_allreduce(with->comm, input, with->sums, ELEMS, BANYAN_F32, BANYAN_SUM, NULL);
    for (int i = 0; i < ELEMS && status == BANYAN_OK; i++)
        CHECK(with->sums[i] == (float)(RANKS * i + RANKS * (RANKS - 1) / 2));
    return status;
}

static banyan_status alloc_source(struct objects *with)
{
    return banyan_tensors_alloc(with->rows, with->world, &with->source);
}

static banyan_status alloc_destination(struct objects *with)
{
    return banyan_tensors_alloc(with->columns, with->world, &with->destination);
}

static banyan_status create_plan(struct objects *with)
{
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.timeout_ns = with->timeout_ns;
    return banyan_reshard_plan_create(with->rows, with->columns, with->world, &options,
                                      &with->plan);
}

static banyan_status open_service(struct objects *with)
{
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.timeout_ns = with->timeout_ns;
    return banyan_copy_service_open(with->world, NULL, &options, &with->service);
}

/* An empty batch. */
static banyan_status run_service(struct objects *with)
{
    return banyan_copy_service_run(with->service, NULL);
}

static float value_at(int row, int column, uint64_t version)
{
    return (float)(row * 1000 + column) + (float)version * 100000;
}

/* The destination keeps its contents until all ranks have entered. */
static banyan_status reshard(struct objects *with)
{
    uint64_t version = banyan_tensors_version(with->destination);
    const DLTensor *from = banyan_tensors_get(with->source, 0);
    const DLTensor *to = banyan_tensors_get(with->destination, 0);
    for (int i = 0; i < ELEMS / RANKS; i++)
        ((float *)from->data)[i] =
            value_at(with->rank * ROWS / RANKS + i / COLUMNS, i % COLUMNS, version);
    banyan_status status = banyan_reshard_execute(with->plan, with->source, with->destination,
                                                  with->service, with->world, NULL, NULL);
    if (status != BANYAN_OK) {
        CHECK(banyan_tensors_version(with->destination) == version, "the version has changed");
        return status;
    }
    CHECK(banyan_tensors_version(with->destination) == version + 1);
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < COLUMNS / RANKS; i++) {
            float got = ((float *)to->data)[row * COLUMNS / RANKS + i];
            float expected = value_at(row, with->rank * COLUMNS / RANKS + i, version);
            CHECK(got == expected, "row %d, column %d: %g, not %g", row, i, (double)got,
                  (double)expected);
        }
    }
    return BANYAN_OK;
}

/* In the background too, a request that timed out at the gate leaves the destination whole. */
static banyan_status start_reshard(struct objects *with)
{
    uint64_t version = banyan_tensors_version(with->destination);
    banyan_request *request;
    CHECK(banyan_tensors_get_state(with->destination) == BANYAN_TENSORS_WHOLE);
    CHECK_OK(banyan_reshard_start(with->plan, with->source, with->destination, with->service,
                                  with->world, NULL, &request));
    banyan_status status = banyan_request_wait(request);
    CHECK(banyan_tensors_get_state(with->destination) == BANYAN_TENSORS_WHOLE,
          "the destination is torn");
    CHECK(banyan_tensors_version(with->destination) == version + (status == BANYAN_OK));
    return status;
}

static banyan_status open_mixed(struct objects *with)
{
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.dtype = BANYAN_F32;
    options.local_tp = 2;
    options.timeout_ns = with->timeout_ns;
    return banyan_mixed_open(with->world, &options, &with->mixed);
}

static banyan_status tune_mixed(struct objects *with)
{
    return banyan_mixed_run_autotune(with->mixed);
}

static banyan_status open_executor(struct objects *with)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    options.timeout_ns = with->timeout_ns;
    return banyan_executor_open(with->world, &options, &with->executor);
}

static banyan_status load_plan(struct objects *with)
{
    banyan_plan *plan;
    banyan_loaded_plan *loaded;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = 4096;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = RANKS;
    CHECK_OK(banyan_algorithm_compile("allgather_allpairs", &params, &plan));
    banyan_status status = banyan_loaded_plan_open(with->executor, plan, &options, &loaded);
    banyan_plan_destroy(plan);
    if (status == BANYAN_OK)
        banyan_loaded_plan_close(loaded);
    return status;
}

static char *folder; /* of the checkpoints */

static banyan_status save(struct objects *with)
{
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    options.timeout_ns = with->timeout_ns;
    return banyan_checkpoint_save(folder, with->rows, with->source, with->world, &options);
}

static const struct {
    late_call call;
    const char *name;
    const char *option; /* the option that bounds the call; NULL: none */
} calls[] = {
    {alloc_memory, "banyan_memory_alloc", NULL},
    {create_comm, "banyan_comm_create", "banyan_comm_options"},
    {reduce, "banyan_comm_allreduce", "banyan_comm_options"},
    {alloc_source, "banyan_tensors_alloc", NULL},
    {alloc_destination, "banyan_tensors_alloc", NULL},
    {create_plan, "banyan_reshard_plan_create", "banyan_reshard_options"},
    {open_service, "banyan_copy_service_open", "banyan_copy_options"},
    {run_service, "banyan_copy_service_run", "banyan_copy_options"},
    {reshard, "a reshard run", "banyan_reshard_options"},
    {reshard, "a reshard run", "banyan_reshard_options"},
    {start_reshard, "a reshard run", "banyan_reshard_options"},
    {open_mixed, "banyan_mixed_open", "banyan_mixed_options"},
    {tune_mixed, "banyan_mixed_run_autotune", "banyan_mixed_options"},
    {open_executor, "banyan_executor_open", "banyan_executor_options"},
    {load_plan, "banyan_loaded_plan_open", "banyan_executor_options"},
    {save, "banyan_checkpoint_save", "banyan_checkpoint_options"},
};
#define CALLS (sizeof calls / sizeof *calls)

static void create_layouts(struct objects *with)
{
    banyan_mesh mesh = {.ndim = 1, .extent = {RANKS}};
    banyan_placement rows = {BANYAN_SHARD, 0}, columns = {BANYAN_SHARD, 1};
    int64_t shape[] = {ROWS, COLUMNS};
    CHECK_OK(banyan_layout_create(&with->rows));
    CHECK_OK(banyan_layout_create(&with->columns));
    banyan_layout_add_sharded(with->rows, "weight", BANYAN_F32, 2, shape, &mesh, &rows, with->rank);
    banyan_layout_add_sharded(with->columns, "weight", BANYAN_F32, 2, shape, &mesh, &columns,
                              with->rank);
}

static void destroy(struct objects *with)
{
    banyan_executor_close(with->executor);
    CHECK_OK(banyan_mixed_close(with->mixed));
    banyan_copy_service_close(with->service);
    banyan_reshard_plan_destroy(with->plan);
    banyan_tensors_destroy(with->source);
    banyan_tensors_destroy(with->destination);
    banyan_layout_destroy(with->rows);
    banyan_layout_destroy(with->columns);
    CHECK_OK(banyan_comm_destroy(with->comm));
    banyan_memory_free(with->memory);
}

/* Wait until all ranks but one have timed out. */
static void await_timeouts(void)
{
    uint64_t until_ns = deadline_after(100 * TEST_SLOWER * NS_PER_S);
    while (*timed_out < RANKS - 1) {
        CHECK(deadline_left_ns(until_ns) > 0, "%d ranks have timed out", *timed_out);
        usleep(1000);
    }
}

/* Repeat the call until the message names the victim: on a busy machine another rank may also
 * exceed the deadline. */
static void call_in_vain(struct objects *with, size_t at, int victim, const char *sets)
{
    char late[64], in[80];
    snprintf(late, sizeof late, " for rank %d (pid ", victim);
    snprintf(in, sizeof in, " in %s", calls[at].name);
    for (int tries = 1;; tries++) {
        banyan_status status = calls[at].call(with);
        CHECK(status == BANYAN_ERR_TIMEOUT, "call %d: %s: %s", (int)at, banyan_status_name(status),
              status == BANYAN_OK ? "" : banyan_last_error());
        CHECK(strstr(banyan_last_error(), in) && strstr(banyan_last_error(), sets),
              "%s and %s are not in: %s", in, sets, banyan_last_error());
        CHECK_OK(banyan_world_check(with->world));
        if (strstr(banyan_last_error(), late))
            break;
        CHECK(tries < 20, "%s is not in: %s", late, banyan_last_error());
    }
    ++*timed_out;
}

/* The victim comes after all others have timed out, so no deadline depends on the machine's speed.
 * `sets` bounds the others' waits. */
static void call_late(struct objects *with, size_t at, int victim, const char *sets)
{
    if (with->rank == victim)
        await_timeouts();
    else
        call_in_vain(with, at, victim, sets);
    CHECK_OK(banyan_world_set_timeout(with->world, 60 * NS_PER_S));
    CHECK_OK(calls[at].call(with));
    CHECK_OK(banyan_world_barrier(with->world));
    if (with->rank == victim)
        *timed_out = 0;
    CHECK_OK(banyan_world_barrier(with->world));
}

static void open_objects(struct objects *with, int rank, int count, const banyan_unique_id *id)
{
    with->world = ranks_open_world(rank, count, id, 60 * NS_PER_S);
    with->rank = rank;
    create_layouts(with);
}

static void close_objects(struct objects *with)
{
    destroy(with);
    CHECK_OK(banyan_world_close(with->world));
}

static void call_all_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    int seed = *(int *)context;
    static struct objects with;
    open_objects(&with, rank, count, id);
    for (size_t at = 0; at < CALLS; at++) {
        int victim = (int)(at + (size_t)seed) % RANKS;
        if (rank != victim)
            CHECK_OK(banyan_world_set_timeout(with.world, 300 * NS_PER_MS));
        call_late(&with, at, victim, "; BANYAN_TIMEOUT or the world's timeout_ns sets how long");
    }
    close_objects(&with);
}

static void fork_ranks(ranks_raw_fn fn, void *context)
{
    int statuses[RANKS];
    *timed_out = 0;
    ranks_fork(RANKS, fn, context, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

static void every_call_may_be_called_again_after_a_timeout(void **state)
{
    folder = folder_path(*state, "saved");
    random_state random = random_from(random_seed());
    int seed = (int)random_between(&random, 0, RANKS - 1);
    fork_ranks(call_all_late, &seed);
    free(folder);
}

/* The world's timeout is long, and the victim's objects have no other. */
static void call_with_options(int rank, int count, const banyan_unique_id *id, void *context)
{
    int victim = *(int *)context;
    static struct objects with;
    char sets[96];
    open_objects(&with, rank, count, id);
    with.timeout_ns = rank == victim ? 0 : TEST_SLOWER * NS_PER_S;
    for (size_t at = 0; at < CALLS; at++) {
        if (calls[at].option) {
            snprintf(sets, sizeof sets, "; timeout_ns of %s sets how long", calls[at].option);
            call_late(&with, at, victim, sets);
        } else {
            CHECK_OK(calls[at].call(&with));
        }
        CHECK(banyan_world_timeout_ns(with.world) == 60 * NS_PER_S, "a call's bound outlasts it");
    }
    close_objects(&with);
}

static void the_timeout_of_an_object_bounds_its_calls(void **state)
{
    folder = folder_path(*state, "saved");
    random_state random = random_from(random_seed());
    int victim = (int)random_between(&random, 0, RANKS - 1);
    fork_ranks(call_with_options, &victim);
    free(folder);
}

/* A rank that comes long after the world's timeout. */
static void wait_longer_than_the_world(int rank, int count, const banyan_unique_id *id,
                                       void *context)
{
    (void)context;
    static struct objects with;
    open_objects(&with, rank, count, id);
    with.timeout_ns = BANYAN_FOREVER_NS;
    CHECK_OK(banyan_world_barrier(with.world));
    CHECK_OK(banyan_world_set_timeout(with.world, 100 * NS_PER_MS));
    if (rank == 1)
        usleep(1000000);
    CHECK_OK(create_comm(&with));
    CHECK_OK(reduce(&with));
    if (rank == 1)
        usleep(1000000);
    CHECK_OK(reduce(&with));
    CHECK_OK(banyan_world_set_timeout(with.world, 60 * NS_PER_S));
    CHECK_OK(banyan_comm_destroy(with.comm));
    banyan_layout_destroy(with.rows);
    banyan_layout_destroy(with.columns);
    CHECK_OK(banyan_world_close(with.world));
}

static void an_object_may_wait_longer_than_its_world(void **state)
{
    (void)state;
    fork_ranks(wait_longer_than_the_world, NULL);
}

/* Runs without a gate: of a communicator, a schedule, and mixed collectives. */
enum run { RUN_COMM, RUN_SCHEDULE, RUN_MIXED, RUNS };

static banyan_status run_mixed(struct objects *with)
{
    static float input[ELEMS];
    DLTensor from = {.data = input,
                     .device = BANYAN_HOST,
                     .ndim = 2,
                     .dtype = BANYAN_F32,
                     .shape = (int64_t[]){ROWS, COLUMNS}};
    DLTensor to = from;
    to.data = with->sums;
    to.shape = (int64_t[]){2 * ROWS, COLUMNS};
    return banyan_mixed_run(with->mixed, BANYAN_MIXED_ALLREDUCE_ALLGATHER, &from, &to,
                            BANYAN_MIXED_AUTO, NULL);
}

static void stay_away(int rank, int count, const banyan_unique_id *id, void *context)
{
    static const char *const options[] = {"banyan_comm_options", "banyan_copy_options",
                                          "banyan_mixed_options"};
    enum run run = *(enum run *)context;
    static struct objects with;
    banyan_copy_schedule *schedule;
    char sets[96];
    open_objects(&with, rank, count, id);
    with.timeout_ns = 2 * TEST_SLOWER * NS_PER_S;
    CHECK_OK(create_comm(&with));
    CHECK_OK(reduce(&with));
    CHECK_OK(open_service(&with));
    float value = (float)rank, taken = 0;
    int64_t shape[] = {1};
    DLTensor tensor = {
        .data = &value, .device = BANYAN_HOST, .ndim = 1, .dtype = BANYAN_F32, .shape = shape};
    DLTensor there = tensor;
    there.data = &taken;
    CHECK_OK(banyan_copy_service_submit_send(with.service, &tensor, (rank + 1) % RANKS, 0));
    CHECK_OK(banyan_copy_service_submit_recv(with.service, &there, (rank + RANKS - 1) % RANKS, 0));
    CHECK_OK(banyan_copy_service_prepare(with.service, &schedule));
    CHECK_OK(open_mixed(&with));
    CHECK_OK(run_mixed(&with));
    if (rank == 2) {
        await_timeouts();
        return;
    }
    snprintf(sets, sizeof sets, "; timeout_ns of %s sets how long", options[run]);
    banyan_status status = run == RUN_COMM       ? reduce(&with)
                           : run == RUN_SCHEDULE ? banyan_copy_schedule_run(schedule, NULL)
                                                 : run_mixed(&with);
    /* The groups of mixed collectives end with the first rank's error. */
    bool has_ended = run == RUN_MIXED && status == BANYAN_ERR_ABORTED;
    CHECK((status == BANYAN_ERR_TIMEOUT || has_ended) && strstr(banyan_last_error(), sets),
          "%s: %s", banyan_status_name(status), status == BANYAN_OK ? "" : banyan_last_error());
    ++*timed_out;
    await_timeouts();
}

static void the_timeout_of_an_object_bounds_its_runs(void **state)
{
    (void)state;
    for (enum run run = 0; run < RUNS; run++)
        fork_ranks(stay_away, &run);
}

/* A rank that stays away from a run without a gate: the others wait once. */
static void wait_once(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    static struct objects with;
    with.world = ranks_open_world(rank, count, id, 60 * NS_PER_S);
    with.rank = rank;
    CHECK_OK(create_comm(&with));
    CHECK_OK(reduce(&with));
    if (rank == 2) {
        while (banyan_world_check(with.world) == BANYAN_OK)
            usleep(10000);
        _exit(0);
    }
    CHECK_OK(banyan_world_set_timeout(with.world, NS_PER_S / 2));
    uint64_t began_ns = time_now_ns();
    CHECK_FAILS(reduce(&with), BANYAN_ERR_TIMEOUT, "rank 2 (pid ");
    CHECK(strstr(banyan_last_error(), "BANYAN_TIMEOUT"), "%s", banyan_last_error());
    CHECK(time_now_ns() - began_ns < 3 * NS_PER_S / 2, "it waited twice: %.2f s",
          (double)(time_now_ns() - began_ns) / 1e9);
    (void)banyan_comm_destroy(with.comm);
    CHECK(banyan_world_close(with.world) != BANYAN_OK);
    CHECK(time_now_ns() - began_ns < 3 * NS_PER_S, "leaving waits");
}

static void a_run_names_the_rank_that_stays_away(void **state)
{
    (void)state;
    int statuses[RANKS];
    ranks_fork(RANKS, wait_once, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

static void agree_after_a_timeout(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 20 * NS_PER_S);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 3) {
        while (banyan_world_check(world) == BANYAN_OK)
            usleep(10000);
        _exit(0);
    }
    uint64_t began_ns = time_now_ns();
    banyan_status mine = banyan_error_set(BANYAN_ERR_TIMEOUT, "the run waited for rank 3");
    CHECK_FAILS(control_agree(world, mine), BANYAN_ERR_TIMEOUT, "the run waited for rank 3");
    CHECK_FAILS(banyan_world_check(world), BANYAN_ERR_TIMEOUT, "the run waited for rank 3");
    CHECK(time_now_ns() - began_ns < 3 * NS_PER_S, "it waited twice");
    CHECK_FAILS(banyan_world_close(world), BANYAN_ERR_TIMEOUT, "the run waited for rank 3");
}

static void a_rank_that_timed_out_does_not_wait_again(void **state)
{
    (void)state;
    int statuses[RANKS];
    ranks_fork(RANKS, agree_after_a_timeout, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_call_may_be_called_again_after_a_timeout,
                                        folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(the_timeout_of_an_object_bounds_its_calls, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(an_object_may_wait_longer_than_its_world),
        cmocka_unit_test(the_timeout_of_an_object_bounds_its_runs),
        cmocka_unit_test(a_run_names_the_rank_that_stays_away),
        cmocka_unit_test(a_rank_that_timed_out_does_not_wait_again),
    };
    timed_out =
        mmap(NULL, sizeof *timed_out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return timed_out == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
