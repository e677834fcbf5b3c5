/* Frames that reach a rendezvous, in orders that no honest rank sends: the inputs that its fuzzer
 * found, and random ones. The fuzzer's checks end the process. */
#include "support/test.h"

#include "fuzz/fuzz_rendezvous.c"

#define OWN(at) ((at) + CONNECTIONS * (at)) /* rank `at`, at connection `at` */

static void play(const uint8_t *steps, size_t count)
{
    uint8_t input[200] = {0}; /* the first byte is no step */
    memcpy(input + 1, steps, count);
    assert_int_equal(LLVMFuzzerTestOneInput(input, count + 1), 0);
}

/* Its entry was at another connection meanwhile. */
static void a_rank_that_joins_again_on_its_connection_is_there_once(void **state)
{
    (void)state;
    static const uint8_t steps[] = {CONNECT, OWN(0), JOIN, 0,    0, 0,    0, CONNECT, OWN(1),
                                    JOIN,    1,      0,    1,    0, LOOK, 0, JOIN,    0,
                                    0,       1,      0,    LOOK, 0, JOIN, 1, 0,       1,
                                    0,       LOOK,   0,    END,  1, LOOK, 0};
    play(steps, sizeof steps);
}

static void losses_of_ranks_that_do_not_exist_are_refused(void **state)
{
    (void)state;
    static const uint8_t steps[] = {CONNECT, OWN(0), JOIN, 0, 1, 0, 0,   1, 0,    LOOK,
                                    0,       LEFT,   0,    4, 1, 0, 255, 1, LOOK, 0};
    play(steps, sizeof steps);
}

static void a_ready_rank_that_leaves_is_not_ready(void **state)
{
    (void)state;
    static const uint8_t steps[] = {CONNECT, OWN(0), JOIN, 0, 3,    0, 0, 1,    0, 2,     0, 3, 0,
                                    CONNECT, OWN(4), JOIN, 4, 0,    4, 0, LOOK, 0, READY, 4, 1, 4,
                                    LOOK,    0,      END,  4, LOOK, 0};
    play(steps, sizeof steps);
}

static void random_frames_leave_right_counts(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    uint8_t input[300];
    banyan_log_set(fuzz_no_log, NULL);
    for (int round = 0; round < 500; round++) {
        size_t count = random_next(&random) % sizeof input;
        for (size_t i = 0; i < count; i++)
            input[i] = (uint8_t)(random_next(&random) % (random_next(&random) % 2 ? 256 : STEPS));
        assert_int_equal(LLVMFuzzerTestOneInput(input, count), 0);
    }
    banyan_log_set(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_joins_again_on_its_connection_is_there_once),
        cmocka_unit_test(losses_of_ranks_that_do_not_exist_are_refused),
        cmocka_unit_test(a_ready_rank_that_leaves_is_not_ready),
        cmocka_unit_test(random_frames_leave_right_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
