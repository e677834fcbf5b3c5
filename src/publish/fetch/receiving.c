#include "publish/fetch/receiving.h"

#include <inttypes.h>

#include "reshard/layout/box.h"

banyan_status receiving_open(struct fetch_receiving *receiving)
{
    const banyan_reshard_plan *plan = receiving->session->plan;
    const struct fetch_target *into = receiving->into;
    for (size_t i = 0; i < banyan_reshard_plan_recv_count(plan); i++) {
        const banyan_transfer *transfer = banyan_reshard_plan_recv(plan, i);
        struct incoming one = {.transfer = transfer};
        strided_view box;
        RETURN_IF_FAILED(part_view_box(into->layout, into->tensors, transfer->destination_piece,
                                       &transfer->box, &box, &one.tensor));
        RETURN_IF_NO_MEMORY(array_push(&receiving->incoming, one));
        RETURN_IF_NO_MEMORY(array_push(&receiving->boxes, box));
        RETURN_IF_NO_MEMORY(
            map_put(&receiving->by_task, &transfer->task_id, sizeof transfer->task_id, i));
    }
    return BANYAN_OK;
}

void receiving_close(struct fetch_receiving *receiving)
{
    const struct publish_device *device = receiving->into->staged->device;
    if (receiving->there)
        device->memory->free(device->id, receiving->there);
    for (int i = 0; i < PARALLEL_WORKERS; i++)
        planes_coder_free(&receiving->coders[i]);
    array_free(&receiving->incoming);
    array_free(&receiving->boxes);
    array_free(&receiving->senders);
    array_free(&receiving->sums);
    map_free(&receiving->by_task);
}

struct incoming *receiving_find(struct fetch_receiving *receiving, uint64_t task_id, int source,
                                size_t *number)
{
    uint64_t i;
    if (!map_get(&receiving->by_task, &task_id, sizeof task_id, &i))
        return NULL;
    struct incoming *one = &receiving->incoming.data[i];
    *number = i;
    return one->transfer->source_rank == source ? one : NULL;
}

banyan_status receiving_fail_malformed(int rank)
{
    return error_set(BANYAN_ERR_CORRUPT, "rank %d sends a malformed list of changes", rank);
}

banyan_status receiving_fail_box(const struct fetch_receiving *receiving,
                                 const struct incoming *one, const char *what)
{
    char box[BOX_TEXT_BYTES];
    return error_set(BANYAN_ERR_CORRUPT, "version %" PRIu64 ", %s of \"%s\" from rank %d: %s",
                     receiving->into->staged->version,
                     banyan_box_format(&one->transfer->box, box, sizeof box), one->transfer->name,
                     one->transfer->source_rank, what);
}

bool receiving_keeps_on_host(const struct fetch_receiving *receiving)
{
    const struct staged *staged = receiving->into->staged;
    return publish_device_is_host(staged->device) ||
           (receiving->session->hello.verify && !staged->in_place);
}
