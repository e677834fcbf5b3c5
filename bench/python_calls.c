/* Time the calls of C that bench/python.py makes from Python, in the same processes. */
#include <banyan/banyan.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A communicator with registered memory, of its own world. */
typedef struct calls {
    banyan_world *world;
    banyan_comm *comm;
    banyan_memory *memory;
} calls;

BANYAN_API calls *python_calls_open(const void *unique_id, int rank, int ranks);
BANYAN_API double python_calls_allreduce_s(calls *c, size_t elems, int runs);
BANYAN_API void python_calls_close(calls *c);

void python_calls_close(calls *c)
{
    if (c->comm)
        banyan_comm_destroy(c->comm);
    banyan_memory_free(c->memory);
    banyan_world_close(c->world);
    free(c);
}

/* Return NULL after an error, which banyan_last_error() has. */
calls *python_calls_open(const void *unique_id, int rank, int ranks)
{
    banyan_unique_id id;
    memcpy(id.bytes, unique_id, sizeof id.bytes);
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.unique_id = &id;
    options.rank = rank;
    options.world_size = ranks;
    calls *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    if (banyan_world_open(&options, &c->world) == BANYAN_OK &&
        banyan_memory_alloc(c->world, 1 << 16, &c->memory) == BANYAN_OK &&
        banyan_comm_create(c->world, NULL, &c->comm) == BANYAN_OK &&
        banyan_comm_register(c->comm, c->memory) == BANYAN_OK)
        return c;
    python_calls_close(c);
    return NULL;
}

/* Return the seconds of an all-reduce of `elems` floats in place, or a negative number. */
double python_calls_allreduce_s(calls *c, size_t elems, int runs)
{
    DLDataType f32 = {kDLFloat, 32, 1};
    void *data = banyan_memory_local(c->memory);
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < runs; i++)
        if (banyan_comm_allreduce(c->comm, data, data, elems, f32, BANYAN_SUM, NULL) != BANYAN_OK)
            return -1;
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return ((double)(ended.tv_sec - began.tv_sec) +
            (double)(ended.tv_nsec - began.tv_nsec) * 1e-9) /
           runs;
}
