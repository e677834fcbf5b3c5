/* The executor over a real transport: slots in symmetric memory, with and without addresses. */
#include "copy/pipeline_death.h"
#include "copy/pipeline_play.h"
#include "copy/staged_transport.h"

#include "world/control.h"

enum { SLOT_BYTES = 700 };

/* A schedule that exists before its ranks are forked, and the way to run it. */
typedef struct slots_run {
    play play;
    bool staged;
    int repeats;
} slots_run;

static banyan_transport *open_transport(banyan_world *world, bool staged)
{
    if (staged)
        return staged_transport_open(world);
    banyan_transport *transport;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    return transport;
}

static void rank_plays(banyan_world *world, void *context)
{
    slots_run *run = context;
    int rank = banyan_world_rank(world);
    banyan_transport *transport = open_transport(world, run->staged);
    banyan_pipeline_buffers *buffers;
    banyan_pipeline *pipeline;
    CHECK_OK(banyan_pipeline_buffers_open(world, transport, SLOT_BYTES, &buffers));
    CHECK(buffers->slot_bytes == SLOT_BYTES);
    CHECK_OK(banyan_pipeline_create(banyan_pipeline_host_launcher(), buffers, rank, &pipeline));
    const play_list *list = &run->play.lists[rank];
    for (int i = 0; i < run->repeats; i++) {
        CHECK_OK(banyan_pipeline_execute(pipeline, list->iterations, list->count));
        if (i < 2 || i == run->repeats - 1)
            play_check_rank(&run->play, rank);
    }
    CHECK(run->staged ||
          buffers->peer_slot(buffers->context, (rank + 1) % banyan_world_size(world), 1) ||
          banyan_world_size(world) == 1);
    banyan_pipeline_destroy(pipeline);
    banyan_pipeline_buffers_close(buffers);
    banyan_transport_close(transport);
}

static void play_over_a_world(int ranks, int rounds, int repeats, bool staged, bool threads)
{
    board *b = board_create(ranks, SLOT_BYTES);
    slots_run run = {.play = play_create(b, random_seed() + (uint64_t)ranks),
                     .staged = staged,
                     .repeats = repeats};
    play_random_rounds(&run.play, rounds);
    (threads ? ranks_run_threads : ranks_run)(ranks, rank_plays, &run);
    play_destroy(&run.play);
    board_destroy(b);
}

static void random_schedules_run_into_peers_slots(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 6; ranks++)
        play_over_a_world(ranks, 40, 3, false, false);
    play_over_a_world(4, 30, 3, false, true);
}

static void random_schedules_run_without_addresses(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 6; ranks++)
        play_over_a_world(ranks, 40, 3, true, false);
    play_over_a_world(4, 30, 3, true, true);
}

static void a_schedule_runs_many_times(void **state)
{
    (void)state;
    play_over_a_world(3, 5, 300, false, false);
    play_over_a_world(3, 5, 300, true, false);
}

/* Ranks 3, 1, 0 of four play as 0, 1, 2. */
static void rank_plays_in_a_sub_world(banyan_world *world, void *context)
{
    const int members[] = {3, 1, 0};
    if (banyan_world_rank(world) == 2)
        return;
    banyan_world *sub;
    CHECK_OK(banyan_world_split(world, members, 3, &sub));
    rank_plays(sub, context);
    CHECK_OK(banyan_world_close(sub));
}

static void a_sub_world_has_slots_of_its_own(void **state)
{
    (void)state;
    for (int staged = 0; staged < 2; staged++) {
        board *b = board_create(3, SLOT_BYTES);
        slots_run run = {.play = play_create(b, random_seed()), .staged = staged, .repeats = 2};
        play_random_rounds(&run.play, 30);
        ranks_run(4, rank_plays_in_a_sub_world, &run);
        play_destroy(&run.play);
        board_destroy(b);
    }
}

static void rank_disagrees(banyan_world *world, void *context)
{
    (void)context;
    banyan_transport *transport = open_transport(world, false);
    banyan_pipeline_buffers *buffers;
    size_t bytes = banyan_world_rank(world) == 1 ? 8192 : 4096;
    CHECK_FAILS(banyan_pipeline_buffers_open(world, transport, bytes, &buffers),
                BANYAN_ERR_MISMATCH, "4096 to 8192");
    CHECK_FAILS(banyan_pipeline_buffers_open(world, transport, SIZE_MAX, &buffers),
                BANYAN_ERR_INVALID, "18446744073709551615 bytes");
    banyan_transport_close(transport);
}

static void slots_of_different_sizes_are_refused_everywhere(void **state)
{
    (void)state;
    ranks_run(3, rank_disagrees, NULL);
}

static void rank_waits(banyan_world *world, void *context)
{
    (void)context;
    /* Longer than the machine has run, as the default is soon after a start. */
    CHECK_OK(banyan_world_set_timeout(world, 2 * time_now_ns()));
    banyan_transport *transport = open_transport(world, false);
    banyan_pipeline_buffers *buffers;
    CHECK_OK(banyan_pipeline_buffers_open(world, transport, SLOT_BYTES, &buffers));
    banyan_pipeline_stall stall = {.grant_from = -1, .arrival_from = -1, .for_events = true};
    uint64_t start_ns = time_now_ns();
    for (int i = 0; i < 20; i++)
        CHECK_OK(buffers->idle(buffers->context, &stall));
    CHECK(time_now_ns() - start_ns < NS_PER_S, "waiting for an event slept");
    stall.stalled_ns = banyan_world_timeout_ns(world);
    CHECK_FAILS(buffers->idle(buffers->context, &stall), BANYAN_ERR_TIMEOUT,
                " s for its own streams");
    stall = (banyan_pipeline_stall){3, 2, false, banyan_world_timeout_ns(world)};
    CHECK_FAILS(buffers->idle(buffers->context, &stall), BANYAN_ERR_TIMEOUT,
                " s for a slot of rank 3 and for a batch from rank 2");
    CHECK_OK(banyan_world_barrier(world));
    banyan_pipeline_buffers_close(buffers);
    banyan_transport_close(transport);
}

static void a_wait_that_is_too_long_names_its_reason(void **state)
{
    (void)state;
    ranks_run(4, rank_waits, NULL);
}

typedef struct failing_run {
    play play;
    bool staged;
    death_clock *died;
} failing_run;

typedef struct opened {
    banyan_world *world;
    banyan_transport *transport;
    banyan_pipeline_buffers *buffers;
    banyan_pipeline *pipeline;
} opened;

static opened open_all(int rank, int count, const banyan_unique_id *id, bool staged,
                       uint64_t timeout_ns)
{
    opened all;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = timeout_ns;
    CHECK_OK(banyan_world_open(&options, &all.world));
    all.transport = open_transport(all.world, staged);
    CHECK_OK(banyan_pipeline_buffers_open(all.world, all.transport, SLOT_BYTES, &all.buffers));
    CHECK_OK(
        banyan_pipeline_create(banyan_pipeline_host_launcher(), all.buffers, rank, &all.pipeline));
    return all;
}

static void close_all(opened *all)
{
    banyan_pipeline_destroy(all->pipeline);
    banyan_pipeline_buffers_close(all->buffers);
    banyan_transport_close(all->transport);
    banyan_world_close(all->world);
}

/* In the first execution rank 1 stops half-way, as if its list were shorter; the others' waits
 * time out. The second is complete. */
static void rank_fails_once(int rank, int count, const banyan_unique_id *id, void *context)
{
    failing_run *run = context;
    opened all = open_all(rank, count, id, run->staged, 2 * NS_PER_S);
    const play_list *list = &run->play.lists[rank];
    banyan_status status =
        banyan_pipeline_execute(all.pipeline, list->iterations, rank == 1 ? 7 : list->count);
    if (rank != 1) {
        CHECK(status == BANYAN_ERR_TIMEOUT, "%s", banyan_last_error());
        CHECK(strstr(banyan_last_error(), " s for a "), "%s", banyan_last_error());
        CHECK(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    }
    /* Keeps the barrier's own deadline far off when the others reach it. */
    if (rank == 1)
        usleep(1500000);
    CHECK_OK(banyan_world_barrier(all.world));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(banyan_pipeline_execute(all.pipeline, list->iterations, list->count));
        if (i == 1)
            play_check_rank(&run->play, rank);
    }
    close_all(&all);
}

/* A ring, in which each rank needs all others. */
static void play_ring(play *p, int rounds)
{
    int ranks = p->board->ranks;
    for (int round = 0; round < rounds; round++) {
        banyan_iteration *all[BOARD_RANKS];
        for (int rank = 0; rank < ranks; rank++)
            all[rank] = play_iteration(p, rank);
        for (int rank = 0; rank < ranks; rank++)
            play_batch(p, rank, all[rank], (rank + 1) % ranks, all[(rank + 1) % ranks]);
    }
}

static void an_execution_that_failed_leaves_nothing_to_the_next(void **state)
{
    (void)state;
    for (int staged = 0; staged < 2; staged++) {
        board *b = board_create(3, SLOT_BYTES);
        failing_run run = {play_create(b, random_seed()), staged, NULL};
        play_ring(&run.play, 40);
        int statuses[3];
        ranks_fork(3, rank_fails_once, &run, statuses);
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(statuses[rank], 0);
        play_destroy(&run.play);
        board_destroy(b);
    }
}

/* Rank 2 dies after five batches. */
static void rank_dies(int rank, int count, const banyan_unique_id *id, void *context)
{
    failing_run *run = context;
    opened all = open_all(rank, count, id, run->staged, 30 * NS_PER_S);
    const play_list *list = &run->play.lists[rank];
    if (rank == 2) {
        CHECK_OK(banyan_pipeline_execute(all.pipeline, list->iterations, 5));
        death_now(run->died, 7);
    }
    CHECK_FAILS(banyan_pipeline_execute(all.pipeline, list->iterations, list->count),
                BANYAN_ERR_PEER_LOST, "rank 2");
    death_check_noticed(run->died);
    close_all(&all);
}

static void a_dead_peer_ends_the_execution_within_a_second(void **state)
{
    (void)state;
    for (int staged = 0; staged < 2; staged++) {
        board *b = board_create(3, SLOT_BYTES);
        failing_run run = {play_create(b, random_seed()), staged, death_clock_create()};
        play_ring(&run.play, 20);
        int statuses[3];
        ranks_fork(3, rank_dies, &run, statuses);
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(statuses[rank], rank == 2 ? 7 << 8 : 0);
        death_clock_free(run.died);
        play_destroy(&run.play);
        board_destroy(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules_run_into_peers_slots),
        cmocka_unit_test(random_schedules_run_without_addresses),
        cmocka_unit_test(a_schedule_runs_many_times),
        cmocka_unit_test(a_sub_world_has_slots_of_its_own),
        cmocka_unit_test(slots_of_different_sizes_are_refused_everywhere),
        cmocka_unit_test(a_wait_that_is_too_long_names_its_reason),
        cmocka_unit_test(an_execution_that_failed_leaves_nothing_to_the_next),
        cmocka_unit_test(a_dead_peer_ends_the_execution_within_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
