#include "reshard/pattern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* Each tensor has an endless row of 64-bit words, in which element i of e bytes takes bytes i·e to
 * (i + 1)·e. Neighbours in the tensor are neighbours in the row, so that long runs are generated at
 * the speed of memory. */
#define WORD_BYTES 8
#define STEP UINT64_C(0x9e3779b97f4a7c15)
#define MIX UINT64_C(0xd6e8feb86659fd93)
/* Clears the exponent's highest bit of each 16 bits: no element is NaN or infinite in bf16, f16 or
 * f32, so that formats can be changed on the way. */
#define FINITE UINT64_C(0xbfffbfffbfffbfff)
/* Runs are compared in blocks; only a block with a difference is looked at closely. */
#define BLOCK_BYTES 4096

static inline uint64_t pattern_word_at(uint64_t key, uint64_t index)
{
    uint64_t word = key + index * STEP;
    word = (word ^ (word >> 32)) * MIX;
    return (word ^ (word >> 29)) & FINITE;
}

static uint64_t pattern_key_of(const char *name)
{
    uint64_t key = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        key = (key ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return key;
}

/* A run's bytes before the first whole word of the row. */
static uint64_t head_bytes(uint64_t first_byte, uint64_t bytes)
{
    uint64_t head = (WORD_BYTES - first_byte % WORD_BYTES) % WORD_BYTES;
    return head < bytes ? head : bytes;
}

/* Part of one word. */
static void write_part(uint64_t key, uint64_t first_byte, unsigned char *to, uint64_t bytes)
{
    uint64_t word = pattern_word_at(key, first_byte / WORD_BYTES);
    memcpy(to, (unsigned char *)&word + first_byte % WORD_BYTES, bytes);
}

static bool is_part(uint64_t key, uint64_t first_byte, const unsigned char *from, uint64_t bytes)
{
    uint64_t word = pattern_word_at(key, first_byte / WORD_BYTES);
    return memcmp(from, (unsigned char *)&word + first_byte % WORD_BYTES, bytes) == 0;
}

static void pattern_write_run(uint64_t key, uint64_t first_byte, unsigned char *to, uint64_t bytes)
{
    uint64_t head = head_bytes(first_byte, bytes);
    write_part(key, first_byte, to, head);
    uint64_t index = (first_byte + head) / WORD_BYTES, words = (bytes - head) / WORD_BYTES;
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word = pattern_word_at(key, index + i);
        memcpy(to + head + i * WORD_BYTES, &word, WORD_BYTES);
    }
    uint64_t done = head + words * WORD_BYTES;
    write_part(key, first_byte + done, to + done, bytes - done);
}

static bool pattern_is_run(uint64_t key, uint64_t first_byte, const unsigned char *from,
                           uint64_t bytes)
{
    uint64_t head = head_bytes(first_byte, bytes);
    uint64_t index = (first_byte + head) / WORD_BYTES, words = (bytes - head) / WORD_BYTES;
    uint64_t difference = 0;
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, from + head + i * WORD_BYTES, WORD_BYTES);
        difference |= word ^ pattern_word_at(key, index + i);
    }
    uint64_t done = head + words * WORD_BYTES;
    return difference == 0 && is_part(key, first_byte, from, head) &&
           is_part(key, first_byte + done, from + done, bytes - done);
}

/* Loops, slowest first, over runs of elements that lie side by side in memory and in the row. */
struct walk {
    unsigned char *data;
    uint64_t elem_bytes, first_elem, run_elems;
    int ndim;
    int64_t extent[BANYAN_MAX_DIMS];
    int64_t local_step[BANYAN_MAX_DIMS];   /* bytes */
    uint64_t global_step[BANYAN_MAX_DIMS]; /* elements */
};

/* Strides in elements; a DLTensor without any is dense. */
static void strides_of(const DLTensor *tensor, int64_t strides[BANYAN_MAX_DIMS])
{
    int64_t dense = 1;
    for (int k = tensor->ndim - 1; k >= 0; k--) {
        strides[k] = tensor->strides ? tensor->strides[k] : dense;
        dense *= tensor->shape[k];
    }
}

static void pattern_add_loop(struct walk *walk, int64_t extent, int64_t local_step,
                             uint64_t global_step)
{
    if (extent == 1)
        return;
    int last = walk->ndim - 1;
    if (last >= 0 && walk->local_step[last] == local_step * extent &&
        walk->global_step[last] == global_step * (uint64_t)extent) {
        walk->extent[last] *= extent;
        walk->local_step[last] = local_step;
        walk->global_step[last] = global_step;
        return;
    }
    walk->extent[walk->ndim] = extent;
    walk->local_step[walk->ndim] = local_step;
    walk->global_step[walk->ndim++] = global_step;
}

static void take_run(struct walk *walk)
{
    int last = walk->ndim - 1;
    walk->run_elems = 1;
    if (last >= 0 && walk->global_step[last] == 1 &&
        walk->local_step[last] == (int64_t)walk->elem_bytes) {
        walk->run_elems = (uint64_t)walk->extent[last];
        walk->ndim--;
    }
}

static struct walk walk_of(const banyan_piece *piece, const DLTensor *tensor)
{
    int64_t strides[BANYAN_MAX_DIMS];
    strides_of(tensor, strides);
    struct walk walk = {.elem_bytes = banyan_dtype_bytes(tensor->dtype)};
    int64_t elem_bytes = (int64_t)walk.elem_bytes;
    walk.data = (unsigned char *)tensor->data + tensor->byte_offset;
    for (int k = 0; k < tensor->ndim; k++)
        walk.data += piece->local_start[k] * strides[k] * elem_bytes;
    uint64_t global_steps[BANYAN_MAX_DIMS], dense = 1;
    for (int d = piece->ndim - 1; d >= 0; d--) {
        global_steps[d] = dense;
        dense *= (uint64_t)piece->shape[d];
    }
    for (int d = 0; d < piece->ndim; d++) {
        walk.first_elem += (uint64_t)piece->box.start[d] * global_steps[d];
        if (piece->dim_map[d] != BANYAN_NO_DIM)
            pattern_add_loop(&walk, piece->box.extent[d], strides[piece->dim_map[d]] * elem_bytes,
                             global_steps[d]);
    }
    take_run(&walk);
    return walk;
}

typedef void (*run_fn)(void *context, const struct walk *walk, unsigned char *data,
                       uint64_t first_elem);

static void for_each_run(const struct walk *walk, run_fn fn, void *context)
{
    int64_t at[BANYAN_MAX_DIMS] = {0};
    unsigned char *data = walk->data;
    uint64_t elem = walk->first_elem;
    for (;;) {
        fn(context, walk, data, elem);
        int k = walk->ndim - 1;
        for (; k >= 0 && ++at[k] == walk->extent[k]; k--) {
            data -= (walk->extent[k] - 1) * walk->local_step[k];
            elem -= (uint64_t)(walk->extent[k] - 1) * walk->global_step[k];
            at[k] = 0;
        }
        if (k < 0)
            return;
        data += walk->local_step[k];
        elem += walk->global_step[k];
    }
}

static void pattern_fill_run(void *context, const struct walk *walk, unsigned char *data,
                             uint64_t first_elem)
{
    pattern_write_run(*(const uint64_t *)context, first_elem * walk->elem_bytes, data,
                      walk->run_elems * walk->elem_bytes);
}

void pattern_fill(const banyan_piece *piece, const DLTensor *tensor)
{
    uint64_t key = pattern_key_of(piece->name);
    struct walk walk = walk_of(piece, tensor);
    if (banyan_box_elems(&piece->box) > 0)
        for_each_run(&walk, pattern_fill_run, &key);
}

struct check {
    uint64_t key;
    pattern_result result;
};

static void note_wrong(pattern_result *result, uint64_t elem)
{
    if (result->wrong == 0 || elem < result->first_wrong)
        result->first_wrong = elem;
    result->wrong++;
}

static void check_run(void *context, const struct walk *walk, unsigned char *data,
                      uint64_t first_elem)
{
    struct check *check = context;
    uint64_t block = BLOCK_BYTES / walk->elem_bytes;
    for (uint64_t start = 0; start < walk->run_elems; start += block) {
        uint64_t elems = walk->run_elems - start < block ? walk->run_elems - start : block;
        uint64_t first_byte = (first_elem + start) * walk->elem_bytes;
        unsigned char *at = data + start * walk->elem_bytes;
        if (pattern_is_run(check->key, first_byte, at, elems * walk->elem_bytes))
            continue;
        for (uint64_t i = 0; i < elems; i++) {
            if (!pattern_is_run(check->key, first_byte + i * walk->elem_bytes,
                                at + i * walk->elem_bytes, walk->elem_bytes))
                note_wrong(&check->result, first_elem + start + i);
        }
    }
}

pattern_result pattern_check(const banyan_piece *piece, const DLTensor *tensor)
{
    struct check check = {.key = pattern_key_of(piece->name)};
    struct walk walk = walk_of(piece, tensor);
    check.result.elems = banyan_box_elems(&piece->box);
    if (check.result.elems > 0)
        for_each_run(&walk, check_run, &check);
    return check.result;
}

struct check_fill {
    const unsigned char *fill; /* NULL: zeros */
    pattern_result result;
};

static void check_fill_run(void *context, const struct walk *walk, unsigned char *data,
                           uint64_t first_elem)
{
    struct check_fill *check = context;
    for (uint64_t i = 0; i < walk->run_elems; i++) {
        unsigned char differs = 0;
        for (uint64_t byte = 0; byte < walk->elem_bytes; byte++)
            differs |= data[i * walk->elem_bytes + byte] ^ (check->fill ? check->fill[byte] : 0);
        if (differs)
            note_wrong(&check->result, first_elem + i);
    }
}

pattern_result pattern_check_fill(const banyan_box *box, const void *fill, const DLTensor *tensor)
{
    banyan_piece piece = {.ndim = tensor->ndim, .box = *box};
    for (int k = 0; k < tensor->ndim; k++) {
        piece.shape[k] = tensor->shape[k];
        piece.local_start[k] = box->start[k];
        piece.dim_map[k] = k;
    }
    struct walk walk = walk_of(&piece, tensor);
    struct check_fill check = {.fill = fill, .result.elems = banyan_box_elems(box)};
    if (check.result.elems > 0)
        for_each_run(&walk, check_fill_run, &check);
    return check.result;
}

banyan_status pattern_no_memory(uint64_t bytes)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %llu bytes",
                            (unsigned long long)bytes);
}

float pattern_float_of(const void *element, size_t bytes)
{
    uint32_t bits = 0;
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
    float value = pattern_float_of(sent, sent_bytes);
    if (map == BANYAN_PIECE_NEGATIVE_EXP)
        value = (float)-exp((double)value);
    uint16_t rounded = bf16_of(value);
    return memcmp(got, got_bytes == sizeof value ? (void *)&value : (void *)&rounded, got_bytes) ==
           0;
}

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
        return pattern_no_memory(result->elems * sent_bytes);
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
