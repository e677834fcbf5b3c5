/* Find the late rank. A waiting rank asks the rank that it waits for which rank that one waits for,
 * and so on, up to a rank that is not waiting in that call. Each rank forwards an answer to the
 * ranks that asked it. So a question costs each rank one message to a neighbour, however many ranks
 * wait. A rank that is asked in one world and waits in another world of the same job is followed
 * there.
 *
 * A rank has at most two waits in a world: one of its host and one of its device. Questions about a
 * device's wait go to the asked rank's device, and to its host if that waits itself.
 *
 * A gate is a collective without contents at which a call begins. When a rank's deadline passes
 * there, its question also asks the late rank to give up the gate for all. Only the late rank can
 * do so safely: no rank leaves a gate before all have entered, so none has left it or can still
 * leave it. The news spreads along the edges of a barrier. The number of the gate is then used up.
 * Ranks that still have time, ranks that call again, and the late rank use the next number.
 *
 * Call all of these functions with the endpoint's lock held. */
#ifndef WORLD_COLLECTIVES_LATE_H
#define WORLD_COLLECTIVES_LATE_H

#include "world/net/endpoint.h"

/* Record that this rank waits for a rank of the job; `number` as in struct waiting. */
void late_begin(struct context *context, uint64_t number, int job_rank);
void late_end(struct waiting *waiting);

/* Return the wait with this number. */
static inline struct waiting *late_wait(struct context *context, uint64_t number)
{
    return number == DEVICE_NUMBER ? &context->on_device : &context->waiting;
}

/* Ask the awaited rank. At a gate: `gives_up` when this rank's deadline has passed. */
void late_ask(struct endpoint *endpoint, const struct context *context, struct waiting *waiting,
              bool gives_up);

/* Return the rank of the job to name: the late rank or, while that is unknown, the awaited rank. */
int late_rank(const struct endpoint *endpoint, const struct waiting *waiting);

/* Return that rank's state, for messages: "has not come". */
const char *late_how(const struct waiting *waiting);

/* True for the kinds of frames that this file handles. */
static inline bool late_takes(uint32_t kind)
{
    return kind == WIRE_ASK || kind == WIRE_ANSWER || kind == WIRE_GIVE_UP;
}
banyan_status late_take(struct endpoint *endpoint, const struct link *link,
                        const struct wire_frame *frame, const void *payload);

#endif
