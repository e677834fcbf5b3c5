/* What GPU pipelines do on the device beside moving boxes: waiting for signals in memory of their
 * own, sealing slots, telling peers. */
#ifndef CUDA_PIPELINE_KERNEL_H
#define CUDA_PIPELINE_KERNEL_H

#include "cuda/copy/work.h"

/* At the start of every slot, before its bytes. A slot is sent as it is packed, seal and all, also
 * by whoever has failed: then the number is 0, and the receiver fails, too, instead of taking what
 * may have been written over. */
typedef struct gpu_pipeline_sequence_check {
    uint64_t number; /* of the batch, counted from 1 between its two ranks */
    uint64_t bytes;
} gpu_pipeline_sequence_check;

#define COURIER_HEADER_BYTES 128

typedef enum gpu_pipeline_task {
    COURIER_SEAL,   /* wait until the peer has granted a slot, and seal the one to be sent */
    COURIER_ACCEPT, /* wait for the peer's next batch, and look at its seal */
    COURIER_TELL    /* add one to the peer's word */
} gpu_pipeline_task;

typedef struct gpu_pipeline_args {
    uint32_t task; /* enum gpu_pipeline_task */
    int32_t peer;
    const uint64_t *word; /* here, that the peer counts up; not for TELL */
    uint64_t *their_word; /* for TELL */
    uint64_t *count;      /* how often this was done before */
    gpu_pipeline_sequence_check *seal;
    uint64_t bytes;
    copy_shared *shared;
    copy_report *report;
    uint64_t timeout_ns;
} gpu_pipeline_args;

#ifdef __cplusplus
extern "C" {
#endif

/* For driver_kernel; it takes gpu_pipeline_args, one thread and no shared memory. */
const void *gpu_pipeline_kernel_symbol(void);

#ifdef __cplusplus
}
#endif

#endif
