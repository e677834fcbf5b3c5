/* The executor's use of its slots is correct, and faults in it are found. */
#include "support/random.h"
#include "support/test.h"

#include "copy/schedule/check.h"

enum { RANKS = 3, SLOT_BYTES = 100, MAX_BATCHES = 40 };

typedef struct schedule {
    banyan_iteration iterations[RANKS][MAX_BATCHES];
    size_t counts[RANKS];
    pipeline_steps steps[RANKS];
    size_t faults[PIPELINE_FAULT_BYTES + 1];
    char first[256]; /* message, after the rank */
} schedule;

static banyan_status note(void *context, pipeline_fault fault, int rank, const char *message)
{
    schedule *s = context;
    s->faults[fault]++;
    if (s->first[0] == '\0')
        snprintf(s->first, sizeof s->first, "rank %d: %s", rank, message);
    return BANYAN_OK;
}

/* All lists follow one order of the batches. */
static void add_batch(schedule *s, int from, int to, uint64_t bytes)
{
    const banyan_slot_batch none = {.peer = -1};
    s->iterations[from][s->counts[from]++] =
        (banyan_iteration){.send = {.peer = to, .bytes = bytes}, .recv = none};
    s->iterations[to][s->counts[to]++] =
        (banyan_iteration){.send = none, .recv = {.peer = from, .bytes = bytes}};
}

static schedule *schedule_of(int batches)
{
    schedule *s = calloc(1, sizeof *s);
    random_state random = random_from(random_seed());
    for (int i = 0; i < batches; i++) {
        int from = (int)random_between(&random, 0, RANKS - 1);
        int to = (from + (int)random_between(&random, 1, RANKS - 1)) % RANKS;
        add_batch(s, from, to, (uint64_t)random_between(&random, 1, SLOT_BYTES));
    }
    return s;
}

static void list(schedule *s)
{
    for (int r = 0; r < RANKS; r++)
        CHECK_OK(pipeline_steps_of(s->iterations[r], s->counts[r], &s->steps[r]));
}

static void play(schedule *s)
{
    CHECK_OK(pipeline_steps_check(s->steps, RANKS, SLOT_BYTES, note, s));
}

static void release(schedule *s)
{
    for (int r = 0; r < RANKS; r++)
        pipeline_steps_free(&s->steps[r]);
    free(s);
}

static void expect_only(const schedule *s, pipeline_fault fault, const char *message)
{
    for (pipeline_fault f = 0; f <= PIPELINE_FAULT_BYTES; f++)
        CHECK((s->faults[f] > 0) == (f == fault), "%zu of fault %d", s->faults[f], (int)f);
    CHECK(strstr(s->first, message), "%s", s->first);
}

static void the_executors_steps_are_right(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        schedule *s = schedule_of(MAX_BATCHES / 2);
        list(s);
        play(s);
        CHECK(s->first[0] == '\0', "%s", s->first);
        release(s);
    }
}

/* Three batches from rank 0 to rank 1. */
static schedule *three(void)
{
    schedule *s = calloc(1, sizeof *s);
    for (int i = 0; i < 3; i++)
        add_batch(s, 0, 1, 10);
    list(s);
    return s;
}

static void swap(pipeline_step *a, pipeline_step *b)
{
    pipeline_step kept = *a;
    *a = *b;
    *b = kept;
}

static void a_slot_that_is_granted_before_it_is_unpacked_is_reported(void **state)
{
    (void)state;
    schedule *s = three();
    pipeline_step_list *receiving = &s->steps[1].receiving;
    CHECK(receiving->data[2].kind == PIPELINE_UNPACK && receiving->data[3].kind == PIPELINE_GRANT);
    swap(&receiving->data[2], &receiving->data[3]);
    play(s);
    expect_only(s, PIPELINE_FAULT_SLOT,
                "rank 1: it grants receive slot 0 again, for rank 0, before the batch with rank 0 "
                "in it is unpacked");
    release(s);
}

static void a_slot_that_is_packed_before_it_is_sent_is_reported(void **state)
{
    (void)state;
    schedule *s = three();
    pipeline_step_list *sending = &s->steps[0].sending;
    swap(&sending->data[2], &sending->data[3]);
    play(s);
    expect_only(s, PIPELINE_FAULT_SLOT, "rank 0: it packs into send slot 0 again");
    release(s);
}

static void a_batch_from_another_slot_is_reported(void **state)
{
    (void)state;
    schedule *s = three();
    swap(&s->steps[1].receiving.data[0], &s->steps[1].receiving.data[1]);
    play(s);
    CHECK(s->faults[PIPELINE_FAULT_SLOT] > 0);
    CHECK(strstr(s->first, "unpacks slot 0, but the batch of rank 0 is in slot 1"), "%s", s->first);
    release(s);
}

static void a_grant_that_does_not_come_is_reported(void **state)
{
    (void)state;
    schedule *s = three();
    s->steps[1].receiving.count = 2;
    play(s);
    expect_only(s, PIPELINE_FAULT_STUCK, "rank 0: it waits for a slot of rank 1");
    release(s);
}

static void a_batch_that_does_not_come_is_reported(void **state)
{
    (void)state;
    schedule *s = three();
    s->steps[0].sending.count = 0;
    play(s);
    expect_only(s, PIPELINE_FAULT_STUCK, "rank 1: it waits for a batch of rank 0");
    release(s);
}

/* Rank r receives from r - 1 and from r - 2, each in the order in which the sender is last. */
static void ranks_whose_orders_make_a_circle_are_reported(void **state)
{
    (void)state;
    schedule *s = calloc(1, sizeof *s);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < 6; i++) {
            int up = i < 3 ? 1 : 2;
            s->iterations[r][i] =
                (banyan_iteration){.send = {.peer = (r + up) % RANKS, .bytes = 10},
                                   .recv = {.peer = (r + up) % RANKS, .bytes = 10}};
        }
        s->counts[r] = 6;
    }
    list(s);
    play(s);
    expect_only(s, PIPELINE_FAULT_STUCK, "rank 0: it waits for a slot of rank 1");
    release(s);
}

static void bytes_that_differ_or_do_not_fit_are_reported(void **state)
{
    (void)state;
    schedule *s = three();
    s->steps[1].receiving.data[2].bytes = 11;
    play(s);
    expect_only(s, PIPELINE_FAULT_BYTES, "rank 1: it unpacks 11 bytes of rank 0, which sends 10");
    release(s);
    s = calloc(1, sizeof *s);
    add_batch(s, 0, 1, SLOT_BYTES + 1);
    list(s);
    play(s);
    expect_only(s, PIPELINE_FAULT_BYTES, "has 101 bytes, a slot has 100");
    release(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_executors_steps_are_right),
        cmocka_unit_test(a_slot_that_is_granted_before_it_is_unpacked_is_reported),
        cmocka_unit_test(a_slot_that_is_packed_before_it_is_sent_is_reported),
        cmocka_unit_test(a_batch_from_another_slot_is_reported),
        cmocka_unit_test(a_grant_that_does_not_come_is_reported),
        cmocka_unit_test(a_batch_that_does_not_come_is_reported),
        cmocka_unit_test(ranks_whose_orders_make_a_circle_are_reported),
        cmocka_unit_test(bytes_that_differ_or_do_not_fit_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
