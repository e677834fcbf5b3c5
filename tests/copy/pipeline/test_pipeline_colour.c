/* Rounds are proper, minimal, and take near-linear time, on any graph. */
#include "support/test.h"

#include <inttypes.h>
#include <math.h>

#include "copy/schedule/colour.h"

typedef struct graph {
    colour_pair *pairs;
    size_t count;
    int ranks;
} graph;

static uint64_t graph_batches(const graph *g)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < g->count; i++)
        sum += g->pairs[i].count;
    return sum;
}

static uint64_t busiest_rank(const graph *g)
{
    uint64_t *sums = calloc((size_t)g->ranks * 2, sizeof *sums), most = 0;
    for (size_t i = 0; i < g->count; i++) {
        sums[g->pairs[i].source] += g->pairs[i].count;
        sums[g->ranks + g->pairs[i].dest] += g->pairs[i].count;
    }
    for (int i = 0; i < g->ranks * 2; i++)
        most = sums[i] > most ? sums[i] : most;
    free(sums);
    return most;
}

/* Every batch has a round below the number of rounds, and no rank sends or receives twice in
 * one. */
static void check_proper(const graph *g, const colouring *result)
{
    size_t rounds = result->rounds, ranks = (size_t)g->ranks;
    unsigned char *busy = calloc(2 * ranks * rounds + 1, 1);
    uint64_t *given = calloc(g->count + 1, sizeof *given);
    for (size_t i = 0; i < result->runs.count; i++) {
        const colour_run *run = &result->runs.data[i];
        assert_true(run->pair < g->count && run->count > 0);
        assert_true(run->first_round + run->count <= rounds);
        if (i > 0 && run[-1].pair == run->pair)
            assert_true(run[-1].first_round + run[-1].count < run->first_round);
        else if (i > 0)
            assert_true(run[-1].pair < run->pair);
        const colour_pair *pair = &g->pairs[run->pair];
        for (uint64_t round = run->first_round; round < run->first_round + run->count; round++) {
            unsigned char *sends = &busy[(size_t)pair->source * rounds + round];
            unsigned char *receives = &busy[(ranks + (size_t)pair->dest) * rounds + round];
            assert_false(*sends);
            assert_false(*receives);
            *sends = *receives = 1;
        }
        given[run->pair] += run->count;
    }
    for (size_t i = 0; i < g->count; i++)
        assert_true(given[i] == g->pairs[i].count);
    free(given);
    free(busy);
}

/* Return the number of steps, at most m log m. */
static uint64_t check_colouring(const graph *g)
{
    colouring result = {0};
    assert_int_equal(colour_rounds(g->pairs, g->count, g->ranks, &result), BANYAN_OK);
    assert_true(result.rounds == busiest_rank(g));
    check_proper(g, &result);
    double batches = (double)graph_batches(g);
    assert_true((double)result.steps <= 12 * batches * log2(batches + 2) + 12);
    uint64_t steps = result.steps;
    colouring_free(&result);
    return steps;
}

static graph random_graph(random_state *random, int ranks, uint64_t batches)
{
    graph g = {calloc(batches + 1, sizeof(colour_pair)), 0, ranks};
    /* From even to one rank on either side with nearly all batches. */
    int64_t skew = random_between(random, 0, 4), most = random_between(random, 1, 40);
    uint64_t given = 0;
    while (given < batches) {
        int ends[2];
        for (int i = 0; i < 2; i++) {
            ends[i] = (int)random_between(random, 0, ranks - 1);
            for (int64_t k = 0; k < skew; k++)
                ends[i] = (int)random_between(random, 0, ends[i]);
        }
        uint64_t count = (uint64_t)random_between(random, 0, most);
        count = count < batches - given ? count : batches - given;
        if (g.count < batches)
            g.pairs[g.count++] = (colour_pair){ends[0], ends[1], count};
        given += count ? count : 1;
    }
    return g;
}

static void random_graphs_take_as_many_rounds_as_the_busiest_rank_has_batches(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 400; round++) {
        int ranks = (int)random_between(&random, 1, 24);
        graph g = random_graph(&random, ranks, (uint64_t)random_between(&random, 0, 800));
        check_colouring(&g);
        free(g.pairs);
    }
}

static void large_irregular_graphs_are_coloured_in_near_linear_time(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 5; round++) {
        graph g = random_graph(&random, 200, 100000);
        uint64_t steps = check_colouring(&g);
        printf("%" PRIu64 " batches in %zu pairs, %" PRIu64 " rounds: %" PRIu64 " steps\n",
               graph_batches(&g), g.count, busiest_rank(&g), steps);
        free(g.pairs);
    }
}

/* The number of steps depends on the distance of the largest degree from a power of two, so it is
 * summed over an octave. */
static uint64_t octave_steps(random_state *random, double batches)
{
    enum { GRAPHS = 8, RANKS = 50 };
    uint64_t steps = 0;
    for (int i = 0; i < GRAPHS; i++) {
        graph g = {.count = (size_t)(batches * exp2((double)i / GRAPHS)), .ranks = RANKS};
        g.pairs = calloc(g.count, sizeof(colour_pair));
        for (size_t k = 0; k < g.count; k++)
            g.pairs[k] = (colour_pair){(int)random_between(random, 0, RANKS - 1),
                                       (int)random_between(random, 0, RANKS - 1), 1};
        steps += check_colouring(&g);
        free(g.pairs);
    }
    return steps;
}

static void eight_times_the_batches_take_little_more_than_eight_times_the_steps(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    uint64_t few = octave_steps(&random, 8000), many = octave_steps(&random, 64000);
    /* The logarithm grows by 1.23. */
    assert_true((double)many < 8 * 1.23 * 1.3 * (double)few);
}

static void one_busy_rank_costs_as_much_as_its_batches(void **state)
{
    (void)state;
    enum { RANKS = 1000 };
    graph g = {calloc(RANKS * 2, sizeof(colour_pair)), 0, RANKS};
    for (int i = 1; i < RANKS; i++) {
        g.pairs[g.count++] = (colour_pair){0, i, 7};
        g.pairs[g.count++] = (colour_pair){i, i % 10, 1};
    }
    check_colouring(&g);
    free(g.pairs);
}

static void counts_are_not_unrolled_where_ranks_have_one_partner(void **state)
{
    (void)state;
    enum { RANKS = 64 };
    colour_pair pairs[RANKS];
    for (int i = 0; i < RANKS; i++)
        pairs[i] = (colour_pair){i, (i + 5) % RANKS, 10000000};
    colouring result = {0};
    assert_int_equal(colour_rounds(pairs, RANKS, RANKS, &result), BANYAN_OK);
    assert_int_equal(result.rounds, 10000000);
    assert_int_equal(result.runs.count, RANKS);
    assert_int_equal(result.steps, 0);
    colouring_free(&result);
}

static void large_counts_are_coloured(void **state)
{
    (void)state;
    colour_pair pairs[] = {{0, 1, 50000}, {0, 2, 31234}, {1, 2, 17}, {2, 0, 60001},
                           {1, 0, 3},     {2, 1, 9999},  {0, 1, 1},  {1, 1, 0}};
    graph g = {pairs, sizeof pairs / sizeof *pairs, 3};
    check_colouring(&g);
}

static void no_batches_take_no_rounds(void **state)
{
    (void)state;
    colour_pair none = {1, 0, 0};
    graph g = {&none, 0, 2};
    check_colouring(&g);
    g.count = 1;
    check_colouring(&g);
}

static void the_same_pairs_give_the_same_rounds(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    graph g = random_graph(&random, 30, 5000);
    colouring one = {0}, two = {0};
    assert_int_equal(colour_rounds(g.pairs, g.count, g.ranks, &one), BANYAN_OK);
    assert_int_equal(colour_rounds(g.pairs, g.count, g.ranks, &two), BANYAN_OK);
    assert_int_equal(one.runs.count, two.runs.count);
    assert_memory_equal(one.runs.data, two.runs.data, one.runs.count * sizeof(colour_run));
    colouring_free(&one);
    colouring_free(&two);
    free(g.pairs);
}

static void ranks_and_counts_out_of_range_are_refused(void **state)
{
    (void)state;
    colouring result = {0};
    colour_pair pairs[] = {{0, 1, COLOUR_MOST_BATCHES}, {1, 2, 1}};
    CHECK_FAILS(colour_rounds(pairs, 2, 2, &result), BANYAN_ERR_INVALID, "rank 1 to rank 2");
    CHECK_FAILS(colour_rounds(pairs, 2, 3, &result), BANYAN_ERR_INVALID, "rank 1 to rank 2");
    pairs[1].source = -1;
    CHECK_FAILS(colour_rounds(pairs, 2, 3, &result), BANYAN_ERR_INVALID, "rank -1");
    pairs[1] = (colour_pair){1, 2, UINT64_MAX};
    CHECK_FAILS(colour_rounds(pairs, 2, 3, &result), BANYAN_ERR_INVALID, "18446744073709551615");
    assert_null(result.runs.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs_take_as_many_rounds_as_the_busiest_rank_has_batches),
        cmocka_unit_test(large_irregular_graphs_are_coloured_in_near_linear_time),
        cmocka_unit_test(eight_times_the_batches_take_little_more_than_eight_times_the_steps),
        cmocka_unit_test(one_busy_rank_costs_as_much_as_its_batches),
        cmocka_unit_test(counts_are_not_unrolled_where_ranks_have_one_partner),
        cmocka_unit_test(large_counts_are_coloured),
        cmocka_unit_test(no_batches_take_no_rounds),
        cmocka_unit_test(the_same_pairs_give_the_same_rounds),
        cmocka_unit_test(ranks_and_counts_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
