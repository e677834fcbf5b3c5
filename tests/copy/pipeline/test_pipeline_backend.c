/* The pipeline behind the copy service: everything arrives over any transport, or nothing moves. */
#include "copy/pipeline_death.h"
#include "copy/staged_transport.h"
#include "copy/traffic.h"

#include "copy/pipeline/backend.h"

/* The backend over a transport without addresses. */
static banyan_status staged_open(banyan_world *world, const banyan_copy_options *options,
                                 void **state)
{
    return pipeline_open_over(world, staged_transport_open(world), options, state);
}

static banyan_copy_backend staged_backend; /* set in main */

typedef struct traffic_run {
    uint64_t seed;
    bool staged, optimal;
    size_t slot_bytes;
    int tasks, repeats;
    int64_t most;
    traffic_ids ids;
} traffic_run;

static banyan_copy_service *open_service(banyan_world *world, const traffic_run *run)
{
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.slot_bytes = run->slot_bytes;
    options.optimal_rounds = run->optimal;
    banyan_copy_service *service;
    if (run->staged) {
        CHECK_OK(banyan_copy_service_open_backend(world, &staged_backend, &options, &service));
    } else {
        CHECK_OK(banyan_copy_service_open(world, "pipeline", &options, &service));
    }
    return service;
}

static void rank_moves_traffic(banyan_world *world, void *context)
{
    const traffic_run *run = context;
    banyan_copy_service *service = open_service(world, run);
    traffic *all = traffic_make(world, run->seed, run->tasks, run->ids, run->most);
    banyan_copy_schedule *schedule;
    traffic_submit(all, service);
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    for (int i = 0; i < run->repeats; i++) {
        traffic_fill(all, (uint64_t)i);
        CHECK_OK(banyan_copy_schedule_run(schedule, NULL));
        traffic_check(all, (uint64_t)i);
    }
    banyan_copy_schedule_destroy(schedule);
    /* Once more, planned and released in one call. */
    traffic_fill(all, 77);
    traffic_submit(all, service);
    CHECK_OK(banyan_copy_service_run(service, NULL));
    traffic_check(all, 77);
    banyan_copy_service_close(service);
    traffic_free(all);
}

static void run_traffic(int ranks, traffic_run run)
{
    printf("%d ranks, %d tasks, slots of %zu bytes, %s, %s rounds\n", ranks, run.tasks,
           run.slot_bytes, run.staged ? "staged" : "addressed",
           run.optimal ? "optimal" : "rotating");
    ranks_run(ranks, rank_moves_traffic, &run);
}

static void every_element_arrives_through_slots_of_any_size(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    const size_t slots[] = {16, 100, 4096, 0};
    for (int ranks = 1; ranks <= 5; ranks++) {
        for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
            run_traffic(ranks, (traffic_run){.seed = random_next(&random),
                                             .staged = random_next(&random) % 2,
                                             .optimal = random_next(&random) % 2,
                                             .slot_bytes = slots[i],
                                             .tasks = slots[i] == 16 ? 15 : 60,
                                             .repeats = 2,
                                             .most = slots[i] == 16 ? 300 : 3000});
    }
}

static void every_way_of_ordering_and_sending_moves_the_same(void **state)
{
    (void)state;
    traffic_run run = {
        .seed = random_seed(), .slot_bytes = 500, .tasks = 120, .repeats = 1, .most = 2000};
    for (int way = 0; way < 4; way++) {
        run.staged = way & 1;
        run.optimal = way & 2;
        run_traffic(4, run);
    }
}

/* Larger than the limit for use of the caches. */
static void large_tensors_arrive_too(void **state)
{
    (void)state;
    run_traffic(2, (traffic_run){.seed = random_seed(), .tasks = 60, .repeats = 2, .most = 100000});
    run_traffic(2, (traffic_run){.seed = random_seed(),
                                 .staged = true,
                                 .slot_bytes = 20000,
                                 .tasks = 60,
                                 .repeats = 1,
                                 .most = 100000});
}

static void tasks_without_ids_match_in_order(void **state)
{
    (void)state;
    run_traffic(3, (traffic_run){.seed = random_seed(),
                                 .tasks = 60,
                                 .repeats = 1,
                                 .most = 2000,
                                 .ids = TRAFFIC_BY_ORDER});
}

static void a_schedule_runs_many_times(void **state)
{
    (void)state;
    run_traffic(
        3, (traffic_run){
               .seed = random_seed(), .slot_bytes = 256, .tasks = 10, .repeats = 100, .most = 200});
}

static void ranks_in_one_process_move_tensors(void **state)
{
    (void)state;
    traffic_run run = {
        .seed = random_seed(), .slot_bytes = 1000, .tasks = 40, .repeats = 2, .most = 2000};
    ranks_run_threads(4, rank_moves_traffic, &run);
    run.staged = run.optimal = true;
    ranks_run_threads(4, rank_moves_traffic, &run);
}

static void rank_without_work(banyan_world *world, void *context)
{
    (void)context;
    traffic_run run = {.staged = false, .optimal = true};
    banyan_copy_service *service = open_service(world, &run);
    int rank = banyan_world_rank(world);
    int64_t shape[] = {1000};
    uint16_t data[1000] = {0};
    DLTensor tensor = {
        .data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLUInt, 16, 1}, .shape = shape};
    /* No rank has work. */
    CHECK_OK(banyan_copy_service_run(service, NULL));
    /* Only ranks 0 and 3 have work. */
    for (int i = 0; i < 1000; i++)
        data[i] = rank == 0 ? (uint16_t)(i * 7) : 0;
    if (rank == 0)
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 3, 1));
    if (rank == 3)
        CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 0, 1));
    CHECK_OK(banyan_copy_service_run(service, NULL));
    for (int i = 0; i < 1000; i++)
        CHECK(data[i] == (rank == 0 || rank == 3 ? i * 7 % 65536 : 0));
    banyan_copy_service_close(service);
}

static void ranks_with_nothing_to_do_take_part(void **state)
{
    (void)state;
    ranks_run(4, rank_without_work, NULL);
}

static void rank_in_sub_world(banyan_world *world, void *context)
{
    /* Even ranks backwards, odd ranks forwards, each with its own traffic, at once. */
    int rank = banyan_world_rank(world), members[8], count = 0;
    for (int i = 0; i < banyan_world_size(world); i++) {
        if (i % 2 == rank % 2)
            members[count++] = i;
    }
    if (rank % 2 == 0) {
        for (int i = 0; i < count / 2; i++) {
            int other = members[i];
            members[i] = members[count - 1 - i];
            members[count - 1 - i] = other;
        }
    }
    traffic_run run = *(traffic_run *)context;
    run.seed += (uint64_t)(rank % 2);
    banyan_world *sub;
    CHECK_OK(banyan_world_split(world, members, count, &sub));
    rank_moves_traffic(sub, &run);
    CHECK_OK(banyan_world_close(sub));
}

static void sub_worlds_move_their_own(void **state)
{
    (void)state;
    traffic_run run = {.seed = random_seed(),
                       .slot_bytes = 300,
                       .tasks = 40,
                       .repeats = 2,
                       .most = 1000,
                       .optimal = true};
    ranks_run(5, rank_in_sub_world, &run);
}

/* Rank 1's receive asks for `id`; ranks 0 and 2 also have a valid task. */
static void rank_batch_is_wrong(banyan_world *world, void *context)
{
    bool too_large = *(bool *)context;
    traffic_run run = {.slot_bytes = 16};
    banyan_copy_service *service = open_service(world, &run);
    int rank = banyan_world_rank(world);
    unsigned char data[64];
    memset(data, BOXED_POISON, sizeof data);
    int64_t shape[] = {2};
    DLTensor small = {
        .data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLUInt, 8, 1}, .shape = shape};
    DLTensor large = small;
    large.dtype.lanes = 20;
    if (rank == 0) {
        CHECK_OK(banyan_copy_service_submit_send(service, &small, 2, 5));
        CHECK_OK(banyan_copy_service_submit_send(service, too_large ? &large : &small, 1, 6));
    }
    if (rank == 1)
        CHECK_OK(banyan_copy_service_submit_recv(service, too_large ? &large : &small, 0,
                                                 too_large ? 6 : 7));
    if (rank == 2)
        CHECK_OK(banyan_copy_service_submit_recv(service, &small, 0, 5));
    if (too_large)
        CHECK_FAILS(banyan_copy_service_run(service, NULL), BANYAN_ERR_INVALID,
                    "pipeline: an element of 20 bytes does not fit a slot of 16 bytes");
    else
        CHECK_FAILS(banyan_copy_service_run(service, NULL), BANYAN_ERR_MISMATCH, "pipeline");
    for (size_t i = 0; i < sizeof data; i++)
        CHECK(data[i] == BOXED_POISON);
    /* The service still works. */
    CHECK_OK(banyan_copy_service_run(service, NULL));
    banyan_copy_service_close(service);
}

static void a_wrong_batch_fails_on_every_rank_and_moves_nothing(void **state)
{
    (void)state;
    bool too_large = false;
    ranks_run(3, rank_batch_is_wrong, &too_large);
    too_large = true;
    ranks_run(3, rank_batch_is_wrong, &too_large);
}

static void rank_opens_another_slot(banyan_world *world, void *context)
{
    (void)context;
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.slot_bytes = banyan_world_rank(world) == 2 ? 4096 : 8192;
    banyan_copy_service *service;
    CHECK_FAILS(banyan_copy_service_open(world, "pipeline", &options, &service),
                BANYAN_ERR_MISMATCH, "4096 to 8192");
}

static void ranks_must_agree_on_the_slot(void **state)
{
    (void)state;
    ranks_run(3, rank_opens_another_slot, NULL);
}

typedef struct loss_run {
    bool staged;
    death_clock *died;
} loss_run;

/* Rank 1 dies while rank 0 sends it data repeatedly. */
static void rank_loses_its_peer(int rank, int count, const banyan_unique_id *id, void *context)
{
    const loss_run *test = context;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    banyan_world *world;
    CHECK_OK(banyan_world_open(&options, &world));
    traffic_run run = {.staged = test->staged, .slot_bytes = 4096};
    banyan_copy_service *service = open_service(world, &run);
    int64_t shape[] = {1 << 20};
    DLTensor tensor = {.data = calloc(1, 1 << 20),
                       .device = {kDLCPU, 0},
                       .ndim = 1,
                       .dtype = {kDLUInt, 8, 1},
                       .shape = shape};
    banyan_copy_schedule *schedule;
    if (rank == 0)
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 1, 0));
    else
        CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 0, 0));
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    banyan_status status = BANYAN_OK;
    for (int i = 0; (i < 20 || rank == 0) && status == BANYAN_OK; i++)
        status = banyan_copy_schedule_run(schedule, NULL);
    if (rank == 1)
        death_now(test->died, 9);
    death_check_noticed(test->died);
    CHECK(status == BANYAN_ERR_PEER_LOST && strstr(banyan_last_error(), "rank 1"), "%s",
          banyan_last_error());
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    banyan_world_close(world);
    free(tensor.data);
}

static void a_dead_peer_is_named_within_a_second(void **state)
{
    (void)state;
    for (int staged = 0; staged < 2; staged++) {
        int statuses[2];
        loss_run run = {staged, death_clock_create()};
        ranks_fork(2, rank_loses_its_peer, &run, statuses);
        assert_int_equal(statuses[0], 0);
        assert_int_equal(statuses[1], 9 << 8);
        death_clock_free(run.died);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_through_slots_of_any_size),
        cmocka_unit_test(every_way_of_ordering_and_sending_moves_the_same),
        cmocka_unit_test(large_tensors_arrive_too),
        cmocka_unit_test(tasks_without_ids_match_in_order),
        cmocka_unit_test(a_schedule_runs_many_times),
        cmocka_unit_test(ranks_in_one_process_move_tensors),
        cmocka_unit_test(ranks_with_nothing_to_do_take_part),
        cmocka_unit_test(sub_worlds_move_their_own),
        cmocka_unit_test(a_wrong_batch_fails_on_every_rank_and_moves_nothing),
        cmocka_unit_test(ranks_must_agree_on_the_slot),
        cmocka_unit_test(a_dead_peer_is_named_within_a_second),
    };
    staged_backend = copy_backend_pipeline;
    staged_backend.open = staged_open;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
