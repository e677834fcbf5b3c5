/* Read a peer's ordinary memory, which is not mapped here, into strided tensors of this rank. */
#ifndef COPY_DIRECT_GATHER_H
#define COPY_DIRECT_GATHER_H

#include "copy/direct/place.h"
#include "copy/strided/loops.h"
#include "core/containers/arena.h"

/* Pieces of a read: `rows` iterations of dimension `row_dim` and all below it. */
typedef struct direct_pieces {
    strided_view to;
    strided_view from; /* data is not used */
    int row_dim;
    uint64_t rows;
} direct_pieces;

/* One task. Long rows are read straight to their destination. Short rows are read with the gaps
 * between them, a piece of the tensor at a time, into a buffer that stays in the cache, and copied
 * from there. */
typedef struct direct_gather {
    banyan_memory_handle handle;
    int64_t offset;              /* of the first row, or of element 0, within the handle's memory */
    strided_move rows;           /* `offset` replaces rows.from, which is not used */
    const direct_pieces *pieces; /* NULL: straight */
} direct_gather;

/* Plan the read of a peer's tensor into `to`. The plan's arrays are allocated from `memory`. */
banyan_status direct_gather_plan(const direct_place *from, const strided_view *to, arena *memory,
                                 direct_gather *gather);

/* State shared by the reads of many tasks: few calls of the transport, and one buffer. */
typedef struct direct_reader direct_reader;

banyan_status direct_reader_create(banyan_transport *transport, direct_reader **reader);
void direct_reader_destroy(direct_reader *reader);

/* Read one task; it may not be complete until direct_reader_finish. */
banyan_status direct_reader_read(direct_reader *reader, const direct_gather *gather);
banyan_status direct_reader_finish(direct_reader *reader);
/* Drop reads that are not done, after a failure. */
void direct_reader_reset(direct_reader *reader);

#endif
