/* Publications and subscriptions between GPUs, and between GPUs and host memory, pass the tests of
 * those in host memory. */
#include "publish/deaths.h"
#include "publish/errors.h"
#include "publish/versions.h"

static int run_versions(const char *name, bool trainers_on_gpu, bool engines_on_gpu)
{
    const struct CMUnitTest tests[] = {VERSIONS_TESTS};
    following_trainers_on_gpu = trainers_on_gpu;
    following_engines_on_gpu = engines_on_gpu;
    printf("%s\n", name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_errors(void)
{
    const struct CMUnitTest tests[] = {ERRORS_TESTS};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A GPU's driver takes seconds to start. */
static int run_deaths(void)
{
    const struct CMUnitTest tests[] = {DEATHS_TESTS};
    return gpu_worlds_are_cheap() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}

int main(void)
{
    gpu_count();
    int failed = run_versions("trainers on GPUs, engines on the host", true, false);
    failed += run_versions("trainers on the host, engines on GPUs", false, true);
    failed += run_versions("both on GPUs", true, true);
    failed += run_errors();
    failed += run_deaths();
    following_keeps_on_host = following_has_shadow = true;
    failed += run_versions("trainers that keep their copies on the host, engines with a shadow",
                           true, true);
    return failed + run_deaths();
}
