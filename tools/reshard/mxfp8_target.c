#include "reshard/mxfp8_target.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

#define BLOCK 32
#define E4M3_LARGEST 448.0f
#define E8M0_BIAS 127
/* e4m3's smallest normal magnitude, and the steps below it. */
#define E4M3_NORMAL 0x1p-6f
#define E4M3_STEPS 512.0f

static bool is_matrix(const banyan_local_tensor *tensor)
{
    return tensor->ndim >= 2 && (banyan_dtype_equal(tensor->dtype, BANYAN_BF16) ||
                                 banyan_dtype_equal(tensor->dtype, BANYAN_F32));
}

banyan_status mxfp8_target_convert(const banyan_layout *plain, banyan_layout *made)
{
    RETURN_IF_FAILED(banyan_layout_check(plain));
    for (size_t i = 0; i < banyan_layout_tensor_count(plain); i++) {
        const banyan_local_tensor *tensor = banyan_layout_tensor(plain, i);
        banyan_layout_add_tensor(made, tensor->name,
                                 is_matrix(tensor) ? BANYAN_F8_E4M3 : tensor->dtype, tensor->ndim,
                                 tensor->shape);
    }
    for (size_t i = 0; i < banyan_layout_piece_count(plain); i++)
        banyan_layout_add_piece(made, banyan_layout_piece(plain, i));
    for (size_t i = 0; i < banyan_layout_padding_count(plain); i++) {
        int tensor;
        const banyan_box *box = banyan_layout_padding(plain, i, &tensor);
        const void *fill = banyan_layout_padding_fill(plain, i);
        const banyan_local_tensor *of = banyan_layout_tensor(plain, (size_t)tensor);
        if (fill && is_matrix(of))
            return banyan_error_set(BANYAN_ERR_INVALID,
                                    "local tensor \"%s\" has padding that is filled with another "
                                    "value than zero, which MXFP8 cannot keep",
                                    of->name);
        banyan_layout_add_filled_padding(made, tensor, box, fill);
    }
    for (size_t i = 0; i < banyan_layout_left_alone_count(plain); i++) {
        int tensor;
        const banyan_box *box = banyan_layout_left_alone(plain, i, &tensor);
        banyan_layout_leave_alone(made, tensor, box);
    }
    return banyan_layout_check(made);
}

/* Shape and data in one piece of memory. */
static banyan_status make_scales(const banyan_local_tensor *tensor, DLTensor *scales)
{
    int ndim;
    int64_t shape[BANYAN_MAX_DIMS];
    RETURN_IF_FAILED(
        banyan_mxfp8_scales_shape(BANYAN_MXFP8_PLAIN, tensor->ndim, tensor->shape, &ndim, shape));
    size_t bytes = 1;
    for (int k = 0; k < ndim; k++)
        bytes *= (size_t)shape[k];
    int64_t *memory = malloc(sizeof shape + bytes);
    if (!memory)
        return pattern_no_memory(sizeof shape + bytes);
    memcpy(memory, shape, sizeof shape);
    *scales = (DLTensor){.data = memory + BANYAN_MAX_DIMS,
                         .device = {kDLCPU, 0},
                         .ndim = ndim,
                         .dtype = BANYAN_F8_E8M0,
                         .shape = memory};
    return BANYAN_OK;
}

static banyan_status bind_all(const banyan_layout *plain, mxfp8_target *target)
{
    target->count = banyan_layout_tensor_count(plain);
    target->scales = calloc(target->count + 1, sizeof *target->scales);
    if (!target->scales)
        return pattern_no_memory(target->count * sizeof *target->scales);
    for (size_t i = 0; i < target->count; i++) {
        const banyan_local_tensor *tensor = banyan_layout_tensor(plain, i);
        if (!is_matrix(tensor))
            continue;
        RETURN_IF_FAILED(make_scales(tensor, &target->scales[i]));
        RETURN_IF_FAILED(
            banyan_mxfp8_bind_scales(target->transform, tensor->name, &target->scales[i]));
    }
    return BANYAN_OK;
}

banyan_status mxfp8_target_transform(const char *name, banyan_transform **made)
{
    banyan_mxfp8_options options = BANYAN_MXFP8_OPTIONS_INIT;
    if (strcmp(name, "mxfp8-at-sender") == 0)
        options.side = BANYAN_TRANSFORM_AT_SENDER;
    return banyan_mxfp8_create(&options, made);
}

banyan_status mxfp8_target_create(const banyan_layout *plain, const char *name,
                                  mxfp8_target *target)
{
    mxfp8_target made = {0};
    banyan_status status = banyan_layout_create(&made.layout);
    if (status == BANYAN_OK)
        status = mxfp8_target_convert(plain, made.layout);
    if (status == BANYAN_OK)
        status = mxfp8_target_transform(name, &made.transform);
    if (status == BANYAN_OK)
        status = bind_all(plain, &made);
    if (status == BANYAN_OK)
        *target = made;
    else
        mxfp8_target_destroy(&made);
    return status;
}

void mxfp8_target_destroy(mxfp8_target *target)
{
    banyan_transform_destroy(target->transform);
    banyan_layout_destroy(target->layout);
    for (size_t i = 0; target->scales && i < target->count; i++)
        free(target->scales[i].shape);
    free(target->scales);
    *target = (mxfp8_target){0};
}

/* The smallest power of two that is at least amax ÷ 448, as an exponent. */
static int scale_of(float amax)
{
    int exponent;
    if (amax == 0)
        return -E8M0_BIAS;
    /* amax = f · 2^exponent with ½ ≤ f < 1, and 448 = ⅞ · 2^9. */
    float fraction = frexpf(amax, &exponent);
    exponent -= fraction <= E4M3_LARGEST / 512 ? 9 : 8;
    return exponent < -E8M0_BIAS ? -E8M0_BIAS : exponent;
}

/* To nearest even. Below the smallest normal magnitude the code counts steps; above it, it is the
 * float's exponent and mantissa, cut to three bits. */
static uint8_t e4m3_of(float value)
{
    uint32_t bits;
    float magnitude = fabsf(value);
    uint8_t sign = signbit(value) ? 0x80 : 0;
    if (magnitude < E4M3_NORMAL)
        return (uint8_t)(sign | (uint8_t)lrintf(magnitude * E4M3_STEPS));
    memcpy(&bits, &magnitude, sizeof bits);
    bits += 0x7ffff + (bits >> 20 & 1);
    return (uint8_t)(sign | ((bits >> 20) - ((127 - 7) << 3)));
}

static bool is_block(const unsigned char *expected, size_t elem_bytes, int64_t count,
                     const uint8_t *elements, uint8_t scale)
{
    float values[BLOCK], amax = 0;
    for (int64_t i = 0; i < count; i++) {
        values[i] = pattern_float_of(expected + (size_t)i * elem_bytes, elem_bytes);
        amax = fmaxf(amax, fabsf(values[i]));
    }
    int exponent = scale_of(amax);
    bool right = scale == exponent + E8M0_BIAS;
    float factor = ldexpf(1, -exponent);
    for (int64_t i = 0; i < count; i++)
        right &= elements[i] == e4m3_of(values[i] * factor);
    return right;
}

static void mxfp8_target_check_rows(const DLTensor *expected, const uint8_t *elements,
                                    const uint8_t *scales, pattern_result *result)
{
    int64_t rows = 1, columns = expected->shape[expected->ndim - 1];
    size_t elem_bytes = banyan_dtype_bytes(expected->dtype);
    for (int k = 0; k + 1 < expected->ndim; k++)
        rows *= expected->shape[k];
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t at = 0; at < columns; at += BLOCK, scales++) {
            int64_t count = columns - at < BLOCK ? columns - at : BLOCK;
            uint64_t first = (uint64_t)(row * columns + at);
            const unsigned char *values = expected->data;
            if (is_block(values + first * elem_bytes, elem_bytes, count, elements + first, *scales))
                continue;
            if (result->wrong++ == 0)
                result->first_wrong = first;
        }
    }
}

banyan_status mxfp8_target_check(const mxfp8_target *target, const banyan_layout *plain,
                                 const DLTensor *received, size_t i, pattern_result *result)
{
    const banyan_local_tensor *tensor = banyan_layout_tensor(plain, i);
    uint64_t elems = 1;
    for (int k = 0; k < tensor->ndim; k++)
        elems *= (uint64_t)tensor->shape[k];
    DLTensor expected = {.device = {kDLCPU, 0},
                         .ndim = tensor->ndim,
                         .dtype = tensor->dtype,
                         .shape = (int64_t *)tensor->shape};
    expected.data = calloc(elems + 1, banyan_dtype_bytes(tensor->dtype));
    if (!expected.data)
        return pattern_no_memory(elems * banyan_dtype_bytes(tensor->dtype));
    for (size_t k = 0; k < banyan_layout_piece_count(plain); k++) {
        const banyan_piece *piece = banyan_layout_piece(plain, k);
        if ((size_t)piece->tensor == i)
            pattern_fill(piece, &expected);
    }
    *result = (pattern_result){.elems = elems};
    mxfp8_target_check_rows(&expected, (const uint8_t *)received->data + received->byte_offset,
                            target->scales[i].data, result);
    free(expected.data);
    return BANYAN_OK;
}
