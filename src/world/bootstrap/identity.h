/* This process's place in its job, and the way to the other processes. */
#ifndef WORLD_BOOTSTRAP_IDENTITY_H
#define WORLD_BOOTSTRAP_IDENTITY_H

#include <banyan/world.h>

#define IDENTITY_SECRET_BYTES 16

struct identity {
    int rank, world_size;
    int local_rank, local_size; /* -1 when unknown */

    /* With a unique id, the members below are unused: the id contains all that the rendezvous
     * needs. */
    bool has_unique_id;
    banyan_unique_id unique_id;

    /* Equal on every rank of the job, and different for every job; empty when unknown. Ranks that
     * all share a node (local_size equals world_size) use a rendezvous name derived from it. */
    char job[256];
    bool has_secret;
    unsigned char secret[IDENTITY_SECRET_BYTES];
    /* Where rank 0 listens, when there are several nodes. Empty and 0 when unknown. */
    char address[256];
    int port;
};

/* Discover the identity from the options, else the environment, else PMIx, else as the only rank.
 * With PMIx, rank 0's unique id is broadcast, so the call is collective over the job. `options` may
 * be NULL. INVALID when two sources contradict each other, or when they do not suffice for a
 * rendezvous. */
banyan_status identity_discover(const banyan_world_options *options, struct identity *identity);

#endif
