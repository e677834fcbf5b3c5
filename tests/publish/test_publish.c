/* Engines follow a publication, with tensors in host memory. */
#include "publish/versions.h"

int main(void)
{
    const struct CMUnitTest tests[] = {VERSIONS_TESTS};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
