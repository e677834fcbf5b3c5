/* Publications change formats, with tensors in host memory. */
#include "publish/converting.h"
#include "publish/converting_errors.h"

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_have_what_a_reshard_makes_in_every_format),
        CONVERTING_ERRORS_TESTS};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
