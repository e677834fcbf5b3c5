/* The pipeline between GPUs of several nodes over UCX: in a node by mapped memory, between nodes
 * through pinned memory, or straight where UCX reaches memory of GPUs. */
#include "core/module.h"
#include "cuda/gpu_pipeline.h"

static const char ucx[] = "ucx";

static void set_nodes(int count)
{
    char text[8];
    snprintf(text, sizeof text, "%d", count);
    setenv("BANYAN_TEST_NODES", text, 1);
}

static void move_over(int nodes, int ranks)
{
    plan_of_test test = {.seed = random_seed() + 10 * (uint64_t)ranks,
                         .backend = "pipeline",
                         .transport = ucx,
                         .slot_bytes = 8192,
                         .most_elems = 20000};
    set_nodes(nodes);
    ranks_run(ranks, move_traffic, &test);
}

static void every_element_arrives(void **state)
{
    (void)state;
    move_over(2, 2);
    move_over(2, 4);
    if (gpu_worlds_are_cheap())
        move_over(3, 5);
}

/* Emulated GPUs' memory is the host's for UCX, so it reaches it. */
static void slots_travel_straight_where_ucx_reaches_memory_of_gpus(void **state)
{
    (void)state;
    if (!gpu_is_emulated()) {
        printf("left out: on emulated GPUs only\n");
        skip();
    }
    setenv("BANYAN_GPU_NETWORK", "direct", 1);
    move_over(2, 4);
    unsetenv("BANYAN_GPU_NETWORK");
}

static void a_graph_sends_the_current_data_at_each_replay(void **state)
{
    (void)state;
    plan_of_test test = {.seed = random_seed() + 50,
                         .backend = "pipeline",
                         .transport = ucx,
                         .slot_bytes = 20000,
                         .most_elems = 5000,
                         .graph = true};
    set_nodes(2);
    ranks_run(3, move_traffic, &test);
}

static void a_late_or_dead_partner_ends_a_run(void **state)
{
    (void)state;
    int statuses[3];
    set_nodes(2);
    gpu_pipeline_test_late(ucx);
    time_t begun = time(NULL);
    ranks_fork(3, die, (void *)(uintptr_t)ucx, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[2], 0);
    assert_true(time(NULL) - begun < 40);
}

int main(void)
{
    gpu_pipeline_begin();
    if (!module_is_there("ucx")) {
        printf("skipped: this build has no UCX module\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives),
        cmocka_unit_test(slots_travel_straight_where_ucx_reaches_memory_of_gpus),
        cmocka_unit_test(a_graph_sends_the_current_data_at_each_replay),
        cmocka_unit_test(a_late_or_dead_partner_ends_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
