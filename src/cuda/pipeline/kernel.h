/* The GPU pipeline's kernels besides the copies: waiting for signals in its own memory, writing and
 * checking sequence numbers of slots, signalling peers. */
#ifndef CUDA_PIPELINE_KERNEL_H
#define CUDA_PIPELINE_KERNEL_H

#include <banyan/device/port.h>

#include "cuda/copy/work.h"

/* The sequence check at the start of every slot, before its bytes. A slot is sent as it was
 * packed, with this header, also by a rank that has failed: then the number is 0, and the receiver
 * fails as well. Otherwise it might accept data that was overwritten. */
typedef struct gpu_pipeline_sequence_check {
    uint64_t number; /* of the batch, counted from 1 between its two ranks */
    uint64_t bytes;
} gpu_pipeline_sequence_check;

#define PIPELINE_HEADER_BYTES 128

typedef enum gpu_pipeline_task {
    PIPELINE_STAMP,  /* wait until the peer has granted a slot, and write the sequence check of the
                      slot to send */
    PIPELINE_ACCEPT, /* wait for the peer's next batch, and check its sequence number */
    PIPELINE_SIGNAL, /* add one to the peer's word */
    PIPELINE_POST    /* post a request to the host, and wait until it is done if it has bytes */
} gpu_pipeline_task;

typedef struct gpu_pipeline_args {
    uint32_t task; /* enum gpu_pipeline_task */
    int32_t peer;
    const uint64_t *word; /* word on this rank that the peer increments; not for SIGNAL */
    uint64_t *their_word; /* for SIGNAL */
    uint64_t *count;      /* number of times that this was done before */
    gpu_pipeline_sequence_check *check;
    uint64_t bytes;
    copy_shared *shared;
    report_words *reports;
    uint64_t timeout_ns;
    banyan_port_queue *queue; /* for POST */
    banyan_port_request request;
} gpu_pipeline_args;

#ifdef __cplusplus
extern "C" {
#endif

/* For driver_kernel; the kernel takes gpu_pipeline_args, one thread and no shared memory. */
const void *gpu_pipeline_kernel_symbol(void);

#ifdef __cplusplus
}
#endif

#endif
