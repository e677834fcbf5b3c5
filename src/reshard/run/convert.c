#include "reshard/run/convert.h"

#include <inttypes.h>

#include "copy/strided/strided.h"
#include "core/error.h"
#include "core/threads/cpu.h"
#include "core/types/float_bits.h"
#include "memory/stream.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Elements of strided or half-precision data that one pass takes through a buffer on the stack. */
#define CHUNK 1024
/* Compilers vectorise a constant number of iterations at any optimisation level. */
#define STEP 32

typedef uint16_t half_at __attribute__((aligned(1), may_alias));
typedef uint32_t word_at __attribute__((aligned(1), may_alias));

typedef void (*cast_fn)(void *restrict to, const void *restrict from, size_t count);

/* All conversions go through f32, which holds each bf16 and f16 value exactly. */
struct casts {
    cast_fn f32_of_bf16, f32_of_f16, bf16_of_f32, f16_of_f32;
};

#define DEFINE_CAST(name, attributes, to_type, from_type, cast)                                    \
    attributes static void name(void *restrict to_memory, const void *restrict from_memory,        \
                                size_t count)                                                      \
    {                                                                                              \
        to_type *restrict to = to_memory;                                                          \
        const from_type *restrict from = from_memory;                                              \
        size_t i = 0;                                                                              \
        for (; count - i >= STEP; i += STEP) {                                                     \
            for (size_t k = 0; k < STEP; k++)                                                      \
                to[i + k] = cast(from[i + k]);                                                     \
        }                                                                                          \
        for (; i < count; i++)                                                                     \
            to[i] = cast(from[i]);                                                                 \
    }

DEFINE_CAST(portable_f32_of_bf16, , word_at, half_at, f32_of_bf16)
DEFINE_CAST(portable_f32_of_f16, , word_at, half_at, f32_of_f16)
DEFINE_CAST(portable_bf16_of_f32, , half_at, word_at, bf16_of_f32)
DEFINE_CAST(portable_f16_of_f32, , half_at, word_at, f16_of_f32)

static const struct casts portable_casts = {portable_f32_of_bf16, portable_f32_of_f16,
                                            portable_bf16_of_f32, portable_f16_of_f32};

#if defined(__x86_64__)

#define AVX2 __attribute__((target("avx2,f16c")))

DEFINE_CAST(avx2_f32_of_bf16, AVX2, word_at, half_at, f32_of_bf16)
DEFINE_CAST(avx2_bf16_of_f32, AVX2, half_at, word_at, bf16_of_f32)

AVX2 static void avx2_f32_of_f16(void *restrict to, const void *restrict from, size_t count)
{
    float *out = to;
    const char *in = from;
    size_t i = 0;
    for (; count - i >= 8; i += 8) {
        __m128i halves = _mm_loadu_si128((const __m128i_u *)(in + 2 * i));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
    }
    portable_f32_of_f16(out + i, in + 2 * i, count - i);
}

AVX2 static void avx2_f16_of_f32(void *restrict to, const void *restrict from, size_t count)
{
    char *out = to;
    const float *in = from;
    size_t i = 0;
    for (; count - i >= 8; i += 8) {
        __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i_u *)(out + 2 * i), halves);
    }
    portable_f16_of_f32(out + 2 * i, in + i, count - i);
}

static const struct casts avx2_casts = {avx2_f32_of_bf16, avx2_f32_of_f16, avx2_bf16_of_f32,
                                        avx2_f16_of_f32};

#endif

/* AVX2 implies F16C, which is older and which clang 14 cannot query. */
static const struct casts *casts_of_this_cpu(void)
{
#if defined(__x86_64__)
    if (cpu_level_get() >= CPU_AVX2)
        return &avx2_casts;
#endif
    return &portable_casts;
}

static bool is_f32(DLDataType dtype)
{
    return banyan_dtype_equal(dtype, BANYAN_F32);
}

static bool is_f16(DLDataType dtype)
{
    return banyan_dtype_equal(dtype, BANYAN_F16);
}

bool convert_is_float(DLDataType dtype)
{
    return is_f32(dtype) || is_f16(dtype) || banyan_dtype_equal(dtype, BANYAN_BF16);
}

static void convert_with(const struct casts *casts, void *to, DLDataType to_dtype, const void *from,
                         DLDataType from_dtype, size_t count)
{
    cast_fn widen = is_f16(from_dtype) ? casts->f32_of_f16 : casts->f32_of_bf16;
    cast_fn narrow = is_f16(to_dtype) ? casts->f16_of_f32 : casts->bf16_of_f32;
    if (banyan_dtype_equal(to_dtype, from_dtype)) {
        stream_copy(to, from, count * banyan_dtype_bytes(to_dtype));
    } else if (is_f32(to_dtype)) {
        widen(to, from, count);
    } else if (is_f32(from_dtype)) {
        narrow(to, from, count);
    } else {
        uint32_t wide[CHUNK];
        for (size_t i = 0; i < count; i += CHUNK) {
            size_t some = count - i < CHUNK ? count - i : CHUNK;
            widen(wide, (const char *)from + 2 * i, some);
            narrow((char *)to + 2 * i, wide, some);
        }
    }
}

void convert_run(void *to, DLDataType to_dtype, const void *from, DLDataType from_dtype,
                 size_t count)
{
    convert_with(casts_of_this_cpu(), to, to_dtype, from, from_dtype, count);
}

void convert_run_portable(void *to, DLDataType to_dtype, const void *from, DLDataType from_dtype,
                          size_t count)
{
    convert_with(&portable_casts, to, to_dtype, from, from_dtype, count);
}

static banyan_status check_pair(const DLTensor *destination, const DLTensor *source,
                                strided_view *to, strided_view *from)
{
    RETURN_IF_FAILED(strided_view_of(destination, to));
    RETURN_IF_FAILED(strided_view_of(source, from));
    if (!convert_is_float(destination->dtype) || !convert_is_float(source->dtype))
        return error_set(BANYAN_ERR_INVALID, "cannot cast %s to %s: only F32, F16 and BF16",
                         banyan_dtype_name(source->dtype), banyan_dtype_name(destination->dtype));
    if (to->elems != from->elems)
        return error_set(BANYAN_ERR_MISMATCH,
                         "cannot cast a tensor of %" PRIu64 " elements into one of %" PRIu64,
                         from->elems, to->elems);
    return BANYAN_OK;
}

banyan_status convert_tensor(const DLTensor *destination, const DLTensor *source)
{
    strided_view to, from;
    RETURN_IF_FAILED(check_pair(destination, source, &to, &from));
    bool to_dense = strided_view_is_dense(&to), from_dense = strided_view_is_dense(&from);
    char packed_to[CHUNK * sizeof(uint32_t)], packed_from[CHUNK * sizeof(uint32_t)];
    uint64_t chunk = to_dense && from_dense ? from.elems : CHUNK;
    for (uint64_t i = 0; i < from.elems; i += chunk) {
        uint64_t some = from.elems - i < chunk ? from.elems - i : chunk;
        if (!from_dense)
            strided_pack(packed_from, &from, i, some);
        convert_run(to_dense ? to.data + i * to.elem_bytes : packed_to, destination->dtype,
                    from_dense ? from.data + i * from.elem_bytes : packed_from, source->dtype,
                    some);
        if (!to_dense)
            strided_unpack(&to, i, some, packed_to);
    }
    return BANYAN_OK;
}

banyan_status convert_tensor_through(const DLTensor *destination, const DLTensor *source,
                                     convert_values_fn compute)
{
    strided_view to, from;
    RETURN_IF_FAILED(check_pair(destination, source, &to, &from));
    float values[CHUNK], packed[CHUNK];
    for (uint64_t i = 0; i < from.elems; i += CHUNK) {
        uint64_t some = from.elems - i < CHUNK ? from.elems - i : CHUNK;
        strided_pack(packed, &from, i, some);
        convert_run(values, BANYAN_F32, packed, source->dtype, some);
        compute(values, some);
        convert_run(packed, destination->dtype, values, BANYAN_F32, some);
        strided_unpack(&to, i, some, packed);
    }
    return BANYAN_OK;
}

/* As in the planner's cuts, blocks of a block-scaled format stay whole where possible. */
#define FASTEST_BLOCK_ELEMS 128
#define BLOCK_ELEMS 32

execution_blocks execution_blocks_of(const banyan_box *box, size_t elem_bytes, uint64_t cap_bytes)
{
    execution_blocks cut = {.count = 1};
    if (box->ndim == 0)
        return cut;
    uint64_t slab = banyan_box_elems(box) * elem_bytes;
    for (cut.dim = 0; cut.dim < box->ndim; cut.dim++) {
        slab /= (uint64_t)box->extent[cut.dim];
        if (slab <= cap_bytes || cut.dim == box->ndim - 1)
            break;
        cut.count *= (uint64_t)box->extent[cut.dim];
    }
    uint64_t extent = (uint64_t)box->extent[cut.dim];
    uint64_t run = cap_bytes / slab > 0 ? cap_bytes / slab : 1;
    uint64_t block = cut.dim == box->ndim - 1 ? FASTEST_BLOCK_ELEMS : BLOCK_ELEMS;
    cut.run = (int64_t)(run >= extent ? extent : run < block ? run : run / block * block);
    cut.count *= (extent + (uint64_t)cut.run - 1) / (uint64_t)cut.run;
    return cut;
}

banyan_box execution_block_at(const execution_blocks *cut, const banyan_box *box, uint64_t number)
{
    banyan_box block = *box;
    if (cut->count == 1)
        return block;
    int64_t extent = box->extent[cut->dim];
    uint64_t runs = (uint64_t)((extent + cut->run - 1) / cut->run);
    int64_t before = (int64_t)(number % runs) * cut->run;
    block.start[cut->dim] += before;
    block.extent[cut->dim] = extent - before < cut->run ? extent - before : cut->run;
    number /= runs;
    for (int d = cut->dim - 1; d >= 0; d--) {
        block.start[d] += (int64_t)(number % (uint64_t)box->extent[d]);
        block.extent[d] = 1;
        number /= (uint64_t)box->extent[d];
    }
    return block;
}
