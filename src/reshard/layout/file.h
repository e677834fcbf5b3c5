/* The layouts of all ranks, internally. */
#ifndef RESHARD_LAYOUT_FILE_H
#define RESHARD_LAYOUT_FILE_H

#include <banyan/layout.h>

#include "core/containers.h"

/* Ranks with equal layouts. */
typedef struct layout_group {
    banyan_layout *layout;
    ARRAY(int) ranks; /* ascending */
    char *text;       /* as layout_file_write_layout writes it; NULL: not yet written */
} layout_group;

struct banyan_layout_file {
    ARRAY(layout_group) groups;
    ARRAY(int) group_of; /* for each rank; -1: none */
    hash_map by_text;    /* groups that have a text */
};

/* Add an empty group at the end. NULL, with the error set, when memory ran out. */
layout_group *layout_file_new_group(banyan_layout_file *file);
/* Add `rank`, which has no group yet, to the group; sort its ranks after the last one. */
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
