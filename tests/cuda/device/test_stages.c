/* Programs with puts become kernels, with copies between them. */
#include "support/test.h"

#include "cuda/execute/kernel.h"
#include "cuda/execute/stages.h"

#define BLOCKS 3
#define STEPS_MOST 16
#define BYTES 4096

enum { FROM = 0, TO = 4 };

/* A fused program of identical thread blocks: block b puts part b through port b, or through port
 * BLOCKS + b to another peer. */
#define PORTS (2 * BLOCKS)
enum { ONE = 0, OTHER = BLOCKS, NO_PORT = PORTS };

/* A port's mirror: itself, that of the other peer, or unknown. */
typedef enum twins { SAME, CROSSED, UNKNOWN } twins;

struct draft {
    twins twins;
    engine_step steps[BLOCKS][STEPS_MOST];
    engine_block blocks[BLOCKS];
    uint64_t words[256];
    uint32_t ends[256];
    uint64_t word_count;
    uint32_t end_count, step_count;
    engine_end channels[PORTS + 1]; /* ports, then a memory channel */
    engine_program program;
    engine_plan plan;
};

static void add(struct draft *d, step_kind kind, uint32_t channel, uint64_t at)
{
    for (uint32_t b = 0; b < BLOCKS; b++) {
        engine_step *step = &d->steps[b][d->step_count];
        *step = (engine_step){.kind = (uint8_t)kind, .ends = d->end_count, .end_count = 1};
        d->ends[d->end_count++] = channel == NO_PORT ? NO_PORT : channel + b;
        if (kind != STEP_POST_COPY)
            continue;
        step->source_count = step->destination_count = 1;
        step->words = d->word_count;
        step->piece_count = 1;
        d->words[d->word_count++] = BYTES;
        d->words[d->word_count++] = KERNEL_PLACE(FROM, at + b * BYTES);
        d->words[d->word_count++] = KERNEL_PLACE(TO, at + b * BYTES);
    }
    d->step_count++;
}

static void add_nop(struct draft *d)
{
    for (uint32_t b = 0; b < BLOCKS; b++)
        d->steps[b][d->step_count] = (engine_step){.kind = STEP_NOP};
    d->step_count++;
}

static void add_put(struct draft *d, uint32_t port, uint64_t at)
{
    add(d, STEP_POST_COPY, port, at);
    add(d, STEP_POST_SIGNAL, port, 0);
}

static uint32_t mirror_of(const struct draft *d, uint32_t port)
{
    if (d->twins == UNKNOWN)
        return ENGINE_NO_MIRROR;
    return d->twins == SAME ? port : (port + BLOCKS) % PORTS;
}

static stages *make(struct draft *d, bool lock_step)
{
    static engine_step all[BLOCKS * STEPS_MOST];
    stages *made;
    for (uint32_t i = 0; i < PORTS; i++)
        d->channels[i] = (engine_end){.is_port = 1, .mirror = mirror_of(d, i)};
    for (uint32_t b = 0; b < BLOCKS; b++) {
        d->blocks[b] = (engine_block){.first_step = b * d->step_count, .step_count = d->step_count};
        memcpy(all + b * d->step_count, d->steps[b], d->step_count * sizeof *all);
    }
    d->program = (engine_program){.blocks = d->blocks,
                                  .block_count = BLOCKS,
                                  .steps = all,
                                  .step_count = BLOCKS * d->step_count,
                                  .ends = d->ends,
                                  .end_count = d->end_count,
                                  .words = d->words,
                                  .word_count = d->word_count};
    d->plan = (engine_plan){.ends = d->channels, .end_count = PORTS + 1, .lock_step = lock_step};
    assert_int_equal(stages_make(&d->program, &d->plan, &made), BANYAN_OK);
    return made;
}

static void assert_kernel(const stages *s, uint32_t i, uint32_t first, uint32_t end, uint32_t after)
{
    assert_true(i < s->count && s->list[i].is_kernel);
    assert_int_equal(s->list[i].first_step, first);
    assert_int_equal(s->list[i].end_step, end);
    assert_int_equal(s->list[i].after, after);
}

static void puts_of_all_thread_blocks_are_one_copy(void **state)
{
    (void)state;
    struct draft d = {0};
    add(&d, STEP_SIGNAL, NO_PORT, 0);
    add(&d, STEP_WAIT, NO_PORT, 0);
    add_put(&d, ONE, 0);
    add(&d, STEP_WAIT, ONE, 0);
    stages *s = make(&d, true);
    assert_int_equal(s->count, 3);
    assert_kernel(s, 0, 0, 2, STAGE_NONE);
    assert_false(s->list[1].is_kernel);
    assert_int_equal(s->list[1].copy_count, 1);
    assert_int_equal(s->copies[0].from_base, FROM);
    assert_int_equal(s->copies[0].to_base, TO);
    assert_int_equal(s->copies[0].bytes, BLOCKS * BYTES);
    assert_int_equal(s->list[1].signal_count, BLOCKS);
    assert_true(s->list[1].is_signalled);
    assert_kernel(s, 2, 2, 5, 1);
    stages_free(s);
}

/* The second put travels while the first one's data are processed. */
static void a_kernel_waits_for_its_own_signal_of_the_same_number(void **state)
{
    (void)state;
    struct draft d = {0};
    add_nop(&d);
    add_put(&d, ONE, 0);
    add_put(&d, ONE, BLOCKS * BYTES);
    add(&d, STEP_COPY, NO_PORT, 0);
    add(&d, STEP_WAIT, ONE, 0);
    add(&d, STEP_COPY, NO_PORT, 0);
    add(&d, STEP_WAIT, ONE, 0);
    stages *s = make(&d, true);
    assert_int_equal(s->count, 6);
    assert_kernel(s, 0, 0, 1, STAGE_NONE);
    assert_int_equal(s->list[1].signal_count, BLOCKS);
    assert_int_equal(s->list[2].signal_count, BLOCKS);
    assert_kernel(s, 3, 5, 6, STAGE_NONE);
    assert_kernel(s, 4, 6, 8, 1);
    assert_kernel(s, 5, 8, 9, 2);
    assert_false(s->list[1].is_signalled || s->list[2].is_signalled);
    stages_free(s);
}

/* Each rank puts to one peer and then to the other; the first arrival is from the latter. */
static stages *make_exchange(twins known)
{
    struct draft d = {.twins = known};
    add_put(&d, ONE, 0);
    add_put(&d, OTHER, BLOCKS * BYTES);
    add(&d, STEP_WAIT, OTHER, 0);
    add(&d, STEP_COPY, NO_PORT, 0);
    add(&d, STEP_WAIT, ONE, 0);
    return make(&d, true);
}

static void a_kernel_waits_for_its_own_signal_of_the_same_place(void **state)
{
    (void)state;
    stages *s = make_exchange(CROSSED);
    assert_int_equal(s->count, 5);
    assert_int_equal(s->list[1].signal_count, BLOCKS);
    assert_int_equal(s->list[2].signal_count, BLOCKS);
    assert_kernel(s, 3, 4, 6, 1);
    assert_kernel(s, 4, 6, 7, 2);
    stages_free(s);
    s = make_exchange(UNKNOWN);
    assert_int_equal(s->list[3].after, 2);
    stages_free(s);
}

/* With one port shared by all thread blocks, one position brings as many signals. */
static void signals_that_thread_blocks_share_are_counted_together(void **state)
{
    (void)state;
    struct draft d = {0};
    for (uint64_t i = 0; i < 3; i++)
        add_put(&d, ONE, i * BLOCKS * BYTES);
    for (int i = 0; i < 3; i++) {
        add(&d, STEP_COPY, NO_PORT, 0);
        add(&d, STEP_WAIT, ONE, 0);
    }
    for (uint32_t i = 0; i < d.end_count; i++)
        d.ends[i] = d.ends[i] == NO_PORT ? NO_PORT : ONE;
    stages *s = make(&d, true);
    assert_int_equal(s->count, 8);
    assert_kernel(s, 5, 7, 9, 1);
    assert_kernel(s, 6, 9, 11, 2);
    assert_kernel(s, 7, 11, 12, 3);
    stages_free(s);
}

/* One thread block waits first for a signal that the others wait for last. */
static void a_kernel_comes_after_the_signals_of_all_its_waits(void **state)
{
    (void)state;
    struct draft d = {.twins = SAME};
    add_put(&d, ONE, 0);
    add_put(&d, OTHER, BLOCKS * BYTES);
    add_put(&d, ONE, 2 * BLOCKS * BYTES);
    for (int i = 0; i < 3; i++) {
        add(&d, STEP_WAIT, i == 1 ? OTHER : ONE, 0);
        add(&d, STEP_COPY, NO_PORT, 0);
    }
    d.ends[d.steps[1][6].ends] = OTHER + 1;
    d.ends[d.steps[1][8].ends] = ONE + 1;
    stages *s = make(&d, true);
    assert_int_equal(s->count, 7);
    assert_kernel(s, 4, 6, 8, 2);
    assert_kernel(s, 5, 8, 10, 2);
    assert_kernel(s, 6, 10, 12, 3);
    stages_free(s);
}

static void plans_that_need_one_kernel_have_a_proxy(void **state)
{
    (void)state;
    struct draft d = {0};
    add_put(&d, ONE, 0);
    add(&d, STEP_WAIT, ONE, 0);
    assert_null(make(&d, false));
    stages *s = make(&d, true);
    assert_non_null(s);
    stages_free(s);
    add(&d, STEP_BARRIER, 0, 0);
    assert_null(make(&d, true));
    struct draft none = {0};
    add(&none, STEP_SIGNAL, NO_PORT, 0);
    assert_null(make(&none, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_of_all_thread_blocks_are_one_copy),
        cmocka_unit_test(a_kernel_waits_for_its_own_signal_of_the_same_number),
        cmocka_unit_test(a_kernel_waits_for_its_own_signal_of_the_same_place),
        cmocka_unit_test(signals_that_thread_blocks_share_are_counted_together),
        cmocka_unit_test(a_kernel_comes_after_the_signals_of_all_its_waits),
        cmocka_unit_test(plans_that_need_one_kernel_have_a_proxy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
