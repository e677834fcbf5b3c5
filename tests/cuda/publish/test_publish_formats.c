/* Publications on GPUs change formats and compress as those in host memory do. */
#include "publish/compressing.h"
#include "publish/converting.h"
#include "publish/converting_errors.h"

static int run_formats(const char *name, bool engines_on_gpu, bool keeps_on_host)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_have_what_a_reshard_makes_in_every_format)};
    following_trainers_on_gpu = true;
    following_engines_on_gpu = engines_on_gpu;
    following_keeps_on_host = keeps_on_host;
    printf("%s\n", name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    gpu_count();
    int failed = run_formats("trainers on GPUs, engines on the host", false, false);
    const struct CMUnitTest errors[] = {
        CONVERTING_ERRORS_TESTS cmocka_unit_test(all_versions_take_fewer_bytes_if_told_to),
        cmocka_unit_test(a_slow_link_is_found_and_compressed_for)};
    failed += cmocka_run_group_tests(errors, NULL, NULL);
    return failed + run_formats("both on GPUs, copies on the host", true, true);
}
