/* The table for changes of tensors in a GPU's memory. */
#include "cuda/module.h"
#include "cuda/publish/engine.h"

const delta_device_ops cuda_delta_ops = {
    .size = sizeof(delta_device_ops),
    .name = "cuda",
    .open = changes_open,
    .close = changes_close,
    .host_alloc = changes_host_alloc,
    .host_free = changes_host_free,
    .find = changes_find,
    .merge = changes_merge_maps,
    .pack_open = changes_pack_open,
    .pack = changes_pack,
    .pack_close = changes_pack_close,
    .gather = changes_gather,
    .stage = changes_stage,
    .unstage = changes_unstage,
    .swap = changes_swap,
    .wait = changes_wait,
};
