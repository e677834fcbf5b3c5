#include "simulate/engine/caches.h"

/* Limit of chunks, each counted for every rank that uses it. */
#define CHUNKS_MOST (UINT64_C(1) << 24)
/* Packets lie in a part of scratch of their own. */
#define PACKETS PLAN_BUFFERS

typedef struct cached_chunk {
    uint64_t chunk;
    int rank, buffer;
} cached_chunk;

typedef struct touch_key {
    uint64_t place;
    uint64_t rank;
} touch_key;

/* In place, one buffer stands for both. */
static cached_chunk caches_key_of(const banyan_plan *plan, int rank, plan_buffer buffer,
                                  bool packets, uint64_t chunk)
{
    cached_chunk key = {chunk, rank, packets ? (int)PACKETS : (int)buffer};
    uint64_t own = (uint64_t)rank * plan->ranks[rank].chunks[buffer];
    if (!plan->in_place || buffer == PLAN_SCRATCH)
        return key;
    if (plan->collective == BANYAN_ALLGATHER && buffer == PLAN_INPUT)
        key.chunk += own;
    if (plan->collective == BANYAN_REDUCESCATTER && buffer == PLAN_OUTPUT)
        key.chunk += own;
    key.buffer = PLAN_INPUT;
    return key;
}

static void add_user(int *users, int rank)
{
    *users = *users == CACHES_NOBODY || *users == rank ? rank : CACHES_SEVERAL;
}

typedef struct cache_maker {
    caches *made;
    const plan_geometry *geometry;
    int rank; /* the using rank */
} cache_maker;

static uint64_t chunk_bytes(const cache_maker *of, plan_buffer buffer, bool packets)
{
    if (buffer != PLAN_SCRATCH)
        return of->geometry->chunk_bytes;
    uint64_t halves = of->made->plan->double_scratch ? 2 : 1;
    return of->geometry->scratch_stride * halves * (packets ? 2 : 1);
}

static banyan_status keep_place(caches *made, const cached_chunk *key, uint64_t *place)
{
    if (map_get(&made->chunks, key, sizeof *key, place))
        return BANYAN_OK;
    *place = made->users.count;
    bool kept = array_push(&made->users, (chunk_users){CACHES_NOBODY, CACHES_NOBODY}) &&
                map_put_copy(&made->chunks, &made->memory, key, sizeof *key, *place);
    return kept ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

bool caches_go_round(const plan_geometry *geometry, plan_buffer buffer)
{
    return buffer == PLAN_SCRATCH && geometry->scratch_stride < geometry->chunk_bytes;
}

static banyan_status caches_touch(const cache_maker *of, uint64_t place, plan_buffer buffer,
                                  uint64_t bytes)
{
    caches *made = of->made;
    touch_key key = {place, (uint64_t)of->rank};
    uint64_t known;
    if (map_get(&made->touched, &key, sizeof key, &known))
        return BANYAN_OK;
    if (made->touched.count >= CHUNKS_MOST)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "the plan uses more than %llu chunks, too many to know which caches have",
                         (unsigned long long)CHUNKS_MOST);
    made->working_sets[of->rank] += bytes;
    if (caches_go_round(of->geometry, buffer))
        made->rings[of->rank] += bytes;
    return map_put_copy(&made->touched, &made->memory, &key, sizeof key, 0) ? BANYAN_OK
                                                                            : BANYAN_ERR_NO_MEMORY;
}

static banyan_status use_chunks(const cache_maker *of, int rank, plan_buffer buffer,
                                const plan_operand *operand, bool packets, bool written)
{
    uint64_t bytes = chunk_bytes(of, buffer, packets), place;
    for (uint64_t c = operand->index; c < operand->index + operand->size; c++) {
        cached_chunk key = caches_key_of(of->made->plan, rank, buffer, packets, c);
        RETURN_IF_FAILED(keep_place(of->made, &key, &place));
        chunk_users *users = &of->made->users.data[place];
        add_user(&users->users, of->rank);
        if (written)
            add_user(&users->writers, of->rank);
        RETURN_IF_FAILED(caches_touch(of, place, buffer, bytes));
    }
    return BANYAN_OK;
}

static banyan_status use_operand(const cache_maker *of, const plan_cursor *at, uint32_t i)
{
    int room;
    const int *ranks;
    const plan_operand *operand = plan_operand_at(at->op, i);
    int count = plan_operand_ranks(at->plan, at->rank, at->block, at->op, operand, &ranks, &room);
    plan_where where = plan_operand_where(at->plan, at->rank, at->block, at->op, operand);
    for (int r = 0; r < count; r++)
        RETURN_IF_FAILED(use_chunks(of, ranks[r], where.buffer, operand,
                                    plan_operand_is_packets(at->op, i), i >= at->op->source_count));
    return BANYAN_OK;
}

banyan_status caches_make(const banyan_plan *plan, const plan_geometry *geometry, caches *made)
{
    size_t ranks = (size_t)plan->rank_count;
    *made = (caches){.plan = plan};
    made->working_sets = arena_zeroed(&made->memory, 2 * ranks, sizeof *made->working_sets);
    if (!made->working_sets)
        return BANYAN_ERR_NO_MEMORY;
    made->rings = made->working_sets + ranks;
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        cache_maker of = {.made = made, .geometry = geometry, .rank = at.rank};
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++)
            RETURN_IF_FAILED(use_operand(&of, &at, i));
    }
    return BANYAN_OK;
}

void caches_free(caches *old)
{
    map_free(&old->chunks);
    map_free(&old->touched);
    array_free(&old->users);
    arena_free(&old->memory);
}

/* True if the operation reads the chunk that it writes: then it has fetched it already. */
static bool has_read(const plan_op *op, const plan_operand *operand, uint64_t chunk)
{
    for (uint32_t i = 0; i < op->source_count; i++) {
        const plan_operand *source = &op->sources[i];
        bool same = source->place == operand->place && source->buffer == operand->buffer &&
                    source->reference == operand->reference;
        if (same && chunk >= source->index && chunk < source->index + source->size)
            return true;
    }
    return false;
}

double caches_fraction_of_others(const caches *all, int rank, const plan_thread_block *block,
                                 const plan_op *op, const plan_operand *operand, bool packets,
                                 bool written)
{
    int room;
    const int *ranks;
    int count = plan_operand_ranks(all->plan, rank, block, op, operand, &ranks, &room);
    plan_buffer buffer = plan_operand_where(all->plan, rank, block, op, operand).buffer;
    uint64_t others = 0;
    for (int i = 0; i < count; i++) {
        for (uint64_t c = operand->index; c < operand->index + operand->size; c++) {
            cached_chunk key = caches_key_of(all->plan, ranks[i], buffer, packets, c);
            uint64_t place;
            if (written && has_read(op, operand, c))
                continue;
            if (!map_get(&all->chunks, &key, sizeof key, &place))
                continue;
            const chunk_users *users = &all->users.data[place];
            int who = written ? users->users : users->writers;
            others += who != rank && who != CACHES_NOBODY;
        }
    }
    return (double)others / ((double)operand->size * count);
}
