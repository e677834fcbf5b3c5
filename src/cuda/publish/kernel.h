/* Arguments of the kernels that find, write and exchange changes: plain arrays in device memory. */
#ifndef CUDA_PUBLISH_KERNEL_H
#define CUDA_PUBLISH_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "publish/delta/form.h"

#define CHANGES_WARP 32
#define CHANGES_THREADS_MAX 256 /* per thread block; whole warps */
#define CHANGES_DIMS 8
#define CHANGES_SECTOR 32 /* bytes, of which a GPU's memory consists */

/* A strided view of units: elements, or 16 bytes of them. */
typedef struct changes_view {
    char *data;
    uint64_t count;
    uint32_t unit_bytes, ndim;
    uint32_t aligned; /* not 0: all units lie at multiples of their size, a power of two up to 16 */
    uint32_t kind;    /* enum changes_kind, for the exchange */
    int64_t extent[CHANGES_DIMS], stride[CHANGES_DIMS];
} changes_view;

/* ---- find ---- */

/* Units that a warp compares at a time: a multiple of the units of all words of a map. */
#define CHANGES_CHUNK 2048

/* A tensor that is compared. */
typedef struct changes_pair {
    changes_view live; /* of whole units */
    char *kept;
    unsigned char *map;
    uint64_t elems;
    uint64_t map_units;   /* units that the map has bits for */
    uint64_t first_chunk; /* of all tensors' */
    uint32_t elem_bytes;
    uint32_t unit_elems; /* 1, or as many as 16 bytes hold if `wide` */
    uint32_t wide;
} changes_pair;

typedef struct changes_find_args {
    const changes_pair *pairs;
    uint64_t *changed; /* of each pair; zeroed before */
    uint64_t count, chunks;
} changes_find_args;

/* Set bits of a map. */
typedef struct changes_merge_args {
    uint64_t *into;
    const uint64_t *from;
    uint64_t words;
} changes_merge_args;

/* ---- write ---- */

/* Shared memory of a warp. */
#define CHANGES_PACK_CACHE_BYTES 3072

typedef struct changes_box {
    changes_view view; /* of elements */
    const char *memory;
    uint64_t first_map; /* in changes_pack_args.maps */
    uint32_t map_count;
    uint32_t whole;
    uint64_t first_block; /* of all boxes' */
} changes_box;

typedef struct changes_piece {
    uint64_t box, first, count, at;
} changes_piece;

/* Measure all blocks of all boxes, or write pieces. */
typedef struct changes_pack_args {
    const changes_box *boxes;
    const uint64_t *const *maps;
    uint64_t box_count, blocks;
    uint64_t *block_bytes; /* measured; NULL if all boxes are whole */
    const changes_piece *pieces;
    uint64_t piece_count;
    unsigned char *to;
} changes_pack_args;

/* Copy elements to dense memory. */
typedef struct changes_gather_args {
    changes_view from;
    uint64_t first, count;
    char *to;
} changes_gather_args;

/* ---- exchange ---- */

/* Boxes by the kernel that exchanges them. Those of sectors have rows of contiguous elements, and
 * each row consists of whole aligned sectors. */
enum changes_kind {
    CHANGES_ANY_ELEMENTS,
    CHANGES_ROW_OF_2_BYTES, /* all elements are contiguous */
    CHANGES_SECTORS_OF_2_BYTES,
    CHANGES_SECTORS_OF_1_BYTE,
    CHANGES_SECTORS_OF_4_BYTES,
    CHANGES_KINDS
};

/* Shared memory of a warp that exchanges sectors. */
#define CHANGES_CACHE_BYTES 2832

typedef struct changes_part {
    uint64_t box, first, count;
    unsigned char *stream;
    uint64_t first_end; /* in changes_swap_args.ends */
} changes_part;

typedef struct changes_swap_args {
    const changes_view *boxes; /* of elements */
    const changes_part *parts;
    const uint64_t *ends;
    uint64_t part_count, kind;
    int64_t shift; /* bytes from the boxes to the elements */
} changes_swap_args;

#ifdef __cplusplus
extern "C" {
#endif
const void *changes_find_kernel(void);
const void *changes_merge_kernel(void);
const void *changes_measure_kernel(void);
const void *changes_pack_kernel(void);
const void *changes_gather_kernel(void);
const void *changes_swap_kernel(enum changes_kind kind);
#ifdef __cplusplus
}
#endif

#endif
