/* An operation, or a caller, at work on bytes: what it reads and writes, and with whom it collides.
 */
#ifndef CHECK_REPLAY_MOTION_H
#define CHECK_REPLAY_MOTION_H

#include "check/replay/replay.h"

/* One operand, or of a group one member's. */
typedef struct lane {
    space *in;
    int rank;
    plan_buffer buffer;
    uint64_t place; /* of the buffer's first byte */
    uint32_t operand;
    bool packets;
    uint32_t cell; /* at hand */
} lane;

typedef struct motion {
    replay *all;
    walker *by; /* NULL: a caller */
    const plan_op *op;
    uint32_t chain, time, instance, generation, part;
    const vector_clock *known;
    vector_clock *told;       /* with packets that it writes; NULL without */
    const trace_list *traces; /* of the packets that it has read for these bytes; or NULL */
    uint64_t position;
    uint64_t at, bytes; /* of the lane's buffer at hand, for those who are told */
} motion;

/* Where a rank's buffer lies, in this run's half if it is scratch. */
lane motion_lane(replay *all, int rank, plan_buffer buffer, bool packets, uint32_t run);

/* Who reads finds this value; a generation that has not come yet is not asked for. */
bool motion_read(motion *by, const lane *from, value_ref *value);
bool motion_write(motion *by, const lane *to, value_ref value, uint32_t origin);

#endif
