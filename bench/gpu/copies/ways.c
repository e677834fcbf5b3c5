#include "copies/ways.h"

#include <stdio.h>

const copy_way copy_ways[COPY_WAYS] = {
    {"direct", "direct", NULL},
    {"nccl", "nccl", NULL},
    {"pipeline/peer", "pipeline", "peer"},
    {"pipeline/nvshmem", "pipeline", "nvshmem"},
};

bool copy_way_open(const gpu *on, const copy_way *way, banyan_copy_service **service)
{
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = BANYAN_CUDA(on->device);
    options.transport = way->transport;
    if (banyan_copy_service_open(on->world, way->backend, &options, service) == BANYAN_OK)
        return true;
    if (on->rank == 0)
        printf("%s: not measured: %s\n", way->name, banyan_last_error());
    return false;
}
