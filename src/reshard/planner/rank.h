/* One rank's planning, apart from how its words travel: what it says about its pieces, what it asks
 * about others', and the transfers that follow. A world of thousands of ranks can so be planned in
 * one process, by the very code that a real one runs. */
#ifndef RESHARD_PLANNER_RANK_H
#define RESHARD_PLANNER_RANK_H

#include <banyan/reshard.h>

#include "core/containers/array.h"
#include "reshard/layout/names.h"

/* Steps, each once, in this order: describe, then PLANNER_ROUNDS times ask and hear, then derive.
 */
#define PLANNER_ROUNDS 2

typedef struct planner planner;

/* The layouts (NULL: none on that side) must outlive the planner; they have no error. */
banyan_status planner_create(int rank, int world_size, const banyan_layout *source,
                             const banyan_layout *destination,
                             const banyan_reshard_options *options, planner **made);
void planner_destroy(planner *planning);

/* Give every record that this rank is to put to `put`. */
typedef banyan_status (*planner_put_fn)(void *context, const char *key, const void *value,
                                        size_t bytes, const banyan_rank_set *holders);
banyan_status planner_describe(planner *planning, planner_put_fn put, void *context);

/* The keys to look up in this round; they live until the next. */
banyan_status planner_ask(planner *planning, size_t *count, const char *const **keys);

/* A banyan_directory_visit; `planning` is the planner. */
banyan_status planner_hear(void *planning, size_t key_index, const banyan_directory_value *values,
                           size_t value_count);

typedef struct planner_result {
    names names; /* what the transfers' names lie in */
    banyan_transfer *sends;
    size_t send_count;
    banyan_transfer *recvs;
    size_t recv_count;
    /* A local tensor of the destination has this type: its own, or the source's. */
    DLDataType *destination_dtypes;
} planner_result;

/* All transfers of this rank, by partner, piece and place; or the first error, which names tensor,
 * rank and box. */
banyan_status planner_derive(planner *planning, planner_result *result);
void planner_result_free(planner_result *result);

/* Does every element of this rank's source arrive in some destination, where the options require
 * it? After planner_derive, as long as its result lives. INVALID names the first tensor and box
 * that does not. */
banyan_status planner_check_whole_source(const planner *planning);

/* ---- names, for a plan that failed, behind planner_derive ---- */

/* This rank's global tensors of one side that have nothing on the other: of the destination, those
 * that no source has; of the source, those that no destination takes and that need not be skipped.
 * To be freed; the names live as long as the planner's result, or the planner. */
banyan_status planner_list_lonely(const planner *planning, banyan_side side, const char ***list,
                                  size_t *count);

/* Of this rank's tensors of one side, the name that is most like `name`: its distance, less than
 * `limit`, and preferably one that is lonely. NULL: none is. */
const char *planner_nearest(const planner *planning, banyan_side side, const char *name, int limit,
                            int *distance);

#endif
