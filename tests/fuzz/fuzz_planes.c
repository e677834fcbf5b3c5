/* The compressed streams that a publication sends. */
#include "fuzz.h"

#include "publish/delta/planes.h"

enum { ELEMS = 5000, ELEM_BYTES = 2, FIRST = 0, COUNT = 2 };

void fuzz_write_seeds(void)
{
    uint16_t elems[ELEMS];
    unsigned char packed[ELEMS * ELEM_BYTES + 64];
    planes_coder coder = {0};
    for (int i = 0; i < ELEMS; i++)
        elems[i] = (uint16_t)(0x3c00 + i % 7 * 256 + i % 251);
    delta_source from = {.box = strided_view_dense(elems, ELEM_BYTES, ELEMS),
                         .memory = (const char *)elems,
                         .whole = true};
    bytes_writer stream = {0};
    delta_write(&from, FIRST, COUNT, &stream);
    planes_stream of = {ELEMS, FIRST, COUNT, ELEM_BYTES, stream.count};
    size_t bytes = planes_pack(&coder, &of, stream.data, packed + 2);
    packed[0] = (unsigned char)stream.count;
    packed[1] = (unsigned char)(stream.count >> 8);
    fuzz_seed(packed, bytes + 2);
    bytes_writer_free(&stream);
    planes_coder_free(&coder);
}

/* The first two bytes are the size of the stream. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    planes_coder coder = {0};
    if (size < 2)
        return 0;
    planes_stream of = {ELEMS, FIRST, COUNT, ELEM_BYTES, data[0] | (size_t)data[1] << 8};
    unsigned char *stream = malloc(of.bytes + 1);
    uint64_t changed;
    if (planes_unpack(&coder, &of, data + 2, size - 2, stream))
        FUZZ_REQUIRE(
            delta_check(stream, of.bytes, ELEMS, ELEM_BYTES, FIRST, COUNT, &changed, NULL));
    free(stream);
    planes_coder_free(&coder);
    return 0;
}
