#include "transport/signals.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/error.h"
#include "core/threads/thread.h"
#include "world/control.h"

#define SEGMENT_BITS 12
#define SEGMENT_SIGNALS (UINT32_C(1) << SEGMENT_BITS)
#define SIGNALS_MAX (UINT32_C(1) << 22)

/* One cache line each: different peers often add to neighbouring counters. */
typedef struct signal_counter {
    _Alignas(64) _Atomic uint64_t value;
} signal_counter;

struct signal_range {
    uint32_t first, count;
};

struct signal_set {
    transport_world *of;
    ARRAY(banyan_memory *) segments;   /* SEGMENT_SIGNALS counters each */
    ARRAY(struct signal_range) unused; /* below `end`, ascending, apart from each other */
    uint32_t end;                      /* one more than the highest number ever allocated */
    ARRAY(uint64_t) live;              /* one bit per signal */
};

static signal_counter *counter_of(const signal_set *set, uint32_t signal, int local)
{
    char *segment = memory_part_of(set->segments.data[signal >> SEGMENT_BITS], local);
    return &((signal_counter *)segment)[signal & (SEGMENT_SIGNALS - 1)];
}

bool signal_is_live(const signal_set *set, uint32_t signal)
{
    return signal / 64 < set->live.count && (set->live.data[signal / 64] >> signal % 64 & 1) != 0;
}

static void mark_signals(signal_set *set, uint32_t first, uint32_t count, bool live)
{
    for (uint32_t i = first; i < first + count; i++) {
        uint64_t bit = UINT64_C(1) << i % 64;
        if (live)
            set->live.data[i / 64] |= bit;
        else
            set->live.data[i / 64] &= ~bit;
    }
}

static banyan_status reserve_marks(signal_set *set, uint32_t end)
{
    size_t words = ((size_t)end + 63) / 64;
    if (words <= set->live.count)
        return BANYAN_OK;
    if (!array_reserve(&set->live, words - set->live.count))
        return BANYAN_ERR_NO_MEMORY;
    memset(&set->live.data[set->live.count], 0, (words - set->live.count) * sizeof(uint64_t));
    set->live.count = words;
    return BANYAN_OK;
}

static uint32_t first_fit(const signal_set *set, uint32_t count)
{
    for (size_t i = 0; i < set->unused.count; i++) {
        if (set->unused.data[i].count >= count)
            return set->unused.data[i].first;
    }
    return set->end;
}

/* Ranks that freed signals in different orders may propose different numbers. Above the highest end
 * of all ranks, every number is free. */
static banyan_status agree_on_first(signal_set *set, uint32_t count, uint32_t *first)
{
    uint64_t mine = first_fit(set, count), highest, lowest, end;
    RETURN_IF_FAILED(control_max(set->of->world, mine, &highest));
    RETURN_IF_FAILED(control_max(set->of->world, UINT64_MAX - mine, &lowest));
    RETURN_IF_FAILED(control_max(set->of->world, set->end, &end));
    uint64_t agreed = highest == UINT64_MAX - lowest ? highest : end;
    if (agreed + count > SIGNALS_MAX)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "%" PRIu32 " signals more than the %" PRIu64
                         " in use are over the limit of %" PRIu32,
                         count, agreed, SIGNALS_MAX);
    *first = (uint32_t)agreed;
    return BANYAN_OK;
}

static banyan_status unused_insert(signal_set *set, size_t at, struct signal_range range)
{
    if (range.count == 0)
        return BANYAN_OK;
    if (!array_reserve(&set->unused, 1))
        return BANYAN_ERR_NO_MEMORY;
    memmove(&set->unused.data[at + 1], &set->unused.data[at],
            (set->unused.count - at) * sizeof range);
    set->unused.data[at] = range;
    set->unused.count++;
    return BANYAN_OK;
}

static void unused_remove(signal_set *set, size_t at)
{
    set->unused.count--;
    memmove(&set->unused.data[at], &set->unused.data[at + 1],
            (set->unused.count - at) * sizeof(struct signal_range));
}

/* Take [first, first + count), which lies in one unused range or begins at or above the end. */
static banyan_status take_numbers(signal_set *set, uint32_t first, uint32_t count)
{
    if (first >= set->end) {
        RETURN_IF_FAILED(unused_insert(set, set->unused.count,
                                       (struct signal_range){set->end, first - set->end}));
        set->end = first + count;
        return BANYAN_OK;
    }
    size_t at = 0;
    while (set->unused.data[at].first != first)
        at++;
    set->unused.data[at].first += count;
    set->unused.data[at].count -= count;
    if (set->unused.data[at].count == 0)
        unused_remove(set, at);
    return BANYAN_OK;
}

static banyan_status signals_grow(signal_set *set, uint32_t end)
{
    while ((uint64_t)set->segments.count * SEGMENT_SIGNALS < end) {
        banyan_status status = BANYAN_OK;
        if (!array_reserve(&set->segments, 1))
            status = BANYAN_ERR_NO_MEMORY;
        RETURN_IF_FAILED(control_agree(set->of->world, status));
        banyan_memory *segment;
        RETURN_IF_FAILED(
            memory_alloc(set->of->world, SEGMENT_SIGNALS * sizeof(signal_counter), true, &segment));
        set->segments.data[set->segments.count++] = segment;
    }
    return BANYAN_OK;
}

/* New counters are zero at every rank when it returns. */
banyan_status signals_alloc(signal_set *set, uint32_t count, uint32_t *first)
{
    uint32_t agreed = 0;
    RETURN_IF_FAILED(agree_on_first(set, count, &agreed));
    RETURN_IF_FAILED(signals_grow(set, agreed + count));
    /* All ranks have finished with the old counters: they took part in the agreement. */
    for (uint32_t i = 0; i < count; i++)
        atomic_store_explicit(&counter_of(set, agreed + i, set->of->space->local_rank)->value, 0,
                              memory_order_relaxed);
    banyan_status status = reserve_marks(set, agreed + count);
    if (status == BANYAN_OK)
        status = take_numbers(set, agreed, count);
    RETURN_IF_FAILED(control_agree(set->of->world, status));
    mark_signals(set, agreed, count, true);
    *first = agreed;
    return BANYAN_OK;
}

static void merge_with_next(signal_set *set, size_t at)
{
    if (at + 1 >= set->unused.count)
        return;
    struct signal_range *low = &set->unused.data[at], *high = low + 1;
    if (low->first + low->count == high->first) {
        low->count += high->count;
        unused_remove(set, at + 1);
    }
}

/* If there is no memory to record a freed range, its numbers are not reused. */
void signals_free(signal_set *set, uint32_t first, uint32_t count)
{
    mark_signals(set, first, count, false);
    size_t at = 0;
    while (at < set->unused.count && set->unused.data[at].first < first)
        at++;
    if (unused_insert(set, at, (struct signal_range){first, count}) != BANYAN_OK)
        return;
    merge_with_next(set, at);
    if (at > 0)
        merge_with_next(set, at - 1);
}

void signals_add(signal_set *set, int local, uint32_t signal, uint64_t add)
{
    atomic_fetch_add_explicit(&counter_of(set, signal, local)->value, add, memory_order_release);
    transport_ring(set->of, local);
}

banyan_remote signals_remote(const signal_set *set, int rank, uint32_t signal)
{
    return (banyan_remote){
        .handle = {.rank = rank,
                   .kind = BANYAN_MEMORY_SYMMETRIC,
                   .id = set->segments.data[signal >> SEGMENT_BITS]->id,
                   .bytes = SEGMENT_SIGNALS * sizeof(signal_counter)},
        .offset = (signal & (SEGMENT_SIGNALS - 1)) * sizeof(signal_counter),
    };
}

uint64_t signals_read(const signal_set *set, uint32_t signal)
{
    return atomic_load_explicit(&counter_of(set, signal, set->of->space->local_rank)->value,
                                memory_order_acquire);
}

static banyan_status signals_wait_longer(const signal_set *set, control_wait *wait, uint32_t signal,
                                         uint64_t value, int peer, const char *what,
                                         uint64_t *nap_ns)
{
    char text[256];
    bool speaks = control_wait_speaks(wait);
    if (speaks)
        snprintf(text, sizeof text,
                 "for rank %d (%.100s): signal %" PRIu32 " is %" PRIu64 ", not yet %" PRIu64, peer,
                 what, signal, signals_read(set, signal), value);
    return control_wait_on(wait, peer, speaks ? text : NULL, nap_ns);
}

banyan_status signals_wait(signal_set *set, uint32_t signal, uint64_t value, int peer,
                           const char *what)
{
    const transport_world *of = set->of;
    for (uint32_t i = 0; i < of->spins; i++) {
        if (signals_read(set, signal) >= value)
            return BANYAN_OK;
        transport_progress(of);
        spin_pause();
    }
    control_wait wait = control_wait_begin(of->world);
    banyan_status status = BANYAN_OK;
    for (;;) {
        uint64_t nap_ns;
        uint32_t seen = transport_epoch(of);
        if (signals_read(set, signal) >= value)
            break;
        status = signals_wait_longer(set, &wait, signal, value, peer, what, &nap_ns);
        if (status != BANYAN_OK)
            break;
        transport_sleep(of, seen, nap_ns);
    }
    control_wait_end(&wait);
    return status;
}

banyan_status signals_create(transport_world *of, signal_set **set)
{
    signal_set *made = alloc_zeroed(1, sizeof *made, "signals");
    RETURN_IF_NO_MEMORY(made);
    made->of = of;
    *set = made;
    return BANYAN_OK;
}

void signals_destroy(signal_set *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < set->segments.count; i++)
        banyan_memory_free(set->segments.data[i]);
    array_free(&set->segments);
    array_free(&set->unused);
    array_free(&set->live);
    free(set);
}
