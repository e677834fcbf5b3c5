#include "publish/fetch/receiving.h"

#include <stdlib.h>

/* Verify that everything has come. */
banyan_status receiving_check_complete(struct fetch_receiving *receiving)
{
    for (size_t i = 0; i < receiving->senders.count; i++) {
        const struct sender *sender = &receiving->senders.data[i];
        if (sender->parts != sender->parts_expected)
            return receiving_fail_malformed(sender->rank);
    }
    for (size_t i = 0; i < receiving->incoming.count && receiving->whole; i++) {
        const struct incoming *one = &receiving->incoming.data[i];
        if (one->blocks != delta_blocks(receiving->boxes.data[i].elems))
            return receiving_fail_box(receiving, one, "a part has not come");
    }
    return BANYAN_OK;
}

static int compare_staged_parts(const void *a, const void *b)
{
    const struct staged_part *x = a, *y = b;
    RETURN_IF_UNEQUAL(x->box.data, y->box.data);
    return COMPARE(x->first, y->first);
}

/* Exchange the parts of a box from a block on, up to PART_BLOCKS, with elements of a copy of these.
 * Tied weights have the parts of two boxes in one place, with equal contents: the first counts. */
static void swap_window(const struct staged *staged, const strided_view *box, uint64_t block,
                        const strided_view *copy)
{
    struct staged_part wanted = {.box = *box, .first = block};
    size_t i = BISECT(k, 0, staged->parts.count,
                      compare_staged_parts(&staged->parts.data[k], &wanted) < 0);
    for (uint64_t next = block; i < staged->parts.count; i++) {
        const struct staged_part *part = &staged->parts.data[i];
        if (part->box.data != box->data || part->first >= block + PART_BLOCKS)
            break;
        if (part->first < next)
            continue;
        delta_swap(copy, part->first - block, part->count, part->stream);
        next = part->first + part->count;
    }
}

/* Call swap_window for each fetch of a list, for the last one first if `back`. */
static void swap_windows(const struct staged *first, const strided_view *box, uint64_t block,
                         const strided_view *copy, bool back)
{
    if (!first)
        return;
    if (back)
        swap_windows(first->next, box, block, copy, true);
    swap_window(first, box, block, copy);
    if (!back)
        swap_windows(first->next, box, block, copy, false);
}

/* Compute the checksum of a box as it will be. The parts are sorted. */
static banyan_status sum_of(const struct fetch_target *into, const strided_view *box, void *memory,
                            uint64_t *sum)
{
    const struct staged *staged = into->staged, *before = into->before->first;
    uint64_t hash = 0;
    for (uint64_t block = 0; block < delta_blocks(box->elems); block += PART_BLOCKS) {
        size_t elems = part_elems(box, block);
        strided_view dense = strided_view_dense(memory, box->elem_bytes, elems);
        RETURN_IF_FAILED(
            publish_device_read(staged->device, box, block * DELTA_BLOCK, elems, memory));
        swap_windows(before, box, block, &dense, false);
        swap_window(staged, box, block, &dense);
        hash = hash_bytes(memory, elems * box->elem_bytes, hash);
        swap_window(staged, box, block, &dense);
        swap_windows(before, box, block, &dense, true);
    }
    *sum = hash;
    return BANYAN_OK;
}

banyan_status receiving_verify(struct fetch_receiving *receiving)
{
    struct staged *staged = receiving->into->staged;
    banyan_status status = BANYAN_OK;
    if (receiving->sums.count == 0 || !receiving->into->begin_verify(receiving->into->context))
        return BANYAN_OK;
    void *memory = malloc(PART_BLOCKS * delta_block_bytes_most(16));
    if (!memory)
        status = error_no_memory(PART_BLOCKS * delta_block_bytes_most(16), "a part to verify");
    array_sort(&staged->parts, compare_staged_parts);
    for (struct staged *one = receiving->into->before->first; one; one = one->next)
        array_sort(&one->parts, compare_staged_parts);
    for (size_t i = 0; i < receiving->sums.count && status == BANYAN_OK; i++) {
        const struct box_sum *sum = &receiving->sums.data[i];
        uint64_t number;
        if (!map_get(&receiving->by_task, &sum->task_id, sizeof sum->task_id, &number)) {
            status = error_set(BANYAN_ERR_CORRUPT, "a checksum is of an unknown box");
            continue;
        }
        const struct incoming *one = &receiving->incoming.data[number];
        uint64_t hash = 0;
        status = sum_of(receiving->into, &receiving->boxes.data[number], memory, &hash);
        if (status == BANYAN_OK && hash != sum->hash)
            status = receiving_fail_box(receiving, one, "it would differ from the trainer's");
    }
    receiving->into->end_verify(receiving->into->context);
    free(memory);
    return status;
}
