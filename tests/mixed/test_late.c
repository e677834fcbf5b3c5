/* The calls of all layers, with a rank that comes after the others' deadline: they name it, call
 * again, and then all works. */
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/control.h"

enum { RANKS = 4, ROWS = 64, COLUMNS = 48, ELEMS = ROWS * COLUMNS };

/* The objects of a rank; each call makes the next thing. */
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
    float sums[ELEMS];
};

/* The gate keeps the deadline that was set when it began; the steps behind it have all the time
 * that a busy machine takes. */
static void *lengthen(void *world)
{
    usleep(200000);
    (void)banyan_world_set_timeout(world, 60 * NS_PER_S);
    return NULL;
}

typedef banyan_status (*late_call)(struct objects *with);

static banyan_status alloc_memory(struct objects *with)
{
    return banyan_memory_alloc(with->world, 4096, &with->memory);
}

static banyan_status create_comm(struct objects *with)
{
    return banyan_comm_create(with->world, NULL, &with->comm);
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
    return banyan_reshard_plan_create(with->rows, with->columns, with->world, NULL, &with->plan);
}

static banyan_status open_service(struct objects *with)
{
    return banyan_copy_service_open(with->world, NULL, NULL, &with->service);
}

static float value_at(int row, int column, uint64_t version)
{
    return (float)(row * 1000 + column) + (float)version * 100000;
}

/* Until all have entered, the destination keeps what it has. */
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
    return banyan_mixed_open(with->world, &options, &with->mixed);
}

static banyan_status open_executor(struct objects *with)
{
    return banyan_executor_open(with->world, NULL, &with->executor);
}

/* The others' deadline. The groups of a mixed grid keep it. */
enum { SOON_MS = 300, LATER_MS = 1500 };

static const struct {
    late_call call;
    const char *name;
    int deadline_ms;
} calls[] = {
    {alloc_memory, "banyan_memory_alloc", SOON_MS},
    {create_comm, "banyan_comm_create", SOON_MS},
    {reduce, "banyan_comm_allreduce", SOON_MS},
    {alloc_source, "banyan_tensors_alloc", SOON_MS},
    {alloc_destination, "banyan_tensors_alloc", SOON_MS},
    {create_plan, "banyan_reshard_plan_create", SOON_MS},
    {open_service, "banyan_copy_service_open", SOON_MS},
    {reshard, "a reshard run", SOON_MS},
    {reshard, "a reshard run", SOON_MS},
    {start_reshard, "a reshard run", SOON_MS},
    {open_mixed, "banyan_mixed_open", LATER_MS},
    {open_executor, "banyan_executor_open", SOON_MS},
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

static void call_late(struct objects *with, size_t at, int victim)
{
    char late[64], in[80];
    int timeouts = 0;
    snprintf(late, sizeof late, " for rank %d (pid ", victim);
    snprintf(in, sizeof in, " in %s", calls[at].name);
    CHECK_OK(banyan_world_set_timeout(with->world, 60 * NS_PER_S));
    CHECK_OK(banyan_world_barrier(with->world));
    uint64_t deadline_ns = (uint64_t)calls[at].deadline_ms * TEST_SLOWER * NS_PER_MS;
    if (with->rank == victim)
        usleep((unsigned)calls[at].deadline_ms * TEST_SLOWER * 2000);
    for (;;) {
        CHECK_OK(banyan_world_set_timeout(with->world,
                                          with->rank == victim ? 60 * NS_PER_S : deadline_ns));
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, lengthen, with->world) == 0);
        banyan_status status = calls[at].call(with);
        pthread_join(thread, NULL);
        if (status == BANYAN_OK)
            break;
        CHECK(status == BANYAN_ERR_TIMEOUT && with->rank != victim, "call %d: %s: %s", (int)at,
              banyan_status_name(status), banyan_last_error());
        CHECK(strstr(banyan_last_error(), late) && strstr(banyan_last_error(), in),
              "%s and %s are not in: %s", late, in, banyan_last_error());
        CHECK_OK(banyan_world_check(with->world));
        timeouts++;
    }
    CHECK(with->rank == victim || timeouts > 0, "call %d did not time out", (int)at);
}

static void call_all_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    int seed = *(int *)context;
    static struct objects with;
    with.world = ranks_open_world(rank, count, id, 0);
    with.rank = rank;
    create_layouts(&with);
    for (size_t at = 0; at < CALLS; at++)
        call_late(&with, at, (int)(at + (size_t)seed) % RANKS);
    CHECK_OK(banyan_world_set_timeout(with.world, 60 * NS_PER_S));
    CHECK_OK(banyan_world_barrier(with.world));
    destroy(&with);
    CHECK_OK(banyan_world_close(with.world));
}

static void every_call_may_be_called_again_after_a_timeout(void **state)
{
    (void)state;
    int statuses[RANKS];
    random_state random = random_from(random_seed());
    int seed = (int)random_between(&random, 0, RANKS - 1);
    ranks_fork(RANKS, call_all_late, &seed, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

/* ---- late in the middle ---- */

/* A rank that stays away from a run, for which there is no gate: the others wait once. */
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

/* ---- an agreement after a wait in vain ---- */

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

static void who_has_waited_in_vain_does_not_wait_again(void **state)
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
        cmocka_unit_test(every_call_may_be_called_again_after_a_timeout),
        cmocka_unit_test(a_run_names_the_rank_that_stays_away),
        cmocka_unit_test(who_has_waited_in_vain_does_not_wait_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
