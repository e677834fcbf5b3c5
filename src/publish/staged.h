/* Versions that an engine's rank has received and not committed. */
#ifndef PUBLISH_STAGED_H
#define PUBLISH_STAGED_H

#include "copy/strided/strided.h"
#include "core/containers.h"

/* Some blocks of a box (delta/stream.h). */
struct staged_part {
    strided_view box; /* in the engine's tensors */
    uint64_t first, count;
    void *stream;
    size_t bytes;
};

/* A version. All ranks of an engine number those that they stage identically, from 1 on. */
struct staged {
    struct staged *next;
    uint64_t number, version, publication;
    bool in_place; /* the tensors hold it already */
    ARRAY(struct staged_part) parts;
    ARRAY(void *) memory; /* that the streams lie in */
    uint64_t bytes;
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
/* Free the versions above a number. */
void staged_drop_above(struct staged_list *list, uint64_t last_number);
void staged_list_free(struct staged_list *list);

/* Exchange the elements of a version with those of the tensors; `back`: undo an exchange. */
void staged_swap(const struct staged *staged, bool back);
/* The same for all versions, the last one first if `back`. */
void staged_list_swap(const struct staged_list *list, bool back);

#endif
