/* State of a fetch at a rank of the publication. */
#ifndef PUBLISH_FETCH_SENDING_H
#define PUBLISH_FETCH_SENDING_H

#include "publish/delta/planes.h"
#include "publish/fetch/parts.h"
#include "publish/parallel.h"

/* A part, and where it lies: in the streams, and, before compressed parts are moved together, in
 * `packed`. */
struct parcel_part {
    planes_stream of;
    uint64_t at;
};

/* A receiver's share of one wave. */
struct fetch_parcel {
    bytes_writer heads, sums, stream, message;
    ARRAY(struct parcel_part) parts; /* of the heads */
    bytes_writer packed;             /* what travels, if it is compressed */
    /* From a device: the blocks that it writes, and the memory that it writes them to. */
    ARRAY(struct delta_piece) pieces;
    uint64_t bytes;   /* of the streams */
    const void *sent; /* what travels: the streams, or `packed` */
    uint64_t sent_bytes;
    struct publish_buffer pinned;
};

/* Bytes and times of a wave. */
struct fetch_written {
    uint64_t bytes, ns;                                   /* of streams */
    uint64_t compressed_bytes, packed_bytes, compress_ns; /* of those that were compressed */
};

/* A receiver, and the place that has been reached in its transfers. One parcel is filled while the
 * other one travels. */
struct fetch_outgoing {
    int rank;
    size_t first, end; /* of the list of sends */
    uint64_t block;    /* the next of transfer `first` */
    bool changed;      /* something in this transfer */
    delta_source source;
    uint64_t parts;
    struct fetch_parcel parcels[2], *parcel; /* `parcel`: the one that is filled */
};

struct fetch_sending {
    struct session *session;
    const struct fetch_source *from;
    ARRAY(size_t) order; /* of the plan's sends, by receiver */
    ARRAY(struct fetch_outgoing) to;
    void *box_memory;    /* of one part, to compute checksums */
    uint64_t wave_bytes; /* of the next wave */
    bool compresses;     /* the next wave */
    planes_coder coders[PARALLEL_WORKERS];
    /* From a device: the first block of each send in `block_bytes`, which is NULL if all elements
     * are sent. */
    void *packing;
    uint64_t *first_blocks;
    const uint64_t *block_bytes;
    struct fetch_written wave; /* that was filled last */
    uint64_t travels_since_ns; /* when nothing but the link held up the wave that is next */
    /* For the log: the device writes streams, parcels are filled and compressed, and travel. */
    uint64_t pack_ns, fill_ns, compress_ns, run_ns, stream_bytes, sent_bytes;
};

/* Describe the box of the i-th send of the list. */
banyan_status sending_source(const struct fetch_sending *sending, size_t i, delta_source *source);

/* Fill the other parcel of each receiver with its part of the next wave, compressed if
 * sending->compresses. Sets sending->wave. A function for request_start. */
banyan_status sending_fill_wave(void *sending);

#endif
