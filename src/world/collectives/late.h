/* Finding the late rank: ranks that wait ask the rank that they wait for whom it waits for itself,
 * and so on to one that waits for nobody in that call. A rank passes an answer on to those who
 * asked it, so that a question costs each rank one message to a neighbour, however many ranks wait.
 * A rank that is asked in one world and waits in another world of the same job is followed there.
 *
 * A rank has two waits in a world at most: one of its host and one of its device. Questions in a
 * wait of the device are for the asked rank's device, and for its host if that waits itself.
 *
 * A gate is a collective without contents at which a call begins. When a rank's deadline passes
 * there, its question also asks the late rank to give the gate up for all. That rank alone can do
 * so safely: no rank leaves a gate before all have entered, so that none has left it or can leave
 * it any more. The news spreads along the edges of a barrier. The number of the gate is then used
 * up: ranks that still have time, those that call again and the late one meet at the next number.
 *
 * All of these functions are called with the endpoint's lock held. */
#ifndef WORLD_COLLECTIVES_LATE_H
#define WORLD_COLLECTIVES_LATE_H

#include "world/net/endpoint.h"

/* This rank waits for a rank of the job; `number` as in struct waiting. */
void late_begin(struct context *context, uint64_t number, int job_rank);
void late_end(struct waiting *waiting);

/* The wait that the number belongs to. */
static inline struct waiting *late_wait(struct context *context, uint64_t number)
{
    return number == DEVICE_NUMBER ? &context->on_device : &context->waiting;
}

/* Ask the rank that is waited for. At a gate: `gives_up` when this rank's deadline has passed. */
void late_ask(struct endpoint *endpoint, const struct context *context, struct waiting *waiting,
              bool gives_up);

/* The rank of the job to name: the one that has not come or, as long as that is unknown, the one
 * that is waited for. */
int late_rank(const struct endpoint *endpoint, const struct waiting *waiting);

/* That rank's state, for messages: "has not come". */
const char *late_how(const struct waiting *waiting);

/* A frame of these kinds has come. */
static inline bool late_takes(uint32_t kind)
{
    return kind == WIRE_ASK || kind == WIRE_ANSWER || kind == WIRE_GIVE_UP;
}
banyan_status late_take(struct endpoint *endpoint, const struct link *link,
                        const struct wire_frame *frame, const void *payload);

#endif
