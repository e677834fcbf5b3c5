/* The examples' plans implement their collectives for any number of ranks, without races. */
#include <inttypes.h>

#include "support/symbolic/symbolic.h"
#include "support/test.h"

/* Return the plan that the example prints for this number of ranks. */
static banyan_plan *plan_of(const char *example, int ranks)
{
    char command[512], *text = NULL;
    size_t bytes = 0;
    snprintf(command, sizeof command, BANYAN_BINARY_DIR "/bin/example_%s %d", example, ranks);
    FILE *from = popen(command, "r"), *to = open_memstream(&text, &bytes);
    CHECK(from && to, "%s", command);
    for (int c = fgetc(from); c != EOF; c = fgetc(from))
        fputc(c, to);
    CHECK(pclose(from) == 0, "%s failed", command);
    fclose(to);
    banyan_plan *plan;
    CHECK_OK(banyan_plan_parse(text, bytes, example, &plan));
    free(text);
    return plan;
}

static void the_plan_is_right(void **state)
{
    const char *example = *state;
    char problem[512];
    for (int ranks = 2; ranks <= 6; ranks++) {
        banyan_plan *plan = plan_of(example, ranks);
        bool same_bits = plan->collective == BANYAN_ALLREDUCE;
        for (uint64_t i = 0; i < 5; i++) {
            symbolic_options options = {
                .runs = 3, .units = 3, .seed = random_seed() + i, .same_bits = same_bits};
            CHECK(symbolic_play(plan, &options, problem, sizeof problem),
                  "%s of %d ranks, TEST_SEED=%" PRIu64 ": %s", example, ranks, options.seed,
                  problem);
        }
        banyan_plan_destroy(plan);
    }
}

#define EXAMPLE(name)                                                                              \
    {                                                                                              \
#name, the_plan_is_right, NULL, NULL, (char[])                                             \
        {                                                                                          \
#name                                                                                  \
        }                                                                                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        EXAMPLE(ring_allreduce),
        EXAMPLE(packet_allreduce),
        EXAMPLE(pipelined_allgather),
        EXAMPLE(halo_exchange),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
