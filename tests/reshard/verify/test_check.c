/* A plan of all ranks is sound, and each kind of damage is found and named. */
#include "support/test.h"

#include "reshard/plan_world.h"
#include "reshard/verify/check.h"

#define RANKS 4
#define ROWS 24

/* Rows on ranks 0 and 1 become columns on ranks 1 to 3. */
typedef struct planned {
    plan_world *world;
    check_rank parts[RANKS];
    banyan_reshard_report *report;
} planned;

static banyan_layout *shards(int first, int count, int dim, int rank)
{
    const int64_t shape[] = {ROWS, 300};
    banyan_mesh mesh = {.ndim = 1, .extent = {count}, .stride = {1}, .first_rank = first};
    banyan_placement placement = {BANYAN_SHARD, dim};
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    if (rank >= first && rank < first + count)
        banyan_layout_add_sharded(layout, "weight", BANYAN_BF16, 2, shape, &mesh, &placement, rank);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

/* The whole tensor on the last two ranks. */
static banyan_layout *copies(int rank)
{
    const int64_t shape[] = {ROWS, 300};
    banyan_mesh mesh = {.ndim = 1, .extent = {2}, .stride = {1}, .first_rank = 2};
    banyan_placement placement = {.kind = BANYAN_REPLICATE};
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    if (rank >= 2)
        banyan_layout_add_sharded(layout, "weight", BANYAN_BF16, 2, shape, &mesh, &placement, rank);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static void make_on(planned *made, const int *node_of, bool copied)
{
    *made = (planned){0};
    banyan_layout **sources = calloc(RANKS, sizeof(banyan_layout *));
    banyan_layout **destinations = calloc(RANKS, sizeof(banyan_layout *));
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    for (int r = 0; r < RANKS; r++) {
        sources[r] = shards(0, 2, 0, r);
        destinations[r] = copied ? copies(r) : shards(1, 3, 1, r);
    }
    made->world = plan_world_make_on(RANKS, node_of, sources, destinations, &options);
    for (int r = 0; r < RANKS; r++) {
        made->parts[r] = (check_rank){r, sources[r], destinations[r], &made->world->results[r]};
    }
    CHECK_OK(check_report_create(&made->report));
}

static void make(planned *made)
{
    static const int one_node[RANKS];
    make_on(made, one_node, false);
}

static void release(planned *made)
{
    plan_world_free(made->world);
    banyan_reshard_report_destroy(made->report);
}

static void check_all(planned *made)
{
    for (int r = 0; r < RANKS; r++)
        CHECK_OK(check_rank_alone(&made->parts[r], made->report));
    CHECK_OK(check_ranks_pair(made->parts, RANKS, made->report));
}

static void expect(const planned *made, size_t at, banyan_reshard_rule rule, int rank,
                   const char *part)
{
    const banyan_reshard_finding *finding = banyan_reshard_report_finding(made->report, at);
    CHECK(finding, "no finding %zu", at);
    CHECK(finding->rule == rule && finding->rank == rank && strstr(finding->message, part),
          "%s at rank %d: %s", banyan_reshard_rule_name(finding->rule), finding->rank,
          finding->message);
}

static void expect_count(const planned *made, size_t count)
{
    assert_int_equal(banyan_reshard_report_count(made->report), count);
}

/* Rank 3 receives from both source ranks. */
static planner_result *receiver(planned *made)
{
    planner_result *result = &made->world->results[3];
    assert_int_equal(result->recv_count, 2);
    return result;
}

static void planned_transfers_are_sound(void **state)
{
    (void)state;
    planned made;
    make(&made);
    check_all(&made);
    for (uint64_t slot = 16; slot <= 4096; slot *= 4)
        CHECK_OK(check_slots(made.parts, RANKS, slot, made.report));
    expect_count(&made, 0);
    release(&made);
}

static void numbers_behind_a_boxs_dimensions_do_not_count(void **state)
{
    (void)state;
    planned made;
    make(&made);
    for (int r = 0; r < RANKS; r++) {
        planner_result *result = &made.world->results[r];
        for (size_t i = 0; i < result->send_count + result->recv_count; i++) {
            banyan_box *box = i < result->send_count ? &result->sends[i].box
                                                     : &result->recvs[i - result->send_count].box;
            box->start[box->ndim] = -7;
            box->extent[box->ndim] = -1;
        }
    }
    check_all(&made);
    expect_count(&made, 0);
    release(&made);
}

static void a_receive_that_is_dropped_leaves_a_hole_and_a_send_alone(void **state)
{
    (void)state;
    planned made;
    make(&made);
    receiver(&made)->recv_count = 1;
    check_all(&made);
    expect_count(&made, 2);
    expect(&made, 0, BANYAN_RESHARD_UNWRITTEN, 3, "no transfer writes [12:24, 200:300]");
    expect(&made, 1, BANYAN_RESHARD_UNPAIRED, 1, "has 1 sends at rank 1 and 0 receives at rank 3");
    release(&made);
}

static void findings_about_pairs_come_in_the_order_of_their_ranks(void **state)
{
    (void)state;
    planned made;
    make(&made);
    made.world->results[0].send_count = 0;
    CHECK_OK(check_ranks_pair(made.parts, RANKS, made.report));
    expect_count(&made, 3);
    for (int rank = 1; rank <= 3; rank++)
        expect(&made, (size_t)rank - 1, BANYAN_RESHARD_UNPAIRED, rank, "has 0 sends at rank 0");
    release(&made);
}

static void a_receive_that_is_doubled_writes_twice(void **state)
{
    (void)state;
    planned made;
    make(&made);
    planner_result *result = receiver(&made);
    result->recvs = realloc(result->recvs, 3 * sizeof *result->recvs);
    result->recvs[2] = result->recvs[1];
    result->recv_count = 3;
    check_all(&made);
    expect_count(&made, 2);
    expect(&made, 0, BANYAN_RESHARD_TWICE, 3, "two transfers write [12:24, 200:300]");
    expect(&made, 1, BANYAN_RESHARD_UNPAIRED, 3, "has 1 sends at rank 1 and 2 receives at rank 3");
    release(&made);
}

static void a_receive_that_is_shifted_by_one_is_outside(void **state)
{
    (void)state;
    planned made;
    make(&made);
    receiver(&made)->recvs[0].box.start[1]--;
    check_all(&made);
    expect_count(&made, 3);
    expect(&made, 0, BANYAN_RESHARD_OUTSIDE, 3, "[0:12, 199:299]");
    expect(&made, 1, BANYAN_RESHARD_UNWRITTEN, 3, "no transfer writes [0:12, 299:300]");
    expect(&made, 2, BANYAN_RESHARD_UNPAIRED, 3, "of different tensors, boxes or bytes");
    release(&made);
}

static void a_source_that_does_not_hold_it_is_reported(void **state)
{
    (void)state;
    planned made;
    make(&made);
    receiver(&made)->recvs[1].source_rank = 2;
    check_all(&made);
    expect_count(&made, 3);
    expect(&made, 0, BANYAN_RESHARD_UNPAIRED, 1, "0 receives at rank 3");
    expect(&made, 1, BANYAN_RESHARD_SOURCE, 3, "from rank 2, which does not hold it");
    expect(&made, 2, BANYAN_RESHARD_UNPAIRED, 3, "0 sends at rank 2");
    release(&made);
}

static void a_send_of_data_that_is_not_held_is_reported(void **state)
{
    (void)state;
    planned made;
    make(&made);
    banyan_transfer *send = &made.world->results[0].sends[0];
    send->box.start[0] += ROWS / 2;
    check_all(&made);
    expect_count(&made, 2);
    expect(&made, 0, BANYAN_RESHARD_SOURCE, 0, "does not hold that");
    expect(&made, 1, BANYAN_RESHARD_UNPAIRED, 1, "of different");
    release(&made);
}

static void each_wave_of_a_plan_for_several_nodes_is_played(void **state)
{
    (void)state;
    static const int nodes[RANKS] = {0, 0, 1, 1};
    planned made;
    make_on(&made, nodes, true);
    check_all(&made);
    CHECK_OK(check_nodes(made.parts, RANKS, 2, made.report));
    CHECK_OK(check_slots(made.parts, RANKS, 1024, made.report));
    expect_count(&made, 0);
    CHECK(made.report->waves > 2, "%d waves", (int)made.report->waves);
    release(&made);
}

static void elements_that_cross_the_network_twice_are_reported(void **state)
{
    (void)state;
    static const int one_node[RANKS];
    planned made;
    make_on(&made, one_node, true);
    check_all(&made);
    CHECK_OK(check_nodes(made.parts, RANKS, RANKS, made.report));
    expect_count(&made, 0);
    CHECK_OK(check_nodes(made.parts, RANKS, 2, made.report));
    expect_count(&made, 1);
    expect(&made, 0, BANYAN_RESHARD_AGAIN, 3,
           "of \"weight\" crosses the network to node 1 for this rank and for rank 2");
    release(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_transfers_are_sound),
        cmocka_unit_test(numbers_behind_a_boxs_dimensions_do_not_count),
        cmocka_unit_test(a_receive_that_is_dropped_leaves_a_hole_and_a_send_alone),
        cmocka_unit_test(findings_about_pairs_come_in_the_order_of_their_ranks),
        cmocka_unit_test(a_receive_that_is_doubled_writes_twice),
        cmocka_unit_test(a_receive_that_is_shifted_by_one_is_outside),
        cmocka_unit_test(a_source_that_does_not_hold_it_is_reported),
        cmocka_unit_test(a_send_of_data_that_is_not_held_is_reported),
        cmocka_unit_test(each_wave_of_a_plan_for_several_nodes_is_played),
        cmocka_unit_test(elements_that_cross_the_network_twice_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
