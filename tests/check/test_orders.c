/* Thread blocks that take from common channels and semaphores, in any order. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check/two_ranks.h"
#include "core/deadline.h"

#define IN_CHUNK LOCAL_CHUNK("i", 0)
#define OUT_CHUNK LOCAL_CHUNK("o", 0)
#define SCRATCH_CHUNK LOCAL_CHUNK("s", 0)
#define COPY_IN MOVE("copy", IN_CHUNK, SCRATCH_CHUNK)
#define COPY_OUT MOVE("copy", SCRATCH_CHUNK, OUT_CHUNK)
#define RELEASE SEMAPHORE("sem_release", 0)
#define ACQUIRE SEMAPHORE("sem_acquire", 0)

static void must_be_decided(const two_ranks *made)
{
    banyan_check_report *report = report_of(made);
    const char *limits = banyan_check_report_limits(report);
    CHECK(made->expected ? !limits[0] : strcmp(limits, OUTPUTS_UNCHECKED) == 0, "%s", limits);
    banyan_check_report_destroy(report);
    must_be_sound(made);
}

typedef struct shuffled_try {
    banyan_plan *plan;
    uint64_t seed;
    _Atomic int *stuck; /* ranks whose wait timed out, in all tries */
} shuffled_try;

static void run_once(int rank, int count, const banyan_unique_id *id, void *context)
{
    const shuffled_try *of = context;
    banyan_executor_options how = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    char input[64] = "", output[sizeof input];
    banyan_world *world = ranks_open_world(rank, count, id, 2 * NS_PER_S);
    how.shuffle_seed = of->seed;
    options.max_message_bytes = sizeof input;
    CHECK_OK(banyan_executor_open(world, &how, &executor));
    CHECK_OK(banyan_loaded_plan_open(executor, of->plan, &options, &loaded));
    if (banyan_loaded_plan_run(loaded, input, output, sizeof input, (DLDataType){kDLUInt, 8, 1},
                               NULL) != BANYAN_OK) {
        atomic_fetch_add(of->stuck, 1);
        _exit(0);
    }
    CHECK_OK(banyan_loaded_plan_close(loaded));
    banyan_executor_close(executor);
    banyan_world_close(world);
}

/* True if it gets stuck under any of these seeds. */
static bool gets_stuck(const two_ranks *made, uint64_t seeds)
{
    _Atomic int *stuck =
        mmap(NULL, sizeof *stuck, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(stuck != MAP_FAILED);
    shuffled_try of = {.plan = plan_of(made), .stuck = stuck};
    for (of.seed = 1; of.seed <= seeds && atomic_load(stuck) == 0; of.seed++) {
        int statuses[2];
        ranks_fork(2, run_once, &of, statuses);
        CHECK(statuses[0] == 0 && statuses[1] == 0, "seed %llu", (unsigned long long)of.seed);
    }
    bool any = atomic_load(stuck) > 0;
    banyan_plan_destroy(of.plan);
    munmap(stuck, sizeof *stuck);
    return any;
}

/* Rank 0 signals once more after a signal of block 1, which may have come too late. */
static void a_deadlock_that_only_one_order_leads_to_is_found_with_that_order(void **state)
{
    (void)state;
    two_ranks made = {
        .ops = {{RELEASE "," WAIT "," RELEASE, ACQUIRE "," SIGNAL, ACQUIRE}, {WAIT "," SIGNAL}}};
    banyan_check_report *report = report_of(&made);
    const banyan_check_finding *found = finding_of(report, BANYAN_CHECK_DEADLOCK);
    CHECK(found->place_count == 3, "%s", found->message);
    CHECK(strstr(found->message, "wait for each other"), "%s", found->message);
    CHECK(strstr(found->message, "when rank 0, thread block 2, operation 0 (sem_acquire) in run 0 "
                                 "gets ahead of the others"),
          "%s", found->message);
    banyan_check_report_destroy(report);
    CHECK(gets_stuck(&made, 100));
    made.ops[0][0] = RELEASE "," RELEASE "," WAIT;
    must_be_decided(&made);
    CHECK(!gets_stuck(&made, 10));
}

static void a_channel_that_two_blocks_wait_on_is_tried_in_both_orders(void **state)
{
    (void)state;
    two_ranks made = {.ops = {{WAIT "," SIGNAL, WAIT}, {SIGNAL "," WAIT "," SIGNAL}}};
    banyan_check_report *report = report_of(&made);
    CHECK(strstr(finding_of(report, BANYAN_CHECK_DEADLOCK)->message, "thread block 1"));
    banyan_check_report_destroy(report);
    made.ops[1][0] = SIGNAL "," SIGNAL "," WAIT;
    must_be_decided(&made);
}

/* Two of three signals are taken before the copy; two can be available only after block 1's
 * copy. */
static void predecessors_in_all_orders_are_known(void **state)
{
    (void)state;
    const char *first = SIGNAL "," ACQUIRE "," SIGNAL;
    const char *second =
        RELAXED_WAIT "," NOP "," PUT(IN_CHUNK, REMOTE_CHUNK(2, 0)) "," NOP "," SIGNAL "," RELEASE;
    const char *taker = RELAXED_SIGNAL "," WAIT "," WAIT "," NOP "," COPY_OUT "," WAIT;
    two_ranks made = {.ops = {{taker}, {first, second}}};
    must_be_decided(&made);
    made.ops[1][0] = SIGNAL "," SIGNAL "," ACQUIRE;
    must_break(&made, BANYAN_CHECK_RACE);
}

static void to_exclude_each_other_is_no_order(void **state)
{
    (void)state;
    const char *alone = ACQUIRE "," NOP "," COPY_IN "," NOP "," RELEASE "," SIGNAL;
    two_ranks made = {
        .ops = {{alone, alone, RELEASE "," WAIT "," ACQUIRE}, {WAIT "," WAIT "," SIGNAL}}};
    must_break(&made, BANYAN_CHECK_RACE);
}

/* A number of blocks that each take a lock a number of times. */
static banyan_check_report *report_of_lock(int blocks, int times)
{
    static char text[1 << 17];
    size_t used = (size_t)snprintf(
        text, sizeof text,
        "{\"name\":\"lock\",\"collective\":\"lock\",\"protocol\":\"Simple\",\"inplace\":false,"
        "\"gpus\":[{\"id\":0,\"input_chunks\":1,\"output_chunks\":1,\"scratch_chunks\":0,"
        "\"channels\":[],\"semaphores\":[{\"init_value\":1}],\"threadblocks\":[");
    for (int b = 0; b < blocks; b++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s{\"id\":%d,\"ops\":[",
                                 b > 0 ? "," : "", b);
        for (int i = 0; i < times; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s" ACQUIRE "," RELEASE,
                                     i > 0 ? "," : "");
        used += (size_t)snprintf(text + used, sizeof text - used, "]}");
    }
    snprintf(text + used, sizeof text - used, "]}]}");
    banyan_plan *plan;
    banyan_check_report *report;
    CHECK_OK(banyan_plan_parse(text, strlen(text), "lock", &plan));
    CHECK_OK(banyan_plan_check(plan, NULL, &report));
    banyan_plan_destroy(plan);
    return report;
}

static void a_plan_with_too_many_orders_is_not_called_sound(void **state)
{
    (void)state;
    banyan_check_report *report = report_of_lock(4, 2);
    CHECK(banyan_check_report_is_sound(report));
    banyan_check_report_destroy(report);
    report = report_of_lock(16, 8);
    CHECK(!banyan_check_report_is_sound(report));
    const banyan_check_finding *found = finding_of(report, BANYAN_CHECK_UNDECIDED);
    CHECK(found->place_count == 1 && found->places[0].operation == 0);
    CHECK(strstr(found->message, "more orders than could be tried"), "%s", found->message);
    banyan_check_report_destroy(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadlock_that_only_one_order_leads_to_is_found_with_that_order),
        cmocka_unit_test(a_channel_that_two_blocks_wait_on_is_tried_in_both_orders),
        cmocka_unit_test(predecessors_in_all_orders_are_known),
        cmocka_unit_test(to_exclude_each_other_is_no_order),
        cmocka_unit_test(a_plan_with_too_many_orders_is_not_called_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
