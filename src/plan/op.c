#include "plan/op.h"

#include <string.h>

#define MEMORY PLAN_BIT(PLAN_MEMORY)
#define PORT PLAN_BIT(PLAN_PORT)
#define SWITCH PLAN_BIT(PLAN_SWITCH)

/* Lists of operands: local ones, then remote ones. */
#define DATA(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__, .packets_from = PLAN_MANY                                                     \
    }
#define PACKETS(first, ...)                                                                        \
    {                                                                                              \
        __VA_ARGS__, .packets_from = (first)                                                       \
    }
#define LOCAL(least, most) .local_least = (least), .local_most = (most)
#define REMOTE(least, most) .remote_least = (least), .remote_most = (most)
#define GROUP .group = true

static const plan_op_form forms[PLAN_OP_KINDS] = {
    [PLAN_NOP] = {.name = "nop"},
    [PLAN_COPY] = {.name = "copy", .sources = DATA(LOCAL(1, 1)), .destinations = DATA(LOCAL(1, 1))},
    [PLAN_COPY_PACKET] = {.name = "cpkt",
                          .sources = DATA(LOCAL(1, 1)),
                          .destinations = PACKETS(0, LOCAL(1, 1))},
    [PLAN_UNPACK_PACKET] = {.name = "upkt",
                            .sources = PACKETS(0, LOCAL(1, 1)),
                            .destinations = DATA(LOCAL(1, 1))},
    [PLAN_REDUCE] = {.name = "re",
                     .reduces = true,
                     .sources = DATA(LOCAL(2, PLAN_MANY)),
                     .destinations = DATA(LOCAL(1, 1))},
    [PLAN_REDUCE_PACKET] = {.name = "repkt",
                            .reduces = true,
                            .sources = PACKETS(1, LOCAL(2, PLAN_MANY)),
                            .destinations = DATA(LOCAL(1, 1))},
    [PLAN_REDUCE_COPY_PACKET] = {.name = "recpkt",
                                 .reduces = true,
                                 .sources = PACKETS(1, LOCAL(2, PLAN_MANY)),
                                 .destinations = PACKETS(1, LOCAL(2, 2))},
    [PLAN_SEM_ACQUIRE] = {.name = "sem_acquire"},
    [PLAN_SEM_RELEASE] = {.name = "sem_release"},
    [PLAN_SIGNAL] = {.name = "signal",
                     .channel_types = MEMORY | PORT,
                     .channels = PLAN_CHANNELS_SIGNALLED,
                     .signals = true},
    [PLAN_WAIT] = {.name = "wait",
                   .channel_types = MEMORY | PORT,
                   .channels = PLAN_CHANNELS_SIGNALLED},
    [PLAN_RELAXED_SIGNAL] = {.name = "rlxsignal",
                             .channel_types = MEMORY,
                             .channels = PLAN_CHANNELS_SIGNALLED,
                             .signals = true},
    [PLAN_RELAXED_WAIT] = {.name = "rlxwait",
                           .channel_types = MEMORY,
                           .channels = PLAN_CHANNELS_SIGNALLED},
    [PLAN_BARRIER] = {.name = "barrier"},
    [PLAN_FLUSH] = {.name = "flush", .channel_types = PORT, .channels = PLAN_CHANNELS_FLUSHED},
    [PLAN_GET] = {.name = "get",
                  .channel_types = MEMORY,
                  .channels = PLAN_CHANNELS_CARRY,
                  .pairs = true,
                  .sources = DATA(REMOTE(1, PLAN_MANY)),
                  .destinations = DATA(LOCAL(1, PLAN_MANY))},
    [PLAN_PUT] = {.name = "put",
                  .channel_types = MEMORY | PORT,
                  .channels = PLAN_CHANNELS_CARRY,
                  .pairs = true,
                  .sources = DATA(LOCAL(1, PLAN_MANY)),
                  .destinations = DATA(REMOTE(1, PLAN_MANY))},
    [PLAN_PUT_PACKET] = {.name = "ppkt",
                         .channel_types = MEMORY | PORT,
                         .channels = PLAN_CHANNELS_CARRY,
                         .pairs = true,
                         .sources = DATA(LOCAL(1, PLAN_MANY)),
                         .destinations = PACKETS(0, REMOTE(1, PLAN_MANY))},
    [PLAN_READ_PUT_PACKET] = {.name = "rppkt",
                              .channel_types = MEMORY | PORT,
                              .channels = PLAN_CHANNELS_CARRY,
                              .sources = PACKETS(0, LOCAL(1, 1)),
                              .destinations = PACKETS(0, REMOTE(1, PLAN_MANY))},
    [PLAN_PUT_WITH_SIGNAL] = {.name = "pws",
                              .channel_types = PORT,
                              .channels = PLAN_CHANNELS_CARRY,
                              .signals = true,
                              .pairs = true,
                              .sources = DATA(LOCAL(1, PLAN_MANY)),
                              .destinations = DATA(REMOTE(1, PLAN_MANY))},
    [PLAN_PUT_WITH_SIGNAL_AND_FLUSH] = {.name = "pwsf",
                                        .channel_types = PORT,
                                        .channels = PLAN_CHANNELS_CARRY,
                                        .signals = true,
                                        .pairs = true,
                                        .sources = DATA(LOCAL(1, PLAN_MANY)),
                                        .destinations = DATA(REMOTE(1, PLAN_MANY))},
    [PLAN_REDUCE_SEND] = {.name = "res",
                          .channel_types = MEMORY,
                          .channels = PLAN_CHANNELS_CARRY,
                          .reduces = true,
                          .sources = DATA(LOCAL(2, PLAN_MANY)),
                          .destinations = DATA(LOCAL(1, 1), REMOTE(1, PLAN_MANY))},
    [PLAN_REDUCE_SEND_PACKET] = {.name = "respkt",
                                 .channel_types = MEMORY,
                                 .channels = PLAN_CHANNELS_CARRY,
                                 .reduces = true,
                                 .sources = PACKETS(1, LOCAL(2, PLAN_MANY)),
                                 .destinations = PACKETS(1, LOCAL(1, 1), REMOTE(1, PLAN_MANY))},
    [PLAN_REDUCE_COPY_SEND_PACKET] = {.name = "recspkt",
                                      .channel_types = MEMORY,
                                      .channels = PLAN_CHANNELS_CARRY,
                                      .reduces = true,
                                      .sources = PACKETS(1, LOCAL(2, PLAN_MANY)),
                                      .destinations =
                                          PACKETS(1, LOCAL(2, 2), REMOTE(1, PLAN_MANY))},
    [PLAN_READ_REDUCE] = {.name = "rre",
                          .channel_types = MEMORY,
                          .channels = PLAN_CHANNELS_CARRY,
                          .reduces = true,
                          .sources = DATA(LOCAL(1, 1), REMOTE(1, PLAN_MANY)),
                          .destinations = DATA(LOCAL(1, 1))},
    [PLAN_READ_REDUCE_SEND] = {.name = "rres",
                               .channel_types = MEMORY,
                               .channels = PLAN_CHANNELS_CARRY,
                               .reduces = true,
                               .sources = DATA(LOCAL(1, 1), REMOTE(1, PLAN_MANY)),
                               .destinations = DATA(LOCAL(1, 1), REMOTE(1, PLAN_MANY))},
    [PLAN_GROUP_STORE] = {.name = "gstore",
                          .channel_types = SWITCH,
                          .sources = DATA(LOCAL(1, 1)),
                          .destinations = DATA(GROUP)},
    [PLAN_GROUP_STORE_PACKET] = {.name = "gstorepkt",
                                 .channel_types = SWITCH,
                                 .sources = PACKETS(0, LOCAL(1, 1)),
                                 .destinations = PACKETS(0, GROUP)},
    [PLAN_GROUP_LOAD_REDUCE] = {.name = "glre",
                                .channel_types = SWITCH,
                                .reduces = true,
                                .sources = DATA(GROUP),
                                .destinations = DATA(LOCAL(1, 1))},
    [PLAN_GROUP_LOAD_REDUCE_STORE] = {.name = "glres",
                                      .channel_types = SWITCH,
                                      .reduces = true,
                                      .sources = DATA(GROUP),
                                      .destinations = DATA(GROUP)},
    [PLAN_PIPELINE] = {.name = "pipeline"},
};

const plan_op_form *plan_op_form_of(plan_op_kind kind)
{
    return &forms[kind];
}

const char *plan_op_name(plan_op_kind kind)
{
    return forms[kind].name;
}

static bool find_name(const char *const *names, int count, const char *name, int *index)
{
    for (int i = 0; i < count; i++) {
        if (names[i] && strcmp(names[i], name) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

bool plan_op_parse(const char *name, plan_op_kind *kind)
{
    for (int i = 0; i < PLAN_OP_KINDS; i++) {
        if (strcmp(forms[i].name, name) == 0) {
            *kind = (plan_op_kind)i;
            return true;
        }
    }
    return false;
}

static const char *const buffer_names[PLAN_BUFFERS] = {
    [PLAN_INPUT] = "i", [PLAN_OUTPUT] = "o", [PLAN_SCRATCH] = "s"};

static const char *const buffer_words[PLAN_BUFFERS] = {
    [PLAN_INPUT] = "input", [PLAN_OUTPUT] = "output", [PLAN_SCRATCH] = "scratch"};

static const char *const channel_names[PLAN_CHANNEL_TYPES] = {[PLAN_NO_CHANNEL] = "none",
                                                              [PLAN_MEMORY] = "memory",
                                                              [PLAN_PORT] = "port",
                                                              [PLAN_SWITCH] = "switch"};

const char *plan_buffer_name(plan_buffer buffer)
{
    return buffer_names[buffer];
}

const char *plan_buffer_word(plan_buffer buffer)
{
    return buffer_words[buffer];
}

bool plan_buffer_parse(const char *name, plan_buffer *buffer)
{
    int index;
    if (!find_name(buffer_names, PLAN_BUFFERS, name, &index))
        return false;
    *buffer = (plan_buffer)index;
    return true;
}

const char *plan_channel_name(plan_channel_type type)
{
    return channel_names[type];
}

bool plan_channel_parse(const char *name, plan_channel_type *type)
{
    int index;
    if (!find_name(channel_names, PLAN_CHANNEL_TYPES, name, &index))
        return false;
    *type = (plan_channel_type)index;
    return true;
}

static bool plan_op_has_packets(const plan_operands_form *form)
{
    return form->packets_from != PLAN_MANY &&
           (form->local_most || form->remote_most || form->group);
}

bool plan_op_reads_packets(plan_op_kind kind)
{
    return plan_op_has_packets(&forms[kind].sources);
}

bool plan_op_writes_packets(plan_op_kind kind)
{
    return plan_op_has_packets(&forms[kind].destinations);
}

bool plan_source_is_packets(const plan_op *op, uint32_t i)
{
    uint8_t from = forms[op->kind].sources.packets_from;
    return from != PLAN_MANY && i >= from;
}

bool plan_destination_is_packets(const plan_op *op, uint32_t i)
{
    uint8_t from = forms[op->kind].destinations.packets_from;
    return from != PLAN_MANY && i >= from;
}

bool plan_op_reduces(plan_op_kind kind)
{
    return forms[kind].reduces;
}

bool plan_op_is_pairs(plan_op_kind kind)
{
    return forms[kind].pairs;
}

static bool has_parts(const plan_op *op)
{
    return op->destination_count > 0 && !plan_op_reduces(op->kind);
}

uint32_t plan_op_part_count(const plan_op *op)
{
    return has_parts(op) ? op->destination_count : op->destination_count > 0;
}

plan_op plan_op_part(const plan_op *op, uint32_t i)
{
    plan_op part = *op;
    if (has_parts(op)) {
        part.sources = &op->sources[i < op->source_count ? i : op->source_count - 1];
        part.destinations = &op->destinations[i];
        part.source_count = part.destination_count = 1;
    }
    return part;
}
