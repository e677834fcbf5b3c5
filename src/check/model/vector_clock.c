#include "check/model/vector_clock.h"

#include <string.h>

static size_t vector_clock_bytes_of(uint32_t count)
{
    return sizeof(vector_clock) + count * sizeof(vector_clock_entry);
}

static vector_clock *vector_clock_make(vector_clock_store *store, uint32_t count)
{
    vector_clock *made = malloc(vector_clock_bytes_of(count));
    if (!made) {
        error_no_memory(vector_clock_bytes_of(count), "vector clocks");
        return NULL;
    }
    store->bytes += vector_clock_bytes_of(count);
    made->users = 1;
    made->count = 0;
    return made;
}

void vector_clock_drop(vector_clock_store *store, vector_clock *known)
{
    if (!known || --known->users > 0)
        return;
    store->bytes -= vector_clock_bytes_of(known->count);
    free(known);
}

static uint32_t vector_clock_greater(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static vector_clock_entry vector_clock_join(vector_clock_entry a, vector_clock_entry b)
{
    return (vector_clock_entry){a.chain, vector_clock_greater(a.order, b.order),
                                vector_clock_greater(a.seen, b.seen)};
}

/* Merge two clocks: call `put` for the maximum of both, ascending, without entries that the
 * callers' times imply. */
typedef struct merger {
    const chain_list *chains;
    uint32_t caller, caller_runs; /* the last caller's */
    vector_clock_entry *to;
    uint32_t count;
    bool same; /* equal to `like` so far */
    const vector_clock *like;
} merger;

/* True for chains that a rank's caller waits for at the end of a run. */
static bool ends_with_run(const chain_owner *of)
{
    return of->kind == CHAIN_BLOCK || of->kind == CHAIN_PART;
}

static void merge_one(merger *to, vector_clock_entry one)
{
    const chain_owner *of = &to->chains->list[one.chain];
    if (of->kind == CHAIN_CALLER) {
        to->caller = one.chain;
        to->caller_runs = one.order;
    }
    if (ends_with_run(of) && of->caller == to->caller &&
        to->caller_runs >= block_time_run(one.order) + 2)
        return;
    if (to->to)
        to->to[to->count] = one;
    to->same = to->same && to->like && to->count < to->like->count &&
               memcmp(&to->like->entries[to->count], &one, sizeof one) == 0;
    to->count++;
}

static void vector_clock_merge(merger *to, const vector_clock *a, const vector_clock_entry *b,
                               uint32_t b_count)
{
    uint32_t i = 0, k = 0, a_count = a ? a->count : 0;
    while (i < a_count || k < b_count) {
        if (k == b_count || (i < a_count && a->entries[i].chain < b[k].chain))
            merge_one(to, a->entries[i++]);
        else if (i == a_count || b[k].chain < a->entries[i].chain)
            merge_one(to, b[k++]);
        else
            merge_one(to, vector_clock_join(a->entries[i++], b[k++]));
    }
    to->same = to->same && to->like && to->count == to->like->count;
}

static bool add_entries(vector_clock_store *store, vector_clock **into,
                        const vector_clock_entry *more, uint32_t count)
{
    merger look = {.chains = store->chains, .caller = UINT32_MAX, .same = true, .like = *into};
    vector_clock_merge(&look, *into, more, count);
    if (look.same)
        return true;
    vector_clock *made = vector_clock_make(store, look.count);
    if (!made)
        return false;
    merger fill = {.chains = store->chains, .caller = UINT32_MAX, .to = made->entries};
    vector_clock_merge(&fill, *into, more, count);
    made->count = fill.count;
    vector_clock_drop(store, *into);
    *into = made;
    return true;
}

bool vector_clock_add(vector_clock_store *store, vector_clock **into, const vector_clock *more)
{
    if (!more || more == *into)
        return true;
    return add_entries(store, into, more->entries, more->count);
}

bool vector_clock_add_one(vector_clock_store *store, vector_clock **into, vector_clock_entry one)
{
    return add_entries(store, into, &one, 1);
}

vector_clock *vector_clock_relax(vector_clock_store *store, const vector_clock *known, int rank)
{
    uint32_t count = known ? known->count : 0;
    vector_clock *made = vector_clock_make(store, count);
    if (!made)
        return NULL;
    if (count > 0)
        memcpy(made->entries, known->entries, count * sizeof *made->entries);
    made->count = count;
    for (uint32_t i = 0; i < count; i++) {
        const chain_owner *of = &store->chains->list[made->entries[i].chain];
        if (of->rank == rank && of->kind == CHAIN_BLOCK)
            made->entries[i].seen = 0;
    }
    return made;
}

static const vector_clock_entry *vector_clock_find(const vector_clock *known, uint32_t chain)
{
    uint32_t low = 0, high = known ? known->count : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (known->entries[middle].chain < chain)
            low = middle + 1;
        else
            high = middle;
    }
    return known && low < known->count && known->entries[low].chain == chain ? &known->entries[low]
                                                                             : NULL;
}

bool vector_clock_orders(const vector_clock *known, const chain_list *all, uint32_t chain,
                         uint32_t time, bool seen)
{
    const vector_clock_entry *one;
    if (ends_with_run(&all->list[chain])) {
        one = vector_clock_find(known, all->list[chain].caller);
        if (one && one->order >= block_time_run(time) + 2)
            return true;
    }
    one = vector_clock_find(known, chain);
    return one && (seen ? one->seen : one->order) >= time;
}
