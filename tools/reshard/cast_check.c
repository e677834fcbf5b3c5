#include "reshard/cast_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* ---- scalar arithmetic, independent of the library's ---- */

static float cast_check_float_of(const void *element, size_t bytes)
{
    uint32_t bits = 0; /* a BF16 is a float's upper half */
    float value;
    memcpy((unsigned char *)&bits + sizeof bits - bytes, element, bytes);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest even: add half a step of the upper half, less one where that is even. */
static uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static bool is_cast(const void *sent, size_t sent_bytes, uint32_t map, const void *got,
                    size_t got_bytes)
{
    float value = cast_check_float_of(sent, sent_bytes);
    if (map == BANYAN_PIECE_NEGATIVE_EXP)
        value = (float)-exp((double)value);
    uint16_t rounded = bf16_of(value);
    return memcmp(got, got_bytes == sizeof value ? (void *)&value : (void *)&rounded, got_bytes) ==
           0;
}

/* ---- pieces ---- */

static bool is_known(DLDataType dtype)
{
    return banyan_dtype_equal(dtype, BANYAN_F32) || banyan_dtype_equal(dtype, BANYAN_BF16);
}

/* Return where the piece's i-th element, in row-major order of its place, lies in the tensor. */
static uint64_t cast_check_element_at(const banyan_piece *piece, const int64_t *extent,
                                      const DLTensor *tensor, uint64_t i)
{
    uint64_t at = 0, dense = 1;
    for (int k = tensor->ndim - 1; k >= 0; k--) {
        int64_t index = piece->local_start[k] + (int64_t)(i % (uint64_t)extent[k]);
        at += (uint64_t)index * (tensor->strides ? (uint64_t)tensor->strides[k] : dense);
        dense *= (uint64_t)tensor->shape[k];
        i /= (uint64_t)extent[k];
    }
    return at;
}

banyan_status cast_check(const banyan_piece *piece, const banyan_transfer *sent,
                         const DLTensor *tensor, pattern_result *result)
{
    DLDataType from = sent->source_dtype;
    if (!is_known(from) || !is_known(tensor->dtype))
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "\"%s\" is sent in %s and arrives in %s: only casts between F32 "
                                "and BF16 can be verified",
                                piece->name, banyan_dtype_name(from),
                                banyan_dtype_name(tensor->dtype));
    int64_t extent[BANYAN_MAX_DIMS];
    for (int k = 0; k < tensor->ndim; k++)
        extent[k] = 1;
    for (int d = 0; d < piece->ndim; d++)
        if (piece->dim_map[d] != BANYAN_NO_DIM)
            extent[piece->dim_map[d]] = piece->box.extent[d];
    size_t sent_bytes = banyan_dtype_bytes(from), got_bytes = banyan_dtype_bytes(tensor->dtype);
    *result = (pattern_result){.elems = banyan_box_elems(&piece->box)};
    unsigned char *values = calloc(result->elems + 1, sent_bytes);
    if (!values)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %llu elements",
                                (unsigned long long)result->elems);
    banyan_piece alone = *piece;
    memset(alone.local_start, 0, sizeof alone.local_start);
    pattern_fill(&alone, &(DLTensor){.data = values,
                                     .device = {kDLCPU, 0},
                                     .ndim = tensor->ndim,
                                     .dtype = from,
                                     .shape = extent});
    const unsigned char *got = (const unsigned char *)tensor->data + tensor->byte_offset;
    for (uint64_t i = 0; i < result->elems; i++) {
        if (is_cast(values + i * sent_bytes, sent_bytes, sent->value_map,
                    got + cast_check_element_at(piece, extent, tensor, i) * got_bytes, got_bytes))
            continue;
        if (result->wrong++ == 0)
            result->first_wrong = i;
    }
    free(values);
    return BANYAN_OK;
}
