#include "simulate/topology/resources.h"

banyan_status resources_make(const banyan_topology *topology, uint32_t ranks, uint32_t flow_count,
                             agenda *ends, sharing *made)
{
    uint32_t links = (uint32_t)topology->links.count;
    RETURN_IF_FAILED(sharing_make(ends, flow_count, links + 2 * ranks, made));
    for (uint32_t i = 0; i < links; i++)
        made->resources[i].bytes_per_s = topology->links.data[i].bytes_per_s;
    for (uint32_t r = 0; r < ranks; r++) {
        const processor_kind *kind = topology->vertices.data[r].kind;
        made->resources[links + r].bytes_per_s = kind->memory_bytes_per_s;
        made->resources[links + ranks + r].bytes_per_s = kind->blocks_at_once * BLOCK_SECOND;
    }
    return BANYAN_OK;
}
