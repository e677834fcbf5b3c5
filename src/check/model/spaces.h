/* What lies in a rank's buffers, and who has touched it: cells, cut where anything that has
 * happened to them begins or ends. */
#ifndef CHECK_MODEL_SPACES_H
#define CHECK_MODEL_SPACES_H

#include "check/model/values.h"
#include "check/model/vector_clock.h"

#define NOBODY UINT32_MAX

typedef struct touch {
    uint32_t chain, time; /* chain NOBODY: there was none */
    uint32_t instance;
    uint32_t part; /* with packets to tell that it is over: which; else NOBODY */
    /* Of the bytes in the operation: one thread has the same one of all operands. */
    uint64_t position;
} touch;

/* Bytes of a part that are known to have been read, since a packet with what they became has come.
 */
typedef struct trace {
    uint32_t part;
    uint64_t position;
} trace;

typedef ARRAY(trace) trace_list;

typedef struct cell {
    touch writer;
    ARRAY(touch) readers; /* since then */
    value_ref value;
    uint32_t origin;     /* how it came to be: a place in the history */
    uint32_t generation; /* of packets: which flag they have; 0: none yet */
    vector_clock *told;  /* with packets */
    trace_list traces;
    bool read, lost; /* since it was written; a race about it has been told */
    bool pad;        /* zeros behind data, which nobody needs */
} cell;

typedef struct cell_list {
    ARRAY(cell) list;
    vector_clock_store *store;
    uint64_t list_bytes; /* of readers, traces and edges */
} cell_list;

void cells_free(cell_list *all);
/* Bytes of memory, without what its packets told. */
uint64_t cells_memory(const cell_list *all);
bool cells_add_reader(cell_list *all, cell *of, touch one);
bool cells_add_trace(cell_list *all, cell *of, trace one);

typedef struct space_edge {
    uint64_t begin;
    uint32_t cell;
} space_edge;

/* One buffer, from byte 0 on. A cell ends where the next begins; the last has no end. */
typedef struct space {
    ARRAY(space_edge) edges;
} space;

#define SPACE_END UINT64_MAX

/* The index of the cell that begins exactly at `begin`, which is made if need be, and where it
 * ends. False when memory ran out. Other cells' indices stay. */
bool space_cell(cell_list *all, space *in, uint64_t begin, uint32_t *index, uint64_t *end);
/* Let a cell begin at `at`. */
bool space_cut(cell_list *all, space *in, uint64_t at);

#endif
