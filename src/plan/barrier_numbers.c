#include "plan/barrier_numbers.h"

#include <string.h>

bool plan_barrier_numbers_find(plan_barrier_numbers *all, int rank, const plan_op *op,
                               size_t *number)
{
    uint32_t key[2] = {(uint32_t)rank, op->barrier};
    uint64_t place = all->numbers.count;
    if (!map_get(&all->numbers, key, sizeof key, &place)) {
        uint32_t *kept = arena_take(&all->memory, sizeof key);
        if (!kept)
            return false;
        memcpy(kept, key, sizeof key);
        if (!map_put(&all->numbers, kept, sizeof key, place))
            return false;
    }
    *number = (size_t)place;
    return true;
}

void plan_barrier_numbers_free(plan_barrier_numbers *old)
{
    map_free(&old->numbers);
    arena_free(&old->memory);
}
