/* State of a fetch at a rank of the subscription. */
#ifndef PUBLISH_FETCH_RECEIVING_H
#define PUBLISH_FETCH_RECEIVING_H

#include "publish/delta/planes.h"
#include "publish/fetch/parts.h"
#include "publish/parallel.h"
#include "world/control.h"

/* A transfer that this rank receives. */
struct incoming {
    const banyan_transfer *transfer;
    size_t tensor;
    uint64_t blocks; /* that have arrived */
};

/* Progress of one sender. */
struct sender {
    int rank;
    uint64_t parts, parts_expected; /* UINT64_MAX: more come */
};

/* Contents of one sender's message in a wave. */
struct wave_part {
    int rank;
    unsigned char *stream; /* until a version keeps it; in `buffer` if that has memory */
    struct publish_buffer buffer;
    uint64_t bytes;        /* of the streams */
    unsigned char *packed; /* what arrived, if some of it is compressed; otherwise NULL */
    uint64_t packed_bytes;
    const struct part_head *heads;
    size_t head_count;
};

/* A wave that has arrived. It is checked while the next one travels. */
struct fetch_wave {
    struct fetch_receiving *receiving;
    control_message *messages; /* the heads of the parts lie there */
    struct wave_part *parts;
    size_t count;
    banyan_request *checking;
};

struct fetch_receiving {
    struct session *session;
    const struct fetch_target *into;
    bool whole;
    ARRAY(struct incoming) incoming;
    ARRAY(strided_view) boxes; /* of `incoming` */
    hash_map by_task;
    ARRAY(struct sender) senders;
    ARRAY(struct box_sum) sums;
    struct fetch_wave before; /* the wave that is checked */
    planes_coder coders[PARALLEL_WORKERS];
    void *there; /* the device's memory for streams in place */
    size_t there_bytes;
    /* For the log. */
    uint64_t run_ns, wait_ns, check_ns, upload_ns, exchange_ns;
};

/* Describe what this rank receives. */
banyan_status receiving_open(struct fetch_receiving *receiving);
void receiving_close(struct fetch_receiving *receiving);

/* Find a transfer by its number in the plan. NULL if this rank does not receive it from `source`.
 */
struct incoming *receiving_find(struct fetch_receiving *receiving, uint64_t task_id, int source,
                                size_t *number);

banyan_status receiving_fail_malformed(int rank);
banyan_status receiving_fail_box(const struct fetch_receiving *receiving,
                                 const struct incoming *one, const char *what);

/* True if host memory keeps the streams until all are verified. */
bool receiving_keeps_on_host(const struct fetch_receiving *receiving);

/* Check what has arrived in a wave, and keep it or put it into the tensors. A function for
 * request_start; the argument is the wave. */
banyan_status receiving_check_wave(void *wave);

/* Check that everything has come. */
banyan_status receiving_check_complete(struct fetch_receiving *receiving);

/* Compare the checksums of boxes with those that the trainer has sent. */
banyan_status receiving_verify(struct fetch_receiving *receiving);

#endif
