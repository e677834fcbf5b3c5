/* Collective calls of world and memory, with a fault at one rank. */
#include "faults/job.h"

#include "memory/space.h"
#include "memory/user/user.h"
#include "world/control.h"

static banyan_status close_world(job_rank *r)
{
    banyan_status status = banyan_world_close(r->world);
    r->world = NULL;
    return status;
}

static banyan_status barrier(job_rank *r)
{
    return banyan_world_barrier(r->world);
}

static banyan_status broadcast(job_rank *r)
{
    static char data[3000];
    memset(data, r->rank == 1 ? 7 : 0, sizeof data);
    banyan_status status = banyan_world_broadcast(r->world, data, sizeof data, 1);
    CHECK(status != BANYAN_OK || (data[0] == 7 && data[2999] == 7));
    return status;
}

static banyan_status allgather(job_rank *r)
{
    int all[4], mine = r->rank + 40;
    banyan_status status = banyan_world_allgather(r->world, &mine, sizeof mine, all);
    for (int i = 0; i < r->count && status == BANYAN_OK; i++)
        CHECK(all[i] == i + 40);
    return status;
}

/* More than a socket accepts at once, so that some of it waits. */
static banyan_status allgatherv(job_rank *r)
{
    static char data[700000];
    void *all;
    size_t bytes[4];
    banyan_status status =
        banyan_world_allgatherv(r->world, data, sizeof data / (size_t)(r->rank + 1), &all, bytes);
    if (status == BANYAN_OK)
        free(all);
    return status;
}

static void close_sub(job_rank *r)
{
    (void)banyan_world_close(r->things);
    r->things = NULL;
}

static banyan_status split(job_rank *r)
{
    static const int all[] = {0, 1, 2, 3};
    banyan_world *sub;
    RETURN_IF_FAILED(banyan_world_split(r->world, all, r->count, &sub));
    r->things = sub;
    banyan_status status = banyan_world_barrier(sub);
    error_kept kept = error_keep(status);
    if (status != BANYAN_OK)
        close_sub(r);
    return error_again(&kept);
}

static banyan_status agree(job_rank *r)
{
    return control_agree(r->world, BANYAN_OK);
}

static banyan_status directory_visit(void *context, size_t key,
                                     const banyan_directory_value *values, size_t count)
{
    (void)context;
    (void)key;
    (void)values;
    CHECK(count == 1);
    return BANYAN_OK;
}

static banyan_status look_up(banyan_directory *directory, job_rank *r)
{
    char key[16], next[16];
    const char *keys[] = {next};
    snprintf(key, sizeof key, "key %d", r->rank);
    snprintf(next, sizeof next, "key %d", (r->rank + 1) % r->count);
    banyan_status put = banyan_directory_put(directory, key, key, 5, NULL);
    if (put != BANYAN_OK)
        banyan_world_abort(r->world, banyan_last_error());
    RETURN_IF_FAILED(put);
    RETURN_IF_FAILED(banyan_directory_commit(directory));
    return banyan_directory_get(directory, 1, keys, directory_visit, NULL);
}

static banyan_status use_directory(job_rank *r)
{
    banyan_directory *directory;
    RETURN_IF_FAILED(banyan_directory_open(r->world, &directory));
    banyan_status status = look_up(directory, r);
    banyan_directory_close(directory);
    return status;
}

static banyan_status alloc_small(job_rank *r)
{
    return banyan_memory_alloc(r->world, 5000, (banyan_memory **)&r->things);
}

static banyan_status alloc_large(job_rank *r)
{
    return banyan_memory_alloc(r->world, r->rank == 1 ? 0 : 5 << 20, (banyan_memory **)&r->things);
}

static void free_memory(job_rank *r)
{
    banyan_memory_free(r->things);
    r->things = NULL;
}

static banyan_status find_user_path(job_rank *r)
{
    banyan_user_memory_path path;
    return banyan_memory_user_path(r->world, &path);
}

static banyan_status force_cma(job_rank *r)
{
    ranks_force_user_memory("cma");
    return find_user_path(r);
}

static banyan_status force_staging(job_rank *r)
{
    ranks_force_user_memory("staging");
    return find_user_path(r);
}

static banyan_status open_transport(job_rank *r)
{
    return banyan_transport_open(r->world, "shm", (banyan_transport **)&r->things);
}

static void close_transport(job_rank *r)
{
    (void)banyan_world_barrier(r->world);
    banyan_transport_close(r->things);
    r->things = NULL;
}

static void have_transport(job_rank *r)
{
    CHECK_OK(open_transport(r));
}

static banyan_status take_signals(job_rank *r)
{
    uint32_t first;
    return banyan_transport_signals_alloc(r->things, 3, &first);
}

static banyan_status open_ops(job_rank *r)
{
    const banyan_transport_ops *ops;
    CHECK_OK(banyan_transport_find("shm", &ops));
    return banyan_transport_open_ops(r->world, ops, (banyan_transport **)&r->things);
}

/* The process is one rank. */
static banyan_pipeline_buffers *buffers;

static banyan_status open_buffers(job_rank *r)
{
    return banyan_pipeline_buffers_open(r->world, r->things, 4096, &buffers);
}

static void close_buffers(job_rank *r)
{
    (void)banyan_world_barrier(r->world);
    banyan_pipeline_buffers_close(buffers);
}

static const job_case cases[] = {
    {.name = "world_close", .call = close_world, .closes_world = true, .only_once = true},
    {.name = "barrier", .call = barrier},
    {.name = "broadcast", .call = broadcast},
    {.name = "allgather", .call = allgather},
    {.name = "allgatherv", .call = allgatherv},
    {.name = "split", .call = split, .undo = close_sub},
    {.name = "agree", .call = agree},
    /* The last step, reading the answers, is each rank's own. */
    {.name = "directory", .call = use_directory, .may_differ = true},
    {.name = "alloc_small", .call = alloc_small, .undo = free_memory},
    {.name = "alloc_large", .call = alloc_large, .undo = free_memory},
    {.name = "user_path", .call = find_user_path, .only_once = true},
    {.name = "user_path_cma", .call = force_cma, .only_once = true},
    {.name = "user_path_staging", .call = force_staging, .only_once = true},
    {.name = "transport_open", .call = open_transport, .undo = close_transport},
    {.name = "signals_alloc",
     .prepare = have_transport,
     .call = take_signals,
     .finish = close_transport},
    {.name = "transport_open_ops", .call = open_ops, .undo = close_transport},
    {.name = "pipeline_buffers",
     .prepare = have_transport,
     .call = open_buffers,
     .undo = close_buffers,
     .finish = close_transport},
    {.name = "barrier_nodes", .call = barrier, .two_nodes = true},
    {.name = "broadcast_nodes", .call = broadcast, .two_nodes = true},
    {.name = "allgatherv_nodes", .call = allgatherv, .two_nodes = true},
    {.name = "split_nodes", .call = split, .undo = close_sub, .two_nodes = true},
    {.name = "directory_nodes", .call = use_directory, .may_differ = true, .two_nodes = true},
    {.name = "world_close_nodes",
     .call = close_world,
     .closes_world = true,
     .only_once = true,
     .two_nodes = true},
};

int main(void)
{
    return job_main(cases, sizeof cases / sizeof *cases, 10);
}
