/* What ranks tell each other about their pieces, through the directory.
 *
 * A piece's record lies under a key of its tensor and its cell: the tensor is cut into 2^level
 * equal slabs along one dimension, so that a box is about as thick as its slab. A rank that needs a
 * box asks for the slabs that the box meets, and hears of few others, however many ranks share the
 * tensor. Which dimensions and levels are in use, a note says that lies under the tensor's root
 * key; records of level 0 lie there themselves. */
#ifndef RESHARD_PLANNER_RECORD_H
#define RESHARD_PLANNER_RECORD_H

#include <banyan/layout.h>

#include "core/containers/bytes.h"

typedef enum plan_side { PLAN_SOURCE = 0, PLAN_DESTINATION = 1 } plan_side;

typedef struct plan_record {
    plan_side side;
    DLDataType dtype;
    uint32_t flags; /* of the piece */
    int ndim;
    int64_t shape[BANYAN_MAX_DIMS];
    /* Under a tensor that a destination falls back on: the tensor that it asks for first. */
    const char *wanted;
    bool is_note;
    int dim, level; /* of the cells, in a note */
    /* Under a tensor that a destination leaves out on purpose: nothing else counts. */
    bool is_skip;
    /* In a record: its box, and which of the rank's pieces with this very box it is. */
    banyan_box box;
    uint32_t ordinal;
} plan_record;

/* Equal records make equal bytes. */
void plan_record_write(bytes_writer *writer, const plan_record *record);
/* FORMAT, naming `key`, when it is not a record in every part. `wanted` points into the data. */
banyan_status plan_record_read(const char *key, const void *data, size_t bytes,
                               plan_record *record);

/* Consecutive slabs of a tensor. */
typedef struct plan_cells {
    int dim, level;
    int64_t first, last;
} plan_cells;

/* Where the box's record goes: one slab, or two when it lies across. */
plan_cells plan_cells_of(const banyan_box *box, const int64_t *shape);
/* The slabs of a dimension and level that a box meets. */
plan_cells plan_cells_meeting(const banyan_box *box, const int64_t *shape, int dim, int level);

/* Keys, with their final 0. */
void plan_key_write_root(bytes_writer *writer, const char *name);
void plan_key_write_cell(bytes_writer *writer, const char *name, int dim, int level, int64_t cell);

#endif
