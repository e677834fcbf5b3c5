/* How the ranks of a job meet: one process collects who and where each rank is, and when all have
 * come hands out the table. It need not be a rank itself. */
#ifndef WORLD_BOOTSTRAP_RENDEZVOUS_H
#define WORLD_BOOTSTRAP_RENDEZVOUS_H

#include "core/status.h"
#include "world/bootstrap/identity.h"
#include "world/bootstrap/member.h"
#include "world/net/address.h"
#include "world/net/wire.h"

#define RENDEZVOUS_ADDRESSES 8

/* Where and under which key to meet. */
struct rendezvous_place {
    char name[ADDRESS_NAME_BYTES]; /* for ranks of its node */
    bool local;                    /* it is met at the name, else at the addresses */
    struct address addresses[RENDEZVOUS_ADDRESSES];
    int address_count;
    bool patient; /* it may start later than those who look for it */
    unsigned char key[WIRE_KEY_BYTES];
};

/* Of the unique id. `node` is this process's. FORMAT when it is no id. */
banyan_status rendezvous_place_of_id(const banyan_unique_id *id, const char *node,
                                     struct rendezvous_place *place);

/* Of a job whose rank 0 is the rendezvous. */
banyan_status rendezvous_place_of_job(const struct identity *identity,
                                      struct rendezvous_place *place);

/* Does a process of this user wait on this node for ranks of the same job with another secret, or
 * without one? `who` receives "pid 12 of user 1000". */
bool rendezvous_has_other_secret(const struct rendezvous_place *place,
                                 char who[ADDRESS_TEXT_BYTES]);

/* A new job's: random, and the id that says where it is. `*tcp_fd` listens for ranks of other
 * nodes; -1 where there is no TCP. */
banyan_status rendezvous_place_new(const char *node, struct rendezvous_place *place,
                                   banyan_unique_id *id, int *tcp_fd);

/* Serve from a thread of its own, which ends when all have the table. `tcp_fd` (-1: none) is taken,
 * also on failure. `world_size` 0: as the first to come says. Detached, it frees itself and
 * `*rendezvous` is not set. */
struct rendezvous;
banyan_status rendezvous_start(const struct rendezvous_place *place, int tcp_fd, int world_size,
                               bool detached, struct rendezvous **rendezvous);
/* End the thread, whether all have the table or not. `why` is the failure of this process's rank,
 * NULL when there is none that concerns the others. They are told, those that have yet to come for
 * a second at most. False when nobody was told: all ranks were ready before, or the rendezvous is
 * NULL. */
bool rendezvous_stop(struct rendezvous *rendezvous, const error_kept *why);

/* The job cannot be: tell all ranks but rank 0, as far as they come within `ns`. */
void rendezvous_refuse(const struct rendezvous_place *place, int tcp_fd, int world_size,
                       const error_kept *why, uint64_t ns);

#endif
