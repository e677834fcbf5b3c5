#include "reshard/planner/ids.h"

#include <stdlib.h>
#include <string.h>

#include "core/containers/map.h"
#include "reshard/planner/share.h"

uint64_t plan_id_of(const plan_move *move)
{
    int ndim = move->transfer.box.ndim;
    int64_t place[2 + 4 * BANYAN_MAX_DIMS] = {move->transfer.destination_rank, move->ordinal};
    size_t count = 2, bytes = (size_t)ndim * sizeof place[0];
    const int64_t *parts[] = {move->destination.start, move->destination.extent,
                              move->transfer.box.start, move->transfer.box.extent};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++, count += (size_t)ndim)
        memcpy(place + count, parts[i], bytes);
    return hash_bytes(place, count * sizeof place[0], hash_string(move->transfer.name, 0));
}

static int compare_ints(int a, int b)
{
    return (a > b) - (a < b);
}

/* Break ties between equal ids by everything that the id is derived from. */
static int compare_moves(const void *left, const void *right)
{
    const plan_move *a = left, *b = right;
    int order = compare_ints(a->transfer.source_rank, b->transfer.source_rank);
    if (order == 0)
        order = compare_ints(a->transfer.destination_rank, b->transfer.destination_rank);
    if (order == 0)
        order = (a->transfer.task_id > b->transfer.task_id) -
                (a->transfer.task_id < b->transfer.task_id);
    if (order == 0)
        order = strcmp(a->transfer.name, b->transfer.name);
    if (order == 0)
        order = plan_box_compare(&a->destination, &b->destination);
    if (order == 0)
        order = plan_box_compare(&a->transfer.box, &b->transfer.box);
    if (order == 0)
        order = (a->ordinal > b->ordinal) - (a->ordinal < b->ordinal);
    return order;
}

static bool same_pair(const plan_move *a, const plan_move *b)
{
    return a->transfer.source_rank == b->transfer.source_rank &&
           a->transfer.destination_rank == b->transfer.destination_rank;
}

/* In sorted order, an id that is not above the one before it takes the next free one. The few ids
 * at the top of the range move to the bottom first, so that counting up never overflows. */
void plan_ids_settle(plan_move *moves, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (moves[i].transfer.task_id >= BANYAN_TASK_ID_NONE - UINT32_MAX)
            moves[i].transfer.task_id -= BANYAN_TASK_ID_NONE - UINT32_MAX;
    if (count > 0)
        if (count > 0)
            qsort(moves, count, sizeof *moves, compare_moves);
    for (size_t i = 1; i < count; i++)
        if (same_pair(&moves[i - 1], &moves[i]) &&
            moves[i].transfer.task_id <= moves[i - 1].transfer.task_id)
            moves[i].transfer.task_id = moves[i - 1].transfer.task_id + 1;
}
