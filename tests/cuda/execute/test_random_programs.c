/* Random programs leave the sequential result in GPUs' memory, chunk by chunk, if all their
 * operations are ordered, including those of a thread block's threads. The host runs each of these
 * programs unchanged. */
#include <banyan/check.h>

#include "execute/compared.h"
#include "program/random_program.h"
#include "support/gpu/gpu_stream.h"

#define PROGRAMS 12
#define SEEDS_MOST 400

/* Ranks synchronize before and after every run, so that callers' accesses are ordered. */
static bool is_in_order(const banyan_plan *plan, uint64_t message_bytes)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    options.message_bytes = &message_bytes;
    options.message_count = 1;
    options.max_findings = 10000;
    options.warnings = false;
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    bool in_order = true;
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *found = banyan_check_report_finding(report, i);
        in_order &= found->rule != BANYAN_CHECK_RACE || found->caller_only;
    }
    banyan_check_report_destroy(report);
    return in_order;
}

static bool run_one(banyan_world *world, uint64_t seed)
{
    random_state sizes = random_from(seed);
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse = seed % 3 != 0;
    options.fuse_more = seed % 2 != 0;
    options.instances = seed % 5 == 0 ? 2 : 1;
    banyan_plan *plan = compile_random(seed, options.instances > 1 ? 1 : 2, &options);
    compared_case c = {.plan = plan,
                       .chunk_elems = (uint64_t)random_between(&sizes, 1, 40),
                       .workers = 1,
                       .runs = 2,
                       .seed = seed,
                       .device = gpu_device_for(banyan_world_rank(world))};
    uint64_t bytes =
        compared_chunks(plan, PLAN_INPUT) * c.chunk_elems * banyan_dtype_bytes(COMPARED_TYPE);
    bool runs = is_in_order(plan, bytes);
    if (runs)
        compared_run(world, &c);
    banyan_plan_destroy(plan);
    return runs;
}

static void run_random(banyan_world *world, void *context)
{
    int run = 0;
    for (uint64_t i = 0; i < SEEDS_MOST && run < PROGRAMS; i++)
        run += run_one(world, *(const uint64_t *)context + i);
    CHECK(run == PROGRAMS, "only %d of %d random programs are in order", run, SEEDS_MOST);
}

static void random_programs_are_run_right(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    if (gpu_is_emulated())
        ranks_run_threads(RANKS, run_random, &seed);
    if (gpu_count() >= RANKS)
        ranks_run(RANKS, run_random, &seed);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_are_run_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
