/* The tree in which ranks join: where a rank of the job accepts others that join through it.
 *
 * On one node, rank r joins at rank r & (r - 1), that is r without its lowest bit: a binomial tree,
 * in which no rank has more than log2(ranks) children. Ranks find each other by names that follow
 * from the place of the rendezvous. A node other than that of the rendezvous has one leader, which
 * connects to it over TCP; the first rank that takes the leader's name is the leader. */
#ifndef WORLD_BOOTSTRAP_TREE_H
#define WORLD_BOOTSTRAP_TREE_H

#include "world/bootstrap/joining.h"
#include "world/bootstrap/member.h"

#define TREE_LEADER (-1)

static inline int tree_parent(int rank)
{
    return rank & (rank - 1);
}

/* Let ranks join through others. Call it for a rank's place, before that rank changes it. */
void tree_base(struct rendezvous_place *place, const char *node);
/* Get the name of a rank's listener on this node. */
void tree_name(const struct rendezvous_place *place, int rank, char name[ADDRESS_NAME_BYTES]);

/* Return the number of ranks in the subtree of a rank, itself included. */
int tree_span(int rank, int world_size);

/* Return the address of a rank's listener on this node, or of TREE_LEADER's. */
struct address tree_address(const struct rendezvous_place *place, int rank);

banyan_status tree_add_child(struct tree_children *children, struct link *link,
                             const struct join_request *request);
bool tree_has_child(const struct tree_children *children, const struct link *link);
void tree_remove_child(struct tree_children *children, const struct link *link);

/* Complete the address of a rank that came on a link, if that leads to another machine. */
void tree_complete_address(const struct link *link, struct member *member);

/* Choose a child at which another rank may join, in turn; `authenticated`: the rank comes over TCP.
 * False when there is none. */
bool tree_choose_child(struct tree_children *children, const struct rendezvous_place *place,
                       bool authenticated, struct address *address);

/* Tell a rank to join at another address; NULL: at the rendezvous itself. With the lock held. */
banyan_status tree_redirect(struct link *link, int rank, const struct address *address);
/* Read the payload of a redirection; `bytes` 0 of the address: to the rendezvous. */
bool tree_read_redirect(const void *data, size_t bytes, struct address *address);

/* Return the failure of a rank that cannot open the world, with the rank's name, for the others. */
error_kept tree_name_failure(int rank, const error_kept *why);

#endif
