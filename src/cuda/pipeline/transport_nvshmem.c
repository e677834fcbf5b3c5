/* Puts with signals by NVSHMEM's calls on streams. Our own kernels wait for arrivals, since they
 * have deadlines. */
#include "cuda/pipeline/pipeline.h"

#include <stdlib.h>

#include "core/module.h"
#include "cuda/pipeline/nvshmem.h"

static banyan_status transport_nvshmem_open(banyan_world *world, int device, size_t bytes,
                                            size_t zero_bytes, void **opened,
                                            gpu_pipeline_memory *memory)
{
    nvshmem_part *part = calloc(1, sizeof *part);
    if (!part) /* nvshmem_take reports this to the others */
        return banyan_module_agree(
            world,
            banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes", sizeof *part));
    banyan_status status =
        nvshmem_take(world, device, &(nvshmem_start){0}, bytes, zero_bytes, part);
    if (status != BANYAN_OK) {
        free(part);
        return status;
    }
    *opened = part;
    memory->local = memory->words = part->local;
    return BANYAN_OK;
}

static void transport_nvshmem_close(void *argument)
{
    nvshmem_give_back(argument);
    free(argument);
}

static uint64_t *transport_nvshmem_word_at(const nvshmem_part *part, size_t word)
{
    return (uint64_t *)(void *)(part->local + word);
}

static banyan_status transport_nvshmem_put(void *argument, CUstream stream, int peer, size_t to,
                                           size_t from, size_t bytes, size_t word)
{
    const nvshmem_part *part = argument;
    part->functions->nvshmemx_putmem_signal_on_stream(part->local + to, part->local + from, bytes,
                                                      transport_nvshmem_word_at(part, word), 1,
                                                      NVSHMEM_ADD, part->pes[peer], stream);
    return BANYAN_OK;
}

static banyan_status transport_nvshmem_signal(void *argument, CUstream stream, int peer,
                                              size_t word, const gpu_pipeline_signal *how)
{
    (void)how;
    const nvshmem_part *part = argument;
    part->functions->nvshmemx_signal_op_on_stream(transport_nvshmem_word_at(part, word), 1,
                                                  NVSHMEM_ADD, part->pes[peer], stream);
    return BANYAN_OK;
}

const gpu_pipeline_transport_ops gpu_pipeline_nvshmem_ops = {
    .name = "nvshmem",
    .open = transport_nvshmem_open,
    .close = transport_nvshmem_close,
    .signal = transport_nvshmem_signal,
    .put = transport_nvshmem_put,
    .put_signals = true,
};
