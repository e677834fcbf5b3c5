/* Where ranks join: the place of a rendezvous, and the connections of a rank through which others
 * join. */
#ifndef WORLD_BOOTSTRAP_JOINING_H
#define WORLD_BOOTSTRAP_JOINING_H

#include <stdbool.h>
#include <stddef.h>

#include "world/net/address.h"
#include "world/net/reactor.h"
#include "world/net/wire.h"

#define RENDEZVOUS_ADDRESSES 8

/* The place and the key of a rendezvous. */
struct rendezvous_place {
    char name[ADDRESS_NAME_BYTES]; /* for ranks of its node */
    bool local;                    /* ranks connect to the name; otherwise to the addresses */
    struct address addresses[RENDEZVOUS_ADDRESSES];
    int address_count;
    bool may_start_late; /* it may start after the ranks that look for it */
    bool all_here;       /* all ranks are on this node */
    bool has_tree;       /* ranks may join through others */
    unsigned char key[WIRE_KEY_BYTES];
    unsigned char tree[WIRE_KEY_BYTES]; /* the names of ranks in the tree follow from it */
};

/* A connection on which a rank, and those behind it, join through this process. */
struct tree_child {
    struct link *link;
    bool relays;             /* others may join there, at its name in the tree */
    struct address over_tcp; /* or over TCP; none: not over TCP */
};

struct tree_children {
    struct tree_child *data;
    size_t count, capacity;
    size_t turn; /* the child at which the next rank joins */
};

#endif
