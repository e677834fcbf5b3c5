/* One rank fails each allocation in turn while a context is opened, tuned and run: no rank
 * continues alone, or waits for it. After a failure during a call's preparation, a retry succeeds;
 * after a later one the context has ended on all ranks. */
#include "mixed/mixed_check.h"
#include "support/folder.h"
#include "support/lacking.h"
#include "world/control.h"

#define ELEMS 20000
#define GATHER BANYAN_MIXED_ALLREDUCE_ALLGATHER
#define SCATTER BANYAN_MIXED_REDUCESCATTER_ALLREDUCE
#define TRIES 2000 /* more than there are allocations */
/* Less than the deadline, and more than tuning takes on a busy machine. */
#define WAITED_NS (20 * NS_PER_S)

static banyan_mixed_options small_options(void)
{
    static const grid_sizes sizes = {2, 2, 1, 1, 2};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    options.max_bytes = 16384;
    return options;
}

/* True if an allocation failed on some rank. That rank must have an error, and so must all others
 * without a right result. */
static bool somebody_lacked(banyan_world *world, banyan_status status)
{
    char sentence[768];
    uint64_t took_ns = time_now_ns() - lack.began_ns;
    lack.is_looking = false;
    snprintf(sentence, sizeof sentence, "%s", status == BANYAN_OK ? "" : banyan_last_error());
    uint8_t any = lack.has_lacked;
    CHECK(!any || status != BANYAN_OK);
    CHECK_OK(banyan_world_broadcast(world, &any, sizeof any, LACKING));
    CHECK(any ? status == BANYAN_OK || strstr(sentence, "memory") : status == BANYAN_OK, "%s: %s",
          banyan_status_name(status), sentence);
    CHECK(took_ns < WAITED_NS, "the others waited");
    return any;
}

/* The context ends on all ranks: a rank that already has its result gets the error later. */
static bool has_ended(mixed_case *c)
{
    uint64_t began_ns = time_now_ns(), ended = banyan_mixed_status(c->mixed) != BANYAN_OK, any;
    CHECK_OK(control_max(c->world, ended, &any));
    while (any && banyan_mixed_status(c->mixed) == BANYAN_OK)
        CHECK(time_now_ns() - began_ns < WAITED_NS, "it has not ended here");
    return any;
}

/* A successful rank's result is right, and the context still works. */
static void go_on(mixed_case *c, const mixed_one *call, banyan_status status,
                  const banyan_mixed_options *options)
{
    if (!has_ended(c)) {
        uint64_t failed;
        CHECK_OK(control_max(c->world, status != BANYAN_OK, &failed));
        CHECK((status != BANYAN_OK) == failed, "ranks go on alone");
    } else {
        CHECK(banyan_mixed_close(c->mixed) != BANYAN_OK);
        CHECK_OK(banyan_mixed_open(c->world, options, &c->mixed));
    }
    if (call && status == BANYAN_OK)
        case_check(c, call);
}

static void open_at_last(banyan_world *world, void *context)
{
    banyan_mixed_options options = small_options();
    banyan_mixed *mixed;
    options.max_bytes = 1024;
    options.use_autotune = *(const bool *)context;
    bool lacked = true;
    for (int n = 0; lacked; n++) {
        CHECK(n < TRIES, "no end of allocations");
        lack_begin(world, LACK_ANY, n);
        lacked = somebody_lacked(world, banyan_mixed_open(world, &options, &mixed));
        CHECK(lacked || n > 0);
    }
    CHECK_OK(banyan_mixed_close(mixed));
}

static void opening_without_memory_fails_on_all(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool tuned = i == 1;
        ranks_run(4, open_at_last, &tuned);
    }
}

static void run_small(mixed_case *c, banyan_mixed_op op, banyan_mixed_mode mode)
{
    mixed_one call = {op, mode, DATA_WHOLE, 2, 3, false};
    case_run(c, &call);
}

static void run_at_last(banyan_world *world, const mixed_one *call)
{
    banyan_mixed_options options = small_options();
    mixed_case c = {.world = world};
    bool lacked = true;
    case_open(&c, &options, ELEMS);
    for (int n = 0; lacked; n++) {
        CHECK(n < TRIES, "no end of allocations");
        case_fill(&c, call);
        lack_begin(world, LACK_ANY, n);
        banyan_status status = case_call(&c, call);
        lacked = somebody_lacked(world, status);
        CHECK(lacked || n > 0);
        go_on(&c, call, status, &options);
        run_small(&c, call->op, BANYAN_MIXED_ONE_SHOT);
        run_small(&c, call->op, BANYAN_MIXED_SEPARATE);
    }
    case_close(&c);
}

static void run_modes(banyan_world *world, void *context)
{
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_ONE_SHOT, BANYAN_MIXED_TWO_SHOT,
                                              BANYAN_MIXED_SINGLE, BANYAN_MIXED_SEPARATE};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        mixed_one call = {*(const banyan_mixed_op *)context, modes[i], DATA_WHOLE, 1, ELEMS, false};
        run_at_last(world, &call);
    }
}

static void running_without_memory_fails_on_all(void **state)
{
    static const banyan_mixed_op ops[] = {GATHER, SCATTER};
    (void)state;
    for (int i = 0; i < 2; i++)
        ranks_run(4, run_modes, (void *)&ops[i]);
}

static void check_same_table(banyan_world *world, const banyan_mixed *mixed)
{
    banyan_mixed_timing any;
    uint8_t has = banyan_mixed_timing_at(mixed, 0, &any) == BANYAN_OK, first = has;
    CHECK_OK(banyan_world_broadcast(world, &first, sizeof first, 0));
    CHECK(has == first, "rank %d has %s table", banyan_world_rank(world), has ? "a" : "no");
}

static void tune_and_load(banyan_world *world, void *path)
{
    banyan_mixed_options options = small_options();
    mixed_case c = {.world = world};
    bool lacked = true;
    case_open(&c, &options, ELEMS);
    for (int n = 0; lacked; n++) {
        lack_begin(world, LACK_ANY, n);
        banyan_status status = banyan_mixed_run_autotune(c.mixed);
        lacked = somebody_lacked(world, status);
        CHECK(lacked || n > 0);
        check_same_table(world, c.mixed);
        go_on(&c, NULL, status, &options);
    }
    CHECK_OK(banyan_mixed_save_autotune(c.mixed, path));
    lacked = true;
    for (int n = 0; lacked; n++) {
        lack_begin(world, LACK_ANY, n);
        lacked = somebody_lacked(world, banyan_mixed_load_autotune(c.mixed, path));
        CHECK(lacked || n > 0);
        check_same_table(world, c.mixed);
    }
    case_close(&c);
}

static void tables_without_memory_are_on_all_or_none(void **state)
{
    char *path = folder_path(*state, "table.json");
    ranks_run(4, tune_and_load, path);
    free(path);
}

int main(void)
{
    if (!lack_is_possible())
        return 77;
    lack_least_bytes = 1024; /* agreement messages are shorter, and cannot fail */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_without_memory_fails_on_all),
        cmocka_unit_test(running_without_memory_fails_on_all),
        cmocka_unit_test(tables_without_memory_are_on_all_or_none),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
