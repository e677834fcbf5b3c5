/* Whether a rank compresses what it sends to an engine. */
#ifndef PUBLISH_FETCH_COMPRESSION_H
#define PUBLISH_FETCH_COMPRESSION_H

#include <banyan/publish.h>

/* Streams of fewer bytes, for one receiver in one wave, are neither compressed nor measured, unless
 * all are to be compressed. */
#define COMPRESSION_LEAST ((uint64_t)64 << 10)

/* Measurements of this rank with one engine, in nanoseconds for each byte of streams, or of what
 * travels. They are kept from fetch to fetch. 0: not measured. */
struct compression {
    banyan_publication_compression choice;
    double write_ns, compress_ns, travel_ns;
    double ratio;   /* of the bytes that travel to those of the streams */
    uint32_t waves; /* of this fetch that have been decided about */
};

/* Begin a fetch: its changes may be denser or sparser than those before. */
void compression_begin_fetch(struct compression *of);

/* Decide about the next wave: compress if waves then follow each other sooner. One is written and
 * compressed while the one before travels. The second wave of a fetch and a few later ones try the
 * compressor, unless the link takes bytes faster than any compressor makes them. `bytes_per_s`:
 * limit of the engine; 0: none. */
bool compression_pays(struct compression *of, uint64_t bytes_per_s);

/* Note what a wave took. */
void compression_note_written(struct compression *of, uint64_t bytes, uint64_t ns);
void compression_note_compressed(struct compression *of, uint64_t bytes, uint64_t packed_bytes,
                                 uint64_t ns);
void compression_note_travelled(struct compression *of, uint64_t bytes, uint64_t ns);

#endif
