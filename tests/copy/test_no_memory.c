/* Out of memory on one rank fails on all ranks. */
#include "copy/lacking_copies.h"

static void one_rank_without_memory_fails_on_all(void **state)
{
    static lacking_copies tests[] = {{false, "direct", NULL}, {false, "pipeline", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        ranks_run(3, lack_for_copies, &tests[i]);
}

int main(void)
{
    if (!lack_is_possible())
        return 77;
    lack_least_bytes = 1024; /* agreement messages are shorter, and cannot fail */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_without_memory_fails_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
