/* One fetch of a version: the publication's ranks send what changed, the subscription's stage it.
 */
#ifndef PUBLISH_FETCH_H
#define PUBLISH_FETCH_H

#include "publish/delta/stream.h"
#include "publish/session.h"
#include "publish/staged.h"
#include "world/control.h"

/* Source of a fetch at a rank of the publication. */
struct fetch_source {
    const banyan_layout *layout;
    const banyan_tensors *kept;
    const struct publish_device *device; /* in whose memory `kept` and the maps lie */
    /* The maps of the versions after the base, for each tensor map_count of them. */
    const uint64_t *const *const *maps;
    size_t map_count;
    bool whole;
    bool goes_on;         /* it follows fetches with pauses: checksums of all boxes are sent */
    uint64_t bytes_per_s; /* limit of this rank; 0: none */
    /* True if the fetch has to pause. Called at rank 0 after each wave. */
    bool (*has_to_pause)(void *context);
    /* Let `kept` and the maps change, and return when they do not any more, on all ranks. The maps
     * that this fetch has stay as they are. Collective over the joined world, with session_pause at
     * the subscription. */
    banyan_status (*pause)(void *context);
    void *context;
};

/* The ranks of the joined world agree on this after each wave. */
struct fetch_next {
    uint64_t has_more; /* not 0: some rank has another wave */
    uint64_t pauses;   /* not 0: before it, the fetch pauses */
};

static inline banyan_status fetch_agree(const struct session *session, struct fetch_next *next)
{
    uint64_t words[] = {next->has_more, next->pauses};
    RETURN_IF_FAILED(control_max_each(session->joined, words, 2));
    *next = (struct fetch_next){words[0], words[0] && words[1]};
    return BANYAN_OK;
}

/* Send a version to a subscription. Adds to `*sent_bytes`. Collective over the joined world, with
 * fetch_receive at the other ranks; all return the same error. */
banyan_status fetch_send(struct session *session, const struct fetch_source *source,
                         _Atomic uint64_t *sent_bytes);

/* Destination of a fetch at a rank of the subscription. */
struct fetch_target {
    const banyan_layout *layout;
    const banyan_tensors *tensors;
    const uint32_t *layers; /* of tensors on a device (staged_layers) */
    uint64_t max_bytes;     /* that the version may need; UINT64_MAX: no limit */
    /* Called before boxes are verified, and after it if it returns true: nothing may change the
     * tensors between the two. It returns false if the version is of no use any more. */
    bool (*begin_verify)(void *context);
    void (*end_verify)(void *context);
    void *context;
    /* With its device. In place: each wave is exchanged with the elements, and nothing is kept. */
    struct staged *staged;
    /* The elements that earlier fetches of this version have brought; this one builds on them. */
    const struct staged_list *before;
};

/* Receive a version: all elements if `whole`, otherwise the changes. `*paused` tells whether the
 * fetch has paused: then another one is needed, and nothing is verified. Otherwise `before` and
 * this fetch are ready for the exchange. Errors: CORRUPT (what arrived is damaged, or a box would
 * not be the trainer's; the message names tensor, box and ranks). INVALID (it needs more than
 * max_bytes). NO_MEMORY. Those of the device, of the copy service and of the world's waits. */
banyan_status fetch_receive(struct session *session, const struct fetch_target *target, bool whole,
                            bool *paused);

#endif
