/* Expected outputs, byte by byte, against the collectives' definitions. */
#include "support/test.h"

#include "plan/plan.h"

typedef struct made_plan {
    banyan_plan *plan;
    banyan_plan_info info;
    uint64_t message, input, output; /* bytes, of every rank */
} made_plan;

static banyan_plan *make_plan(banyan_collective_kind kind, int ranks, uint64_t inputs,
                              uint64_t outputs)
{
    banyan_plan *plan = plan_create(ranks);
    CHECK(plan);
    plan->name = "expected";
    plan->collective = kind;
    plan->collective_name = banyan_collective_kind_name(kind);
    for (int r = 0; r < ranks; r++) {
        plan->ranks[r].chunks[PLAN_INPUT] = inputs;
        plan->ranks[r].chunks[PLAN_OUTPUT] = outputs;
    }
    return plan;
}

/* The only reduction of a plan determines its operator. */
static void add_reduction(banyan_plan *plan, banyan_reduce_op op)
{
    plan_rank *rank = &plan->ranks[plan->rank_count - 1];
    rank->block_count = 1;
    rank->blocks = plan_take(plan, 1, sizeof *rank->blocks);
    rank->blocks[0].op_count = 1;
    rank->blocks[0].ops = plan_take(plan, 1, sizeof *rank->blocks[0].ops);
    rank->blocks[0].ops[0] = (plan_op){.kind = PLAN_REDUCE, .reduce_op = op};
}

/* Return the k-th source of this output byte: a byte of a rank's input. Returns the number of
 * sources. */
static int sources_at(const made_plan *of, int rank, uint64_t byte, int k, int *from, uint64_t *at)
{
    int ranks = of->info.ranks;
    uint64_t share = of->output / (uint64_t)ranks;
    *from = k;
    *at = byte;
    switch (of->info.collective) {
    case BANYAN_ALLREDUCE:
        return ranks;
    case BANYAN_REDUCE:
        return rank == of->info.root ? ranks : 0;
    case BANYAN_REDUCESCATTER:
        *at = (uint64_t)rank * of->output + byte;
        return ranks;
    case BANYAN_ALLGATHER:
        *from = (int)(byte / of->input);
        *at = byte % of->input;
        return 1;
    case BANYAN_ALLTOALL:
        *from = (int)(byte / share);
        *at = (uint64_t)rank * share + byte % share;
        return 1;
    case BANYAN_BROADCAST:
        *from = of->info.root;
        return 1;
    default:
        *from = (rank + ranks - of->info.shift) % ranks;
        return 1;
    }
}

static const banyan_plan_result *part_at(const banyan_plan_result *parts, size_t count,
                                         uint64_t byte)
{
    for (size_t i = 0; i < count; i++) {
        if (byte >= parts[i].offset && byte - parts[i].offset < parts[i].bytes)
            return &parts[i];
    }
    return NULL;
}

static void check_byte(const made_plan *of, int rank, uint64_t byte, const banyan_plan_result *part)
{
    int from;
    uint64_t at;
    int wanted = sources_at(of, rank, byte, 0, &from, &at);
    CHECK((part ? (int)part->source_count : 0) == wanted, "byte %d of rank %d", (int)byte, rank);
    for (int k = 0; k < wanted; k++) {
        sources_at(of, rank, byte, k, &from, &at);
        uint64_t source = part->sources[k].offset + (byte - part->offset);
        CHECK(part->sources[k].rank == from && source == at, "byte %d of rank %d: %d of rank %d",
              (int)byte, rank, (int)source, part->sources[k].rank);
    }
}

static void check_outputs(const made_plan *of, banyan_reduce_op op)
{
    for (int rank = 0; rank < of->info.ranks; rank++) {
        banyan_plan_result *parts;
        size_t count;
        banyan_reduce_op found;
        CHECK_OK(banyan_plan_expected(of->plan, rank, of->message, &parts, &count, &found));
        for (uint64_t byte = 0; byte < of->output; byte++)
            check_byte(of, rank, byte, part_at(parts, count, byte));
        for (size_t i = 1; i < count; i++)
            CHECK(parts[i].offset == parts[i - 1].offset + parts[i - 1].bytes);
        if (count > 0 && parts[0].source_count > 1)
            CHECK(found == op);
        free(parts);
    }
}

static void every_byte_of_a_collective_follows_its_definition(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int n = 0; n < 300; n++) {
        banyan_collective_kind kind =
            (banyan_collective_kind)random_between(&random, BANYAN_ALLREDUCE, BANYAN_REDUCE);
        int ranks = (int)random_between(&random, 1, 6);
        uint64_t chunks = (uint64_t)random_between(&random, 1, 5), all = chunks * (uint64_t)ranks;
        bool many_in = kind == BANYAN_REDUCESCATTER || kind == BANYAN_ALLTOALL;
        bool many_out = kind == BANYAN_ALLGATHER || kind == BANYAN_ALLTOALL;
        banyan_reduce_op op = (banyan_reduce_op)random_between(&random, BANYAN_SUM, BANYAN_MAX);
        banyan_plan *plan = make_plan(kind, ranks, many_in ? all : chunks, many_out ? all : chunks);
        plan->root = (int)random_between(&random, 0, ranks - 1);
        plan->shift = (int)random_between(&random, 0, ranks - 1);
        add_reduction(plan, op);
        made_plan made = {.plan = plan, .info = banyan_plan_describe(plan)};
        CHECK(made.info.message_parts == (many_in ? (uint64_t)ranks : 1));
        made.message = made.info.message_parts * (uint64_t)random_between(&random, 0, 200);
        CHECK_OK(banyan_plan_sizes(plan, 0, made.message, &made.input, &made.output));
        check_outputs(&made, op);
        banyan_plan_destroy(plan);
    }
}

static void a_custom_collective_has_its_authors_result(void **state)
{
    (void)state;
    banyan_plan *plan = make_plan(BANYAN_CUSTOM, 2, 4, 3),
                *silent = make_plan(BANYAN_CUSTOM, 2, 4, 3);
    const plan_contribution from[] = {{1, 3}, {0, 0}, {1, 2}};
    plan_expected *of_rank = plan_take(plan, 3, sizeof *of_rank);
    of_rank[0] = (plan_expected){from, 3};
    of_rank[2] = (plan_expected){from + 2, 1};
    plan->expected = plan_take(plan, 2, sizeof *plan->expected);
    plan->expected[1] = of_rank;
    plan->expected_op = BANYAN_MAX;
    banyan_plan_result *parts;
    size_t count;
    banyan_reduce_op op;
    CHECK(banyan_plan_describe(plan).message_parts == 4);
    CHECK_OK(banyan_plan_expected(plan, 1, 40, &parts, &count, &op));
    CHECK(count == 2 && op == BANYAN_MAX);
    CHECK(parts[0].offset == 0 && parts[0].bytes == 10 && parts[0].source_count == 3);
    CHECK(parts[0].sources[0].rank == 1 && parts[0].sources[0].offset == 30);
    CHECK(parts[0].sources[1].rank == 0 && parts[0].sources[1].offset == 0);
    CHECK(parts[1].offset == 20 && parts[1].bytes == 10 && parts[1].source_count == 1);
    CHECK(parts[1].sources[0].rank == 1 && parts[1].sources[0].offset == 20);
    free(parts);
    CHECK_OK(banyan_plan_expected(plan, 0, 40, &parts, &count, &op));
    CHECK(count == 0 && !parts);
    CHECK_OK(banyan_plan_expected(silent, 1, 40, &parts, &count, &op));
    CHECK(count == 0 && !parts);
    banyan_plan_destroy(silent);
    banyan_plan_destroy(plan);
}

static void messages_that_a_plan_cannot_cut_and_ranks_that_it_has_not_are_refused(void **state)
{
    (void)state;
    banyan_plan *plan = make_plan(BANYAN_ALLTOALL, 3, 6, 6);
    banyan_plan_result *parts;
    size_t count;
    banyan_reduce_op op;
    CHECK_FAILS(banyan_plan_expected(plan, 0, 10, &parts, &count, &op), BANYAN_ERR_INVALID,
                "10 bytes");
    CHECK_FAILS(banyan_plan_expected(plan, 3, 9, &parts, &count, &op), BANYAN_ERR_INVALID,
                "3 ranks");
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_of_a_collective_follows_its_definition),
        cmocka_unit_test(a_custom_collective_has_its_authors_result),
        cmocka_unit_test(messages_that_a_plan_cannot_cut_and_ranks_that_it_has_not_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
