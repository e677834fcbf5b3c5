/* The rule for senders: boxes are divided evenly, replicas are loaded evenly, and each transfer
 * has one id. */
#include "support/test.h"

#include "core/deadline.h"
#include "reshard/layout/box.h"
#include "reshard/planner/share.h"

static banyan_box random_box(random_state *random, int ndim)
{
    banyan_box box = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        box.start[d] = random_between(random, 0, 300);
        box.extent[d] = random_between(random, 1, random_next(random) % 2 ? 8 : 700);
    }
    return box;
}

static void the_parts_of_a_box_are_the_box(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 2000; round++) {
        banyan_box box = random_box(&random, (int)random_between(&random, 0, 4));
        int64_t wanted = random_between(&random, 1, 40);
        uint64_t min_elems = (uint64_t)random_between(&random, 1, 2000), elems = 0;
        planner_grid grid = planner_grid_of(&box, wanted, min_elems);
        assert_in_range(grid.count, 1, wanted);
        banyan_box parts[40];
        for (int64_t p = 0; p < grid.count; p++) {
            parts[p] = planner_grid_part(&grid, &box, p);
            banyan_box common;
            assert_true(banyan_box_intersect(&parts[p], &box, &common));
            assert_true(banyan_box_equal(&parts[p], &common));
            for (int64_t q = 0; q < p; q++)
                assert_false(banyan_box_intersect(&parts[p], &parts[q], &common));
            assert_true(grid.count == 1 || banyan_box_elems(&parts[p]) >= min_elems);
            int fastest = box.ndim - 1;
            assert_true(grid.count == 1 || parts[p].start[fastest] == box.start[fastest] ||
                        parts[p].start[fastest] % 128 == 0);
            elems += banyan_box_elems(&parts[p]);
        }
        assert_int_equal(elems, banyan_box_elems(&box));
    }
}

static void a_box_with_room_is_cut_into_as_many_equal_parts_as_wanted(void **state)
{
    (void)state;
    const struct {
        banyan_box box;
        int64_t wanted, parts[3];
    } cases[] = {
        {{2, {0, 0}, {64, 100}}, 8, {8, 1, 1}},      /* rows */
        {{2, {0, 0}, {8, 4096}}, 4, {4, 1, 1}},      /* few rows, but a multiple */
        {{2, {3, 0}, {7, 4096}}, 8, {1, 8, 1}},      /* too few rows: columns */
        {{3, {0, 0, 0}, {2, 3, 5}}, 6, {2, 3, 1}},   /* no dimension is long enough: two */
        {{1, {0}, {1024}}, 8, {8, 1, 1}},            /* blocks of 128 */
        {{1, {0}, {1000}}, 16, {8, 1, 1}},           /* no finer than those */
        {{3, {0, 0, 0}, {1, 1, 100}}, 4, {1, 1, 1}}, /* not at all */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        planner_grid grid = planner_grid_of(&cases[i].box, cases[i].wanted, 1);
        for (int d = 0; d < cases[i].box.ndim; d++)
            assert_int_equal(grid.parts[d], cases[i].parts[d]);
    }
    banyan_box rows = {2, {0, 0}, {100, 10}};
    assert_int_equal(planner_grid_of(&rows, 8, 250).count, 4);
    assert_int_equal(planner_grid_of(&rows, 8, 1001).count, 1);
}

/* A tensor that `senders` ranks hold whole, cut along its rows into tiles; `receivers` ranks need
 * each tile. */
struct dealt {
    int64_t rows, columns, senders, tiles, receivers;
    uint64_t min_split_bytes;
};

static banyan_rank_set consecutive(int64_t first, int64_t count)
{
    banyan_rank_set set = banyan_rank_set_one((int)first);
    set.count[BANYAN_RANK_SET_LEVELS - 1] = (int)count;
    set.stride[BANYAN_RANK_SET_LEVELS - 1] = 1;
    return set;
}

static void count_sent(const struct dealt *deal, const char *name, int64_t tile, int64_t *counts)
{
    int64_t shape[2] = {deal->rows, deal->columns};
    banyan_box bounds[2];
    banyan_rank_set senders = consecutive(0, deal->senders);
    banyan_rank_set receivers =
        consecutive(deal->senders + tile * deal->receivers, deal->receivers);
    planner_held source = {.box = box_whole(2, shape), .holders = {&senders, 1, deal->senders}};
    assert_int_equal(planner_bounds_count(1), 2);
    planner_bounds_of(&source, 1, bounds);
    planner_tensor tensor = {.name = name,
                             .ndim = 2,
                             .shape = shape,
                             .elem_bytes = 2,
                             .min_split_bytes = deal->min_split_bytes,
                             .sources = &source,
                             .bounds = bounds,
                             .source_count = 1};
    planner_held destination = {.box = source.box, .holders = {&receivers, 1, deal->receivers}};
    destination.box.extent[0] = deal->rows / deal->tiles;
    destination.box.start[0] = tile * destination.box.extent[0];
    for (int64_t s = 0; s < deal->senders; s++) {
        planner_shares shares = {0};
        CHECK_OK(planner_shares_sent(&tensor, 0, s, (int)s, &destination, &shares));
        counts[s] += (int64_t)shares.count;
        array_free(&shares);
    }
}

static void each_replica_sends_its_share_of_a_box_to_within_one(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 300; round++) {
        struct dealt deal = {
            .tiles = random_between(&random, 1, 12),
            .columns = random_between(&random, 1, 64),
            .senders = random_between(&random, 1, 20),
            .receivers = random_between(&random, 1, 40),
            .min_split_bytes = (uint64_t)random_between(&random, 1, 4096),
        };
        deal.rows = deal.tiles * random_between(&random, 1, 200);
        char name[32];
        snprintf(name, sizeof name, "w.%d", round);
        int64_t all[20] = {0};
        for (int64_t tile = 0; tile < deal.tiles; tile++) {
            int64_t counts[20] = {0}, least = INT64_MAX, most = 0;
            count_sent(&deal, name, tile, counts);
            for (int64_t s = 0; s < deal.senders; s++) {
                all[s] += counts[s];
                least = counts[s] < least ? counts[s] : least;
                most = counts[s] > most ? counts[s] : most;
            }
            assert_in_range(most - least, 0, 1);
        }
        /* Tiles alternate, so that it holds for the whole tensor too. */
        int64_t least = INT64_MAX, most = 0;
        for (int64_t s = 0; s < deal.senders; s++) {
            least = all[s] < least ? all[s] : least;
            most = all[s] > most ? all[s] : most;
        }
        assert_in_range(most - least, 0, 1);
    }
}

static void a_box_for_few_receivers_is_shared_by_all_replicas(void **state)
{
    (void)state;
    for (int64_t receivers = 1; receivers <= 8; receivers++) {
        struct dealt deal = {.rows = 960,
                             .columns = 64,
                             .senders = 6,
                             .tiles = 1,
                             .receivers = receivers,
                             .min_split_bytes = 1};
        int64_t counts[6] = {0};
        count_sent(&deal, "w", 0, counts);
        for (int s = 0; s < 6; s++)
            assert_int_equal(counts[s], receivers);
    }
}

static void receivers_enough_keep_every_replica_busy_with_fewer_shares(void **state)
{
    (void)state;
    struct dealt deal = {.rows = 4096,
                         .columns = 64,
                         .senders = 64,
                         .tiles = 1,
                         .receivers = 1024,
                         .min_split_bytes = 1};
    int64_t counts[64] = {0};
    count_sent(&deal, "w", 0, counts);
    for (int s = 0; s < 64; s++)
        assert_int_equal(counts[s], 1024 / 64);
}

#define SIDE 24

static planner_tensor tensor_of(const int64_t *shape, planner_held *sources, size_t count,
                                banyan_box *bounds)
{
    planner_bounds_of(sources, count, bounds);
    return (planner_tensor){.name = "w",
                            .ndim = 2,
                            .shape = shape,
                            .elem_bytes = 2,
                            .min_split_bytes = 1,
                            .sources = sources,
                            .bounds = bounds,
                            .source_count = count};
}

static int by_box(const void *left, const void *right)
{
    return planner_box_compare(&((const planner_held *)left)->box,
                               &((const planner_held *)right)->box);
}

static bool covers(const banyan_box *box, int64_t row, int64_t column)
{
    return row >= box->start[0] && row < box->start[0] + box->extent[0] &&
           column >= box->start[1] && column < box->start[1] + box->extent[1];
}

/* The receiver takes what it holds from itself, and every other element once, from the first
 * source that has it; the senders find the same. */
static void overlapping_sources_give_every_element_once(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    const int64_t shape[2] = {SIDE, SIDE};
    for (int round = 0; round < 300; round++) {
        planner_held sources[60];
        banyan_rank_set sets[60];
        banyan_box bounds[64];
        size_t count = (size_t)random_between(&random, 1, 60);
        for (size_t i = 0; i < count; i++) {
            sources[i] = (planner_held){.box = {.ndim = 2}};
            for (int d = 0; d < 2; d++) {
                sources[i].box.start[d] = random_between(&random, 0, SIDE - 1);
                sources[i].box.extent[d] =
                    random_between(&random, 1, SIDE - sources[i].box.start[d]);
            }
        }
        qsort(sources, count, sizeof sources[0], by_box);
        for (size_t i = 0; i < count; i++) {
            sets[i] = banyan_rank_set_one((int)random_between(&random, 0, 3));
            sources[i].holders = (planner_holders){&sets[i], 1, 1};
        }
        assert_in_range(planner_bounds_count(count), 2, 64);
        planner_tensor tensor = tensor_of(shape, sources, count, bounds);
        banyan_rank_set receiver = banyan_rank_set_one(3);
        planner_held destination = {.box = box_whole(2, shape), .holders = {&receiver, 1, 1}};
        planner_shares received = {0}, sent = {0};
        uint64_t covered, elems = 0;
        CHECK_OK(planner_shares_received(&tensor, &destination, 0, 3, &received, &covered));
        for (int64_t row = 0; row < SIDE; row++) {
            for (int64_t column = 0; column < SIDE; column++) {
                size_t first = count, times = 0;
                for (size_t i = count; i-- > 0;)
                    if (covers(&sources[i].box, row, column) &&
                        (first == count || sets[i].first == 3 || sets[first].first != 3))
                        first = i;
                for (size_t s = 0; s < received.count; s++) {
                    if (!covers(&received.data[s].box, row, column))
                        continue;
                    times++;
                    assert_int_equal(received.data[s].source, first);
                    assert_int_equal(received.data[s].rank, sets[first].first);
                }
                assert_int_equal(times, first < count);
                elems += first < count;
            }
        }
        assert_int_equal(covered, elems);
        for (size_t i = 0; i < count; i++)
            if (sets[i].first != 3)
                CHECK_OK(
                    planner_shares_sent(&tensor, i, 0, (int)sets[i].first, &destination, &sent));
        size_t found = 0;
        for (size_t r = 0; r < received.count; r++)
            for (size_t s = 0; s < sent.count && received.data[r].rank != 3; s++)
                found += sent.data[s].source == received.data[r].source &&
                         banyan_box_equal(&sent.data[s].box, &received.data[r].box);
        assert_int_equal(found, sent.count);
        for (size_t r = 0; r < received.count; r++)
            found -= received.data[r].rank != 3;
        assert_int_equal(found, 0);
        array_free(&received);
        array_free(&sent);
    }
}

/* As a stack of experts whose columns alternate between gate and up. */
static void planning_takes_little_time_for_sources_that_are_columns(void **state)
{
    (void)state;
    enum { COLUMNS = 60000 };
    const int64_t shape[2] = {64, COLUMNS};
    planner_held *sources = calloc(COLUMNS, sizeof *sources);
    banyan_box *bounds = calloc(planner_bounds_count(COLUMNS), sizeof *bounds);
    assert_non_null(sources);
    assert_non_null(bounds);
    banyan_rank_set sets[2] = {banyan_rank_set_one(0), banyan_rank_set_one(1)};
    for (int64_t i = 0; i < COLUMNS; i++)
        sources[i] = (planner_held){.box = {2, {0, i}, {64, 1}}, .holders = {&sets[i % 2], 1, 1}};
    uint64_t start = time_now_ns(), covered;
    planner_tensor tensor = tensor_of(shape, sources, COLUMNS, bounds);
    planner_held destination = {.box = box_whole(2, shape), .holders = {&sets[1], 1, 1}};
    planner_shares shares = {0};
    CHECK_OK(planner_shares_received(&tensor, &destination, 0, 1, &shares, &covered));
    assert_int_equal(shares.count, COLUMNS);
    assert_int_equal(covered, 64 * COLUMNS);
    for (size_t i = 0; i < COLUMNS; i += 2)
        CHECK_OK(planner_shares_sent(&tensor, i, 0, 0, &destination, &shares));
    assert_int_equal(shares.count, COLUMNS + COLUMNS / 2);
    uint64_t took = time_now_ns() - start;
    printf("%d columns: %.1f ms\n", COLUMNS, (double)took * 1e-6);
    /* Quadratic work would take minutes. */
    assert_true(took < 5 * TEST_SLOWER * NS_PER_S);
    array_free(&shares);
    free(sources);
    free(bounds);
}

static planner_move some_move(random_state *random)
{
    planner_move move = {
        .transfer = {.name = random_next(random) % 2 ? "a" : "b",
                     .box = {2, {random_between(random, 0, 3), 0}, {1, 4}},
                     .source_rank = (int)random_between(random, 0, 1),
                     .destination_rank = 7},
        .destination = {2, {0, 0}, {4, 4}},
        .ordinal = (uint32_t)random_between(random, 0, 1),
    };
    return move;
}

static bool same_move(const planner_move *a, const planner_move *b)
{
    return strcmp(a->transfer.name, b->transfer.name) == 0 && a->ordinal == b->ordinal &&
           a->transfer.source_rank == b->transfer.source_rank &&
           banyan_box_equal(&a->transfer.box, &b->transfer.box);
}

static void both_ends_make_colliding_ids_distinct_in_the_same_way(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 500; round++) {
        planner_move sent[24], received[24];
        size_t count = 0;
        for (int i = 0; i < 24; i++) {
            planner_move move = some_move(&random);
            bool known = false;
            for (size_t j = 0; j < count; j++)
                known |= same_move(&sent[j], &move);
            /* Few ids, and the largest ones. */
            move.transfer.task_id =
                random_next(&random) % 2 ? BANYAN_TASK_ID_NONE - i % 3 : random_next(&random) % 3;
            if (!known)
                sent[count++] = move;
        }
        for (size_t i = 0; i < count; i++)
            received[i] = sent[count - 1 - i];
        planner_ids_settle(sent, count);
        planner_ids_settle(received, count);
        for (size_t i = 0; i < count; i++) {
            assert_true(same_move(&sent[i], &received[i]));
            assert_true(sent[i].transfer.task_id == received[i].transfer.task_id);
            assert_true(sent[i].transfer.task_id != BANYAN_TASK_ID_NONE);
            for (size_t j = 0; j < i; j++)
                assert_true(sent[i].transfer.source_rank != sent[j].transfer.source_rank ||
                            sent[i].transfer.task_id != sent[j].transfer.task_id);
        }
    }
}

static void every_part_of_a_transfer_is_in_its_id(void **state)
{
    (void)state;
    planner_move moves[7];
    for (int i = 0; i < 7; i++)
        moves[i] = (planner_move){
            .transfer = {.name = "w", .box = {1, {2}, {3}}, .destination_rank = 4},
            .destination = {1, {0}, {8}},
        };
    moves[1].transfer.name = "v";
    moves[2].transfer.box.start[0] = 1;
    moves[3].transfer.box.extent[0] = 4;
    moves[4].transfer.destination_rank = 5;
    moves[5].destination.extent[0] = 9;
    moves[6].ordinal = 1;
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < i; j++)
            assert_true(planner_id_of(&moves[i]) != planner_id_of(&moves[j]));
    moves[1] = moves[0];
    moves[1].transfer.source_rank = 3; /* the sender is not in it */
    assert_true(planner_id_of(&moves[0]) == planner_id_of(&moves[1]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_a_box_are_the_box),
        cmocka_unit_test(a_box_with_room_is_cut_into_as_many_equal_parts_as_wanted),
        cmocka_unit_test(each_replica_sends_its_share_of_a_box_to_within_one),
        cmocka_unit_test(a_box_for_few_receivers_is_shared_by_all_replicas),
        cmocka_unit_test(receivers_enough_keep_every_replica_busy_with_fewer_shares),
        cmocka_unit_test(overlapping_sources_give_every_element_once),
        cmocka_unit_test(planning_takes_little_time_for_sources_that_are_columns),
        cmocka_unit_test(both_ends_make_colliding_ids_distinct_in_the_same_way),
        cmocka_unit_test(every_part_of_a_transfer_is_in_its_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
