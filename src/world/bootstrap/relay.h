/* A rank that joins, and through which others join: it passes their entries and reports on to the
 * rank or rendezvous at which it joins itself, and the answers back to them. */
#ifndef WORLD_BOOTSTRAP_RELAY_H
#define WORLD_BOOTSTRAP_RELAY_H

#include "world/bootstrap/rendezvous.h"

/* Accept others, unless this process has few descriptors. */
banyan_status relay_open(struct joiner *joiner);
/* Become the leader of this node, whose ranks join through this one. False when another process has
 * the leader's name, or `relay.failed` is set. */
bool relay_lead(struct joiner *joiner);
void relay_close(struct joiner *joiner);

/* Handle a frame of a rank behind this one. */
banyan_status relay_take(struct joiner *joiner, struct link *link, const struct wire_frame *frame,
                         const void *payload);
void relay_child_gone(struct joiner *joiner, struct link *link, banyan_status status);

/* Send on what has gathered: the entries of ranks, and which of them are ready. Return the time
 * until more is due. */
uint64_t relay_flush(struct joiner *joiner);
/* Send this rank's entry and all others on a new connection. */
banyan_status relay_introduce(struct joiner *joiner, struct link *link);

/* Pass a frame to the rank that it is for, or to all ranks behind this one. */
void relay_route(struct joiner *joiner, const struct wire_frame *frame, const void *payload);
void relay_hand_down(struct joiner *joiner, const struct wire_frame *frame, const void *payload);
void relay_hand_down_table(struct joiner *joiner);
/* Send a failure to the ranks behind this one of which the rendezvous knows. The others have to ask
 * there. */
void relay_refuse_all(struct joiner *joiner, uint64_t failure, banyan_status status,
                      const char *text);

#endif
