/* Fetches between GPUs pause as those between host memories do. */
#include "publish/pauses.h"

static int run_pauses(const char *name)
{
    const struct CMUnitTest tests[] = {PAUSES_TESTS};
    following_trainers_on_gpu = following_engines_on_gpu = true;
    printf("%s\n", name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    gpu_count();
    int failed = run_pauses("both on GPUs");
    following_keeps_on_host = following_has_shadow = true;
    return failed +
           run_pauses("trainers that keep their copies on the host, engines with a shadow");
}
