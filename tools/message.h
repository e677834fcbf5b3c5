/* Messages of plans: what a size that somebody asks for comes to, and what its time says. */
#ifndef TOOLS_MESSAGE_H
#define TOOLS_MESSAGE_H

#include <banyan/plan.h>

typedef struct message {
    uint64_t message_bytes; /* a rank's input */
    uint64_t bytes;         /* of the longest buffer of any rank */
    bool in_bounds;         /* of the messages that the plan is meant for */
} message;

/* The longest message whose buffers have at most `wanted` bytes, but at least the shortest. */
banyan_status message_fit(const banyan_plan *plan, size_t elem_bytes, uint64_t wanted,
                          message *fitting);

/* Of the data that a collective must move, how much goes over a rank's link: what makes figures of
 * different collectives and numbers of ranks comparable with a link's bandwidth. */
double message_bus_factor(const banyan_plan_info *info);

#endif
