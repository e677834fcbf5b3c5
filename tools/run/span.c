#include "run/span.h"

#include <math.h>
#include <stdlib.h>

banyan_status span_of_all(banyan_world *world, const span *mine, size_t count, double *seconds)
{
    int ranks = banyan_world_size(world);
    span *all = calloc(count * (size_t)ranks, sizeof *all);
    if (!all)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %zu times of %d ranks", count,
                                ranks);
    banyan_status status = banyan_world_allgather(world, mine, count * sizeof *mine, all);
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        double began = INFINITY, ended = -INFINITY;
        for (int rank = 0; rank < ranks; rank++) {
            const span *its = &all[(size_t)rank * count + i];
            began = fmin(began, its->began);
            ended = fmax(ended, its->ended);
        }
        seconds[i] = ended - began;
    }
    free(all);
    return status;
}
