/* The built-in algorithms, executed with symbols: results are correct for every rank, whichever
 * rank is slow. */
#include "collective/algorithms/algorithms.h"
#include "support/symbolic/symbolic.h"
#include "support/test.h"

static bool compile(const char *name, const banyan_algorithm_params *params, banyan_plan **plan)
{
    banyan_status status = banyan_algorithm_compile(name, params, plan);
    if (status == BANYAN_ERR_INVALID && params->in_place &&
        strstr(banyan_last_error(), "cannot work in place"))
        return false;
    CHECK(status == BANYAN_OK, "%s of %d ranks: %s", name, params->ranks, banyan_last_error());
    return true;
}

static void play(const banyan_algorithm_info *info, const banyan_algorithm_params *params,
                 const symbolic_options *options)
{
    char problem[256];
    banyan_plan *plan;
    if (!compile(info->name, params, &plan))
        return;
    CHECK(symbolic_play(plan, options, problem, sizeof problem),
          "%s, %d ranks (%d a node), root %d, shift %d, %s place, %d instances, %d units, "
          "schedule %llu: %s",
          info->name, params->ranks, params->ranks_per_node, params->root, params->shift,
          params->in_place ? "in" : "out of", params->instances, options->units,
          (unsigned long long)options->seed, problem);
    banyan_plan_destroy(plan);
}

static void play_all(int ranks, int units, random_state *random)
{
    banyan_algorithm_info info;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
            symbolic_options options = {.runs = 4,
                                        .units = units,
                                        .seed = random_next(random),
                                        .same_bits = info.collective == BANYAN_ALLREDUCE};
            params.ranks = ranks;
            params.in_place = in_place;
            params.root = (int)random_between(random, 0, ranks - 1);
            params.shift = (int)random_between(random, -ranks, 2 * ranks);
            params.instances = (int)random_between(random, 0, 2);
            params.ranks_per_node = (int)random_between(random, 1, ranks);
            while (ranks % params.ranks_per_node)
                params.ranks_per_node--;
            play(&info, &params, &options);
        }
    }
}

static void every_algorithm_is_right_with_any_lagging_rank(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int ranks = 1; ranks <= 9; ranks++)
        play_all(ranks, (int)random_between(&random, 1, 3), &random);
}

static void every_algorithm_is_right_for_many_ranks(void **state)
{
    (void)state;
    static const int counts[] = {11, 16};
    random_state random = random_from(random_seed() + 1);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        play_all(counts[i], 1, &random);
}

/* Messages so long that a ring wraps around several times. */
static void pipelines_reuse_their_rings_in_time(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 2);
    for (size_t i = 0; i < algorithm_table_count; i++) {
        const algorithm_entry *entry = &algorithm_table[i];
        if (!entry->ring_per_rank && !entry->ring_once)
            continue;
        for (int ranks = 2; ranks <= 6; ranks++) {
            banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
            symbolic_options options = {
                .runs = 3, .units = 4 * PIPELINE_UNITS + 1, .seed = random_next(&random)};
            params.ranks = ranks;
            params.shift = 1;
            params.root = ranks - 1;
            params.unit_bytes = 1000;
            params.in_place = random_between(&random, 0, 1);
            play(&entry->info, &params, &options);
        }
    }
}

static void algorithms_are_told_apart_by_name(void **state)
{
    (void)state;
    banyan_algorithm_info a, b;
    for (size_t i = 0; banyan_algorithm_at(i, &a) == BANYAN_OK; i++) {
        const char *collective = banyan_collective_kind_name(a.collective);
        CHECK(strncmp(a.name, collective, strlen(collective)) == 0, "%s", a.name);
        for (size_t j = 0; j < i; j++) {
            CHECK_OK(banyan_algorithm_at(j, &b));
            CHECK(strcmp(a.name, b.name) != 0, "%s", a.name);
        }
    }
    CHECK_FAILS(banyan_algorithm_at(algorithm_table_count, &a), BANYAN_ERR_NOT_FOUND, "index");
}

/* The table's entry for ordinary memory agrees with the plans' accesses. */
static void peers_touch_only_scratch_where_the_table_says_so(void **state)
{
    (void)state;
    for (size_t i = 0; i < algorithm_table_count; i++) {
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        banyan_plan *plan;
        params.ranks = 4;
        params.ranks_per_node = 2;
        params.shift = 1;
        CHECK_OK(banyan_algorithm_compile(algorithm_table[i].info.name, &params, &plan));
        bool reaches = false;
        for (int r = 0; r < plan->rank_count; r++) {
            const plan_rank *rank = &plan->ranks[r];
            for (uint32_t b = 0; b < rank->remote_buffer_count; b++)
                reaches |= rank->remote_buffers[b].buffer != PLAN_SCRATCH;
            for (uint32_t c = 0; c < rank->channel_count[PLAN_SWITCH]; c++)
                reaches |= rank->switches[c].buffer != PLAN_SCRATCH;
        }
        CHECK(reaches == algorithm_table[i].info.reaches_peers_buffers, "%s",
              algorithm_table[i].info.name);
        banyan_plan_destroy(plan);
    }
}

/* Mark the rank's memory channels on which the operations signal or wait. */
static bool mark_synced(const plan_thread_block *block, const plan_op *ops, uint32_t count,
                        bool *synced)
{
    bool packets = false;
    for (uint32_t i = 0; i < count; i++) {
        const plan_op *op = &ops[i];
        for (uint32_t c = 0; op->channel_type == PLAN_MEMORY && c < op->channel_count; c++)
            synced[plan_channel_of(block, op, op->channels[c])] = true;
        packets |= plan_op_writes_packets(op->kind);
        packets |= mark_synced(block, op->ops, op->op_count, synced);
    }
    return packets;
}

/* Packets need no signals. A memory channel for data alone would be superfluous. */
static void memory_channels_carry_signals_unless_they_carry_packets(void **state)
{
    (void)state;
    for (size_t i = 0; i < algorithm_table_count; i++) {
        const char *name = algorithm_table[i].info.name;
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        banyan_plan *plan;
        params.ranks = 4;
        params.ranks_per_node = 2;
        params.shift = 1;
        CHECK_OK(banyan_algorithm_compile(name, &params, &plan));
        for (int r = 0; r < plan->rank_count; r++) {
            const plan_rank *rank = &plan->ranks[r];
            bool synced[64] = {false}, packets = false;
            CHECK(rank->channel_count[PLAN_MEMORY] <= 64, "%s", name);
            for (uint32_t b = 0; b < rank->block_count; b++)
                packets |= mark_synced(&rank->blocks[b], rank->blocks[b].ops,
                                       rank->blocks[b].op_count, synced);
            for (uint32_t c = 0; !packets && c < rank->channel_count[PLAN_MEMORY]; c++)
                CHECK(synced[c], "%s: rank %d's memory channel %u", name, r, c);
        }
        banyan_plan_destroy(plan);
    }
}

static void wrong_parameters_are_refused_with_the_reason(void **state)
{
    (void)state;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan = NULL;
    CHECK_FAILS(banyan_algorithm_compile("allreduce_magic", &params, &plan), BANYAN_ERR_NOT_FOUND,
                "allreduce_magic");
    params.ranks = 0;
    CHECK_FAILS(banyan_algorithm_compile("allreduce_ring", &params, &plan), BANYAN_ERR_INVALID,
                "not 0");
    params.ranks = 6;
    params.root = 6;
    CHECK_FAILS(banyan_algorithm_compile("broadcast_tree", &params, &plan), BANYAN_ERR_INVALID,
                "root 6");
    params.root = 0;
    params.ranks_per_node = 4;
    CHECK_FAILS(banyan_algorithm_compile("allreduce_hierarchical", &params, &plan),
                BANYAN_ERR_INVALID, "nodes of 4");
    params.in_place = true;
    CHECK_FAILS(banyan_algorithm_compile("alltoall_direct", &params, &plan), BANYAN_ERR_INVALID,
                "in place");
    params.unit_bytes = UINT64_MAX;
    CHECK_FAILS(banyan_algorithm_compile("allreduce_pipelined", &params, &plan), BANYAN_ERR_INVALID,
                "units of");
    params = (banyan_algorithm_params)BANYAN_ALGORITHM_PARAMS_INIT;
    params.instances = -1;
    CHECK_FAILS(banyan_algorithm_compile("allreduce_ring", &params, &plan), BANYAN_ERR_INVALID,
                "-1 instances");
    params.size = 0;
    CHECK_FAILS(banyan_algorithm_compile("allreduce_ring", &params, &plan), BANYAN_ERR_INVALID,
                "size 0");
    CHECK(!plan);
}

/* Calls after the first error do no harm. */
static void a_program_that_fails_on_the_way_is_refused(void **state)
{
    (void)state;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = 5;
    params.op = (banyan_reduce_op)9;
    for (size_t i = 0; i < algorithm_table_count; i++) {
        const algorithm_entry *entry = &algorithm_table[i];
        banyan_plan *plan = NULL;
        banyan_status status = banyan_algorithm_compile(entry->info.name, &params, &plan);
        bool reduces = entry->info.collective == BANYAN_ALLREDUCE ||
                       entry->info.collective == BANYAN_REDUCESCATTER ||
                       entry->info.collective == BANYAN_REDUCE;
        if (reduces)
            CHECK_FAILS(status, BANYAN_ERR_INVALID, "reduction 9 is unknown");
        else
            CHECK_OK(status);
        banyan_plan_destroy(plan);
    }
}

static void a_reduction_is_the_one_asked_for(void **state)
{
    (void)state;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = 5;
    params.op = BANYAN_MAX;
    for (size_t i = 0; i < algorithm_table_count; i++) {
        banyan_plan *plan;
        plan_contribution room[5];
        plan_expected expected;
        banyan_reduce_op op;
        CHECK_OK(banyan_algorithm_compile(algorithm_table[i].info.name, &params, &plan));
        CHECK(plan_expected_of(plan, 0, 0, room, &expected, &op));
        CHECK(expected.count == 1 || op == BANYAN_MAX, "%s", algorithm_table[i].info.name);
        banyan_plan_destroy(plan);
    }
}

/* One pass over the inputs, however many there are. */
static void a_block_is_reduced_and_sent_in_one_operation(void **state)
{
    (void)state;
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    int found = 0;
    params.ranks = 5;
    CHECK_OK(banyan_algorithm_compile("allreduce_twoshot_direct", &params, &plan));
    const plan_thread_block *block = &plan->ranks[2].blocks[0];
    for (uint32_t i = 0; i < block->op_count; i++) {
        if (!plan_op_reduces(block->ops[i].kind))
            continue;
        found++;
        CHECK(block->ops[i].kind == PLAN_READ_REDUCE_SEND && block->ops[i].source_count == 5 &&
                  block->ops[i].destination_count == 5,
              "%s", plan_op_name(block->ops[i].kind));
    }
    CHECK(found == 1, "%d", found);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_is_right_with_any_lagging_rank),
        cmocka_unit_test(every_algorithm_is_right_for_many_ranks),
        cmocka_unit_test(pipelines_reuse_their_rings_in_time),
        cmocka_unit_test(algorithms_are_told_apart_by_name),
        cmocka_unit_test(peers_touch_only_scratch_where_the_table_says_so),
        cmocka_unit_test(memory_channels_carry_signals_unless_they_carry_packets),
        cmocka_unit_test(wrong_parameters_are_refused_with_the_reason),
        cmocka_unit_test(a_block_is_reduced_and_sent_in_one_operation),
        cmocka_unit_test(a_program_that_fails_on_the_way_is_refused),
        cmocka_unit_test(a_reduction_is_the_one_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
