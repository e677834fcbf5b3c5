/* The layouts of all ranks, inside Banyan. */
#ifndef RESHARD_LAYOUT_FILE_H
#define RESHARD_LAYOUT_FILE_H

#include <banyan/layout.h>

#include "core/containers/array.h"
#include "core/containers/map.h"

/* Ranks with equal layouts. */
typedef struct layout_group {
    banyan_layout *layout;
    ARRAY(int) ranks; /* ascending */
    char *text;       /* what layout_file_write_layout makes of it; NULL: not yet written */
} layout_group;

struct banyan_layout_file {
    ARRAY(layout_group) groups;
    ARRAY(int) group_of; /* of each rank; -1: none */
    map by_text;         /* the groups that have a text */
};

/* An empty group at the end. NULL, with the error set, when memory ran out. */
layout_group *layout_file_new_group(banyan_layout_file *file);
/* Note that `rank`, which is not there yet, holds what the group has; its ranks are to be sorted
 * when all are there. */
bool layout_file_put_rank(banyan_layout_file *file, size_t group, int rank);
void layout_file_sort_ranks(layout_group *group);

/* Write a layout as members of a group ("facts", "tensors"); to be freed. INVALID names a tensor
 * that cannot be written. */
banyan_status layout_file_write_layout(const banyan_layout *layout, char **text);

/* Read the text of a file into an empty one; `path` is for errors, which are
 * banyan_layout_file_load's. */
banyan_status layout_file_parse(const char *path, const char *text, size_t bytes,
                                banyan_layout_file *file);

#endif
