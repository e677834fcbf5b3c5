/* The numbers of a world's abandoned collectives, and the messages that wait in it. */
#include "support/test.h"

#include <stdlib.h>

#include "world/context.h"

enum { NUMBERS = 40, SOURCE = 3 };

static struct message *message_of(uint32_t kind, int source, uint64_t tag)
{
    struct message *message = calloc(1, sizeof *message);
    *message = (struct message){.kind = kind, .source = source, .tag = tag, .fd = -1};
    return message;
}

static bool take(struct context *context, uint32_t kind, int source, uint64_t tag)
{
    struct message *message = context_take(context, kind, source, tag);
    if (!message)
        return false;
    CHECK(message->kind == kind && message->source == source && message->tag == tag);
    message_free(message);
    return true;
}

static void deliver_each(struct context *context)
{
    for (uint64_t number = 0; number < NUMBERS; number++)
        context_deliver(context, message_of(WIRE_COLLECTIVE, SOURCE, number << NUMBER_SHIFT));
}

/* A repeated call takes the next number, whose messages may have arrived already. */
static void only_a_call_that_was_given_up_loses_its_messages(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int turn = 0; turn < 20; turn++) {
        struct context *context = context_create(1);
        bool given_up[NUMBERS] = {false};
        int count = (int)random_between(&random, 1, NUMBERS - 1);
        deliver_each(context);
        for (int i = 0; i < count; i++) {
            uint64_t number = (uint64_t)random_between(&random, 0, NUMBERS - 1);
            if (given_up[number])
                continue;
            CHECK(!context_gave_up(context, number), "%d", (int)number);
            CHECK(context_give_up(context, number, 0));
            given_up[number] = true;
        }
        for (uint64_t number = 0; number < NUMBERS; number++) {
            bool waits = take(context, WIRE_COLLECTIVE, SOURCE, number << NUMBER_SHIFT);
            CHECK(context_gave_up(context, number) == given_up[number], "%d", (int)number);
            CHECK(waits != given_up[number], "%d", (int)number);
        }
        deliver_each(context);
        for (uint64_t number = 0; number < NUMBERS; number++)
            CHECK(take(context, WIRE_COLLECTIVE, SOURCE, number << NUMBER_SHIFT) !=
                      given_up[number],
                  "%d", (int)number);
        context_destroy(context);
    }
}

static void a_message_is_for_one_kind_source_and_tag(void **state)
{
    (void)state;
    struct context *context = context_create(1);
    context_deliver(context, message_of(WIRE_COLLECTIVE, SOURCE, 512));
    CHECK(!take(context, WIRE_MESSAGE, SOURCE, 512));
    CHECK(!take(context, WIRE_COLLECTIVE, SOURCE + 1, 512));
    CHECK(!take(context, WIRE_COLLECTIVE, SOURCE, 513));
    CHECK(take(context, WIRE_COLLECTIVE, SOURCE, 512));
    CHECK(!take(context, WIRE_COLLECTIVE, SOURCE, 512));
    context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_call_that_was_given_up_loses_its_messages),
        cmocka_unit_test(a_message_is_for_one_kind_source_and_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
