/* Streams are restored bit for bit from their planes, weights take fewer bytes there, and nothing
 * that arrives damaged passes for the stream or is read outside of its memory. */
#include "support/test.h"

#include <math.h>

#include "publish/delta/changes.h"
#include "publish/delta/example.h"
#include "publish/delta/planes.h"

#define PLANE_ROUNDS 200
#define DAMAGES 40

/* Give a tensor elements of which some bytes differ little, as those of weights do. */
static void make_alike(random_state *random, struct example *example)
{
    unsigned char few = (unsigned char)(1 + below(random, 60));
    uint64_t which = below(random, example->elem_bytes);
    for (size_t i = which; i < example->buffer_bytes; i += example->elem_bytes)
        example->buffer[i] = (unsigned char)(below(random, few) * 3);
}

/* Write a stream of an example's changes. */
static void make_stream(random_state *random, struct example *example, bytes_writer *stream,
                        planes_stream *of)
{
    static const uint64_t shares[] = {1, 10, 30, 100, 400, 1000};
    make_example(random, example);
    make_alike(random, example);
    size_t bytes = example->elems * example->elem_bytes;
    unsigned char *kept = malloc(bytes);
    uint64_t *map = calloc(changes_words(example->elems), sizeof *map);
    int64_t dense = (int64_t)example->elems;
    CHECK_OK(strided_view_of(&example->tensor, &example->view));
    pack(example, kept);
    change(random, example, shares[below(random, 6)]);
    changes_find(&example->view, kept, map);
    DLTensor tensor = example->tensor;
    tensor.data = kept;
    tensor.ndim = 1;
    tensor.shape = &dense;
    tensor.strides = NULL;
    const uint64_t *maps[] = {map};
    delta_source from = {
        .memory = (const char *)kept, .maps = maps, .map_count = 1, .whole = below(random, 4) == 0};
    CHECK_OK(strided_view_of(&tensor, &from.box));
    uint64_t blocks = delta_blocks(example->elems), first = below(random, blocks);
    *of = (planes_stream){.elems = example->elems,
                          .first = first,
                          .count = 1 + below(random, blocks - first),
                          .elem_bytes = example->elem_bytes};
    delta_write(&from, of->first, of->count, stream);
    assert_false(stream->failed);
    of->bytes = stream->count;
    free(kept);
    free(map);
}

/* Copy to memory of exactly this size, so that sanitizers see what is read behind it. */
static unsigned char *exactly(const unsigned char *from, size_t bytes)
{
    unsigned char *copy = malloc(bytes > 0 ? bytes : 1);
    memcpy(copy, from, bytes);
    return copy;
}

/* Flip bits, cut or lengthen what travels, or claim other sizes. */
static void damage(random_state *random, planes_coder *coder, const planes_stream *of,
                   const bytes_writer *stream, const unsigned char *packed, size_t packed_bytes)
{
    planes_stream claimed = *of;
    size_t bytes = packed_bytes;
    unsigned char *damaged = malloc(packed_bytes + 8);
    memcpy(damaged, packed, packed_bytes);
    memset(damaged + packed_bytes, 0, 8);
    switch (below(random, 4)) {
    case 0:
        bytes = below(random, packed_bytes);
        break;
    case 1:
        claimed.bytes += 1 + below(random, 100);
        break;
    case 2:
        bytes += 1 + below(random, 8);
        break;
    default:
        damaged[below(random, packed_bytes)] ^= (unsigned char)(1u << below(random, 8));
    }
    unsigned char *given = exactly(damaged, bytes), *restored = malloc(claimed.bytes);
    bool is_one = planes_unpack(coder, &claimed, given, bytes, restored);
    /* A bit may have no meaning to the coder. */
    assert_true(!is_one || claimed.bytes == of->bytes);
    if (is_one && memcmp(restored, stream->data, of->bytes) != 0)
        assert_true(hash_bytes(restored, of->bytes, 0) != hash_bytes(stream->data, of->bytes, 0));
    free(given);
    free(restored);
    free(damaged);
}

static void streams_are_restored_and_damage_is_found(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    planes_coder coder = {0};
    int smaller = 0;
    for (int round = 0; round < PLANE_ROUNDS; round++) {
        struct example example;
        bytes_writer stream = {0};
        planes_stream of;
        make_stream(&random, &example, &stream, &of);
        unsigned char *packed = malloc(of.bytes);
        size_t bytes = planes_pack(&coder, &of, stream.data, packed);
        assert_true(bytes < of.bytes);
        if (bytes > 0) {
            unsigned char *given = exactly(packed, bytes), *restored = malloc(of.bytes);
            smaller++;
            assert_true(planes_unpack(&coder, &of, given, bytes, restored));
            assert_memory_equal(restored, stream.data, of.bytes);
            for (int i = 0; i < DAMAGES; i++)
                damage(&random, &coder, &of, &stream, packed, bytes);
            free(given);
            free(restored);
        }
        free(packed);
        free(example.buffer);
        bytes_writer_free(&stream);
    }
    assert_true(smaller > PLANE_ROUNDS / 4);
    planes_coder_free(&coder);
}

/* Random bytes instead of planes. */
static void random_bytes_are_refused(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    planes_coder coder = {0};
    for (int round = 0; round < 20000; round++) {
        unsigned char packed[64], stream[300];
        planes_stream of = {.elems = 1 + below(&random, 9000),
                            .first = below(&random, 4),
                            .count = below(&random, 4),
                            .elem_bytes = (size_t)1 << below(&random, 5),
                            .bytes = 1 + below(&random, sizeof stream)};
        size_t bytes = below(&random, sizeof packed);
        fill_random(&random, packed, sizeof packed);
        memset(packed, 0, below(&random, 20)); /* small numbers */
        unsigned char *given = exactly(packed, bytes);
        (void)planes_unpack(&coder, &of, given, bytes, stream);
        free(given);
    }
    planes_coder_free(&coder);
}

/* Normally distributed bf16: signs and exponents shrink, mantissas do not. */
static void weights_take_two_thirds(void **state)
{
    (void)state;
    enum { ELEMS = 64 * DELTA_BLOCK };
    random_state random = random_from(random_seed());
    planes_coder coder = {0};
    uint16_t *weights = malloc(2 * ELEMS);
    for (int i = 0; i < ELEMS; i++) {
        double u = (double)(1 + below(&random, 1 << 30)) / (1 << 30);
        double v = (double)below(&random, 1 << 30) / (1 << 30);
        float value = (float)(0.02 * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        weights[i] = (uint16_t)(bits >> 16);
    }
    delta_source from = {.box = strided_view_dense(weights, 2, ELEMS),
                         .memory = (const char *)weights,
                         .whole = true};
    bytes_writer stream = {0};
    delta_write(&from, 0, 64, &stream);
    planes_stream of = {ELEMS, 0, 64, 2, stream.count};
    unsigned char *packed = malloc(stream.count);
    size_t bytes = planes_pack(&coder, &of, stream.data, packed);
    assert_true(bytes > stream.count / 2 && bytes < stream.count * 68 / 100);
    free(packed);
    bytes_writer_free(&stream);
    free(weights);
    planes_coder_free(&coder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(streams_are_restored_and_damage_is_found),
                                       cmocka_unit_test(random_bytes_are_refused),
                                       cmocka_unit_test(weights_take_two_thirds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
