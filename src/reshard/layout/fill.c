#include "reshard/layout/fill.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/types/float_bits.h"

static bool is_type(DLDataType dtype, int code, int bits)
{
    return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

static bool fill_is_float(DLDataType dtype)
{
    return is_type(dtype, kDLFloat, 64) || is_type(dtype, kDLFloat, 32) ||
           is_type(dtype, kDLFloat, 16) || is_type(dtype, kDLBfloat, 16) ||
           is_type(dtype, BANYAN_DL_FLOAT8_E4M3FN, 8) || is_type(dtype, BANYAN_DL_FLOAT8_E5M2, 8) ||
           is_type(dtype, BANYAN_DL_FLOAT8_E8M0FNU, 8);
}

static bool is_integer(DLDataType dtype)
{
    return (dtype.code == kDLInt || dtype.code == kDLUInt) && dtype.lanes == 1 &&
           dtype.bits <= 64 && dtype.bits % 8 == 0;
}

static uint64_t e8m0_bits(double value)
{
    int exponent;
    if (isnan(value))
        return 255;
    frexp(value, &exponent);
    int64_t bits = (int64_t)exponent - 1 + 127;
    return bits < 0 ? 0 : bits > 254 ? 254 : (uint64_t)bits;
}

/* Encode the value as the nearest element of a float type. */
static uint64_t float_to_bits(DLDataType dtype, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype.bits == 64)
        return bits;
    uint32_t single = f32_bits((float)value);
    if (dtype.bits == 32)
        return single;
    if (dtype.bits == 16)
        return dtype.code == kDLBfloat ? bf16_of_f32(single) : f16_of_f32(single);
    if (dtype.code == BANYAN_DL_FLOAT8_E4M3FN)
        return e4m3_of_f32(single);
    return dtype.code == BANYAN_DL_FLOAT8_E5M2 ? e5m2_of_f32(single) : e8m0_bits(value);
}

static double float_of_bits(DLDataType dtype, uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    if (dtype.bits == 64)
        return value;
    if (dtype.bits == 32)
        return f32_of_bits((uint32_t)bits);
    if (dtype.bits == 16)
        return f32_of_bits(dtype.code == kDLBfloat ? f32_of_bf16((uint16_t)bits)
                                                   : f32_of_f16((uint16_t)bits));
    if (dtype.code == BANYAN_DL_FLOAT8_E4M3FN)
        return f32_of_bits(f32_of_e4m3((uint8_t)bits));
    if (dtype.code == BANYAN_DL_FLOAT8_E5M2)
        return f32_of_bits(f32_of_e5m2((uint8_t)bits));
    return bits == 255 ? (double)NAN : ldexp(1, (int)bits - 127); /* a lone exponent: e8m0 */
}

static json_t *bits_to_json(size_t bytes, const unsigned char *fill)
{
    char text[2 + 2 * BANYAN_MAX_FILL_BYTES + 1] = "0x";
    for (size_t i = 0; i < bytes; i++)
        snprintf(text + 2 + 2 * i, 3, "%02x", fill[bytes - 1 - i]);
    return json_string(text);
}

json_t *fill_to_json(DLDataType dtype, const void *fill)
{
    size_t bytes = banyan_dtype_bytes(dtype);
    uint64_t bits = 0;
    if (bytes > sizeof bits || !(fill_is_float(dtype) || is_integer(dtype)))
        return bits_to_json(bytes, fill);
    memcpy(&bits, fill, bytes);
    if (is_integer(dtype)) {
        int unused = 64 - dtype.bits;
        if (dtype.code == kDLInt)
            return json_integer((int64_t)(bits << unused) >> unused);
        return bits <= INT64_MAX ? json_integer((json_int_t)bits) : bits_to_json(bytes, fill);
    }
    double value = float_of_bits(dtype, bits);
    if (isinf(value))
        return json_string(value > 0 ? "inf" : "-inf");
    if (isnan(value) || float_to_bits(dtype, value) != bits)
        return bits_to_json(bytes, fill);
    return json_real(value);
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static banyan_status read_bits(const json_path *path, const char *text, size_t bytes,
                               unsigned char *fill)
{
    if (strlen(text) != 2 + 2 * bytes)
        return json_path_fail(path, "is \"%.40s\": an element has %zu bytes, two digits each", text,
                              bytes);
    for (size_t i = 0; i < bytes; i++) {
        const char *digits = text + 2 + 2 * (bytes - 1 - i);
        int high = digit_value(digits[0]), low = digit_value(digits[1]);
        if (high < 0 || low < 0)
            return json_path_fail(path, "is \"%.40s\", no hexadecimal number", text);
        fill[i] = (unsigned char)(16 * high + low);
    }
    return BANYAN_OK;
}

static banyan_status read_float(const json_path *path, DLDataType dtype, double value,
                                uint64_t *bits)
{
    *bits = float_to_bits(dtype, value);
    double kept = float_of_bits(dtype, *bits);
    bool same_kind = isnan(value) ? isnan(kept) : isinf(value) == isinf(kept) && !isnan(kept);
    bool is_power = dtype.code != BANYAN_DL_FLOAT8_E8M0FNU || isnan(value) || kept == value;
    /* e4m3 has no infinity: a value out of range becomes the largest. */
    bool fits = dtype.code != BANYAN_DL_FLOAT8_E4M3FN || !(fabs(value) > 448);
    if (same_kind && is_power && fits)
        return BANYAN_OK;
    return json_path_fail(path, "is %.17g, a value that %s does not have", value,
                          banyan_dtype_name(dtype));
}

static banyan_status read_integer(const json_path *path, const json_t *value, DLDataType dtype,
                                  uint64_t *bits)
{
    if (!json_is_integer(value))
        return json_path_fail(path, "is not an integer, as elements of %s are",
                              banyan_dtype_name(dtype));
    int64_t number = json_integer_value(value), low = 0, high = INT64_MAX;
    int value_bits = dtype.code == kDLInt ? dtype.bits - 1 : dtype.bits;
    if (value_bits < 63)
        high = ((int64_t)1 << value_bits) - 1;
    if (dtype.code == kDLInt)
        low = -high - 1;
    if (number < low || number > high)
        return json_path_fail(path, "is %" PRId64 ", a value that %s does not have", number,
                              banyan_dtype_name(dtype));
    *bits = (uint64_t)number;
    return BANYAN_OK;
}

banyan_status fill_from_json(const json_path *path, const json_t *value, DLDataType dtype,
                             unsigned char fill[BANYAN_MAX_FILL_BYTES])
{
    size_t bytes = banyan_dtype_bytes(dtype);
    uint64_t bits;
    const char *text = json_string_value(value);
    memset(fill, 0, BANYAN_MAX_FILL_BYTES);
    if (bytes > BANYAN_MAX_FILL_BYTES)
        return json_path_fail(path, "fills elements of %zu bytes: at most %d are possible", bytes,
                              BANYAN_MAX_FILL_BYTES);
    if (text && strncmp(text, "0x", 2) == 0)
        return read_bits(path, text, bytes, fill);
    if (is_integer(dtype)) {
        RETURN_IF_FAILED(read_integer(path, value, dtype, &bits));
    } else if (!fill_is_float(dtype)) {
        return json_path_fail(path, "must be the bits of an element of this type, as \"0x…\"");
    } else if (text) {
        bool infinite = strcmp(text, "inf") == 0 || strcmp(text, "-inf") == 0;
        if (!infinite && strcmp(text, "nan") != 0)
            return json_path_fail(path, "is \"%.40s\", no value", text);
        double special = infinite ? (double)INFINITY : (double)NAN;
        RETURN_IF_FAILED(read_float(path, dtype, text[0] == '-' ? -special : special, &bits));
    } else if (json_is_number(value)) {
        RETURN_IF_FAILED(read_float(path, dtype, json_number_value(value), &bits));
    } else {
        return json_path_fail(path, "is neither a number nor text");
    }
    memcpy(fill, &bits, bytes);
    return BANYAN_OK;
}

banyan_status padding_view(const DLTensor *whole, const banyan_box *box, bool on_host,
                           strided_view *view)
{
    banyan_box place = *box;
    DLTensor part = *whole;
    part.shape = place.extent;
    for (int d = 0; d < part.ndim; d++)
        part.byte_offset +=
            (uint64_t)(box->start[d] * whole->strides[d]) * banyan_dtype_bytes(whole->dtype);
    return on_host ? strided_view_of(&part, view) : strided_view_anywhere(&part, view);
}

/* Fill `count` contiguous elements. */
static void padding_fill_run(char *data, size_t elem_bytes, size_t count, const void *fill)
{
    if (!fill) {
        memset(data, 0, elem_bytes * count);
        return;
    }
    memcpy(data, fill, elem_bytes);
    for (size_t done = 1; done < count; done *= 2)
        memcpy(data + done * elem_bytes, data,
               (count - done < done ? count - done : done) * elem_bytes);
}

static void fill_level(const strided_view *view, int level, char *data, const void *fill)
{
    bool is_run = level == view->ndim - 1 && view->stride[level] == (int64_t)view->elem_bytes;
    if (level == view->ndim || is_run) {
        padding_fill_run(data, view->elem_bytes, is_run ? (size_t)view->extent[level] : 1, fill);
        return;
    }
    for (int64_t i = 0; i < view->extent[level]; i++)
        fill_level(view, level + 1, data + i * view->stride[level], fill);
}

void padding_fill(const strided_view *view, const void *fill)
{
    if (view->elems > 0)
        fill_level(view, 0, view->data, fill);
}
