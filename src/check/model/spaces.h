/* Contents and accesses of a rank's buffers as cells, cut where any access to them begins or ends.
 */
#ifndef CHECK_MODEL_SPACES_H
#define CHECK_MODEL_SPACES_H

#include "check/model/values.h"
#include "check/model/vector_clock.h"

#define NOBODY UINT32_MAX

typedef struct touch {
    uint32_t chain, time; /* chain NOBODY: no access */
    uint32_t instance;
    uint32_t part; /* for accesses whose packets show their end: the part; otherwise NOBODY */
    /* Position of the bytes in the operation: one thread handles equal positions of all operands.
     */
    uint64_t position;
} touch;

/* Bytes of a part that are known to have been read, since a packet with their result has arrived.
 */
typedef struct space_trace {
    uint32_t part;
    uint64_t position;
} space_trace;

typedef ARRAY(space_trace) trace_list;

typedef struct cell {
    touch writer;
    ARRAY(touch) readers; /* since then */
    value_ref value;
    uint32_t origin;       /* index into the history of values */
    uint32_t generation;   /* of packets: their flag; 0: none yet */
    vector_clock *carried; /* carried by the packets */
    trace_list traces;
    bool read, lost; /* since it was written; a race about it has been reported */
    bool pad;        /* zeros behind data, which no operation needs */
} cell;

typedef struct cell_list {
    ARRAY(cell) list;
    vector_clock_store *store;
    uint64_t list_bytes; /* of readers, traces and edges */
} cell_list;

void cells_free(cell_list *all);
/* Return the bytes of memory in use, without the clocks of packets. */
uint64_t cells_memory(const cell_list *all);
bool cells_add_reader(cell_list *all, cell *of, touch one);
bool cells_add_trace(cell_list *all, cell *of, space_trace one);

typedef struct space_edge {
    uint64_t begin;
    uint32_t cell;
} space_edge;

/* One buffer, from byte 0 on. A cell ends where the next begins; the last has no end. */
typedef struct space {
    ARRAY(space_edge) edges;
} space;

#define SPACE_END UINT64_MAX

/* Return the index of the cell that begins exactly at `begin`, making it if necessary, and its end.
 * False when memory ran out. Other cells' indices stay valid. */
bool space_cell(cell_list *all, space *in, uint64_t begin, uint32_t *index, uint64_t *end);
/* Make a cell begin at `at`. */
bool space_cut(cell_list *all, space *in, uint64_t at);

#endif
