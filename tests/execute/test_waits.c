/* The text for a wait on port channels: a proxy serves these at once, so no run waits there long
 * enough to show it. */
#include "support/test.h"

#include "execute/host/waits.h"

struct sample {
    step_kind kind;
    plan_op_kind op;
    uint32_t index; /* of the channel end */
    const char *text;
    int peer;
};

static const struct sample samples[] = {
    {STEP_FLUSH, PLAN_FLUSH, 0,
     "for its puts to rank 3: thread block 2, operation 7 (flush) on port channel 5", 3},
    {STEP_FLUSH, PLAN_FLUSH, 1,
     "for its puts to rank 1: thread block 2, operation 7 (flush) on port channel 6", 1},
    {STEP_POST_SIGNAL, PLAN_SIGNAL, 1,
     "for its puts to rank 1: thread block 2, operation 7 (signal) on port channel 6", 1},
    {STEP_POST_COPY, PLAN_PUT, 0,
     "for its puts to rank 3: thread block 2, operation 7 (put) on port channel 5", 3},
    {STEP_POST_PACK, PLAN_PUT_PACKET, 0,
     "for its puts to rank 3: thread block 2, operation 7 (ppkt) on port channel 5", 3},
    {STEP_WAIT, PLAN_WAIT, 1, "for rank 1: thread block 2, operation 7 (wait) on port channel 6",
     1},
};

static void a_wait_on_a_port_channel_names_channel_and_peer(void **state)
{
    (void)state;
    static channel_end first = {.peer = 3, .number = 5}, second = {.peer = 1, .number = 6};
    channel_end *ends[] = {&first, &second};
    plan_thread_block block = {.id = 2};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *of = &samples[i];
        plan_op op = {.kind = of->op, .channel_type = PLAN_PORT}, loop = {.kind = PLAN_PIPELINE};
        step one = {
            .kind = of->kind, .number = 7, .op = &op, .whole = &op, .ends = ends, .end_count = 2};
        task waits = {.steps = &one, .step_count = 1, .index = of->index, .block = &block};
        char text[WAIT_TEXT_BYTES], expected[WAIT_TEXT_BYTES];
        plan_run run = {.loaded = NULL};
        wait_describe(&run, &waits, text);
        assert_string_equal(text, of->text);
        assert_int_equal(wait_peer(&run, &waits), of->peer);
        assert_false(wait_is_inside(&waits));

        one.loop = &loop;
        waits.iteration = 4;
        wait_describe(&run, &waits, text);
        int before = (int)(strstr(of->text, ") on ") - of->text);
        snprintf(expected, sizeof expected, "%.*s, iteration 4%s", before, of->text,
                 of->text + before);
        assert_string_equal(text, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_on_a_port_channel_names_channel_and_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
