/* The worlds that ask to connect to a listening one. A thread of its rank 0 receives them, and
 * keeps those that have the secret in a queue until the listening world accepts them. */
#ifndef WORLD_CONNECT_QUEUE_H
#define WORLD_CONNECT_QUEUE_H

#include "world/connect/message.h"
#include "world/net/reactor.h"

struct connect_queue;

/* Listen at an address (connect_split_address) for requests with this name. `text` receives the
 * address for others. */
banyan_status connect_queue_open(banyan_world *world, const char *address,
                                 const unsigned char key[WIRE_KEY_BYTES], const char *name,
                                 char text[ADDRESS_TEXT_BYTES], struct connect_queue **queue);
/* Disconnect everything that waits. NULL is ignored. */
void connect_queue_close(struct connect_queue *queue);

/* The functions below are for the thread that drives the world. */

/* True if a world waits. */
bool connect_queue_has(struct connect_queue *queue);

/* Take the first world, and wait for one up to `ns`. False when there is none. At most one world is
 * taken at a time. `local` receives the address of this machine by which it came. */
bool connect_queue_take(struct connect_queue *queue, uint64_t ns, struct connect_party *party,
                        struct address *local);

/* Send the world that was taken the joined world's id, and wait up to `ns` until all its ranks have
 * it. */
banyan_status connect_queue_invite(struct connect_queue *queue, const banyan_unique_id *id,
                                   uint64_t ns);

/* Return an error when the world that was taken has gone. */
banyan_status connect_queue_check(struct connect_queue *queue);

/* The world that was taken is joined (`why` NULL), or dropped for a reason that it is sent. */
void connect_queue_release(struct connect_queue *queue, const error_kept *why);

#endif
