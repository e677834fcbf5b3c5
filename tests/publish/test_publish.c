/* Engines follow a publication, with tensors in host memory. */
#include "publish/versions.h"

static void engines_follow_compressed_versions(void **state)
{
    following_compression = BANYAN_COMPRESSION_ALWAYS;
    engines_follow_every_version_early_and_late(state);
    a_version_can_be_taken_back(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        VERSIONS_TESTS cmocka_unit_test(engines_follow_compressed_versions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
