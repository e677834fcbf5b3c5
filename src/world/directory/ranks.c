#include "world/directory/directory.h"

#define LEVELS BANYAN_RANK_SET_LEVELS
#define FAST (LEVELS - 1)
/* A list that reaches this size without a fold is folded before it takes more memory. */
#define FOLD_ABOVE 64

banyan_rank_set ranks_pack(const banyan_rank_set *set)
{
    banyan_rank_set packed = banyan_rank_set_one(set->first);
    int to = FAST;
    for (int from = FAST; from >= 0; from--) {
        if (set->count[from] == 1)
            continue;
        packed.count[to] = set->count[from];
        packed.stride[to--] = set->stride[from];
    }
    return packed;
}

size_t ranks_words(int world_size)
{
    return ((size_t)world_size + 63) / 64;
}

/* True if every stride is larger than the span of the smaller ones together: then no rank can occur
 * twice. Sets from a mesh have this property. */
static bool is_nested(const banyan_rank_set *set)
{
    int64_t strides[LEVELS], spans[LEVELS];
    int used = 0;
    for (int k = FAST; k >= 0 && set->count[k] > 1; k--) {
        int64_t stride = set->stride[k] < 0 ? -(int64_t)set->stride[k] : set->stride[k];
        int at = used++;
        for (; at > 0 && strides[at - 1] > stride; at--) {
            strides[at] = strides[at - 1];
            spans[at] = spans[at - 1];
        }
        strides[at] = stride;
        spans[at] = stride * (set->count[k] - 1);
    }
    int64_t below = 0;
    for (int i = 0; i < used; i++) {
        if (strides[i] <= below)
            return false;
        below += spans[i];
    }
    return true;
}

static bool test_and_set(uint64_t *seen, int rank)
{
    uint64_t bit = UINT64_C(1) << (rank % 64);
    bool was = seen[rank / 64] & bit;
    seen[rank / 64] |= bit;
    return was;
}

/* Mark the set's ranks; true if one was already marked. */
static bool ranks_mark(uint64_t *seen, const banyan_rank_set *set)
{
    bool twice = false;
    int64_t size = banyan_rank_set_size(set);
    for (int64_t i = 0; i < size; i++)
        twice |= test_and_set(seen, banyan_rank_set_at(set, i));
    return twice;
}

const char *ranks_problem(const banyan_rank_set *set, int world_size, uint64_t *seen)
{
    int64_t size = 1, low = set->first, high = set->first;
    bool used = false;
    for (int k = 0; k < LEVELS; k++) {
        int64_t count = set->count[k];
        if (count < 1 || (used && count == 1))
            return count < 1 ? "an empty level" : "a level of one rank";
        used |= count > 1;
        size *= count;
        if (size > world_size)
            return "more ranks than the world has";
        int64_t reach = (count - 1) * set->stride[k];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
    }
    if (low < 0 || high >= world_size)
        return "a rank outside the world";
    if (is_nested(set))
        return NULL;
    bool twice = ranks_mark(seen, set);
    memset(seen, 0, ranks_words(world_size) * sizeof *seen);
    return twice ? "a rank twice" : NULL;
}

void ranks_write(bytes_writer *writer, const banyan_rank_set *packed)
{
    uint32_t words[2 + 2 * LEVELS] = {(uint32_t)packed->first};
    int at = 2;
    for (int k = 0; k < LEVELS; k++) {
        if (packed->count[k] == 1)
            continue;
        words[1]++;
        words[at++] = (uint32_t)packed->count[k];
        words[at++] = (uint32_t)packed->stride[k];
    }
    bytes_write(writer, words, (size_t)at * sizeof words[0]);
}

banyan_rank_set ranks_read(bytes_reader *reader)
{
    banyan_rank_set set = banyan_rank_set_one((int)bytes_read_u32(reader));
    uint32_t used = bytes_read_u32(reader);
    if (used > LEVELS) {
        reader->failed = true;
        return set;
    }
    for (int k = LEVELS - (int)used; k < LEVELS; k++) {
        set.count[k] = (int)bytes_read_u32(reader);
        set.stride[k] = (int)bytes_read_u32(reader);
        reader->failed |= set.count[k] < 2;
    }
    return set;
}

/* Extend the last run by a rank that continues it, whatever its stride. True if `rank` is in the
 * run now. */
static bool ranks_extend(banyan_rank_set *run, int rank)
{
    if (run->count[FAST - 1] != 1) /* it has several levels */
        return false;
    int64_t stride = run->count[FAST] == 1 ? (int64_t)rank - run->first : run->stride[FAST];
    if (banyan_rank_set_find(run, rank) >= 0)
        return true;
    if (stride <= 0 || rank != run->first + stride * run->count[FAST])
        return false;
    run->stride[FAST] = (int)stride;
    run->count[FAST]++;
    return true;
}

static bool ranks_grow(rank_list *list, arena *memory)
{
    uint32_t capacity = list->capacity ? list->capacity * 2 : 1;
    banyan_rank_set *sets = arena_take(memory, capacity * sizeof *sets);
    if (!sets)
        return false;
    if (list->count > 0)
        memcpy(sets, list->sets, list->count * sizeof *sets);
    list->sets = sets;
    list->capacity = capacity;
    return true;
}

static bool ranks_append(rank_list *list, const banyan_rank_set *packed, arena *memory)
{
    if (list->count == list->capacity && !ranks_grow(list, memory))
        return false;
    list->sets[list->count++] = *packed;
    return true;
}

bool rank_list_add(rank_list *list, const banyan_rank_set *packed, int world_size, uint64_t *seen,
                   arena *memory)
{
    banyan_rank_set *last = list->count > 0 ? &list->sets[list->count - 1] : NULL;
    if (last && memcmp(last, packed, sizeof *last) == 0)
        return true;
    list->folded = list->count == 0;
    if (last && packed->count[FAST] == 1 && ranks_extend(last, packed->first)) {
        list->folded = list->count == 1;
        return true;
    }
    if (list->count == list->capacity && list->count >= FOLD_ABOVE) {
        if (!rank_list_fold(list, world_size, seen, memory))
            return false;
        if (list->count > list->capacity / 2 && !ranks_grow(list, memory))
            return false;
    }
    list->folded = list->count == 0;
    return ranks_append(list, packed, memory);
}

static bool ranks_same_shape(const banyan_rank_set *a, const banyan_rank_set *b)
{
    return memcmp(a->count, b->count, sizeof a->count) == 0 &&
           memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

/* Combine equidistant neighbours of one shape into a set with one more level. */
static uint32_t fold_level(banyan_rank_set *sets, uint32_t count, int level)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count;) {
        banyan_rank_set set = sets[i];
        uint32_t end = i + 1;
        bool has_room = set.count[level] == 1 && (level == FAST || set.count[level + 1] > 1);
        if (has_room && end < count && ranks_same_shape(&set, &sets[end])) {
            int distance = sets[end].first - set.first;
            while (end < count && ranks_same_shape(&set, &sets[end]) &&
                   sets[end].first - sets[end - 1].first == distance)
                end++;
            set.count[level] = (int)(end - i);
            set.stride[level] = distance;
        }
        sets[kept++] = set;
        i = end;
    }
    return kept;
}

static uint32_t fold_neighbours(banyan_rank_set *sets, uint32_t count, int from_level)
{
    for (int level = from_level; level >= 0 && count > 1; level--)
        count = fold_level(sets, count, level);
    return count;
}

static int by_first(const void *a, const void *b)
{
    int first_a = ((const banyan_rank_set *)a)->first,
        first_b = ((const banyan_rank_set *)b)->first;
    return (first_a > first_b) - (first_a < first_b);
}

/* Return all marked ranks as runs, in ascending order, and clear the marks. */
static bool ranks_runs_of(uint64_t *seen, int world_size, arena *memory, rank_list *runs)
{
    for (size_t word = 0; word < ranks_words(world_size); word++) {
        for (; seen[word]; seen[word] &= seen[word] - 1) {
            int rank = (int)word * 64 + __builtin_ctzll(seen[word]);
            if (runs->count > 0 && ranks_extend(&runs->sets[runs->count - 1], rank))
                continue;
            banyan_rank_set one = banyan_rank_set_one(rank);
            if (!ranks_append(runs, &one, memory)) {
                memset(seen, 0, ranks_words(world_size) * sizeof *seen);
                return false;
            }
        }
    }
    return true;
}

bool rank_list_fold(rank_list *list, int world_size, uint64_t *seen, arena *memory)
{
    if (list->folded || list->count <= 1) {
        list->folded = true;
        return true;
    }
    bool overlap = false;
    for (uint32_t i = 0; i < list->count; i++)
        overlap |= ranks_mark(seen, &list->sets[i]);
    arena scratch = {0};
    rank_list runs = {0};
    bool done = ranks_runs_of(seen, world_size, &scratch, &runs);
    if (!done)
        goto free_scratch;
    runs.count = fold_neighbours(runs.sets, runs.count, FAST - 1);
    if (!overlap) {
        qsort(list->sets, list->count, sizeof *list->sets, by_first);
        list->count = fold_neighbours(list->sets, list->count, FAST);
    }
    if (overlap || runs.count <= list->count) {
        list->count = 0;
        for (uint32_t i = 0; i < runs.count && done; i++)
            done = ranks_append(list, &runs.sets[i], memory);
    }
    list->folded = done;
free_scratch:
    arena_free(&scratch);
    return done;
}
