/* Every kind of operation has its host result on GPUs (tests/execute/test_operations.c checks that
 * none is missing). */
#include "execute/operation_programs.h"
#include "support/gpu/gpu_stream.h"

/* Run all programs for this number of ranks in one process, since a GPU takes long to start. */
static void run_all(banyan_world *world, void *context)
{
    for (size_t i = 0; i < PROGRAMS; i++) {
        for (int way = 0; way < WAYS && programs[i].ranks == banyan_world_size(world); way++) {
            struct operation_run one = {i, way, 1, *(const uint64_t *)context,
                                        gpu_device_for(banyan_world_rank(world))};
            run_program(world, &one);
        }
    }
}

static void every_program_is_run_right(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int ranks = 1; ranks <= 3; ranks++) {
        if (ranks <= gpu_count())
            ranks_run(ranks, run_all, &seed);
    }
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_program_is_run_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
