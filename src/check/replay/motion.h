/* Reads and writes of an operation, or of a caller, and the races that they cause. */
#ifndef CHECK_REPLAY_MOTION_H
#define CHECK_REPLAY_MOTION_H

#include "check/replay/replay.h"

/* One operand, or one member's share of a group operand. */
typedef struct buffer_view {
    space *in;
    int rank;
    plan_buffer buffer;
    uint64_t place; /* address of the buffer's first byte */
    uint32_t operand;
    bool packets;
    uint32_t cell; /* current */
} buffer_view;

typedef struct motion {
    replay *all;
    walker *by; /* NULL: a caller */
    const plan_op *op;
    uint32_t chain, time, instance, generation, part;
    const vector_clock *known;
    vector_clock *carried;    /* clock of the packets that it writes; NULL without */
    const trace_list *traces; /* of the packets that it has read for these bytes; or NULL */
    uint64_t position;
    uint64_t at, bytes; /* current range of the view's buffer, for messages */
} motion;

/* Locate a rank's buffer, with scratch in this run's half. */
buffer_view motion_view(replay *all, int rank, plan_buffer buffer, bool packets, uint32_t run);

/* Read this value; the generation of packets that have not arrived is not checked. */
bool motion_read(motion *by, const buffer_view *from, value_ref *value);
bool motion_write(motion *by, const buffer_view *to, value_ref value, uint32_t origin);

#endif
