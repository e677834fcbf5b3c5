#include "publish/delta/planes.h"

#include <endian.h>
#include <zstd.h>

/* An element's bytes, and the positions. */
#define PLANES_MOST 17
#define NUMBER_BYTES 4

/* Planes of random bytes have no matches worth finding: the smallest hash table and long matches
 * alone leave nearly all work to the entropy coder, which is where the gain is. Normally
 * distributed bf16: 0.34 of the plane of exponents, against 0.39 by level 1, four times as fast. */
#define WINDOW_LOG 17
#define HASH_LOG 6
#define MATCH_LEAST 7

/* Where the planes of a stream lie: the positions, then the values' bytes. */
struct planes_view {
    size_t position_bytes;
    uint64_t values;
    size_t planes; /* with the positions */
};

static size_t plane_bytes(const struct planes_view *view, size_t plane)
{
    return plane == 0 ? view->position_bytes : view->values;
}

static size_t planes_head_bytes(size_t planes)
{
    return NUMBER_BYTES * (1 + planes);
}

static void planes_put_number(unsigned char *at, size_t i, size_t value)
{
    uint32_t word = htole32((uint32_t)value);
    memcpy(at + i * NUMBER_BYTES, &word, sizeof word);
}

static uint32_t planes_get_number(const unsigned char *at, size_t i)
{
    uint32_t word;
    memcpy(&word, at + i * NUMBER_BYTES, sizeof word);
    return le32toh(word);
}

static unsigned char *planes_memory(planes_coder *coder, size_t bytes)
{
    coder->planes.count = 0;
    return array_reserve(&coder->planes, bytes) ? coder->planes.data : NULL;
}

/* ---- values ---- */

#define EVEN_BYTES UINT64_C(0x00ff00ff00ff00ff)
#define EVEN_PAIRS UINT64_C(0x0000ffff0000ffff)

/* Put the even bytes of a word into its lower half. */
static inline uint32_t even_bytes(uint64_t word)
{
    word &= EVEN_BYTES;
    word = (word | word >> 8) & EVEN_PAIRS;
    return (uint32_t)(word | word >> 16);
}

/* The reverse. */
static inline uint64_t spread_bytes(uint32_t half)
{
    uint64_t word = half;
    word = (word | word << 16) & EVEN_PAIRS;
    return (word | word << 8) & EVEN_BYTES;
}

/* Divide values of two bytes, four at a time. Return how many. Words are of a little-endian host.
 */
static uint64_t planes_split_pairs(const unsigned char *values, uint64_t count, unsigned char *low,
                                   unsigned char *high)
{
    uint64_t i = 0, word;
    for (; i + 4 <= count; i += 4) {
        memcpy(&word, values + 2 * i, sizeof word);
        uint32_t lows = even_bytes(word), highs = even_bytes(word >> 8);
        memcpy(low + i, &lows, sizeof lows);
        memcpy(high + i, &highs, sizeof highs);
    }
    return i;
}

static uint64_t planes_join_pairs(unsigned char *values, uint64_t count, const unsigned char *low,
                                  const unsigned char *high)
{
    uint64_t i = 0;
    for (uint32_t lows, highs; i + 4 <= count; i += 4) {
        memcpy(&lows, low + i, sizeof lows);
        memcpy(&highs, high + i, sizeof highs);
        uint64_t word = spread_bytes(lows) | spread_bytes(highs) << 8;
        memcpy(values + 2 * i, &word, sizeof word);
    }
    return i;
}

/* Divide `count` values among planes that lie `stride` bytes apart. */
static void split_values(const unsigned char *values, uint64_t count, size_t elem_bytes,
                         unsigned char *planes, size_t stride)
{
    uint64_t done =
        elem_bytes == 2 ? planes_split_pairs(values, count, planes, planes + stride) : 0;
    if (elem_bytes == 1)
        memcpy(planes, values, done = count);
    for (size_t k = 0; k < elem_bytes; k++) {
        for (uint64_t i = done; i < count; i++)
            planes[k * stride + i] = values[i * elem_bytes + k];
    }
}

static void join_values(unsigned char *values, uint64_t count, size_t elem_bytes,
                        const unsigned char *planes, size_t stride)
{
    uint64_t done = elem_bytes == 2 ? planes_join_pairs(values, count, planes, planes + stride) : 0;
    if (elem_bytes == 1)
        memcpy(values, planes, done = count);
    for (size_t k = 0; k < elem_bytes; k++) {
        for (uint64_t i = done; i < count; i++)
            values[i * elem_bytes + k] = planes[k * stride + i];
    }
}

/* ---- streams ---- */

/* Measure the planes of a stream. False if it is not valid. */
static bool planes_measure(const planes_stream *of, const unsigned char *stream,
                           struct planes_view *view)
{
    size_t at = 0;
    *view = (struct planes_view){.planes = 1 + of->elem_bytes};
    for (uint64_t i = of->first; i < of->first + of->count; i++) {
        uint64_t values;
        size_t positions =
            delta_positions(stream + at, of->bytes - at, delta_block_elems(of->elems, i), &values);
        if (positions == SIZE_MAX || of->bytes - at - positions < values * of->elem_bytes)
            return false;
        at += positions + values * of->elem_bytes;
        view->position_bytes += positions;
        view->values += values;
    }
    return at == of->bytes;
}

static void planes_split(const planes_stream *of, const struct planes_view *view,
                         const unsigned char *stream, unsigned char *planes)
{
    unsigned char *values_to = planes + view->position_bytes;
    for (uint64_t i = of->first; i < of->first + of->count; i++) {
        uint64_t values;
        size_t positions =
            delta_positions(stream, SIZE_MAX, delta_block_elems(of->elems, i), &values);
        memcpy(planes, stream, positions);
        split_values(stream + positions, values, of->elem_bytes, values_to, view->values);
        planes += positions;
        values_to += values;
        stream += positions + values * of->elem_bytes;
    }
}

/* Put planes together again. False if they are not those of a valid stream. */
static bool planes_join(const planes_stream *of, const struct planes_view *view,
                        const unsigned char *planes, unsigned char *stream)
{
    const unsigned char *values_from = planes + view->position_bytes;
    size_t left = view->position_bytes;
    uint64_t values_left = view->values;
    for (uint64_t i = of->first; i < of->first + of->count; i++) {
        uint64_t values;
        size_t positions = delta_positions(planes, left, delta_block_elems(of->elems, i), &values);
        if (positions == SIZE_MAX || values > values_left)
            return false;
        memcpy(stream, planes, positions);
        join_values(stream + positions, values, of->elem_bytes, values_from, view->values);
        planes += positions;
        left -= positions;
        values_from += values;
        values_left -= values;
        stream += positions + values * of->elem_bytes;
    }
    return left == 0 && values_left == 0;
}

/* ---- coding ---- */

static ZSTD_CCtx *planes_compressor(planes_coder *coder)
{
    if (!coder->compress && (coder->compress = ZSTD_createCCtx())) {
        ZSTD_CCtx *made = coder->compress;
        ZSTD_CCtx_setParameter(made, ZSTD_c_compressionLevel, 1);
        ZSTD_CCtx_setParameter(made, ZSTD_c_strategy, ZSTD_fast);
        ZSTD_CCtx_setParameter(made, ZSTD_c_windowLog, WINDOW_LOG);
        ZSTD_CCtx_setParameter(made, ZSTD_c_hashLog, HASH_LOG);
        ZSTD_CCtx_setParameter(made, ZSTD_c_minMatch, MATCH_LEAST);
        ZSTD_CCtx_setParameter(made, ZSTD_c_contentSizeFlag, 0);
    }
    return coder->compress;
}

void planes_coder_free(planes_coder *coder)
{
    ZSTD_freeCCtx(coder->compress);
    ZSTD_freeDCtx(coder->decompress);
    bytes_writer_free(&coder->planes);
    *coder = (planes_coder){0};
}

size_t planes_pack(planes_coder *coder, const planes_stream *of, const void *stream, void *packed)
{
    struct planes_view view;
    ZSTD_CCtx *compressor = planes_compressor(coder);
    unsigned char *planes = planes_memory(coder, of->bytes), *head = packed;
    if (!compressor || !planes || of->elem_bytes + 1 > PLANES_MOST ||
        !planes_measure(of, stream, &view))
        return 0;
    size_t used = planes_head_bytes(view.planes);
    if (used >= of->bytes)
        return 0;
    planes_split(of, &view, stream, planes);
    planes_put_number(head, 0, view.values);
    for (size_t k = 0; k < view.planes; k++) {
        size_t bytes = plane_bytes(&view, k), left = of->bytes - used;
        size_t most = left < bytes ? left : bytes;
        size_t took = most > 0 ? ZSTD_compress2(compressor, head + used, most, planes, bytes) : 0;
        if (ZSTD_isError(took) || took >= bytes) {
            if (bytes > left)
                return 0;
            memcpy(head + used, planes, bytes);
            took = bytes;
        }
        planes_put_number(head, 1 + k, took);
        planes += bytes;
        used += took;
    }
    return used < of->bytes ? used : 0;
}

/* Read the sizes of planes, and check that they make a stream of this size. */
static bool planes_read_head(const planes_stream *of, const unsigned char *packed,
                             size_t packed_bytes, struct planes_view *view)
{
    *view = (struct planes_view){.planes = 1 + of->elem_bytes};
    size_t sum = planes_head_bytes(view->planes);
    if (view->planes > PLANES_MOST || packed_bytes < sum)
        return false;
    view->values = planes_get_number(packed, 0);
    if (view->values > of->bytes / of->elem_bytes)
        return false;
    view->position_bytes = of->bytes - view->values * of->elem_bytes;
    for (size_t k = 0; k < view->planes; k++) {
        if (planes_get_number(packed, 1 + k) > plane_bytes(view, k))
            return false;
        sum += planes_get_number(packed, 1 + k);
    }
    return sum == packed_bytes;
}

bool planes_unpack(planes_coder *coder, const planes_stream *of, const void *packed,
                   size_t packed_bytes, void *stream)
{
    struct planes_view view;
    const unsigned char *head = packed, *from;
    unsigned char *planes = planes_memory(coder, of->bytes), *to = planes;
    if (!coder->decompress)
        coder->decompress = ZSTD_createDCtx();
    if (!coder->decompress || !planes || of->first > delta_blocks(of->elems) ||
        of->count > delta_blocks(of->elems) - of->first ||
        !planes_read_head(of, packed, packed_bytes, &view))
        return false;
    from = head + planes_head_bytes(view.planes);
    for (size_t k = 0; k < view.planes; k++) {
        size_t bytes = plane_bytes(&view, k), took = planes_get_number(head, 1 + k);
        if (took == bytes)
            memcpy(to, from, bytes);
        else if (ZSTD_decompressDCtx(coder->decompress, to, bytes, from, took) != bytes)
            return false;
        from += took;
        to += bytes;
    }
    return planes_join(of, &view, planes, stream);
}
