#include "reshard/execute.h"
#include "world/control.h"

#define LINE_END UINT64_MAX

/* How far from `first` on this rank can go: the first position that does not fit any more. Needs at
 * one position stay together, even if the hashes that made them equal then cost a little more. */
static uint64_t reach_from(const execution_need *needs, size_t count, size_t first, uint64_t bound)
{
    uint64_t total = 0;
    for (size_t i = first; i < count; i++) {
        bool fits = total <= bound && needs[i].bytes <= bound - total;
        if (!fits && needs[i].position != needs[first].position)
            return needs[i].position;
        total += needs[i].bytes;
    }
    return LINE_END;
}

/* Each wave ends where the first rank is full, so that nobody takes more than the bound: one small
 * collective a wave, once. Each need by itself is within the bound. */
banyan_status execution_cut_waves(banyan_world *world, const execution_need *needs, size_t count,
                                  uint64_t bound_bytes, execution_boundaries *boundaries)
{
    size_t at = 0;
    banyan_status mine = BANYAN_OK;
    for (;;) {
        uint64_t reach = reach_from(needs, count, at, bound_bytes), inverse;
        RETURN_IF_FAILED(control_max(world, ~reach, &inverse));
        uint64_t boundary = ~inverse;
        if (boundary == LINE_END)
            return control_agree(world, mine);
        if (!array_push(boundaries, boundary))
            mine = BANYAN_ERR_NO_MEMORY;
        while (at < count && needs[at].position < boundary)
            at++;
    }
}
