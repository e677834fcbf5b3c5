/* Messages of plans: the message for a requested size, and bandwidth figures for its time. */
#ifndef TOOLS_MESSAGE_H
#define TOOLS_MESSAGE_H

#include <banyan/plan.h>

typedef struct message {
    uint64_t message_bytes; /* a rank's input */
    uint64_t bytes;         /* of the longest buffer of any rank */
    bool in_bounds;         /* of the messages that the plan is meant for */
} message;

/* Find the longest message whose buffers have at most `wanted` bytes, but at least the shortest. */
banyan_status message_fit(const banyan_plan *plan, size_t elem_bytes, uint64_t wanted,
                          message *fitting);

/* 2^0 to 2^50 in the smallest steps, which exceeds any practical range. */
#define MESSAGES_MOST 64

/* List messages from `low` to `high`, at least one, each `factor` times the one before, as
 * message_fit makes them. Equal messages are listed once. */
banyan_status message_fit_range(const banyan_plan *plan, size_t elem_bytes, uint64_t low,
                                uint64_t high, int factor, message fitting[MESSAGES_MOST],
                                size_t *count);

/* Return the share of a collective's data that crosses one rank's link. It makes figures of
 * different collectives and numbers of ranks comparable with a link's bandwidth. */
double message_bus_factor(const banyan_plan_info *info);

#endif
