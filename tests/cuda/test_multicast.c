/* Switch channels through multicast memory. No multicast object is ever made on real GPUs by these
 * tests: they are for emulated ones. */
#include <fnmatch.h>
#include <unistd.h>

#include "execute/collective_check.h"
#include "memory/multicast.h"
#include "memory/suspend.h"
#include "support/source.h"

/* ---- what the emulated driver has counted, in this process ---- */

static uint64_t count_of(const char *name)
{
    uint64_t (*count)(void) = (uint64_t(*)(void))gpu_driver_function(name);
    CHECK(count != NULL, "%s", name);
    return count();
}

static uint64_t calls(void)
{
    return count_of("emulated_multicast_calls");
}

/* Of all ranks. */
static uint64_t accesses(banyan_world *world)
{
    uint64_t mine = count_of("emulated_multicast_accesses"), sum = 0, all[8];
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, all));
    for (int i = 0; i < banyan_world_size(world); i++)
        sum += all[i];
    return sum;
}

/* What has been logged about multicast; the last line. */
static char logged[1024];

static void keep_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    if (level == BANYAN_LOG_INFO && strstr(message, "multicast"))
        snprintf(logged, sizeof logged, "%s", message);
}

/* The environment of a rank, before it touches its GPU. NULL: not set. */
struct setting {
    const char *banyan, *emulated;
};

static void set(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void begin(const struct setting *setting)
{
    set("BANYAN_MULTICAST", setting->banyan);
    set("BANYAN_EMULATED_MULTICAST", setting->emulated);
    setenv("BANYAN_LOG", "info", 1);
    banyan_log_set(keep_line, NULL);
    logged[0] = '\0';
}

static const struct setting all_have_it = {"1", "1"};

/* ---- plans ---- */

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

/* Whole units, in the types that multicast memory adds up and one that it only moves, each with all
 * kinds of buffers in the end; and sizes that cannot be cut into units. */
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
        snprintf(path, sizeof path, "%s/../shared/plans/%s", source_dir(), names[i]);
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
    char folder[512];
    snprintf(folder, sizeof folder, "%s/../shared/plans", source_dir());
    if (access(folder, R_OK) != 0) {
        print_message("%s is missing\n", folder);
        skip();
    }
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
    begin(&all_have_it); /* ranks as threads share it */
    ranks_run_threads(2, run_algorithms, (void *)&all_have_it);
    ranks_run(gpu_count() >= 4 ? 4 : 3, run_algorithms, (void *)&all_have_it);
}

/* ---- software ---- */

struct software_case {
    struct setting settings[2]; /* of all ranks but 1, and of rank 1 */
    bool share;                 /* one GPU for all */
    const char *line;           /* that is logged; NULL: none */
    bool calls;                 /* some ranks ask the driver for something */
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

/* ---- graphs ---- */

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
    banyan_load_options options = BANYAN_LOAD_OPTIONS_INIT;
    banyan_loaded_plan *loaded;
    options.max_message_bytes = c.message_bytes;
    CHECK_OK(banyan_plan_load(rig.executor, plan, &options, &loaded));
    gpu_capture_begin(rig.device, rig.stream);
    CHECK_OK(banyan_plan_run(loaded, b.input, b.output, c.message_bytes, c.dtype, rig.stream));
    void *graph = gpu_capture_end(rig.device, rig.stream);
    uint64_t before = accesses(world);
    for (int run = 0; run < REPLAYS; run++) {
        case_fill(&c, &b, rank, run);
        gpu_graph_launch(rig.device, graph, rig.stream);
        gpu_stream_wait(rig.device, rig.stream);
        CHECK_OK(banyan_plan_status(loaded));
        case_check(&c, &b, rank, run);
    }
    CHECK(accesses(world) > before);
    gpu_graph_destroy(rig.device, graph);
    CHECK_OK(banyan_plan_unload(loaded));
    case_give_back(&c, &b);
    banyan_plan_destroy(plan);
    take_down(&rig);
}

static void graphs_are_replayed_with_other_data(void **state)
{
    (void)state;
    ranks_run(2, replay, (void *)&all_have_it);
}

/* ---- addresses of buffers ---- */

/* Where an address stands for memory of the i-th device of its group. */
static char *member_of(const char *address, unsigned i)
{
    char *(*member)(const void *, unsigned) =
        (char *(*)(const void *, unsigned))gpu_driver_function("emulated_multicast_member");
    CHECK(member != NULL);
    return member(address, i);
}

static void use_pairs(banyan_world *world, void *context)
{
    begin(context);
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    int pair[] = {rank / 2 * 2, rank / 2 * 2 + 1}, count = rank < 4 ? 2 : 0;
    bool usable;
    size_t bytes, free_bytes = gpu_free_bytes(world);
    char *address, *again;
    banyan_memory *memory;
    CHECK_OK(memory_multicast_agree(world, gpu_device_for(rank), &usable));
    CHECK(usable, "%s", logged);
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 5000, &memory));
    CHECK_OK(memory_multicast_make(memory, pair, count, &address, &bytes));
    CHECK(count == 0 ? address == NULL : bytes >= 5000, "%zu bytes", bytes);
    uint64_t before = calls();
    CHECK_OK(memory_multicast_make(memory, pair, count, &again, &bytes));
    CHECK(again == address && calls() == before, "it was made once more");
    if (count > 0 && rank % 2 == 0) {
        for (unsigned i = 0; i < 2; i++)
            memset(member_of(address + 4096, i), 'a' + rank + (int)i, 16);
        CHECK(member_of(address, 2) == NULL);
    }
    CHECK_OK(banyan_world_barrier(world));
    const char *own = banyan_memory_local(memory);
    for (int i = 0; i < 16 && count > 0; i++)
        CHECK(own[4096 + i] == 'a' + rank, "byte %d is %d", i, own[4096 + i]);
    /* One rank after the other: those that still have it use what others have freed. */
    for (int turn = 0; turn < size; turn++) {
        if (count > 0 && turn <= rank)
            member_of(address, 0)[0] = member_of(address, 1)[0];
        CHECK_OK(banyan_world_barrier(world));
        if (turn == rank)
            banyan_memory_free(memory);
        CHECK_OK(banyan_world_barrier(world));
    }
    CHECK(gpu_free_bytes(world) == free_bytes, "memory is left bound");
}

static void groups_apart_have_addresses_of_their_own(void **state)
{
    (void)state;
    ranks_run(2, use_pairs, (void *)&all_have_it);
    if (gpu_count() >= 4)
        ranks_run(4, use_pairs, (void *)&all_have_it);
}

/* Both ranks' parts, through the address; then all is zeroed again. */
static void use_address(banyan_world *world, const banyan_memory *memory, char *address)
{
    int rank = banyan_world_rank(world);
    const char *own = banyan_memory_local(memory);
    CHECK(own[256 + 16 * rank] == 0);
    CHECK_OK(banyan_world_barrier(world));
    for (unsigned i = 0; i < 2; i++)
        member_of(address + 256 + 16 * rank, i)[0] = (char)('a' + rank);
    CHECK_OK(banyan_world_barrier(world));
    CHECK(own[256] == 'a' && own[272] == 'b');
}

static void suspend_and_resume(banyan_world *world, void *context)
{
    begin(context);
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    const int both[] = {0, 1};
    size_t bytes, free_bytes = gpu_free_bytes(world);
    char *address, *again;
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc_on(world, device, 4096, &memory));
    CHECK_OK(memory_multicast_make(memory, both, 2, &address, &bytes));
    use_address(world, memory, address);
    for (int round = 0; round < 2; round++) {
        CHECK_OK(memory_suspend_all(world));
        CHECK(gpu_free_bytes(world) == free_bytes, "memory is left bound");
        setenv("BANYAN_EMULATED_MULTICAST", "unbound", 1);
        CHECK_FAILS(memory_resume_all(world), BANYAN_ERR_NO_MEMORY,
                    "cuMulticastBindMem on device 1");
        CHECK(gpu_free_bytes(world) == free_bytes, "memory is left bound");
        setenv("BANYAN_EMULATED_MULTICAST", "1", 1);
        CHECK_OK(memory_resume_all(world));
        use_address(world, memory, address);
        CHECK_OK(memory_multicast_make(memory, both, 2, &again, &bytes));
        CHECK(again == address);
    }
    CHECK_OK(memory_suspend_all(world));
    banyan_memory_free(memory);
    CHECK(gpu_free_bytes(world) == free_bytes);
}

static void addresses_outlive_a_suspension(void **state)
{
    (void)state;
    ranks_run(2, suspend_and_resume, (void *)&all_have_it);
}

static void make_wrongly(banyan_world *world, void *context)
{
    begin(context);
    int rank = banyan_world_rank(world);
    DLDevice device = gpu_device_for(rank);
    const int both[] = {0, 1}, other[] = {1, 0}, alone[] = {1};
    size_t bytes;
    char *address;
    banyan_memory *memory, *adopted, *lopsided;
    void *plain = gpu_plain_alloc(device, 4096);
    CHECK_OK(banyan_memory_alloc_on(world, device, 4096, &memory));
    CHECK_FAILS(memory_multicast_make(memory, rank == 0 ? both : alone, rank == 0 ? 2 : 1, &address,
                                      &bytes),
                BANYAN_ERR_MISMATCH, "ranks 0 and 1 name different groups for multicast");
    CHECK_FAILS(memory_multicast_make(memory, other, 2, &address, &bytes), BANYAN_ERR_INVALID,
                "they are ascending");
    CHECK_FAILS(memory_multicast_make(memory, alone, 1, &address, &bytes), BANYAN_ERR_INVALID,
                "rank 0 is not in the group");
    CHECK_OK(banyan_memory_adopt(world, device, plain, 4096, &adopted));
    CHECK_FAILS(memory_multicast_make(adopted, both, 2, &address, &bytes), BANYAN_ERR_UNSUPPORTED,
                "only symmetric buffers that Banyan made");
    CHECK_OK(banyan_memory_alloc_on(world, device, rank == 0 ? 4096 : 0, &lopsided));
    CHECK_FAILS(memory_multicast_make(lopsided, both, 2, &address, &bytes), BANYAN_ERR_UNSUPPORTED,
                "has no part");
    CHECK_OK(memory_multicast_make(memory, both, 2, &address, &bytes));
    banyan_memory_free(lopsided);
    banyan_memory_free(adopted);
    banyan_memory_free(memory);
    gpu_plain_free(device, plain);
}

static void what_has_no_address_says_so_on_all_ranks(void **state)
{
    (void)state;
    ranks_run(2, make_wrongly, (void *)&all_have_it);
}

static void fail_to_bind(banyan_world *world, void *context)
{
    begin(context);
    int rank = banyan_world_rank(world);
    const int both[] = {0, 1};
    size_t bytes, free_bytes = gpu_free_bytes(world);
    char *address;
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 4096, &memory));
    CHECK_FAILS(memory_multicast_make(memory, both, 2, &address, &bytes), BANYAN_ERR_NO_MEMORY,
                "cuda: cuMulticastBindMem on device 1: out of memory");
    banyan_memory_free(memory);
    CHECK(gpu_free_bytes(world) == free_bytes, "memory is left bound");
}

static void a_failed_bind_is_all_ranks_sentence(void **state)
{
    (void)state;
    ranks_run(2, fail_to_bind, &(struct setting){"1", "unbound"});
}

/* Whoever calls the module directly gets no further. */
static void call_the_module(banyan_world *world, void *context)
{
    begin(context);
    int fd = -1;
    device_multicast made = {0};
    CHECK_FAILS(gpu_memory()->multicast_create(0, 2, 1 << 21, &fd, &made), BANYAN_ERR_UNSUPPORTED,
                "BANYAN_MULTICAST is not 1");
    CHECK_FAILS(gpu_memory()->multicast_join(0, fd, &made), BANYAN_ERR_UNSUPPORTED,
                "BANYAN_MULTICAST is not 1");
    CHECK(calls() == 0 && fd == -1 && made.object == 0);
    CHECK_OK(banyan_world_barrier(world));
}

static void the_module_itself_heeds_the_variable(void **state)
{
    (void)state;
    ranks_run(1, call_the_module, &(struct setting){"0", "1"});
}

int main(void)
{
    unsetenv("BANYAN_MULTICAST");
    gpu_count();
    if (!gpu_is_emulated()) {
        printf("skipped: multicast objects are made on emulated GPUs only\n");
        return 77;
    }
    if (gpu_count() < 2) {
        printf("skipped: multicast takes two GPUs\n");
        return 77;
    }
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
        cmocka_unit_test(graphs_are_replayed_with_other_data),
        cmocka_unit_test(groups_apart_have_addresses_of_their_own),
        cmocka_unit_test(addresses_outlive_a_suspension),
        cmocka_unit_test(what_has_no_address_says_so_on_all_ranks),
        cmocka_unit_test(a_failed_bind_is_all_ranks_sentence),
        cmocka_unit_test(the_module_itself_heeds_the_variable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
