/* Transfers of very different sizes between all ranks: many small ones, and most of the bytes in
 * few. Every rank derives all of them from one seed. Nothing here needs a GPU. */
#ifndef BENCH_MANY_LAYOUT_H
#define BENCH_MANY_LAYOUT_H

#include <stdbool.h>

#include <banyan/banyan.h>

typedef struct many_options {
    int ranks;
    size_t count;                     /* that each rank sends */
    uint64_t least_bytes, most_bytes; /* of one, about */
    uint64_t total_bytes; /* of all, about: at least all the least, at most log-uniform */
    uint64_t seed;
} many_options;

/* The memory of one side of a transfer at its rank: rows that are `pitch` elements apart. */
typedef struct many_place {
    uint64_t at; /* bytes */
    uint64_t pitch;
    bool transposed; /* columns are stored as rows */
} many_place;

typedef struct many_transfer {
    int from, to;
    uint64_t name; /* hash of the tensor's name */
    uint32_t elem_bytes;
    uint64_t rows, columns;
    many_place source, destination;
} many_transfer;

typedef struct many_layout {
    many_transfer *list; /* a transfer's place in it is its task id */
    size_t count;
    uint64_t bytes;                             /* that move */
    uint64_t *source_bytes, *destination_bytes; /* of memory, by rank */
    uint64_t *sent_bytes, *received_bytes;      /* by rank */
} many_layout;

/* False when out of memory. */
bool many_layout_make(const many_options *options, many_layout *made);
void many_layout_free(many_layout *old);

/* The tensor of either side; `dims` has room for two extents and two strides. */
DLTensor many_tensor(const many_transfer *of, bool is_source, char *memory, DLDevice device,
                     int64_t dims[4]);

/* A side as it is stored: `outer` runs of `inner` elements. Element (i, k) is the tensor's element
 * i * outer_step + k * inner_step. */
typedef struct many_area {
    char *data;
    uint64_t name, outer, inner, pitch, outer_step, inner_step;
    uint32_t elem_bytes;
} many_area;

many_area many_area_of(const many_transfer *of, bool is_source, char *memory);

/* Element `index` of the tensor: its lowest bytes. For the host and for GPUs. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline uint32_t
    many_value(uint64_t name, uint64_t index)
{
    uint64_t mixed = (name ^ index) * UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ mixed >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    return (uint32_t)(mixed >> 32);
}

#endif
