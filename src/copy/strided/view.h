/* A tensor's memory as loops, and the formats of its elements. */
#ifndef COPY_STRIDED_VIEW_H
#define COPY_STRIDED_VIEW_H

#include <banyan/copy.h>

/* Format of elements that are converted on their way; otherwise just bytes. */
typedef enum strided_format {
    STRIDED_BYTES,
    STRIDED_F32,
    STRIDED_F16,
    STRIDED_BF16,
    /* MXFP8 made from one of these three, by one of two rules, and the scales of its blocks. */
    STRIDED_E4M3_UP,
    STRIDED_E4M3_OCP,
    STRIDED_SCALES_UP,
    STRIDED_SCALES_OCP
} strided_format;

#define STRIDED_BLOCK 32 /* elements per scale */

static inline bool strided_is_scales(strided_format format)
{
    return format == STRIDED_SCALES_UP || format == STRIDED_SCALES_OCP;
}

/* True for quantized elements and their scales. */
static inline bool strided_is_mxfp8(strided_format format)
{
    return format >= STRIDED_E4M3_UP;
}

/* Return the bytes of an element; 0 for STRIDED_BYTES, which does not tell. */
static inline size_t strided_format_bytes(strided_format format)
{
    if (format == STRIDED_BYTES || format == STRIDED_F32)
        return format == STRIDED_F32 ? 4 : 0;
    return strided_is_mxfp8(format) ? 1 : 2;
}

/* A tensor's memory as loops from slowest to fastest, with strides in bytes. Dimensions of one
 * element are dropped and those that can be walked as one are merged. Element order stays
 * row-major. */
typedef struct strided_view {
    char *data;
    size_t elem_bytes;
    uint64_t elems;
    strided_format format;
    int ndim; /* 0 for no element and for one */
    int64_t extent[BANYAN_MAX_DIMS];
    int64_t stride[BANYAN_MAX_DIMS]; /* bytes */
} strided_view;

#endif
