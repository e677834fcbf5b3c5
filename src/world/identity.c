#include "world/identity.h"

#include "core/error.h"

banyan_status identity_discover(const banyan_world_options *options, struct identity *identity)
{
    struct identity found = {.rank = 0, .world_size = 1, .local_rank = -1, .local_size = -1};
    if (options && options->rank >= 0)
        found.rank = options->rank;
    if (options && options->world_size >= 0)
        found.world_size = options->world_size;
    if (found.world_size < 1 || found.rank >= found.world_size)
        return error_set(BANYAN_ERR_INVALID, "rank %d does not exist in a world of %d", found.rank,
                         found.world_size);
    if (options && options->unique_id) {
        found.has_unique_id = true;
        found.unique_id = *options->unique_id;
    } else if (found.world_size > 1) {
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d of %d has no unique id to find the others with", found.rank,
                         found.world_size);
    }
    *identity = found;
    return BANYAN_OK;
}
