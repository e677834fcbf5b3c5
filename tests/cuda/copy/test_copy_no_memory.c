/* Out of memory on one rank in the module, even for a few bytes, fails on all ranks. */
#include "copy/lacking_copies.h"

static void one_rank_without_memory_fails_on_all(void **state)
{
    static lacking_copies tests[] = {{true, "direct", NULL},
                                     {true, "pipeline", "peer"},
                                     {true, "pipeline", "nvshmem"},
                                     {true, "nccl", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        ranks_run(3, lack_for_copies, &tests[i]);
}

int main(void)
{
    gpu_count();
    if (!gpu_is_emulated()) {
        printf("skipped: it counts what the emulated driver's module allocates\n");
        return 77;
    }
    setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 1);
    setenv("BANYAN_NCCL", BANYAN_EMULATED_MODULES "/libnccl.so.2", 1);
    lack_library = "libbanyan_cuda";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_without_memory_fails_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
