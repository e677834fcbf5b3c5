/* Versions that an engine's rank has received and not committed. */
#ifndef PUBLISH_STAGED_H
#define PUBLISH_STAGED_H

#include "core/containers.h"
#include "publish/device.h"

/* Some blocks of a box (delta/stream.h). */
struct staged_part {
    strided_view box; /* in the engine's tensors */
    size_t number;    /* of the box in the fetch */
    uint32_t layer;   /* parts of one layer share no elements (staged_layers) */
    uint64_t first, count;
    void *stream; /* in host memory; NULL: it lies on the device alone */
    size_t bytes;
    void *there;      /* the stream in the device's memory */
    size_t first_end; /* of its blocks, in `ends` of the version */
};

/* The part of a version that one fetch has brought. All ranks of an engine number the versions that
 * they stage identically, from 1 on. */
struct staged {
    struct staged *next;
    uint64_t number, version, publication;
    const struct publish_device *device; /* in whose memory the tensors lie */
    bool in_place;                       /* the tensors hold it already */
    bool whole;                          /* all elements came */
    ARRAY(struct staged_part) parts;
    ARRAY(void *) memory; /* of the host, that the streams lie in */
    uint64_t bytes;       /* of streams that are kept */
    uint64_t received;    /* of all streams */
    /* On a device: */
    ARRAY(uint64_t) ends; /* where each block of a part ends (delta_check) */
    ARRAY(void *) there;  /* memory of the device, that the streams lie in */
    ARRAY(size_t) layers; /* the first part of each, and the end */
    void *exchange;       /* from staged_finish */
};

/* Versions in the order of their numbers. */
struct staged_list {
    struct staged *first, *last;
    uint64_t bytes;
};

void staged_free(struct staged *staged);
void staged_append(struct staged_list *list, struct staged *staged);
/* Take the first versions, up to a number, from the list. */
struct staged_list staged_take(struct staged_list *list, uint64_t last_number);
/* Append all versions of a list to another, and empty it. */
void staged_list_move(struct staged_list *to, struct staged_list *from);
/* Free the versions above a number. */
void staged_drop_above(struct staged_list *list, uint64_t last_number);
void staged_list_free(struct staged_list *list);

/* Number tensors such that those with one number have no memory in common: those that have (tied
 * weights) are exchanged one after the other. The caller frees the numbers. */
banyan_status staged_layers(const banyan_tensors *tensors, uint32_t **layers);

/* Prepare the exchange on a device: no part is added afterwards. `boxes` are those that the parts
 * number. Frees the streams in host memory. */
banyan_status staged_finish(struct staged *staged, const strided_view *boxes, size_t count);

/* Exchange the elements of a version with those of the tensors, or, on a device, with those that
 * lie `shift` bytes behind them; `back`: undo an exchange. In the foreground a device's work is
 * queued in the caller's stream. Errors: those of a device. */
banyan_status staged_swap(const struct staged *staged, ptrdiff_t shift, bool back, bool background);
/* The same for all versions, the last one first if `back`, in the foreground; complete on return.
 */
banyan_status staged_list_swap(const struct staged_list *list, bool back);

#endif
