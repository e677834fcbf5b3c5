/* Streams (stream.h) in fewer bytes.
 *
 * A stream is divided into planes: heads and positions of all blocks are the first one, and the
 * k-th bytes of all values one each. Bytes of a plane are alike, so that a coder gains where it can
 * gain: of bf16 weights, the plane with signs and exponents shrinks to a third, and that with
 * mantissas not at all. Each plane is compressed by zstd if that makes it smaller:
 *
 *     number of values                  4 bytes, little-endian
 *     bytes that each plane takes here  4 bytes each; as many as it has: it is not compressed
 *     the planes */
#ifndef PUBLISH_DELTA_PLANES_H
#define PUBLISH_DELTA_PLANES_H

#include "publish/delta/stream.h"

/* Contexts and memory of one thread. Zeroed is empty. */
typedef struct planes_coder {
    void *compress, *decompress; /* contexts of zstd */
    bytes_writer planes;
} planes_coder;

void planes_coder_free(planes_coder *coder);

/* A stream of `bytes` bytes: blocks [first, first + count) of a box of `elems` elements. */
typedef struct planes_stream {
    uint64_t elems, first, count;
    size_t elem_bytes, bytes;
} planes_stream;

/* Compress a valid stream to memory with space for as many bytes. Return the number of bytes there;
 * 0 if it would not be smaller, or if memory is out. */
size_t planes_pack(planes_coder *coder, const planes_stream *of, const void *stream, void *packed);

/* Restore a stream of of->bytes bytes at `stream`. False if `packed`, of which nothing is trusted,
 * is not one of this size; NO_MEMORY is not told apart. */
bool planes_unpack(planes_coder *coder, const planes_stream *of, const void *packed,
                   size_t packed_bytes, void *stream);

#endif
