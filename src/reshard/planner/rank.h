/* Planning for one rank, independent of how messages travel: the records it publishes, the keys it
 * asks for, and the transfers that follow. One process can therefore plan a world of thousands of
 * ranks with the code that a real rank runs. */
#ifndef RESHARD_PLANNER_RANK_H
#define RESHARD_PLANNER_RANK_H

#include <banyan/reshard.h>

#include "core/containers.h"
#include "reshard/layout/names.h"

/* Call each step once, in this order: describe, then PLANNER_ROUNDS times ask and receive, then
 * derive. */
#define PLANNER_ROUNDS 2

typedef struct planner planner;

/* The layouts (NULL: none on that side) must outlive the planner and be free of errors, and so must
 * `node_of`, the node of each rank (NULL: all share one). */
banyan_status planner_create(int rank, int world_size, const int *node_of,
                             const banyan_layout *source, const banyan_layout *destination,
                             const banyan_reshard_options *options, planner **made);
void planner_destroy(planner *planning);

/* Pass every record that this rank publishes to `put`. */
typedef banyan_status (*planner_put_fn)(void *context, const char *key, const void *value,
                                        size_t bytes, const banyan_rank_set *holders);
banyan_status planner_describe(planner *planning, planner_put_fn put, void *context);

/* Return the keys to look up in this round; they live until the next round. */
banyan_status planner_ask(planner *planning, size_t *count, const char *const **keys);

/* A banyan_directory_visit; `planning` is the planner. */
banyan_status planner_receive(void *planning, size_t key_index,
                              const banyan_directory_value *values, size_t value_count);

typedef struct planner_result {
    names names; /* holds the names in `transfers` */
    banyan_transfer *sends;
    size_t send_count;
    banyan_transfer *recvs;
    size_t recv_count;
    /* The type of each local tensor of the destination: its own, or the source's. */
    DLDataType *destination_dtypes;
    /* Bytes of boxes that this rank fetches over the network beside others of its node. */
    uint64_t fetched_again;
    /* Per piece of the destination, the tensor that fills it: its own, or its fallback. */
    const char **destination_names;
} planner_result;

/* Derive all transfers of this rank, sorted by partner, piece and position. An error names tensor,
 * rank and box. */
banyan_status planner_derive(planner *planning, planner_result *result);
void planner_result_free(planner_result *result);

/* Check that every element of this rank's source arrives in some destination, where the options
 * require it. Call it after planner_derive, while its result lives. INVALID names the first tensor
 * and box that does not arrive. */
banyan_status planner_check_whole_source(const planner *planning);

/* Names, when a plan fails; call after planner_derive. */

/* List this rank's global tensors of one side that have nothing on the other. For the destination
 * these are the tensors without any source; for the source, tensors that no destination takes and
 * no skip pattern matches. The list is to be freed; the names live as long as the planner's result,
 * or the planner. */
banyan_status planner_list_unmatched(const planner *planning, banyan_side side, const char ***list,
                                     size_t *count);

/* Find the name most similar to `name` among this rank's tensors of one side, at a distance below
 * `limit`. Between equal distances an unmatched name is preferred. NULL: there is none. */
const char *planner_nearest(const planner *planning, banyan_side side, const char *name, int limit,
                            int *distance);

#endif
