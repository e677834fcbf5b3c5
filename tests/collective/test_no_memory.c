/* What one rank has no memory for fails on all ranks. */
#include "execute/lacking_plans.h"

static void one_rank_without_memory_fails_on_all(void **state)
{
    static lacking_plans tests[] = {{false, "allreduce_packets"}, {false, "allreduce_ports"}};
    (void)state;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        ranks_run(3, lack_for_plans, &tests[i]);
}

int main(void)
{
#if defined(SANITIZER_MEMORY) || defined(SANITIZER_THREAD)
    printf("skipped: sanitizers have an allocator of their own\n");
    return 77;
#endif
    lack_least_bytes = 1024; /* what ranks agree with is shorter, and cannot be lacked */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_without_memory_fails_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
