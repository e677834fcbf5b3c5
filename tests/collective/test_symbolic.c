/* Faults that the symbolic executor must find, in plans that are correct except for one detail. */
#include "support/symbolic/symbolic.h"
#include "support/test.h"

static banyan_plan *plan_of(const char *name, int ranks)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    params.ranks = ranks;
    params.shift = 1;
    CHECK_OK(banyan_algorithm_compile(name, &params, &plan));
    return plan;
}

static plan_op *find_op(banyan_plan *plan, int rank, plan_op_kind kind)
{
    const plan_rank *of = &plan->ranks[rank];
    for (uint32_t b = 0; b < of->block_count; b++)
        for (uint32_t i = 0; i < of->blocks[b].op_count; i++)
            if (of->blocks[b].ops[i].kind == kind)
                return &of->blocks[b].ops[i];
    CHECK(false, "no such operation");
    return NULL;
}

/* Expect the fault. Every schedule shows accesses without an order, at the later one ("may …"),
 * but not every message size does. */
static void must_find(banyan_plan *plan, int units, const char *part)
{
    char problem[256] = "";
    symbolic_options options = {.runs = 3,
                                .units = units,
                                .seed = random_seed(),
                                .same_bits = plan->collective == BANYAN_ALLREDUCE};
    int left = 20;
    while (left > 0 && symbolic_play(plan, &options, problem, sizeof problem)) {
        options.seed++;
        left--;
    }
    CHECK(left > 0);
    CHECK(strstr(problem, part), "%s", problem);
    banyan_plan_destroy(plan);
}

static void a_wait_that_is_left_out_is_found(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("allgather_allpairs", 3);
    plan_op *wait = find_op(plan, 1, PLAN_WAIT);
    wait->channel_count--;
    must_find(plan, 1, "rank 1, ");
}

static void a_relaxed_signal_does_not_publish_data(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("allgather_allpairs", 2);
    find_op(plan, 0, PLAN_SIGNAL)->kind = PLAN_RELAXED_SIGNAL;
    find_op(plan, 1, PLAN_WAIT)->kind = PLAN_RELAXED_WAIT;
    must_find(plan, 1, "may not have seen");
}

static void a_signal_that_is_left_out_is_found(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("allreduce_ring", 4);
    find_op(plan, 2, PLAN_SIGNAL)->kind = PLAN_NOP;
    must_find(plan, 1, "nobody can go on");
}

static void reuse_of_scratch_by_the_next_run_is_found(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("allgather_allpairs", 3);
    plan->double_scratch = false;
    must_find(plan, 1, "may ");
}

static void packets_that_overwrite_others_are_found(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("alltoall_packets", 3);
    plan->double_scratch = false;
    must_find(plan, 1, "rank");
}

static void a_ring_that_is_filled_too_far_is_found(void **state)
{
    (void)state;
    static const char *const names[] = {"allreduce_pipelined", "allgather_pipelined",
                                        "broadcast_tree", "sendrecv_pipelined"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        banyan_plan *plan = plan_of(names[i], 3);
        for (int r = 0; r < plan->rank_count; r++)
            for (uint32_t s = 0; s < plan->ranks[r].semaphore_count; s++)
                plan->ranks[r].semaphores[s]++;
        must_find(plan, 9, "may ");
    }
}

static void users_see_that_peers_still_use_their_buffers(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("alltoall_direct", 2);
    find_op(plan, 0, PLAN_RELAXED_SIGNAL)->kind = PLAN_NOP;
    find_op(plan, 1, PLAN_RELAXED_WAIT)->kind = PLAN_NOP;
    must_find(plan, 1, "its user");
}

static void a_wrong_chunk_is_found(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("alltoall_allpairs", 3);
    plan_op *copy = find_op(plan, 2, PLAN_COPY);
    copy->sources[0].index = (copy->sources[0].index + 1) % 3;
    must_find(plan, 2, "is wrong");
}

static void scratch_that_nobody_wrote_is_found(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("reducescatter_allpairs", 3);
    find_op(plan, 0, PLAN_PUT)->kind = PLAN_NOP;
    must_find(plan, 1, "reads what nobody has written");
}

static void another_order_of_adding_is_found(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("allreduce_oneshot", 3);
    plan_op *reduce = find_op(plan, 1, PLAN_REDUCE);
    plan_operand first = reduce->sources[0];
    reduce->sources[0] = reduce->sources[2];
    reduce->sources[2] = first;
    must_find(plan, 1, "another order");
}

static void a_put_that_nobody_flushed_is_found(void **state)
{
    (void)state;
    banyan_plan *plan = plan_of("sendrecv_port", 2);
    find_op(plan, 0, PLAN_PUT_WITH_SIGNAL_AND_FLUSH)->kind = PLAN_PUT_WITH_SIGNAL;
    must_find(plan, 1, "rank 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_that_is_left_out_is_found),
        cmocka_unit_test(a_relaxed_signal_does_not_publish_data),
        cmocka_unit_test(a_signal_that_is_left_out_is_found),
        cmocka_unit_test(reuse_of_scratch_by_the_next_run_is_found),
        cmocka_unit_test(packets_that_overwrite_others_are_found),
        cmocka_unit_test(a_ring_that_is_filled_too_far_is_found),
        cmocka_unit_test(users_see_that_peers_still_use_their_buffers),
        cmocka_unit_test(a_wrong_chunk_is_found),
        cmocka_unit_test(scratch_that_nobody_wrote_is_found),
        cmocka_unit_test(another_order_of_adding_is_found),
        cmocka_unit_test(a_put_that_nobody_flushed_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
