#include "simulate/engine/agenda.h"

#include <stdlib.h>
#include <string.h>

banyan_status agenda_make(uint32_t lanes, agenda *made)
{
    agenda all = {.times = malloc((lanes + (size_t)1) * sizeof *all.times),
                  .places = malloc((lanes + (size_t)1) * sizeof *all.places),
                  .heap = malloc((lanes + (size_t)1) * sizeof *all.heap),
                  .lanes = lanes};
    if (!all.times || !all.places || !all.heap) {
        agenda_free(&all);
        return error_no_memory(lanes * sizeof *all.times, "an agenda");
    }
    memset(all.places, 0xff, lanes * sizeof *all.places);
    *made = all;
    return BANYAN_OK;
}

void agenda_free(agenda *old)
{
    free(old->times);
    free(old->places);
    free(old->heap);
}

static bool is_earlier(const agenda *all, uint32_t a, uint32_t b)
{
    return all->times[a] != all->times[b] ? all->times[a] < all->times[b] : a < b;
}

static void put_at(agenda *all, uint32_t place, uint32_t lane)
{
    all->heap[place] = lane;
    all->places[lane] = place;
}

static void agenda_rise(agenda *all, uint32_t place, uint32_t lane)
{
    for (; place > 0 && is_earlier(all, lane, all->heap[(place - 1) / 2]); place = (place - 1) / 2)
        put_at(all, place, all->heap[(place - 1) / 2]);
    put_at(all, place, lane);
}

static void agenda_sink(agenda *all, uint32_t place, uint32_t lane)
{
    for (uint32_t below = 2 * place + 1; below < all->count; below = 2 * place + 1) {
        if (below + 1 < all->count && is_earlier(all, all->heap[below + 1], all->heap[below]))
            below++;
        if (!is_earlier(all, all->heap[below], lane))
            break;
        put_at(all, place, all->heap[below]);
        place = below;
    }
    put_at(all, place, lane);
}

static void take_out(agenda *all, uint32_t lane)
{
    uint32_t place = all->places[lane], last = all->heap[--all->count];
    all->places[lane] = AGENDA_NOWHERE;
    if (last == lane)
        return;
    agenda_sink(all, place, last);
    agenda_rise(all, all->places[last], last);
}

void agenda_set(agenda *all, uint32_t lane, uint64_t time_ps)
{
    if (all->places[lane] != AGENDA_NOWHERE)
        take_out(all, lane);
    if (time_ps == AGENDA_NEVER)
        return;
    all->times[lane] = time_ps;
    agenda_rise(all, all->count++, lane);
}

uint64_t agenda_next(const agenda *all)
{
    return all->count > 0 ? all->times[all->heap[0]] : AGENDA_NEVER;
}

uint32_t agenda_take(agenda *all)
{
    uint32_t lane = all->heap[0];
    take_out(all, lane);
    return lane;
}
