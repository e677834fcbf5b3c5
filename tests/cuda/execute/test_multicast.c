/* Switch channels through multicast memory, between emulated GPUs. */
#include <fnmatch.h>

#include "cuda/gpu_multicast.h"
#include "execute/collective_check.h"
#include "support/plans.h"
#include "support/proof.h"

struct rig {
    banyan_world *world;
    DLDevice device;
    banyan_executor *executor;
    void *stream;
};

static struct rig set_up_on(banyan_world *world, DLDevice device)
{
    struct rig rig = {.world = world, .device = device};
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    options.device = rig.device;
    CHECK_OK(banyan_executor_open(world, &options, &rig.executor));
    rig.stream = gpu_stream_create(rig.device);
    return rig;
}

static struct rig set_up(banyan_world *world)
{
    return set_up_on(world, gpu_device_for(banyan_world_rank(world)));
}

static void take_down(const struct rig *rig)
{
    gpu_stream_destroy(rig->device, rig->stream);
    banyan_executor_close(rig->executor);
}

static void run_case(const struct rig *rig, const banyan_plan *plan, DLDataType dtype,
                     banyan_reduce_op op, uint64_t elems, int turn)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    bool blocks = info.collective == BANYAN_REDUCESCATTER;
    collective_case c = {.plan = plan,
                         .message_bytes = elems * banyan_dtype_bytes(dtype) *
                                          (blocks ? (uint64_t)info.ranks : 1),
                         .dtype = dtype,
                         .op = op,
                         .symmetric = turn % 2 == 0,
                         .apart = turn % 4 >= 2 || !info.in_place,
                         .runs = 3,
                         .device = rig->device,
                         .stream = rig->stream};
    case_run(rig->world, rig->executor, &c);
}

/* Whole units, in the types that multicast memory adds and one that it only moves; in total, each
 * type with all kinds of buffers. Also sizes that are not whole units. */
static void run_plan(const struct rig *rig, const banyan_plan *plan, const char *name, int first,
                     int turns)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    bool adds = info.collective == BANYAN_ALLREDUCE || info.collective == BANYAN_REDUCESCATTER;
    const DLDataType types[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_I32};
    static const uint64_t odd[] = {0, 7, 1, 5001};
    for (int turn = first; turn < first + turns; turn++) {
        DLDataType dtype = types[(turn + turn / 4) % 4];
        uint64_t before = accesses(rig->world);
        run_case(rig, plan, dtype, BANYAN_SUM, 512 * (uint64_t)(2 + turn % 16), turn);
        bool expected = !adds || dtype.code != kDLInt;
        CHECK(!expected || accesses(rig->world) > before, "%s, turn %d: no multimem access", name,
              turn);
    }
    for (int i = 0; i < turns / 2; i++)
        run_case(rig, plan, types[i % 4], BANYAN_SUM, odd[(first + i) % 4], i);
}

static void run_files(const struct rig *rig, int *matched)
{
    static const char *const names[] = {
        "single_node_allgather_nvls_zero_copy_2.json",
        "single_node_allgather_nvls_zero_copy_4.json",
        "single_node_allreduce_nvls_zero_copy_2.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        banyan_plan *plan;
        snprintf(path, sizeof path, "%s/%s", plans_dir(), names[i]);
        CHECK_OK(banyan_plan_read(path, &plan));
        if (banyan_plan_describe(plan).ranks == banyan_world_size(rig->world)) {
            run_plan(rig, plan, names[i], 0, 16);
            ++*matched;
        }
        banyan_plan_destroy(plan);
    }
}

static void run_folder(banyan_world *world, void *context)
{
    int matched = 0;
    begin(context);
    struct rig rig = set_up(world);
    run_files(&rig, &matched);
    take_down(&rig);
    CHECK(matched > 0, "no plans of %d ranks", banyan_world_size(world));
    CHECK(logged[0] == '\0', "%s", logged);
}

static void plans_of_files_go_through_multimem(void **state)
{
    (void)state;
    ranks_run(2, run_folder, (void *)&all_have_it);
    if (gpu_count() >= 4)
        ranks_run(4, run_folder, (void *)&all_have_it);
}

static banyan_plan *compile(const char *name, const banyan_world *world, bool in_place,
                            int instances)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_plan *plan;
    params.ranks = banyan_world_size(world);
    params.in_place = in_place;
    params.instances = instances;
    params.root = params.ranks - 1;
    params.unit_bytes = 1024;
    return banyan_algorithm_compile(name, &params, &plan) == BANYAN_OK ? plan : NULL;
}

static void run_algorithms(banyan_world *world, void *context)
{
    if (context)
        begin(context);
    banyan_algorithm_info info;
    struct rig rig = set_up(world);
    int ran = 0;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        for (int in_place = 0; in_place < 2 && fnmatch("*switch*", info.name, 0) == 0; in_place++) {
            banyan_plan *plan = compile(info.name, world, in_place, 1 + in_place);
            if (!plan)
                continue;
            run_plan(&rig, plan, info.name, 4 * ran, 4);
            banyan_plan_destroy(plan);
            ran++;
        }
    }
    take_down(&rig);
    CHECK(ran >= 7, "%d algorithms have switch channels", ran);
}

static void built_in_algorithms_go_through_multimem(void **state)
{
    (void)state;
    begin(&all_have_it); /* threads share it */
    ranks_run_threads(2, run_algorithms, NULL);
    ranks_run(gpu_count() >= 4 ? 4 : 2, run_algorithms, (void *)&all_have_it);
}

struct software_case {
    struct setting settings[2]; /* of all ranks but 1, and of rank 1 */
    bool share;                 /* one GPU for all ranks */
    const char *line;           /* expected log line; NULL: none */
    bool calls;                 /* some ranks call the driver's multicast functions */
};

static void run_in_software(banyan_world *world, void *context)
{
    const struct software_case *of = context;
    int rank = banyan_world_rank(world);
    begin(&of->settings[rank == 1]);
    struct rig rig = set_up_on(world, gpu_device_for(of->share ? 0 : rank));
    banyan_plan *plan = compile("allreduce_switch_direct", world, false, 1);
    for (int turn = 0; turn < 4; turn++)
        run_case(&rig, plan, BANYAN_F32, BANYAN_SUM, 4096, turn);
    banyan_plan_destroy(plan);
    take_down(&rig);
    CHECK(accesses(world) == 0);
    CHECK(of->calls || calls() == 0, "%llu calls", (unsigned long long)calls());
    CHECK(of->line ? strstr(logged, of->line) != NULL : logged[0] == '\0', "\"%s\" is not in: %s",
          of->line ? of->line : "", logged);
}

static void run_software_case(const struct software_case *of)
{
    ranks_run(gpu_count() >= 3 ? 3 : 2, run_in_software, (void *)of);
}

static void without_the_variable_no_multicast_function_is_called(void **state)
{
    (void)state;
    static const char *const values[] = {NULL, "", "0", "yes", "11"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        run_software_case(
            &(struct software_case){.settings = {{values[i], "1"}, {values[i], "1"}}});
}

static void one_rank_without_the_variable_keeps_all_to_software(void **state)
{
    (void)state;
    run_software_case(&(struct software_case){.settings = {{"1", "1"}, {NULL, "1"}},
                                              .line = "device 1: BANYAN_MULTICAST is not 1",
                                              .calls = true});
}

static void a_device_without_multicast_keeps_all_to_software(void **state)
{
    (void)state;
    run_software_case(&(struct software_case){.settings = {{"1", "1"}, {"1", NULL}},
                                              .line = "device 1: it has no multicast",
                                              .calls = true});
}

static void a_driver_without_multicast_keeps_all_to_software(void **state)
{
    (void)state;
    run_software_case(&(struct software_case){.settings = {{"1", "old"}, {"1", "old"}},
                                              .line = "older than CUDA 12.1"});
}

static void ranks_that_share_a_device_keep_to_software(void **state)
{
    (void)state;
    run_software_case(&(struct software_case){.settings = {{"1", "1"}, {"1", "1"}},
                                              .share = true,
                                              .line = "ranks 0 and 1 share a device",
                                              .calls = true});
}

static void memory_that_cannot_be_bound_keeps_all_to_software(void **state)
{
    (void)state;
    run_software_case(&(struct software_case){.settings = {{"1", "unbound"}, {"1", "unbound"}},
                                              .line = "cuMulticastBindMem on device 1",
                                              .calls = true});
}

static void other_reductions_are_right(banyan_world *world, void *context)
{
    begin(context);
    struct rig rig = set_up(world);
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = banyan_world_size(world);
    params.op = BANYAN_MAX;
    banyan_plan *plan;
    CHECK_OK(banyan_algorithm_compile("allreduce_switch", &params, &plan));
    uint64_t before = accesses(world);
    run_case(&rig, plan, BANYAN_BF16, BANYAN_MAX, 4096, 0);
    CHECK(accesses(world) == before, "multicast memory has no maxima");
    banyan_plan_destroy(plan);
    take_down(&rig);
}

static void maxima_are_reduced_in_software(void **state)
{
    (void)state;
    ranks_run(2, other_reductions_are_right, (void *)&all_have_it);
}

static void meet(banyan_program *program)
{
    const int ranks[] = {0, 1};
    banyan_program_memory_channel *channels[2];
    for (int rank = 0; rank < 2; rank++)
        channels[rank] = banyan_program_memory_channel_create(program, ranks[1 - rank], rank);
    for (int rank = 0; rank < 2; rank++)
        banyan_program_memory_signal(channels[rank], 0, BANYAN_SYNC_BOTH);
    for (int rank = 0; rank < 2; rank++)
        banyan_program_memory_wait(channels[rank], 0, BANYAN_SYNC_BOTH);
}

/* Each rank reduces and stores its half unit by unit. */
static banyan_plan *write_loop(bool fuse)
{
    const int ranks[] = {0, 1};
    banyan_collective collective = {.kind = BANYAN_ALLREDUCE};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    banyan_plan *plan;
    options.fuse = fuse;
    CHECK_OK(banyan_program_create("loop", &collective, 2, &options, &program));
    banyan_program_switch_channel *inputs =
        banyan_program_switch_channel_create(program, ranks, 2, BANYAN_INPUT);
    banyan_program_switch_channel *outputs =
        banyan_program_switch_channel_create(program, ranks, 2, BANYAN_OUTPUT);
    meet(program);
    banyan_program_loop_begin(program, 512, 1);
    for (int rank = 0; rank < 2; rank++) {
        banyan_chunk own = banyan_program_output(program, rank, (uint64_t)rank, (uint64_t)rank + 1);
        banyan_program_switch_reduce(inputs, rank, (uint64_t)rank, 1, own, BANYAN_SUM, 0);
        banyan_program_switch_broadcast(outputs, rank, own, (uint64_t)rank, 1, 0);
    }
    banyan_program_loop_end(program);
    meet(program);
    CHECK_OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    proof_demand(plan, "loop");
    return plan;
}

static void run_loops(banyan_world *world, void *context)
{
    begin(context);
    struct rig rig = set_up(world);
    for (int fuse = 0; fuse < 2; fuse++) {
        banyan_plan *plan = write_loop(fuse);
        for (int turn = 0; turn < 4; turn++) {
            uint64_t before = accesses(world);
            run_case(&rig, plan, BANYAN_BF16, BANYAN_SUM, 2 * (uint64_t)(8 + 1111 * 8 * turn),
                     turn);
            CHECK(accesses(world) > before, "turn %d", turn);
        }
        run_case(&rig, plan, BANYAN_BF16, BANYAN_SUM, 1001, 0);
        banyan_plan_destroy(plan);
    }
    take_down(&rig);
}

static void loops_go_through_multimem(void **state)
{
    (void)state;
    ranks_run(2, run_loops, (void *)&all_have_it);
}

static void replay(banyan_world *world, void *context)
{
    enum { ELEMS = 4096, REPLAYS = 20 };
    begin(context);
    struct rig rig = set_up(world);
    banyan_plan *plan = compile("allreduce_switch", world, false, 1);
    int rank = banyan_world_rank(world);
    collective_case c = {.plan = plan,
                         .message_bytes = ELEMS * 4,
                         .dtype = BANYAN_F32,
                         .apart = true,
                         .device = rig.device,
                         .stream = rig.stream};
    case_buffers b = case_take(&c, world);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded;
    options.max_message_bytes = c.message_bytes;
    CHECK_OK(banyan_loaded_plan_open(rig.executor, plan, &options, &loaded));
    gpu_capture_begin(rig.device, rig.stream);
    CHECK_OK(
        banyan_loaded_plan_run(loaded, b.input, b.output, c.message_bytes, c.dtype, rig.stream));
    void *graph = gpu_capture_end(rig.device, rig.stream);
    uint64_t before = accesses(world);
    for (int run = 0; run < REPLAYS; run++) {
        case_fill(&c, &b, rank, run);
        gpu_graph_launch(rig.device, graph, rig.stream);
        gpu_stream_wait(rig.device, rig.stream);
        CHECK_OK(banyan_loaded_plan_status(loaded));
        case_check(&c, &b, rank, run);
    }
    CHECK(accesses(world) > before);
    gpu_graph_destroy(rig.device, graph);
    CHECK_OK(banyan_loaded_plan_close(loaded));
    case_give_back(&c, &b);
    banyan_plan_destroy(plan);
    take_down(&rig);
}

static void graphs_are_replayed_with_other_data(void **state)
{
    (void)state;
    ranks_run(2, replay, (void *)&all_have_it);
}

int main(void)
{
    multicast_tests_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_of_files_go_through_multimem),
        cmocka_unit_test(built_in_algorithms_go_through_multimem),
        cmocka_unit_test(without_the_variable_no_multicast_function_is_called),
        cmocka_unit_test(one_rank_without_the_variable_keeps_all_to_software),
        cmocka_unit_test(a_device_without_multicast_keeps_all_to_software),
        cmocka_unit_test(a_driver_without_multicast_keeps_all_to_software),
        cmocka_unit_test(ranks_that_share_a_device_keep_to_software),
        cmocka_unit_test(memory_that_cannot_be_bound_keeps_all_to_software),
        cmocka_unit_test(maxima_are_reduced_in_software),
        cmocka_unit_test(loops_go_through_multimem),
        cmocka_unit_test(graphs_are_replayed_with_other_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
