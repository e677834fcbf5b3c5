/* Trainers and engines are killed, with tensors in host memory. */
#include "publish/deaths.h"

int main(void)
{
    const struct CMUnitTest tests[] = {DEATHS_TESTS};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
