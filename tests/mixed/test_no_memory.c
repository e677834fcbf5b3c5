/* What one rank has no memory for fails on all of them, at once, and can be tried again. */
#include <sys/resource.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/sanitizer.h"
#include "mixed/mixed_check.h"

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
    banyan_mixed_mode mode = BANYAN_MIXED_WORLD;
    (void)state;
    ranks_run(4, lack_memory, &mode);
}

static void one_rank_without_a_communicator_fails_on_all(void **state)
{
    banyan_mixed_mode mode = BANYAN_MIXED_TWO;
    (void)state;
    ranks_run(4, lack_memory, &mode);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
