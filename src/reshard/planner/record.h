/* Records of pieces, which ranks exchange through the directory.
 *
 * A piece's record lies under a key of its tensor and its cell: the tensor is cut into 2^level
 * equal slabs along one dimension, so that a box is about as thick as its slab. A rank that needs a
 * box asks for the slabs that the box intersects, and receives few other records, however many
 * ranks share the tensor. A note under the tensor's root key lists the dimensions and levels
 * in use; records of level 0 lie there themselves. */
#ifndef RESHARD_PLANNER_RECORD_H
#define RESHARD_PLANNER_RECORD_H

#include <banyan/layout.h>

#include "core/containers.h"

typedef enum planner_side { PLAN_SOURCE = 0, PLAN_DESTINATION = 1 } planner_side;

typedef struct planner_record {
    planner_side side;
    DLDataType dtype;
    uint32_t flags; /* of the piece */
    /* In a destination that banyan_mxfp8_create quantizes: the piece consists of whole blocks,
     * which count from its start along the last dimension of the global tensor. */
    bool whole_blocks;
    int ndim;
    int64_t shape[BANYAN_MAX_DIMS];
    /* Under a tensor that a destination falls back on: the tensor that the destination asks for
     * first. */
    const char *wanted;
    bool is_note;
    int dim, level; /* in a note: of the cells */
    /* Under a tensor that a destination leaves out on purpose: no other field counts. */
    bool is_skip;
    /* In a record: the box, and its number among the rank's pieces with this very box. */
    banyan_box box;
    uint32_t ordinal;
} planner_record;

/* Write a record; equal records make equal bytes. */
void planner_record_write(bytes_writer *writer, const planner_record *record);
/* Read a record. FORMAT, naming `key`, when any part of it is malformed. `wanted` points into the
 * data. */
banyan_status planner_record_read(const char *key, const void *data, size_t bytes,
                                  planner_record *record);

/* Consecutive slabs of a tensor. */
typedef struct planner_cells {
    int dim, level;
    int64_t first, last;
} planner_cells;

/* Return the slab of the box's record, or both slabs when the box lies across two. */
planner_cells planner_cells_of(const banyan_box *box, const int64_t *shape);
/* Return the slabs of a dimension and level that a box intersects. */
planner_cells planner_cells_intersecting(const banyan_box *box, const int64_t *shape, int dim,
                                         int level);

/* Write keys, with their final 0. */
void planner_key_write_root(bytes_writer *writer, const char *name);
void planner_key_write_cell(bytes_writer *writer, const char *name, int dim, int level,
                            int64_t cell);

#endif
