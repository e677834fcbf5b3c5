/* The rendezvous of a job: one process collects every rank's entry, and sends all ranks the table
 * when all have joined. The process need not be a rank. */
#ifndef WORLD_BOOTSTRAP_RENDEZVOUS_H
#define WORLD_BOOTSTRAP_RENDEZVOUS_H

#include "core/status.h"
#include "world/bootstrap/identity.h"
#include "world/bootstrap/member.h"
#include "world/net/address.h"
#include "world/net/wire.h"

#define RENDEZVOUS_ADDRESSES 8

/* The place and the key of a rendezvous. */
struct rendezvous_place {
    char name[ADDRESS_NAME_BYTES]; /* for ranks of its node */
    bool local;                    /* ranks connect to the name; otherwise to the addresses */
    struct address addresses[RENDEZVOUS_ADDRESSES];
    int address_count;
    bool patient; /* it may start after the ranks that look for it */
    unsigned char key[WIRE_KEY_BYTES];
};

/* Get the place from a unique id. `node` is this process's. FORMAT when it is not an id. */
banyan_status rendezvous_place_of_id(const banyan_unique_id *id, const char *node,
                                     struct rendezvous_place *place);

/* Get the place for a job whose rank 0 is the rendezvous. */
banyan_status rendezvous_place_of_job(const struct identity *identity,
                                      struct rendezvous_place *place);

/* True if a process of this user waits on this node for ranks of the job with another secret, or
 * without one. `who` receives "pid 12 of user 1000". */
bool rendezvous_has_other_secret(const struct rendezvous_place *place,
                                 char who[ADDRESS_TEXT_BYTES]);

/* Make a place for a new job: a random key, and the id that describes the place. `*tcp_fd` listens
 * for ranks of other nodes; -1 without TCP. */
banyan_status rendezvous_place_new(const char *node, struct rendezvous_place *place,
                                   banyan_unique_id *id, int *tcp_fd);

/* Serve from a new thread, which ends when all ranks have the table. Takes ownership of `tcp_fd`
 * (-1: none), even on failure. `world_size` 0: the first rank to join sets it. A detached
 * rendezvous frees itself, and `*rendezvous` is not set. */
struct rendezvous;
banyan_status rendezvous_start(const struct rendezvous_place *place, int tcp_fd, int world_size,
                               bool detached, struct rendezvous **rendezvous);
/* End the thread, whether or not all ranks have the table. `why` is the failure of this process's
 * rank; NULL when no failure concerns the others. The other ranks get it; those that have yet to
 * join, for at most a second. False when no rank was informed: all ranks were ready before, or the
 * rendezvous is NULL. */
bool rendezvous_stop(struct rendezvous *rendezvous, const error_kept *why);

/* The job cannot start: inform all ranks but rank 0 that connect within `ns`. */
void rendezvous_refuse(const struct rendezvous_place *place, int tcp_fd, int world_size,
                       const error_kept *why, uint64_t ns);

#endif
