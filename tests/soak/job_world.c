/* Jobs that use worlds: sub-worlds, messages of the control plane, the directory, shared memory. */
#include "soak/job.h"

static uint64_t value_of(int rank, int round)
{
    uint64_t value;
    char name[32];
    snprintf(name, sizeof name, "rank %d", rank);
    pattern_element(name, (uint64_t)round, sizeof value, &value);
    return value;
}

static banyan_status gather(banyan_world *world, int round)
{
    uint64_t all[JOB_MAX_RANKS];
    uint64_t mine = value_of(banyan_world_rank(world), round);
    banyan_status status = banyan_world_allgather(world, &mine, sizeof mine, all);
    for (int r = 0; status == BANYAN_OK && r < banyan_world_size(world); r++)
        CHECK(all[r] == value_of(r, round), "round %d: rank %d's value is wrong", round, r);
    return status;
}

static banyan_status visit(void *context, size_t key, const banyan_directory_value *values,
                           size_t count)
{
    uint64_t expected = value_of((int)key, *(int *)context), found = 0;
    CHECK(count == 1 && values->bytes == sizeof found, "key %zu has %zu values", key, count);
    memcpy(&found, values->data, sizeof found);
    CHECK(found == expected && values->ranks->first == (int)key, "key %zu is wrong", key);
    return BANYAN_OK;
}

static banyan_status look_up(banyan_world *world, int round)
{
    static const char *const keys[JOB_MAX_RANKS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    int rank = banyan_world_rank(world);
    uint64_t mine = value_of(rank, round);
    banyan_directory *directory = NULL;
    banyan_status status = banyan_directory_open(world, &directory);
    if (status == BANYAN_OK)
        status = banyan_directory_put(directory, keys[rank], &mine, sizeof mine, NULL);
    if (status == BANYAN_OK)
        status = banyan_directory_commit(directory);
    if (status == BANYAN_OK)
        status =
            banyan_directory_get(directory, (size_t)banyan_world_size(world), keys, visit, &round);
    banyan_directory_close(directory);
    return status;
}

/* Ranks of equal parity work in a world of their own. */
static banyan_status work_apart(banyan_world *world, int round)
{
    int ranks[JOB_MAX_RANKS], count = 0;
    for (int r = banyan_world_rank(world) % 2; r < banyan_world_size(world); r += 2)
        ranks[count++] = r;
    banyan_world *sub = NULL;
    banyan_status status = banyan_world_split(world, ranks, count, &sub);
    for (int i = 0; i < 8 && status == BANYAN_OK; i++)
        status = gather(sub, round + i);
    if (status == BANYAN_OK)
        status = look_up(sub, round);
    banyan_status ended = banyan_world_close(sub);
    return status != BANYAN_OK ? status : ended;
}

banyan_status job_worlds(job *of)
{
    bool more = true;
    banyan_status status = BANYAN_OK;
    while (status == BANYAN_OK && more) {
        int kind = (int)random_between(&of->random, 0, 3);
        status = kind == 0   ? work_apart(of->world, of->rounds)
                 : kind == 1 ? look_up(of->world, of->rounds)
                 : kind == 2 ? gather(of->world, of->rounds)
                             : banyan_world_barrier(of->world);
        if (status == BANYAN_OK)
            status = job_next(of, &more);
    }
    return status;
}

/* Each rank writes its next neighbour's part, and finds the previous rank's data in its own. */
static banyan_status write_next(job *of, banyan_memory *memory)
{
    int rank = banyan_world_rank(of->world), size = banyan_world_size(of->world);
    int before = (rank + size - 1) % size;
    void *next;
    size_t bytes;
    CHECK_OK(banyan_memory_peer(memory, (rank + 1) % size, &next, &bytes));
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++)
        ((uint64_t *)next)[i] = value_of(rank, of->rounds + (int)i);
    banyan_status status = banyan_world_barrier(of->world);
    const uint64_t *mine = banyan_memory_local(memory);
    for (size_t i = 0; status == BANYAN_OK && i < bytes / sizeof *mine; i++)
        CHECK(mine[i] == value_of(before, of->rounds + (int)i), "element %zu of rank %d", i, rank);
    return status;
}

banyan_status job_memory(job *of)
{
    bool more = true;
    banyan_status status = BANYAN_OK;
    while (status == BANYAN_OK && more) {
        banyan_memory *memory = NULL;
        size_t bytes = 8 * (size_t)random_between(&of->random, 1, 2000);
        status = banyan_memory_alloc(of->world, bytes, &memory);
        if (status == BANYAN_OK)
            status = write_next(of, memory);
        banyan_memory_free(memory);
        if (status == BANYAN_OK)
            status = job_next(of, &more);
    }
    return status;
}
