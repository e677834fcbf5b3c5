/* Synchronization without effect is reported, and other synchronization is not. */
#include "check/two_ranks.h"

#define IN_CHUNK LOCAL_CHUNK("i", 0)
#define OUT_CHUNK LOCAL_CHUNK("o", 0)
#define SCRATCH_CHUNK LOCAL_CHUNK("s", 0)
#define COPY_IN MOVE("copy", IN_CHUNK, SCRATCH_CHUNK)
#define COPY_OUT MOVE("copy", SCRATCH_CHUNK, OUT_CHUNK)
#define COPY_ASIDE MOVE("copy", IN_CHUNK, LOCAL_CHUNK("s", 1))
#define PUT_TO_OUTPUT PUT(IN_CHUNK, REMOTE_CHUNK(1, 0))
#define PORT_PUT MOVE_BY("put", "port", IN_CHUNK, REMOTE_CHUNK(1, 0))
#define SWAPPED "[[[[1,0]]],[[[0,0]]]]"
#define RELEASE SEMAPHORE("sem_release", 0)
#define ACQUIRE SEMAPHORE("sem_acquire", 0)

/* Return the number of idle operations of a kind. The message begins with the number, then the
 * kind. */
static int count_idle(const two_ranks *made, const char *kind, banyan_check_place *first)
{
    banyan_check_report *report = report_of(made);
    int count = 0;
    CHECK(banyan_check_report_is_sound(report));
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *one = banyan_check_report_finding(report, i);
        char *rest;
        long number = strtol(one->message, &rest, 10);
        if (one->rule == BANYAN_CHECK_IDLE_SYNC && strncmp(rest + 1, kind, strlen(kind)) == 0) {
            count = (int)number;
            *first = one->places[0];
        }
    }
    banyan_check_report_destroy(report);
    return count;
}

static void a_nop_between_unrelated_operations_is_idle(void **state)
{
    (void)state;
    banyan_check_place first;
    two_ranks made = {.ops = {{COPY_IN "," NOP "," COPY_OUT}, {COPY_ASIDE}}};
    CHECK(count_idle(&made, "nop", &first) == 0);
    made.ops[0][0] = COPY_IN "," NOP "," COPY_ASIDE "," NOP "," COPY_OUT;
    CHECK(count_idle(&made, "nop", &first) == 2 && first.operation == 1, "either of them will do");
    made.ops[1][0] = COPY_ASIDE "," NOP "," COPY_ASIDE;
    CHECK(count_idle(&made, "nop", &first) == 2, "the last one keeps two writes apart");
}

static void a_second_signal_for_the_same_is_idle(void **state)
{
    (void)state;
    banyan_check_place first;
    const char *right = EXCHANGE_RELAXED "," PUT_TO_OUTPUT "," EXCHANGE;
    const char *more = EXCHANGE_RELAXED "," PUT_TO_OUTPUT "," EXCHANGE "," EXCHANGE_RELAXED;
    two_ranks made = {.ops = {{right}, {right}}, .expected = SWAPPED};
    CHECK(count_idle(&made, "signal", &first) == 0);
    made.ops[0][0] = made.ops[1][0] = more;
    /* Not the first pair: callers read their outputs between the last one and that. */
    CHECK(count_idle(&made, "signal", &first) == 2 && first.rank == 0 && first.operation == 10);
}

static void a_semaphore_that_orders_nothing_is_idle(void **state)
{
    (void)state;
    banyan_check_place first;
    two_ranks made = {.ops = {{COPY_IN "," NOP "," RELEASE, ACQUIRE "," NOP "," COPY_OUT}, {NOP}}};
    CHECK(count_idle(&made, "signal", &first) == 0);
    made.ops[0][1] = ACQUIRE "," NOP "," COPY_ASIDE;
    CHECK(count_idle(&made, "signal", &first) == 1 && first.operation == 2);
}

static void a_barrier_that_keeps_nothing_apart_is_idle(void **state)
{
    (void)state;
    banyan_check_place first;
    two_ranks made = {.ops = {{COPY_IN "," BARRIER, BARRIER "," COPY_OUT}, {NOP}}};
    CHECK(count_idle(&made, "barrier", &first) == 0);
    made.ops[0][0] = COPY_IN "," BARRIER "," BARRIER;
    made.ops[0][1] = BARRIER "," COPY_OUT "," BARRIER;
    CHECK(count_idle(&made, "barrier", &first) == 1 && first.operation == 2);
}

static void a_flush_of_answered_puts_is_idle(void **state)
{
    (void)state;
    banyan_check_place first;
    const char *flush = ON("flush", "port");
    char once[1024], answered[1024];
    snprintf(once, sizeof once, "%s,%s,%s,%s,%s,%s", EXCHANGE_RELAXED, PORT_PUT,
             ON("signal", "port"), flush, ON("wait", "port"), NOP);
    snprintf(answered, sizeof answered, "%s,%s", once, EXCHANGE);
    two_ranks made = {.ops = {{once}, {once}}, .expected = SWAPPED};
    CHECK(count_idle(&made, "flush", &first) == 0);
    made.ops[0][0] = made.ops[1][0] = answered;
    CHECK(count_idle(&made, "flush", &first) == 2 && first.rank == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_nop_between_unrelated_operations_is_idle),
        cmocka_unit_test(a_second_signal_for_the_same_is_idle),
        cmocka_unit_test(a_semaphore_that_orders_nothing_is_idle),
        cmocka_unit_test(a_barrier_that_keeps_nothing_apart_is_idle),
        cmocka_unit_test(a_flush_of_answered_puts_is_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
