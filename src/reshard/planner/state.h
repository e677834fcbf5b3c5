/* The planner's state, shared by the files that implement its steps. */
#ifndef RESHARD_PLANNER_STATE_H
#define RESHARD_PLANNER_STATE_H

#include "reshard/model/glob.h"
#include "reshard/planner/groups.h"
#include "reshard/planner/rank.h"
#include "reshard/planner/record.h"
#include "reshard/planner/share.h"

#define NO_NAME UINT32_MAX

/* A global tensor known to this rank. It holds a piece of it, a piece may fall back on it, or
 * (behind all these) a rank asks for it before falling back on one of this rank's tensors. */
typedef struct planner_name {
    const char *text;
    int ndim;
    int64_t shape[BANYAN_MAX_DIMS]; /* as this rank's pieces have it */
    bool has_destination;           /* some rank needs a piece of it, or may fall back on it */
    bool has_source;                /* some rank holds a piece in the source */
    bool is_skipped;                /* some destination leaves it out on purpose */
    int source_rank;                /* a source, and its record */
    DLDataType source_dtype;
    uint32_t source_flags;
    /* Another source rank contradicts source_rank or this rank. */
    bool shape_differs, dtype_differs, map_differs;
    int differing_rank;
    int differing_ndim;
    int64_t differing_shape[BANYAN_MAX_DIMS];
    DLDataType differing_dtype;
    int differing_map_rank;
} planner_name;

/* A piece of this rank. */
typedef struct planner_piece {
    planner_side side;
    const banyan_piece *piece;
    size_t number; /* in its layout */
    DLDataType dtype;
    bool whole_blocks;       /* as in its record */
    uint32_t name, fallback; /* indices of names; NO_NAME: none */
    uint32_t ordinal;
} planner_piece;

/* Slabs in use somewhere. */
typedef struct planner_note {
    uint32_t name;
    planner_side side;
    int dim, level;
    const char *wanted;
} planner_note;

/* A piece that some ranks hold, as the directory reports it. */
typedef struct planner_claim {
    uint32_t name;
    planner_side side;
    uint32_t flags;
    DLDataType dtype;
    bool whole_blocks;
    const char *wanted;
    planner_held claim; /* `sets` is valid after the last record: until then the sets move */
    size_t first_set;
} planner_claim;

/* A key of the second round: a slab, or (level 0) the root of a tensor. */
typedef struct planner_ask_for {
    uint32_t name;
    int dim, level;
    int64_t cell;
} planner_ask_for;

struct planner {
    int rank, world_size;
    const banyan_layout *destination;
    uint64_t min_split_bytes;
    const banyan_transform *transform;
    bool whole_source; /* require that every element of the source arrives */
    ARRAY(glob) skip;  /* except tensors with these names */
    names pool;
    hash_map name_index;
    ARRAY(planner_name) names;
    size_t own_names;            /* the first names, without those that others ask for first */
    ARRAY(planner_piece) pieces; /* by name, side, box and number */
    ARRAY(planner_note) notes;
    ARRAY(planner_claim) claims;
    ARRAY(banyan_rank_set) sets;
    const int *node_of;    /* of each rank; NULL: all share one */
    planner_groups groups; /* with several nodes whose ranks pass data on */
    int round;
    ARRAY(planner_ask_for) asks;
    bytes_writer key_text;
    const char **keys;
};

/* Return the tensor that fills a destination piece: its own, or the one that it falls back on. */
static inline uint32_t planner_from(const planner *planning, const planner_piece *own)
{
    bool falls_back = own->fallback != NO_NAME && !planning->names.data[own->name].has_source;
    return falls_back ? own->fallback : own->name;
}

/* True if the destination of this claim receives this tensor: it asks for it, or falls back on it.
 */
static inline bool planner_serves(const planner *planning, const planner_claim *claim)
{
    uint64_t wanted;
    return !claim->wanted || !map_get_string(&planning->name_index, claim->wanted, &wanted) ||
           !planning->names.data[wanted].has_source;
}

/* Look up or add a tensor's name and return its index. False when out of memory. */
bool planner_name_of(planner *planning, const char *text, uint32_t *index);

#endif
