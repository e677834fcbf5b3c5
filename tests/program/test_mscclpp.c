/* The example programs of MSCCL++ compile. Writes their plans to the build folder, where
 * test_plan_digests.py compares them with those of MSCCL++ and other tests read them. */
#include "program/mscclpp/program.h"
#include "support/plans.h"

#include <errno.h>
#include <sys/stat.h>

static void write_plan(const mscclpp_program *of)
{
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    if (of->choose)
        of->choose(&options);
    banyan_program *program;
    banyan_plan *plan;
    CHECK_OK(banyan_program_create(of->name, &of->collective, of->ranks, &options, &program));
    of->write(program, of->ranks);
    CHECK(banyan_program_compile(program, &plan) == BANYAN_OK, "%s: %s", of->file,
          banyan_last_error());
    banyan_program_destroy(program);
    char path[512];
    snprintf(path, sizeof path, "%s/%s.json", plans_dir(), of->file);
    CHECK_OK(banyan_plan_write(plan, path));
    banyan_plan_destroy(plan);
}

static void every_program_compiles(void **state)
{
    (void)state;
    const mscclpp_programs *all[] = {&mscclpp_allreduce, &mscclpp_alltoall, &mscclpp_gather,
                                     &mscclpp_units};
    CHECK(mkdir(plans_dir(), 0777) == 0 || errno == EEXIST, "%s", plans_dir());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (size_t p = 0; p < all[i]->count; p++)
            write_plan(&all[i]->programs[p]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_program_compiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
