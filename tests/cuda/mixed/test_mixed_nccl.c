/* NCCL modes of mixed collectives. NCCL starts at autotuning or at the first run that uses it. If
 * it does not start, its modes become invalid on all ranks. Errors name the mode. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda/gpu_mixed.h"
#include "support/text_file.h"

#define ELEMS 2000
#define OP BANYAN_MIXED_ALLREDUCE_ALLGATHER
/* A part of the world's deadline: no rank waits for it. */
#define SECONDS_MOST 20

static const char failing_rank[] = "EMULATED_NCCL_FAILS"; /* rank of each communicator */

static const char prefers_nccl[] =
    "{\"format\": \"banyan mixed tuning\", \"version\": 1, \"local_tp\": 2, \"local_dp\": 2, "
    "\"inter_tp\": 1, \"inter_dp\": 1, \"dtype\": \"F32\", \"device\": \"cuda\", \"rows\": ["
    "{\"op\": \"allreduce_allgather\", \"bytes\": 1024, \"mode\": \"one_shot\", \"ns\": 9},"
    "{\"op\": \"allreduce_allgather\", \"bytes\": 1024, \"mode\": \"world\", \"ns\": 5},"
    "{\"op\": \"allreduce_allgather\", \"bytes\": 1024, \"mode\": \"separate_nccl\", \"ns\": 4}]}";

/* Open with a table, with none, or with autotuning. */
static void open_case(mixed_case *c, banyan_world *world, const char *table, bool tunes)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    options.max_bytes = 1024;
    options.autotune = table;
    options.use_autotune = tunes;
    gpu_case_open(c, world, options, ELEMS);
}

static bool has_nccl_modes(const mixed_case *c)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    bool world = false, two = false;
    CHECK_OK(banyan_mixed_valid_modes(c->mixed, OP, modes, BANYAN_MIXED_MODES, &count));
    for (size_t i = 0; i < count; i++) {
        world |= modes[i] == BANYAN_MIXED_SINGLE_NCCL;
        two |= modes[i] == BANYAN_MIXED_SEPARATE_NCCL;
    }
    CHECK(world == two);
    return world;
}

static mixed_one call_of(banyan_mixed_mode mode)
{
    return (mixed_one){.op = OP, .mode = mode, .rows = 4, .row_elems = 64};
}

static void check_choice(const mixed_case *c, banyan_mixed_mode expected)
{
    banyan_mixed_mode mode;
    CHECK_OK(banyan_mixed_select_autotune_mode(c->mixed, OP, 1024, &mode));
    CHECK(mode == expected, "%s is chosen", banyan_mixed_mode_name(mode));
}

/* Check that the latest error names the mode, and begins with a rank: the failed one, or this
 * one. */
static void check_names(banyan_mixed_mode mode)
{
    const char *sentence = banyan_last_error(), *name = banyan_mixed_mode_name(mode);
    CHECK(strncmp(sentence, "rank ", 5) == 0 && strstr(sentence, name), "%s", sentence);
}

/* Check that all other modes work as before. */
static void check_without(mixed_case *c, const char *why)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count;
    mixed_one call = call_of(BANYAN_MIXED_SEPARATE_NCCL);
    CHECK(!has_nccl_modes(c));
    CHECK_FAILS(case_call(c, &call), BANYAN_ERR_INVALID, why);
    CHECK_OK(banyan_mixed_valid_modes(c->mixed, OP, modes, BANYAN_MIXED_MODES, &count));
    CHECK(count == 4, "%zu modes", count);
    modes[count] = BANYAN_MIXED_AUTO;
    for (size_t i = 0; i <= count; i++) {
        call = call_of(modes[i]);
        case_run(c, &call);
    }
}

static void fail_when_named(banyan_world *world, void *context)
{
    mixed_one call = call_of(*(const banyan_mixed_mode *)context);
    mixed_case c;
    open_case(&c, world, NULL, false);
    CHECK(has_nccl_modes(&c));
    CHECK_FAILS(case_call(&c, &call), BANYAN_ERR_SYSTEM, "NCCL does not start");
    CHECK(strstr(banyan_last_error(), "the emulated network"), "%s", banyan_last_error());
    check_names(call.mode);
    check_without(&c, "NCCL does not start");
    gpu_case_close(&c);
}

static void fail_when_chosen(banyan_world *world, void *context)
{
    mixed_one call = call_of(BANYAN_MIXED_AUTO);
    mixed_case c;
    open_case(&c, world, context, false);
    check_choice(&c, BANYAN_MIXED_SEPARATE_NCCL);
    case_run(&c, &call);
    check_choice(&c, BANYAN_MIXED_SINGLE);
    check_without(&c, "NCCL does not start");
    gpu_case_close(&c);
}

static void fail_when_tuned(banyan_world *world, void *context)
{
    banyan_mixed_timing timing;
    mixed_case c;
    (void)context;
    open_case(&c, world, NULL, true);
    for (size_t i = 0; banyan_mixed_timing_at(c.mixed, i, &timing) == BANYAN_OK; i++)
        CHECK(timing.mode < BANYAN_MIXED_SINGLE_NCCL);
    check_without(&c, "NCCL does not start");
    gpu_case_close(&c);
}

static void one_that_does_not_start_costs_its_modes_alone(void **state)
{
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_SINGLE_NCCL, BANYAN_MIXED_SEPARATE_NCCL};
    time_t begun = time(NULL);
    (void)state;
    if (!gpu_is_emulated())
        skip(); /* real NCCL starts */
    text_file table = text_file_of(prefers_nccl);
    for (int rank = 0; rank < 2; rank++) {
        setenv(failing_rank, rank ? "1" : "0", 1);
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
            ranks_run(4, fail_when_named, (void *)&modes[i]);
        ranks_run(4, fail_when_chosen, table.path);
        ranks_run(4, fail_when_tuned, NULL);
    }
    unsetenv(failing_rank);
    text_file_remove(&table);
    CHECK(time(NULL) - begun < SECONDS_MOST, "the others waited for who could not start");
}

static void start_when_chosen(banyan_world *world, void *context)
{
    mixed_one call = call_of(BANYAN_MIXED_AUTO);
    mixed_case c;
    open_case(&c, world, context, false);
    if (has_nccl_modes(&c)) {
        void *graph = gpu_case_capture(&c, &call); /* it starts during a graph's capture */
        check_choice(&c, BANYAN_MIXED_SEPARATE_NCCL);
        for (int i = 0; i < 3; i++)
            gpu_case_replay(&c, &call, graph);
        case_run(&c, &call);
        gpu_graph_destroy(c.device, graph);
    }
    gpu_case_close(&c);
}

static void the_first_run_that_wants_it_starts_it(void **state)
{
    (void)state;
    text_file table = text_file_of(prefers_nccl);
    ranks_run(4, start_when_chosen, table.path);
    text_file_remove(&table);
}

/* All four ranks but rank 3 have queued a call. Its death also ends calls of ranks that do not
 * wait for it. */
static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    mixed_one call = call_of(*(const banyan_mixed_mode *)context);
    banyan_world *world = ranks_open_world(rank, count, id, UINT64_C(60000000000));
    mixed_case c;
    open_case(&c, world, NULL, false);
    if (!has_nccl_modes(&c))
        _exit(77);
    case_run(&c, &call);
    case_fill(&c, &call);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 3) {
        usleep(200000); /* the others are in the call */
        raise(SIGKILL);
    }
    CHECK_OK(case_call(&c, &call));
    while (banyan_mixed_status(c.mixed) == BANYAN_OK)
        usleep(1000);
    for (int told = 0; told < 3; told++) {
        banyan_status status = told < 2 ? banyan_mixed_status(c.mixed) : case_call(&c, &call);
        CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED, "%s",
              banyan_last_error());
        CHECK(strstr(banyan_last_error(), "rank 3 (pid"), "%s", banyan_last_error());
        check_names(call.mode);
        gpu_stream_wait(c.device, c.stream);
    }
    CHECK(banyan_mixed_close(c.mixed) != BANYAN_OK);
    banyan_world_close(world);
}

static void a_death_is_told_with_the_mode(void **state)
{
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_SINGLE_NCCL, BANYAN_MIXED_SEPARATE_NCCL};
    int statuses[4];
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        ranks_fork(4, die, (void *)&modes[i], statuses);
        if (WIFEXITED(statuses[3]) && WEXITSTATUS(statuses[3]) == 77)
            skip(); /* there is no NCCL */
        for (int rank = 0; rank < 4; rank++)
            CHECK(statuses[rank] == (rank == 3 ? SIGKILL : 0), "%s: rank %d ended with %#x",
                  banyan_mixed_mode_name(modes[i]), rank, (unsigned)statuses[rank]);
    }
}

/* NCCL would not start: its modes are not listed, and the reason names the ranks. */
static void share_a_gpu(banyan_world *world, void *context)
{
    (void)context;
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    mixed_case c = {.world = world, .device = gpu_device_for(banyan_world_rank(world) / 2)};
    options.max_bytes = 1024;
    options.device = c.device;
    c.stream = gpu_stream_create(c.device);
    case_open(&c, &options, ELEMS);
    CHECK(!has_nccl_modes(&c), "NCCL's modes are listed");
    check_without(&c, " share a GPU, where NCCL starts ");
    gpu_case_close(&c);
}

static void ranks_that_share_a_gpu_do_without(void **state)
{
    (void)state;
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    ranks_run(4, share_a_gpu, NULL);
}

int main(void)
{
    if (gpu_count() < 4) {
        printf("skipped: there are fewer than four GPUs\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_does_not_start_costs_its_modes_alone),
        cmocka_unit_test(the_first_run_that_wants_it_starts_it),
        cmocka_unit_test(a_death_is_told_with_the_mode),
        cmocka_unit_test(ranks_that_share_a_gpu_do_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
