/* The form of each kind of operation: its name, its channels and its operands. */
#ifndef PLAN_OP_H
#define PLAN_OP_H

#include "core/text/text.h"
#include "plan/plan.h"

#define PLAN_BIT(type) (1u << (type))
#define PLAN_MANY UINT8_MAX

/* The number of operands per place: local ones come first, then remote or group ones. */
typedef struct plan_operands_form {
    uint8_t local_least, local_most;
    uint8_t remote_least, remote_most;
    bool group;           /* exactly one, and no others */
    uint8_t packets_from; /* the operands from this one on are packets; PLAN_MANY: none */
} plan_operands_form;

/* Use of channels by an operation. */
typedef enum plan_channel_use {
    PLAN_CHANNELS_UNUSED,
    PLAN_CHANNELS_SIGNALLED, /* one or more; the peer's end must exist */
    PLAN_CHANNELS_FLUSHED,   /* one or more */
    PLAN_CHANNELS_CARRY      /* port: one per destination; memory: ignored */
} plan_channel_use;

typedef struct plan_op_form {
    const char *name;
    unsigned channel_types; /* bits; 0: an operation without channels */
    plan_channel_use channels;
    bool signals; /* the channels' peers */
    bool pairs, reduces;
    plan_operands_form sources, destinations;
} plan_op_form;

/* Data bytes in a packet, beside its flag. */
#define PLAN_PACKET_DATA_BYTES 4

const plan_op_form *plan_op_form_of(plan_op_kind kind);

/* "memory" and so on. */
bool plan_channel_parse(const char *name, plan_channel_type *type);
bool plan_buffer_parse(const char *name, plan_buffer *buffer);
/* Return "input" and so on, for messages. */
const char *plan_buffer_word(plan_buffer buffer);

/* Append "put memory i[0..2) -> s[4..6)@1": buffers of this rank, and of others after @. For a
 * pipeline only its head, without its operations. */
void op_text_add(bytes_writer *text, const banyan_plan *plan, int rank,
                 const plan_thread_block *block, const plan_op *op);

#endif
