#include "program/compile/interval.h"

#include <string.h>

/* Return the first interval that ends after `at`. */
static size_t first_after(const interval_map *map, uint64_t at)
{
    size_t low = 0, high = map->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (map->data[middle].stop > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bool interval_map_conflicts(const interval_map *map, uint64_t start, uint64_t stop, bool write)
{
    if (start >= stop)
        return false;
    for (size_t i = first_after(map, start); i < map->count && map->data[i].start < stop; i++) {
        if (write || map->data[i].written)
            return true;
    }
    return false;
}

/* Append, or extend the last interval if it is of equal state and adjacent. */
static bool interval_append(interval_map *pieces, uint64_t start, uint64_t stop, bool written)
{
    if (start == stop)
        return true;
    interval *last = pieces->count > 0 ? &pieces->data[pieces->count - 1] : NULL;
    if (last && last->stop == start && last->written == written) {
        last->stop = stop;
        return true;
    }
    return array_push(pieces, (interval){start, stop, written});
}

/* Overlay an interval on those in [from, to), which are all that it touches. */
static bool interval_overlay(const interval_map *map, size_t from, size_t to, interval added,
                             interval_map *pieces)
{
    uint64_t at = added.start;
    for (size_t i = from; i < to; i++) {
        interval old = map->data[i];
        uint64_t common = old.start > at ? old.start : at;
        uint64_t end = old.stop < added.stop ? old.stop : added.stop;
        if (old.start < added.start &&
            !interval_append(pieces, old.start, added.start, old.written))
            return false;
        if (!interval_append(pieces, at, common, added.written) ||
            !interval_append(pieces, common, end, old.written || added.written) ||
            (old.stop > added.stop && !interval_append(pieces, added.stop, old.stop, old.written)))
            return false;
        at = end;
    }
    return interval_append(pieces, at, added.stop, added.written);
}

/* Replace the intervals [from, to) by the pieces. */
static bool interval_splice(interval_map *map, size_t from, size_t to, const interval_map *pieces)
{
    if (!array_reserve(map, pieces->count))
        return false;
    memmove(map->data + from + pieces->count, map->data + to,
            (map->count - to) * sizeof *map->data);
    memcpy(map->data + from, pieces->data, pieces->count * sizeof *map->data);
    map->count += pieces->count - (to - from);
    return true;
}

bool interval_map_add(interval_map *map, uint64_t start, uint64_t stop, bool written)
{
    if (start >= stop)
        return true;
    size_t from = first_after(map, start), to = from;
    while (to < map->count && map->data[to].start <= stop)
        to++;
    if (from > 0 && map->data[from - 1].stop == start)
        from--;
    interval_map pieces = {0};
    interval added = {start, stop, written};
    bool done =
        interval_overlay(map, from, to, added, &pieces) && interval_splice(map, from, to, &pieces);
    array_free(&pieces);
    return done;
}

void interval_map_clear(interval_map *map)
{
    map->count = 0;
}

void interval_map_free(interval_map *map)
{
    array_free(map);
}
