/* Who this process is in its job, and how it finds the others. */
#ifndef WORLD_BOOTSTRAP_IDENTITY_H
#define WORLD_BOOTSTRAP_IDENTITY_H

#include <banyan/world.h>

#define IDENTITY_SECRET_BYTES 16

struct identity {
    int rank, world_size;
    int local_rank, local_size; /* -1 when nobody says */

    /* With a unique id nothing below matters: it has all that is needed to meet. */
    bool has_unique_id;
    banyan_unique_id unique_id;

    /* The same on every rank of the job and different for every job; empty when nobody says. Ranks
     * that all share a node (local_size equals world_size) meet at a name made from it. */
    char job[256];
    bool has_secret;
    unsigned char secret[IDENTITY_SECRET_BYTES];
    /* Where rank 0 is met when there are several nodes. Empty and 0 when nobody says. */
    char address[256];
    int port;
};

/* From the options, else the environment, else PMIx (there rank 0's unique id is passed on, so that
 * this is collective over the job), else one rank alone. `options` may be NULL. INVALID when two
 * sources contradict each other, or what is said does not suffice to meet. */
banyan_status identity_discover(const banyan_world_options *options, struct identity *identity);

#endif
