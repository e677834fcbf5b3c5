#include "run/run_job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* Values are made and compared in blocks of this size; the constant lets compilers vectorise. */
#define BLOCK 512

static bool run_data_is_float(DLDataType dtype)
{
    return dtype.code != kDLInt && dtype.code != kDLUInt;
}

/* Formats of the reducible floats. */
static const struct float_format {
    DLDataType dtype;
    int mantissa_bits, bias;
    bool has_infinity;
} float_formats[] = {
    {{kDLFloat, 32, 1}, 23, 127, true},           {{kDLFloat, 16, 1}, 10, 15, true},
    {{kDLBfloat, 16, 1}, 7, 127, true},           {{BANYAN_DL_FLOAT8_E4M3FN, 8, 1}, 3, 7, false},
    {{BANYAN_DL_FLOAT8_E5M2, 8, 1}, 2, 15, true},
};

static const struct float_format *format_of(DLDataType dtype)
{
    for (size_t i = 0; i < sizeof float_formats / sizeof *float_formats; i++) {
        if (banyan_dtype_equal(float_formats[i].dtype, dtype))
            return &float_formats[i];
    }
    return NULL;
}

/* Convert a whole number that the format holds exactly from f32: change the exponent's bias, and
 * drop bits. */
static inline uint64_t float_bits(const struct float_format *format, int64_t value)
{
    float wide = (float)value;
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    uint32_t size = bits & INT32_MAX, sign = bits >> 31;
    uint32_t bias = (uint32_t)(127 - format->bias) << format->mantissa_bits;
    uint32_t narrow = size == 0 ? 0 : (size >> (23 - format->mantissa_bits)) - bias;
    return narrow | sign << (format->dtype.bits - 1);
}

static double float_value(const struct float_format *format, uint64_t bits)
{
    int exponent_bits = format->dtype.bits - 1 - format->mantissa_bits;
    uint64_t highest = (UINT64_C(1) << exponent_bits) - 1;
    uint64_t ones = (UINT64_C(1) << format->mantissa_bits) - 1;
    uint64_t exponent = bits >> format->mantissa_bits & highest, fraction = bits & ones;
    double sign = bits >> (format->dtype.bits - 1) & 1 ? -1 : 1;
    if (exponent == highest && (format->has_infinity || fraction == ones))
        return fraction == 0 ? sign * (double)INFINITY : (double)NAN;
    if (exponent > 0)
        fraction += ones + 1;
    else
        exponent = 1;
    return sign * ldexp((double)fraction, (int)exponent - format->bias - format->mantissa_bits);
}

/* The low bits of a value, as the type's own number. */
static int64_t integer_value(DLDataType dtype, uint64_t bits)
{
    int unused = 64 - dtype.bits;
    return dtype.code == kDLInt ? (int64_t)(bits << unused) >> unused
                                : (int64_t)(bits << unused >> unused);
}

static inline uint32_t run_data_mix(uint32_t value)
{
    value = (value ^ value >> 16) * 0x7feb352du;
    value = (value ^ value >> 15) * 0x846ca68bu;
    return value ^ value >> 16;
}

static void make_numbers(uint32_t key, uint64_t first, uint32_t numbers[BLOCK])
{
    for (uint32_t i = 0; i < BLOCK; i++) {
        uint64_t index = first + i;
        numbers[i] = run_data_mix((uint32_t)index ^ (uint32_t)(index >> 32) * 0xc2b2ae35u ^ key);
    }
}

static void make_values(const run_data *data, int rank, unsigned turn, uint64_t first,
                        int64_t values[BLOCK])
{
    uint32_t numbers[BLOCK];
    make_numbers(run_data_mix((uint32_t)rank * 0x9e3779b9u + turn * 0x85ebca6bu + 1), first,
                 numbers);
    if (data->bits || !run_data_is_float(data->dtype)) {
        for (size_t i = 0; i < BLOCK; i++)
            values[i] = (int64_t)((uint64_t)(numbers[i] * 0x9e3779b9u) << 32 | numbers[i]);
        /* Sums and products wrap around anyhow. */
        bool compared = !data->bits && (data->op == BANYAN_MIN || data->op == BANYAN_MAX);
        for (size_t i = 0; i < BLOCK && compared; i++)
            values[i] = integer_value(data->dtype, (uint64_t)values[i]);
    } else if (data->op == BANYAN_PROD) {
        /* One rank's factor is 1 or 2, with either sign; all others are 1 or -1. */
        for (uint32_t i = 0; i < BLOCK; i++) {
            uint64_t larger = (first + i + turn) % (unsigned)data->ranks;
            int64_t size = larger == (unsigned)rank ? 1 + (numbers[i] & 1) : 1;
            values[i] = numbers[i] >> 31 ? -size : size;
        }
    } else if ((rank + (int)(turn % (unsigned)data->ranks)) % data->ranks < data->active) {
        uint64_t range = 2 * (uint64_t)data->most + 1;
        for (size_t i = 0; i < BLOCK; i++)
            values[i] = (int64_t)(numbers[i] * range >> 32) - data->most;
    } else {
        memset(values, 0, BLOCK * sizeof *values);
    }
}

static void reduce_values(banyan_reduce_op op, const int64_t *more, int64_t *values)
{
    for (size_t i = 0; i < BLOCK && op == BANYAN_SUM; i++)
        values[i] = (int64_t)((uint64_t)values[i] + (uint64_t)more[i]);
    for (size_t i = 0; i < BLOCK && op == BANYAN_MIN; i++)
        values[i] = more[i] < values[i] ? more[i] : values[i];
    for (size_t i = 0; i < BLOCK && op == BANYAN_MAX; i++)
        values[i] = more[i] > values[i] ? more[i] : values[i];
    for (size_t i = 0; i < BLOCK && op == BANYAN_PROD; i++)
        values[i] = (int64_t)((uint64_t)values[i] * (uint64_t)more[i]);
}

/* With a size that the compiler knows. */
static inline void put_sized(size_t elem_bytes, size_t count, const int64_t *values, char *to)
{
    for (size_t i = 0; i < count; i++)
        memcpy(to + i * elem_bytes, &values[i], elem_bytes);
}

/* Convert `values` to bits. */
static void put_elements(const run_data *data, size_t count, int64_t values[BLOCK], char *to)
{
    const struct float_format *format = data->bits ? NULL : format_of(data->dtype);
    for (size_t i = 0; i < BLOCK && format; i++)
        values[i] = (int64_t)float_bits(format, values[i]);
    switch (data->elem_bytes) {
    case 1:
        put_sized(1, count, values, to);
        break;
    case 2:
        put_sized(2, count, values, to);
        break;
    case 4:
        put_sized(4, count, values, to);
        break;
    default:
        put_sized(data->elem_bytes, count, values, to);
    }
}

void run_data_fill(const run_data *data, int rank, unsigned turn, void *input, uint64_t elems)
{
    int64_t values[BLOCK];
    for (uint64_t at = 0; at < elems; at += BLOCK) {
        size_t count = elems - at < BLOCK ? (size_t)(elems - at) : BLOCK;
        make_values(data, rank, turn, at, values);
        put_elements(data, count, values, (char *)input + at * data->elem_bytes);
    }
}

static void run_data_compare(const run_data *data, size_t count, const char *expected,
                             const char *found, uint64_t index, run_wrong *wrong)
{
    if (memcmp(expected, found, count * data->elem_bytes) == 0)
        return;
    for (size_t i = 0; i < count; i++) {
        const char *must = expected + i * data->elem_bytes, *is = found + i * data->elem_bytes;
        if (memcmp(must, is, data->elem_bytes) == 0)
            continue;
        if (wrong->count++ > 0)
            continue;
        *wrong = (run_wrong){.count = 1, .first = index + i};
        memcpy(&wrong->expected, must, data->elem_bytes);
        memcpy(&wrong->found, is, data->elem_bytes);
    }
}

static void run_data_check_part(const run_data *data, unsigned turn, const banyan_plan_result *part,
                                const char *output, run_wrong *wrong)
{
    int64_t values[BLOCK], more[BLOCK];
    char expected[BLOCK * sizeof(uint64_t)];
    uint64_t elems = part->bytes / data->elem_bytes, first = part->offset / data->elem_bytes;
    for (uint64_t at = 0; at < elems; at += BLOCK) {
        size_t count = elems - at < BLOCK ? (size_t)(elems - at) : BLOCK;
        for (size_t i = 0; i < part->source_count; i++) {
            const banyan_plan_source *source = &part->sources[i];
            make_values(data, source->rank, turn, source->offset / data->elem_bytes + at,
                        i == 0 ? values : more);
            if (i > 0)
                reduce_values(data->op, more, values);
        }
        put_elements(data, count, values, expected);
        run_data_compare(data, count, expected, output + part->offset + at * data->elem_bytes,
                         first + at, wrong);
    }
}

void run_data_check(const run_data *data, unsigned turn, const banyan_plan_result *parts,
                    size_t count, const void *output, run_wrong *wrong, uint64_t *checked)
{
    for (size_t i = 0; i < count; i++) {
        run_data_check_part(data, turn, &parts[i], output, wrong);
        *checked += parts[i].bytes / data->elem_bytes;
    }
}

/* Find, over all outputs, the largest number of values reduced into an element, and the operator.
 */
static banyan_status find_terms(const banyan_plan *plan, const banyan_plan_info *info,
                                size_t *terms, banyan_reduce_op *op)
{
    for (int rank = 0; rank < info->ranks; rank++) {
        banyan_plan_result *parts;
        size_t count;
        banyan_reduce_op its_op;
        RETURN_IF_FAILED(
            banyan_plan_expected(plan, rank, info->message_parts, &parts, &count, &its_op));
        for (size_t i = 0; i < count; i++)
            *terms = parts[i].source_count > *terms ? parts[i].source_count : *terms;
        if (count > 0)
            *op = its_op;
        free(parts);
    }
    return BANYAN_OK;
}

/* Choose whole numbers up to 2^(mantissa bits + 1), divided by `terms`, so that all partial sums
 * are exact. With more terms than whole numbers, some ranks' values are zeros; that suffices for
 * collectives, which add each rank once. */
static banyan_status choose_floats(const banyan_plan_info *info, size_t terms, run_data *data)
{
    const struct float_format *format = format_of(data->dtype);
    if (!format) {
        data->bits = true;
        return BANYAN_OK;
    }
    uint64_t exact = UINT64_C(1) << (format->mantissa_bits + 1);
    if (data->op == BANYAN_SUM && terms > exact) {
        if (info->collective == BANYAN_CUSTOM)
            return banyan_error_set(
                BANYAN_ERR_INVALID,
                "plan %s adds %zu values to one element, but %s is sure to be exact for %d",
                info->name, terms, banyan_dtype_name(data->dtype), (int)exact);
        data->active = (int)exact;
        data->most = 1;
        return BANYAN_OK;
    }
    /* In a plan of its own making, all factors may be 2. */
    if (data->op == BANYAN_PROD && info->collective == BANYAN_CUSTOM &&
        terms > (size_t)format->bias)
        return banyan_error_set(
            BANYAN_ERR_INVALID,
            "plan %s multiplies %zu values for one element, but %s is sure to be exact for %d",
            info->name, terms, banyan_dtype_name(data->dtype), format->bias);
    data->most = (int64_t)(data->op == BANYAN_SUM && terms > 0 ? exact / terms : exact);
    return BANYAN_OK;
}

banyan_status run_data_make(const banyan_plan *plan, DLDataType dtype, run_data *made)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    run_data data = {.dtype = dtype,
                     .elem_bytes = banyan_dtype_bytes(dtype),
                     .ranks = info.ranks,
                     .active = info.ranks};
    size_t terms = 0;
    RETURN_IF_FAILED(find_terms(plan, &info, &terms, &data.op));
    data.said = terms > 0;
    data.bits = terms == 1 && info.collective != BANYAN_CUSTOM;
    if (run_data_is_float(dtype) && !data.bits)
        RETURN_IF_FAILED(choose_floats(&info, data.said ? terms : (size_t)info.ranks, &data));
    *made = data;
    return BANYAN_OK;
}

const char *run_data_text(const run_data *data, uint64_t bits, char text[RUN_DATA_TEXT_BYTES])
{
    const struct float_format *format = format_of(data->dtype);
    if (data->bits)
        snprintf(text, RUN_DATA_TEXT_BYTES, "0x%0*" PRIx64, (int)(2 * data->elem_bytes), bits);
    else if (format)
        snprintf(text, RUN_DATA_TEXT_BYTES, "%.9g", float_value(format, bits));
    else
        snprintf(text, RUN_DATA_TEXT_BYTES, "%" PRId64, integer_value(data->dtype, bits));
    return text;
}
