/* A rank that stays away: a waiting rank's message names the call, the awaited rank and the
 * time. */
#include "support/test.h"

#include <unistd.h>

#include "core/deadline.h"

static void alloc_memory(banyan_world *world)
{
    banyan_memory *memory;
    CHECK_FAILS(banyan_memory_alloc(world, 100, &memory), BANYAN_ERR_TIMEOUT,
                " s in banyan_memory_alloc for rank 1 (pid ");
}

static void find_a_path(banyan_world *world)
{
    banyan_user_memory_path path;
    CHECK_FAILS(banyan_memory_user_path(world, &path), BANYAN_ERR_TIMEOUT,
                " s in banyan_memory_user_path for rank 1 (pid ");
}

static void open_a_transport(banyan_world *world)
{
    banyan_transport *transport;
    CHECK_FAILS(banyan_transport_open(world, NULL, &transport), BANYAN_ERR_TIMEOUT,
                " s in banyan_transport_open for rank 1 (pid ");
}

static void open_a_service(banyan_world *world)
{
    banyan_copy_service *service;
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", NULL, &service), BANYAN_ERR_TIMEOUT,
                " s in banyan_copy_service_open for rank 1 (pid ");
}

static void open_a_directory(banyan_world *world)
{
    banyan_directory *directory;
    CHECK_FAILS(banyan_directory_open(world, &directory), BANYAN_ERR_TIMEOUT,
                " s in banyan_directory_open for rank 1 (pid ");
}

static void alloc_tensors(banyan_world *world)
{
    banyan_tensors *tensors;
    CHECK_FAILS(banyan_tensors_alloc(NULL, world, &tensors), BANYAN_ERR_TIMEOUT,
                " s in banyan_tensors_alloc for rank 1 (pid ");
}

/* The program's call is named, not the calls inside it. */
static void plan(banyan_world *world)
{
    banyan_reshard_plan *made;
    CHECK_FAILS(banyan_reshard_plan_create(NULL, NULL, world, NULL, &made), BANYAN_ERR_TIMEOUT,
                " s in banyan_reshard_plan_create for rank 1 (pid ");
}

static void wait_by_itself(banyan_world *world)
{
    CHECK_FAILS(banyan_world_barrier(world), BANYAN_ERR_TIMEOUT,
                "rank 0 waited 0.3 s in banyan_world_barrier for rank 1 (pid ");
}

typedef void (*call)(banyan_world *world);

/* Rank 0 waits in the call, rank 1 until rank 0 has gone. */
static void stay_away(int rank, int count, const banyan_unique_id *id, void *context)
{
    const call *made = context;
    banyan_world *world = ranks_open_world(rank, count, id, (rank == 0 ? 300 : 20000) * NS_PER_MS);
    if (rank == 0) {
        (*made)(world);
        CHECK(strstr(banyan_last_error(), "BANYAN_TIMEOUT"), "%s", banyan_last_error());
    } else
        while (banyan_world_check(world) == BANYAN_OK)
            usleep(1000);
    banyan_world_close(world);
}

static void a_wait_names_the_call_it_is_in(void **state)
{
    (void)state;
    call calls[] = {alloc_memory,  find_a_path, open_a_transport, open_a_service, open_a_directory,
                    alloc_tensors, plan,        wait_by_itself};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int statuses[2];
        ranks_fork(2, stay_away, &calls[i], statuses);
        assert_int_equal(statuses[0], 0);
        assert_int_equal(statuses[1], 0);
    }
}

/* A run between calls that named themselves: each name ends with its function. */
static void wait_after_a_call(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 60 * NS_PER_S);
    banyan_memory *memory;
    banyan_reshard_plan *made;
    CHECK_OK(banyan_memory_alloc(world, 100, &memory));
    CHECK_OK(banyan_reshard_plan_create(NULL, NULL, world, NULL, &made));
    banyan_copy_service *service;
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &service));
    if (rank == 0) {
        CHECK_OK(banyan_world_set_timeout(world, 300 * NS_PER_MS));
        CHECK_FAILS(banyan_reshard_execute(made, NULL, NULL, service, world, NULL, NULL),
                    BANYAN_ERR_TIMEOUT, " s in a reshard run for rank 1 (pid ");
    } else {
        while (banyan_world_check(world) == BANYAN_OK)
            usleep(1000);
    }
    banyan_copy_service_close(service);
    banyan_reshard_plan_destroy(made);
    banyan_memory_free(memory);
    banyan_world_close(world);
}

static void a_call_that_is_over_is_not_named(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, wait_after_a_call, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_names_the_call_it_is_in),
        cmocka_unit_test(a_call_that_is_over_is_not_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
