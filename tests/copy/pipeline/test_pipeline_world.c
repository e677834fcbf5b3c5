/* The schedule of all ranks, made in one process: every batch has one round, equal at both ends,
 * and no rank sends or receives two in a round. */
#include "support/test.h"

#include "copy/schedule/world.h"

enum { RANKS = 6, TASKS = 25, SLOT_BYTES = 1000 };

/* The tasks of a rank, to others, sorted. */
static size_t make_tasks(random_state *random, int rank, pipeline_world_task tasks[TASKS])
{
    size_t count = (size_t)random_between(random, 0, TASKS);
    for (size_t i = 0; i < count; i++) {
        int peer = (rank + (int)random_between(random, 1, RANKS - 1)) % RANKS;
        tasks[i] = (pipeline_world_task){
            .peer = peer,
            .id = i,
            .task = {(uint64_t)random_between(random, 0, 2000), 4},
        };
    }
    pipeline_world_sort(tasks, count);
    return count;
}

static size_t batches_of(const pipeline_flow *flows, size_t count)
{
    size_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += flows[i].batches.list.count;
    return sum;
}

/* Return the rank that receives from `rank` in the round that has this number, or -1. */
static int receiver_of(const pipeline_world *world, const pipeline_rounds *all, int rank,
                       uint64_t number)
{
    int found = -1;
    for (int r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < all[r].count; i++) {
            const pipeline_round *round = &all[r].data[i];
            if (round->number != number || round->recv_flow == PIPELINE_NO_FLOW ||
                world->members[r].recvs[round->recv_flow].peer != rank)
                continue;
            CHECK(found < 0, "ranks %d and %d both receive from %d", found, r, rank);
            found = r;
        }
    }
    return found;
}

static void check_rounds(const pipeline_world *world)
{
    pipeline_rounds all[RANKS] = {0};
    for (int r = 0; r < RANKS; r++)
        CHECK_OK(pipeline_world_rounds(world, r, &all[r]));
    for (int r = 0; r < RANKS; r++) {
        const pipeline_member *member = &world->members[r];
        size_t sent = 0, received = 0;
        for (size_t i = 0; i < all[r].count; i++) {
            const pipeline_round *round = &all[r].data[i];
            bool sends = round->send_flow != PIPELINE_NO_FLOW;
            CHECK(i == 0 || all[r].data[i - 1].number < round->number);
            CHECK(receiver_of(world, all, r, round->number) ==
                  (sends ? member->sends[round->send_flow].peer : -1));
            sent += sends;
            received += round->recv_flow != PIPELINE_NO_FLOW;
        }
        assert_int_equal(sent, batches_of(member->sends, member->send_count));
        assert_int_equal(received, batches_of(member->recvs, member->recv_count));
    }
    for (int r = 0; r < RANKS; r++)
        array_free(&all[r]);
}

static void every_batch_has_one_round_for_both_ends(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int trial = 0; trial < 40; trial++) {
        pipeline_world world;
        pipeline_world_task tasks[TASKS];
        CHECK_OK(pipeline_world_create(RANKS, SLOT_BYTES, &world));
        for (int r = 0; r < RANKS; r++) {
            size_t count = make_tasks(&random, r, tasks);
            CHECK_OK(pipeline_world_send(&world, r, tasks, count));
        }
        CHECK_OK(pipeline_world_link(&world));
        check_rounds(&world);
        CHECK_OK(pipeline_world_colour(&world));
        check_rounds(&world);
        pipeline_world_free(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_batch_has_one_round_for_both_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
