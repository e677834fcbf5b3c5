/* Rounds give every batch one place that both of its ends know, and never cause a deadlock. */
#include "support/test.h"

#include "copy/schedule/rounds.h"
#include "world/control.h"

enum { RANKS = 12 };

/* Numbers of batches from each rank to each other. */
typedef struct counts {
    int ranks;
    size_t batches[RANKS][RANKS]; /* [source][dest] */
} counts;

typedef struct rank_plan {
    pipeline_flow sends[RANKS], recvs[RANKS];
    size_t send_count, recv_count;
    pipeline_rounds rounds;
} rank_plan;

static counts random_counts(uint64_t seed, int ranks)
{
    random_state random = random_from(seed);
    counts c = {.ranks = ranks};
    for (int from = 0; from < ranks; from++) {
        for (int to = 0; to < ranks; to++) {
            int64_t count = random_between(&random, -3, 6);
            if (from != to && count > 0)
                c.batches[from][to] = (size_t)(random_next(&random) % 9 == 0 ? count * 9 : count);
        }
    }
    return c;
}

/* A flow of `count` batches; their contents are irrelevant here. */
static pipeline_flow bare_flow(int peer, size_t count)
{
    pipeline_flow flow = {.peer = peer};
    for (size_t i = 0; i < count; i++)
        CHECK(array_push(&flow.batches.list, (pipeline_batch){0}));
    return flow;
}

static rank_plan plan_of(const counts *c, int rank)
{
    rank_plan plan = {0};
    for (int peer = 0; peer < c->ranks; peer++) {
        if (c->batches[rank][peer] > 0)
            plan.sends[plan.send_count++] = bare_flow(peer, c->batches[rank][peer]);
        if (c->batches[peer][rank] > 0)
            plan.recvs[plan.recv_count++] = bare_flow(peer, c->batches[peer][rank]);
    }
    return plan;
}

static void plan_free(rank_plan *plan)
{
    for (size_t i = 0; i < plan->send_count; i++)
        pipeline_flow_free(&plan->sends[i]);
    for (size_t i = 0; i < plan->recv_count; i++)
        pipeline_flow_free(&plan->recvs[i]);
    array_free(&plan->rounds);
}

/* Rounds ascend, and contain each batch of each flow once, in order. */
static void check_whole(const rank_plan *plan)
{
    size_t sent[RANKS] = {0}, received[RANKS] = {0};
    for (size_t i = 0; i < plan->rounds.count; i++) {
        const pipeline_round *round = &plan->rounds.data[i];
        CHECK(i == 0 || round[-1].number < round->number);
        CHECK(round->send_flow != PIPELINE_NO_FLOW || round->recv_flow != PIPELINE_NO_FLOW);
        if (round->send_flow != PIPELINE_NO_FLOW)
            CHECK(round->send_batch == sent[round->send_flow]++);
        if (round->recv_flow != PIPELINE_NO_FLOW)
            CHECK(round->recv_batch == received[round->recv_flow]++);
    }
    for (size_t i = 0; i < plan->send_count; i++)
        CHECK(sent[i] == plan->sends[i].batches.list.count);
    for (size_t i = 0; i < plan->recv_count; i++)
        CHECK(received[i] == plan->recvs[i].batches.list.count);
}

/* Execute the lists strictly: a rank continues with its next round only after both batches of the
 * present one have moved, and a batch moves when both of its ends have reached it. This is
 * stricter than the executor; all lists must still complete. */
static void check_no_deadlock(const rank_plan *plans, int ranks)
{
    size_t at[RANKS] = {0};
    bool sent[RANKS] = {0}, received[RANKS] = {0}, moved = true;
    while (moved) {
        moved = false;
        for (int rank = 0; rank < ranks; rank++) {
            const rank_plan *plan = &plans[rank];
            if (at[rank] == plan->rounds.count)
                continue;
            const pipeline_round *round = &plan->rounds.data[at[rank]];
            if (round->send_flow != PIPELINE_NO_FLOW && !sent[rank]) {
                int peer = plan->sends[round->send_flow].peer;
                const rank_plan *other = &plans[peer];
                const pipeline_round *theirs =
                    at[peer] < other->rounds.count ? &other->rounds.data[at[peer]] : NULL;
                if (theirs && theirs->recv_flow != PIPELINE_NO_FLOW && !received[peer] &&
                    other->recvs[theirs->recv_flow].peer == rank) {
                    assert_int_equal(theirs->recv_batch, round->send_batch);
                    assert_int_equal(theirs->number, round->number);
                    sent[rank] = received[peer] = moved = true;
                }
            }
            if ((sent[rank] || round->send_flow == PIPELINE_NO_FLOW) &&
                (received[rank] || round->recv_flow == PIPELINE_NO_FLOW)) {
                sent[rank] = received[rank] = false;
                at[rank]++;
                moved = true;
            }
        }
    }
    for (int rank = 0; rank < ranks; rank++)
        assert_int_equal(at[rank], plans[rank].rounds.count);
}

static void rotation_with_random_counts_comes_to_its_end(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int i = 0; i < 300; i++) {
        int ranks = (int)random_between(&random, 1, RANKS);
        counts c = random_counts(random_next(&random), ranks);
        rank_plan plans[RANKS];
        for (int rank = 0; rank < ranks; rank++) {
            rank_plan *plan = &plans[rank];
            *plan = plan_of(&c, rank);
            CHECK_OK(pipeline_rounds_rotate(rank, ranks, plan->sends, plan->send_count, plan->recvs,
                                            plan->recv_count, &plan->rounds));
            check_whole(plan);
        }
        check_no_deadlock(plans, ranks);
        for (int rank = 0; rank < ranks; rank++)
            plan_free(&plans[rank]);
    }
}

static void rotation_starts_at_the_next_rank(void **state)
{
    (void)state;
    counts c = {.ranks = 5};
    for (int from = 0; from < 5; from++) {
        for (int to = 0; to < 5; to++)
            c.batches[from][to] = from != to;
    }
    rank_plan plan = plan_of(&c, 3);
    CHECK_OK(pipeline_rounds_rotate(3, 5, plan.sends, plan.send_count, plan.recvs, plan.recv_count,
                                    &plan.rounds));
    const int to[] = {4, 0, 1, 2}, from[] = {2, 1, 0, 4};
    assert_int_equal(plan.rounds.count, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(plan.sends[plan.rounds.data[i].send_flow].peer, to[i]);
        assert_int_equal(plan.recvs[plan.rounds.data[i].recv_flow].peer, from[i]);
    }
    plan_free(&plan);
}

static banyan_status follow(rank_plan *plan, const pipeline_run *sends, size_t send_count,
                            const pipeline_run *recvs, size_t recv_count)
{
    return pipeline_rounds_follow(3, plan->sends, plan->send_count, sends, send_count, plan->recvs,
                                  plan->recv_count, recvs, recv_count, &plan->rounds);
}

static void rounds_that_do_not_fit_the_batches_are_refused(void **state)
{
    (void)state;
    counts c = {.ranks = 5};
    c.batches[3][1] = 3;
    c.batches[3][4] = 2;
    c.batches[0][3] = 1;
    rank_plan plan = plan_of(&c, 3);
    const pipeline_run sends[] = {{1, 5, 2}, {4, 7, 2}, {1, 0, 1}}, recvs[] = {{0, 2, 1}};
    const pipeline_run twice[] = {{1, 5, 3}, {4, 7, 2}}, fewer[] = {{1, 5, 2}, {4, 7, 2}};
    const pipeline_run swapped[] = {{1, 5, 2}, {4, 7, 3}}, stranger[] = {{2, 5, 1}, {4, 7, 2}};
    const pipeline_run many[] = {{1, 5, UINT64_MAX}}, late[] = {{1, UINT64_MAX, 3}, {4, 7, 2}};
    CHECK_FAILS(follow(&plan, twice, 2, recvs, 1), BANYAN_ERR_MISMATCH,
                "rank 3: round 7 has two batches to ranks");
    CHECK_FAILS(follow(&plan, fewer, 2, recvs, 1), BANYAN_ERR_MISMATCH,
                "2 rounds for 3 batches to rank 1");
    CHECK_FAILS(follow(&plan, swapped, 2, recvs, 1), BANYAN_ERR_MISMATCH,
                "2 rounds for 3 batches to rank 1");
    CHECK_FAILS(follow(&plan, stranger, 2, recvs, 1), BANYAN_ERR_MISMATCH, "to rank 2");
    CHECK_FAILS(follow(&plan, many, 1, recvs, 1), BANYAN_ERR_MISMATCH, "to rank 1");
    CHECK_FAILS(follow(&plan, late, 2, recvs, 1), BANYAN_ERR_MISMATCH, "to rank 1");
    CHECK_FAILS(follow(&plan, sends, 3, recvs, 0), BANYAN_ERR_MISMATCH,
                "0 rounds for 1 batches from rank 0");
    assert_null(plan.rounds.data);
    CHECK_OK(follow(&plan, sends, 3, recvs, 1));
    check_whole(&plan);
    const uint64_t numbers[] = {0, 2, 5, 6, 7, 8};
    assert_int_equal(plan.rounds.count, 6);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(plan.rounds.data[i].number, numbers[i]);
    plan_free(&plan);
}

static size_t busiest(const counts *c)
{
    size_t most = 0;
    for (int rank = 0; rank < c->ranks; rank++) {
        size_t out = 0, in = 0;
        for (int peer = 0; peer < c->ranks; peer++) {
            out += c->batches[rank][peer];
            in += c->batches[peer][rank];
        }
        most = out > most ? out : most;
        most = in > most ? in : most;
    }
    return most;
}

/* (source, dest, round) of each batch, as seen by one end. */
typedef struct seen_batch {
    int source, dest;
    uint64_t round;
} seen_batch;

static int compare_seen(const void *left, const void *right)
{
    return memcmp(left, right, sizeof(seen_batch));
}

/* All ranks' sends, or receives, in a canonical order. */
static seen_batch *gather_seen(banyan_world *world, const rank_plan *plan, bool sends,
                               size_t *count)
{
    size_t mine = 0, bytes[RANKS], all = 0;
    seen_batch *seen = calloc(plan->rounds.count + 1, sizeof *seen);
    for (size_t i = 0; i < plan->rounds.count; i++) {
        const pipeline_round *round = &plan->rounds.data[i];
        int rank = banyan_world_rank(world);
        if (sends && round->send_flow != PIPELINE_NO_FLOW)
            seen[mine++] = (seen_batch){rank, plan->sends[round->send_flow].peer, round->number};
        if (!sends && round->recv_flow != PIPELINE_NO_FLOW)
            seen[mine++] = (seen_batch){plan->recvs[round->recv_flow].peer, rank, round->number};
    }
    void *gathered;
    CHECK_OK(banyan_world_allgatherv(world, seen, mine * sizeof *seen, &gathered, bytes));
    for (int i = 0; i < banyan_world_size(world); i++)
        all += bytes[i];
    free(seen);
    *count = all / sizeof *seen;
    qsort(gathered, *count, sizeof *seen, compare_seen);
    return gathered;
}

static void rank_colours(banyan_world *world, void *context)
{
    uint64_t seed = *(uint64_t *)context;
    counts c = random_counts(seed, banyan_world_size(world));
    rank_plan plan = plan_of(&c, banyan_world_rank(world));
    CHECK_OK(pipeline_rounds_colour(world, plan.sends, plan.send_count, plan.recvs, plan.recv_count,
                                    &plan.rounds));
    check_whole(&plan);
    size_t last = plan.rounds.count;
    CHECK(last == 0 || plan.rounds.data[last - 1].number < busiest(&c));
    size_t send_count, recv_count;
    seen_batch *sends = gather_seen(world, &plan, true, &send_count);
    seen_batch *recvs = gather_seen(world, &plan, false, &recv_count);
    CHECK(send_count == recv_count);
    CHECK(memcmp(sends, recvs, send_count * sizeof *sends) == 0);
    free(sends);
    free(recvs);
    plan_free(&plan);
}

static void coloured_rounds_are_as_few_as_the_busiest_rank_has_batches(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    const int ranks[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        uint64_t seed = random_next(&random);
        ranks_run(ranks[i], rank_colours, &seed);
    }
    uint64_t seed = random_next(&random);
    ranks_run_threads(4, rank_colours, &seed);
}

/* Rank 1 claims to send to a rank that does not exist. */
static void rank_miscounts(banyan_world *world, void *context)
{
    (void)context;
    counts c = random_counts(7, banyan_world_size(world));
    c.batches[1][2] = 4;
    rank_plan plan = plan_of(&c, banyan_world_rank(world));
    if (banyan_world_rank(world) == 1)
        plan.sends[plan.send_count - 1].peer = 9;
    banyan_status status = pipeline_rounds_colour(world, plan.sends, plan.send_count, plan.recvs,
                                                  plan.recv_count, &plan.rounds);
    CHECK_FAILS(control_agree(world, status), BANYAN_ERR_INVALID, "rank 1 to rank 9");
    CHECK(!plan.rounds.data);
    plan_free(&plan);
}

static void counts_that_cannot_be_are_refused_on_every_rank(void **state)
{
    (void)state;
    ranks_run(3, rank_miscounts, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotation_with_random_counts_comes_to_its_end),
        cmocka_unit_test(rotation_starts_at_the_next_rank),
        cmocka_unit_test(rounds_that_do_not_fit_the_batches_are_refused),
        cmocka_unit_test(coloured_rounds_are_as_few_as_the_busiest_rank_has_batches),
        cmocka_unit_test(counts_that_cannot_be_are_refused_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
