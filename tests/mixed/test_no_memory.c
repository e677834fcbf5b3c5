/* Out of memory on one rank fails on all ranks at once, and a retry succeeds. */
#include <sys/resource.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/threads/sanitizer.h"
#include "mixed/mixed.h"
#include "mixed/mixed_check.h"
#include "support/folder.h"
#include "support/lacking.h"

#define ELEMS (UINT64_C(1) << 20)

static rlim_t used_bytes(void)
{
    long count = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld", &count) == 1);
    fclose(file);
    return (rlim_t)count * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void run_without(mixed_case *c, const mixed_one *call)
{
    struct rlimit before;
    uint64_t began_ns = time_now_ns();
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    case_fill(c, call);
    if (banyan_world_rank(c->world) == 1)
        CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){used_bytes(), before.rlim_max}) == 0);
    banyan_status status = case_call(c, call);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(status == BANYAN_ERR_NO_MEMORY || status == BANYAN_ERR_SYSTEM, "%d: %s", status,
          banyan_last_error());
    CHECK(time_now_ns() - began_ns < 5 * NS_PER_S, "the others waited");
}

static void lack_memory(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    mixed_one call = {.op = BANYAN_MIXED_REDUCESCATTER_ALLREDUCE,
                      .mode = *(const banyan_mixed_mode *)context,
                      .rows = 1,
                      .row_elems = ELEMS};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    mixed_case c = {.world = world};
    case_open(&c, &options, ELEMS);
    run_without(&c, &call);
    case_run(&c, &call);
    case_close(&c);
}

static void one_rank_without_staging_fails_on_all(void **state)
{
    banyan_mixed_mode mode = BANYAN_MIXED_SINGLE;
    (void)state;
    ranks_run(4, lack_memory, &mode);
}

static void one_rank_without_a_communicator_fails_on_all(void **state)
{
    banyan_mixed_mode mode = BANYAN_MIXED_SEPARATE;
    (void)state;
    ranks_run(4, lack_memory, &mode);
}

/* The communicators exist, and one of them is out of memory for a longer call's plan. */
static void lack_plan(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    mixed_one call = {.op = *(const banyan_mixed_op *)context,
                      .mode = BANYAN_MIXED_SEPARATE,
                      .rows = 1,
                      .row_elems = 4};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    mixed_case c = {.world = world};
    case_open(&c, &options, ELEMS);
    case_run(&c, &call);
    call.row_elems = ELEMS;
    run_without(&c, &call);
    case_run(&c, &call);
    case_close(&c);
}

static void one_rank_without_a_communicators_plan_fails_on_all(void **state)
{
    static const banyan_mixed_op ops[] = {BANYAN_MIXED_ALLREDUCE_ALLGATHER,
                                          BANYAN_MIXED_REDUCESCATTER_ALLREDUCE};
    (void)state;
    for (int i = 0; i < 2; i++)
        ranks_run(4, lack_plan, (void *)&ops[i]);
}

#define SIZES 200

/* Write a table with this many sizes, all with this mode. */
static char *write_table(const char *folder, const char *mode, int sizes)
{
    char *path = folder_path(folder, mode);
    FILE *file = fopen(path, "w");
    CHECK(file);
    fprintf(file, "{\"format\": \"banyan mixed tuning\", \"version\": 1, \"local_tp\": 2, "
                  "\"local_dp\": 1, \"inter_tp\": 1, \"inter_dp\": 1, \"dtype\": \"F32\", "
                  "\"device\": \"host\", \"rows\": [");
    for (int i = 1; i <= sizes; i++)
        fprintf(file, "{\"op\": \"allreduce\", \"bytes\": %d, \"mode\": \"%s\", \"ns\": 9}%s", i,
                mode, i < sizes ? ", " : "]}");
    CHECK(fclose(file) == 0);
    return path;
}

static void check_choice(const banyan_mixed *mixed, banyan_mixed_mode expected)
{
    banyan_mixed_mode mode;
    CHECK_OK(banyan_mixed_select_autotune_mode(mixed, BANYAN_MIXED_ALLREDUCE, 100, &mode));
    CHECK(mode == expected, "%s is chosen", banyan_mixed_mode_name(mode));
}

static void load_tables(banyan_world *world, void *context)
{
    static const grid_sizes sizes = {1, 2, 1, 1, 1};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    char **paths = context;
    bool lacked = true;
    lack_least_bytes = SIZES * sizeof(mixed_choice); /* of the longer table */
    for (int n = 0; lacked; n++) {
        banyan_mixed *mixed;
        options.autotune = paths[0];
        CHECK_OK(banyan_mixed_open(world, &options, &mixed));
        check_choice(mixed, BANYAN_MIXED_SINGLE);
        lack_begin(world, LACK_ANY, n);
        lacked = lack_end(world, banyan_mixed_load_autotune(mixed, paths[1]), BANYAN_ERR_NO_MEMORY);
        CHECK(lacked || n > 2, "%d allocations", n);
        check_choice(mixed, lacked ? BANYAN_MIXED_SINGLE : BANYAN_MIXED_ONE_SHOT);
        CHECK_OK(banyan_mixed_close(mixed));
    }
}

static void a_table_that_one_rank_has_no_memory_for_is_nobodys(void **state)
{
    char *paths[] = {write_table(*state, "single", 1), write_table(*state, "one_shot", SIZES)};
    ranks_run(2, load_tables, paths);
    free(paths[0]);
    free(paths[1]);
}

int main(void)
{
#if defined(SANITIZER_MEMORY) || defined(SANITIZER_THREAD)
    printf("skipped: sanitizers take more address space than they are given\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_without_staging_fails_on_all),
        cmocka_unit_test(one_rank_without_a_communicator_fails_on_all),
        cmocka_unit_test(one_rank_without_a_communicators_plan_fails_on_all),
        cmocka_unit_test_setup_teardown(a_table_that_one_rank_has_no_memory_for_is_nobodys,
                                        folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
