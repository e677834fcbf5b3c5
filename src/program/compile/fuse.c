#include "program/compile/fuse.h"

#include <inttypes.h>
#include <string.h>

/* Append to a list whose capacity is `*room`, or exactly its length. */
static banyan_status compile_fuse_append(fuse *with, void **list, uint32_t *count, uint32_t *room,
                                         const void *more, uint32_t more_count, size_t bytes)
{
    uint64_t total = (uint64_t)*count + more_count;
    if (total > UINT32_MAX / 2)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d, thread block %" PRIu32 ": too many operations to join",
                         with->place->rank, with->place->block->id);
    if (total > *room) {
        unsigned char *longer = plan_take(with->place->plan, total * 2, bytes);
        if (!longer)
            return BANYAN_ERR_NO_MEMORY;
        if (*count > 0)
            memcpy(longer, *list, *count * bytes);
        *list = longer;
        *room = (uint32_t)total * 2;
    }
    if (more_count > 0)
        memcpy((unsigned char *)*list + *count * bytes, more, more_count * bytes);
    *count = (uint32_t)total;
    return BANYAN_OK;
}

banyan_status fuse_add_sources(fuse *with, plan_op *current, const plan_operand *more,
                               uint32_t count)
{
    return compile_fuse_append(with, (void **)&current->sources, &current->source_count,
                               &with->room.sources, more, count, sizeof *more);
}

banyan_status fuse_add_destinations(fuse *with, plan_op *current, const plan_operand *more,
                                    uint32_t count)
{
    return compile_fuse_append(with, (void **)&current->destinations, &current->destination_count,
                               &with->room.destinations, more, count, sizeof *more);
}

banyan_status fuse_add_channels(fuse *with, plan_op *current, const plan_op *next)
{
    return compile_fuse_append(with, (void **)&current->channels, &current->channel_count,
                               &with->room.channels, next->channels, next->channel_count,
                               sizeof *next->channels);
}

banyan_status fuse_add_semaphores(fuse *with, plan_op *current, const plan_op *next)
{
    return compile_fuse_append(with, (void **)&current->semaphores, &current->semaphore_count,
                               &with->room.semaphores, next->semaphores, next->semaphore_count,
                               sizeof *next->semaphores);
}
