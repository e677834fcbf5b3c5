#include "copy/direct/plan.h"

#include <stdlib.h>
#include <string.h>

#include "copy/strided/loops.h"

/* Each piece of a read costs the kernel about as much time as copying this many bytes. */
#define PIECE_COST_BYTES 1024

/* Pieces of this size stay in the second-level cache. The buffer is larger, for the largest element
 * that DLDataType can describe: 65,535 lanes of 255 bits. */
#define BOUNCE_BYTES ((size_t)512 << 10)
#define BUFFER_BYTES ((size_t)2 << 20)

#define READ_BYTES_MAX ((uint64_t)16 << 20)
#define READS_MAX 2048
#define SCATTERS_MAX 512

/* Layout of a piece of a view in the buffer: `span` bytes are read at a time, at every position of
 * the loops; the spans lie one after another in the buffer. */
typedef struct footprint {
    uint64_t span;
    int64_t low; /* offset of a span's first byte from its position; never positive */
    int count;
    uint64_t extent[BANYAN_MAX_DIMS];
    int64_t stride[BANYAN_MAX_DIMS];        /* in the source */
    int64_t buffer_stride[BANYAN_MAX_DIMS]; /* of every dimension of the view, in the buffer */
    uint64_t bytes;                         /* used bytes of the buffer */
} footprint;

static uint64_t direct_gather_magnitude(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* List the dimensions from `row_dim` on by their strides in memory, the smallest first. */
static int dims_by_stride(const strided_view *view, int row_dim, int *dims)
{
    int count = 0;
    for (int d = row_dim; d < view->ndim; d++) {
        int at = count++;
        for (; at > 0 && direct_gather_magnitude(view->stride[dims[at - 1]]) >
                             direct_gather_magnitude(view->stride[d]);
             at--)
            dims[at] = dims[at - 1];
        dims[at] = d;
    }
    return count;
}

static footprint footprint_of(const strided_view *view, int row_dim, uint64_t rows)
{
    footprint print = {.span = view->elem_bytes};
    int dims[BANYAN_MAX_DIMS], count = dims_by_stride(view, row_dim, dims);
    for (int i = 0; i < count; i++) {
        int d = dims[i];
        uint64_t extent = d == row_dim ? rows : (uint64_t)view->extent[d];
        int64_t stride = view->stride[d];
        if (print.count == 0 && direct_gather_magnitude(stride) <= print.span + PIECE_COST_BYTES) {
            print.span += (extent - 1) * direct_gather_magnitude(stride);
            print.low += stride < 0 ? (int64_t)(extent - 1) * stride : 0;
            print.buffer_stride[d] = stride;
            continue;
        }
        print.extent[print.count] = extent;
        print.stride[print.count++] = stride;
    }
    print.bytes = print.span;
    for (int i = count - print.count; i < count; i++) {
        int d = dims[i];
        uint64_t extent = d == row_dim ? rows : (uint64_t)view->extent[d];
        print.buffer_stride[d] = (int64_t)print.bytes;
        if (__builtin_mul_overflow(print.bytes, extent, &print.bytes))
            print.bytes = INT64_MAX;
    }
    return print;
}

/* Choose the largest piece that fits the buffer, at least one element. */
static void choose_piece(direct_pieces *pieces)
{
    const strided_view *from = &pieces->from;
    int last = from->ndim - 1;
    while (pieces->row_dim < last && footprint_of(from, pieces->row_dim, 1).bytes > BOUNCE_BYTES)
        pieces->row_dim++;
    pieces->rows = BOUNCE_BYTES / footprint_of(from, pieces->row_dim, 1).bytes;
    if (pieces->rows > (uint64_t)from->extent[pieces->row_dim])
        pieces->rows = (uint64_t)from->extent[pieces->row_dim];
    while (pieces->rows > 1 &&
           footprint_of(from, pieces->row_dim, pieces->rows).bytes > BOUNCE_BYTES)
        pieces->rows /= 2;
    if (pieces->rows == 0)
        pieces->rows = 1;
}

static banyan_status plan_pieces(const direct_place *from, const strided_view *to, arena *memory,
                                 direct_gather *gather)
{
    direct_pieces *pieces = arena_take(memory, sizeof *pieces);
    RETURN_IF_NO_MEMORY(pieces);
    *pieces = (direct_pieces){.to = *to, .from = from->view};
    choose_piece(pieces);
    gather->pieces = pieces;
    return BANYAN_OK;
}

banyan_status direct_gather_plan(const direct_place *from, const strided_view *to, arena *memory,
                                 direct_gather *gather)
{
    *gather = (direct_gather){.handle = from->handle, .offset = from->offset};
    strided_view source = from->view;
    source.data = to->data;
    strided_grid grid;
    if (!strided_grid_of(to, &source, &grid))
        return plan_pieces(from, to, memory, gather);
    strided_loop planned[STRIDED_MAX_LOOPS];
    strided_move_plan(&grid, to->data, source.data, planned, &gather->rows);
    if (gather->rows.count > 0 && gather->rows.run_bytes < PIECE_COST_BYTES)
        return plan_pieces(from, to, memory, gather);
    gather->offset += gather->rows.from - source.data;
    gather->rows.loops = NULL;
    if (gather->rows.count == 0)
        return BANYAN_OK;
    size_t bytes = (size_t)gather->rows.count * sizeof planned[0];
    strided_loop *loops = arena_take(memory, bytes);
    RETURN_IF_NO_MEMORY(loops);
    memcpy(loops, planned, bytes);
    gather->rows.loops = loops;
    return BANYAN_OK;
}

/* A piece in the buffer to be scattered to its destination. */
typedef struct scatter {
    const strided_view *to;
    strided_view from;
    uint64_t first, count;
} scatter;

struct direct_reader {
    banyan_transport *transport;
    banyan_memory_handle handle; /* of all reads that wait */
    banyan_iovec reads[READS_MAX];
    size_t read_count;
    scatter scatters[SCATTERS_MAX];
    size_t scatter_count;
    char *bounce;
    size_t bounce_used;
};

banyan_status direct_reader_create(banyan_transport *transport, direct_reader **reader)
{
    direct_reader *made = calloc(1, sizeof *made);
    char *bounce = aligned_alloc(4096, BUFFER_BYTES);
    if (!made || !bounce) {
        free(made);
        free(bounce);
        return error_no_memory(sizeof *made + BUFFER_BYTES, "reading peers' memory");
    }
    made->transport = transport;
    made->bounce = bounce;
    *reader = made;
    return BANYAN_OK;
}

void direct_reader_destroy(direct_reader *reader)
{
    if (reader)
        free(reader->bounce);
    free(reader);
}

void direct_reader_reset(direct_reader *reader)
{
    reader->read_count = reader->scatter_count = reader->bounce_used = 0;
}

static banyan_status flush_reads(direct_reader *reader)
{
    if (reader->read_count == 0)
        return BANYAN_OK;
    banyan_remote remote = {.handle = reader->handle};
    size_t count = reader->read_count;
    reader->read_count = 0;
    return banyan_transport_get_many(reader->transport, &remote, reader->reads, count);
}

banyan_status direct_reader_finish(direct_reader *reader)
{
    RETURN_IF_FAILED(flush_reads(reader));
    for (size_t i = 0; i < reader->scatter_count; i++) {
        const scatter *piece = &reader->scatters[i];
        strided_copy(piece->to, piece->first, &piece->from, piece->first, piece->count);
    }
    reader->scatter_count = reader->bounce_used = 0;
    return BANYAN_OK;
}

static banyan_status direct_gather_read_bytes(direct_reader *reader, int64_t offset, char *to,
                                              uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t part = bytes < READ_BYTES_MAX ? bytes : READ_BYTES_MAX;
        if (reader->read_count == READS_MAX)
            RETURN_IF_FAILED(flush_reads(reader));
        reader->reads[reader->read_count++] = (banyan_iovec){(uint64_t)offset, to, part};
        offset += (int64_t)part;
        to += part;
        bytes -= part;
    }
    return BANYAN_OK;
}

static banyan_status direct_gather_read_rows(direct_reader *reader, const direct_gather *gather)
{
    const strided_move *rows = &gather->rows;
    odometer at = {.loops = rows->loops, .count = rows->count};
    do {
        RETURN_IF_FAILED(direct_gather_read_bytes(reader, gather->offset + at.from,
                                                  rows->to + at.to, rows->run_bytes));
    } while (odometer_step(&at));
    return BANYAN_OK;
}

/* Read all spans of a piece whose first element lies at `offset`. */
static banyan_status read_spans(direct_reader *reader, const footprint *print, int64_t offset,
                                char *to)
{
    uint64_t index[BANYAN_MAX_DIMS] = {0};
    for (;;) {
        RETURN_IF_FAILED(direct_gather_read_bytes(reader, offset + print->low, to, print->span));
        to += print->span;
        int i = 0;
        for (; i < print->count; i++) {
            offset += print->stride[i];
            if (++index[i] < print->extent[i])
                break;
            offset -= (int64_t)print->extent[i] * print->stride[i];
            index[i] = 0;
        }
        if (i == print->count)
            return BANYAN_OK;
    }
}

/* Read `rows` iterations of the row dimension from `row` on. Their first element, number `first`,
 * lies at `offset`. */
static banyan_status direct_gather_read_piece(direct_reader *reader, const direct_pieces *pieces,
                                              uint64_t first, uint64_t row, uint64_t rows,
                                              int64_t offset)
{
    const strided_view *from = &pieces->from;
    footprint print = footprint_of(from, pieces->row_dim, rows);
    bool is_full = reader->scatter_count == SCATTERS_MAX ||
                   (reader->bounce_used > 0 && reader->bounce_used + print.bytes > BOUNCE_BYTES);
    if (is_full)
        RETURN_IF_FAILED(direct_reader_finish(reader));
    char *buffer = reader->bounce + reader->bounce_used;
    reader->bounce_used += print.bytes;
    RETURN_IF_FAILED(read_spans(reader, &print, offset, buffer));

    scatter *piece = &reader->scatters[reader->scatter_count++];
    *piece = (scatter){.to = &pieces->to, .from = *from, .first = first, .count = rows};
    memcpy(piece->from.stride, print.buffer_stride, sizeof print.buffer_stride);
    piece->from.data = buffer - print.low - (int64_t)row * print.buffer_stride[pieces->row_dim];
    for (int d = pieces->row_dim + 1; d < from->ndim; d++)
        piece->count *= (uint64_t)from->extent[d];
    return BANYAN_OK;
}

static banyan_status direct_gather_read_pieces(direct_reader *reader, const direct_pieces *pieces,
                                               int64_t offset)
{
    const strided_view *from = &pieces->from;
    int row_dim = pieces->row_dim;
    uint64_t extent = (uint64_t)from->extent[row_dim], row_elems = 1;
    for (int d = row_dim + 1; d < from->ndim; d++)
        row_elems *= (uint64_t)from->extent[d];
    uint64_t index[BANYAN_MAX_DIMS] = {0};
    for (uint64_t first = 0;;) {
        for (uint64_t row = 0; row < extent; row += pieces->rows) {
            uint64_t rows = pieces->rows < extent - row ? pieces->rows : extent - row;
            RETURN_IF_FAILED(direct_gather_read_piece(
                reader, pieces, first, row, rows, offset + (int64_t)row * from->stride[row_dim]));
            first += rows * row_elems;
        }
        int d = row_dim - 1;
        for (; d >= 0; d--) {
            offset += from->stride[d];
            if (++index[d] < (uint64_t)from->extent[d])
                break;
            offset -= from->extent[d] * from->stride[d];
            index[d] = 0;
        }
        if (d < 0)
            return BANYAN_OK;
    }
}

uint64_t direct_gather_bytes(const direct_gather *gather)
{
    const direct_pieces *pieces = gather->pieces;
    return pieces ? pieces->to.elems * pieces->to.elem_bytes : strided_move_bytes(&gather->rows);
}

banyan_status direct_reader_read(direct_reader *reader, const direct_gather *gather)
{
    const banyan_memory_handle *a = &reader->handle, *b = &gather->handle;
    if (a->rank != b->rank || a->kind != b->kind || a->id != b->id || a->address != b->address ||
        a->bytes != b->bytes) {
        RETURN_IF_FAILED(flush_reads(reader));
        reader->handle = gather->handle;
    }
    return gather->pieces ? direct_gather_read_pieces(reader, gather->pieces, gather->offset)
                          : direct_gather_read_rows(reader, gather);
}
