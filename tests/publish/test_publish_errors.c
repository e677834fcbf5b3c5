/* Calls that are refused, with tensors in host memory. */
#include "publish/errors.h"

int main(void)
{
    const struct CMUnitTest tests[] = {ERRORS_TESTS};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
