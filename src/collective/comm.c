#include "collective/comm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/new_file.h"
#include "core/text/json.h"
#include "execute/load/binding.h"
#include "world/control.h"

static void comm_free(banyan_comm *comm)
{
    banyan_executor_close(comm->executor);
    tuning_free(&comm->table);
    array_free(&comm->added);
    array_free(&comm->registered);
    for (size_t i = 0; i < comm->scaled.count; i++)
        banyan_memory_free(comm->scaled.data[i]);
    array_free(&comm->scaled);
    array_free(&comm->ready);
    free(comm);
}

/* Return the number of ranks per node if it is equal on all nodes, and their ranks follow each
 * other. Otherwise the algorithms take each rank for a node: 1. */
static int common_ranks_per_node(const banyan_world *world)
{
    int ranks = banyan_world_size(world), nodes = banyan_world_node_count(world);
    int per_node = ranks / nodes;
    for (int rank = 0; rank < ranks; rank++) {
        if (banyan_world_node_of(world, rank) != rank / per_node)
            return 1;
    }
    return per_node * nodes == ranks ? per_node : 1;
}

banyan_status comm_share_with(banyan_comm *comm, banyan_world *world)
{
    return executor_share_with(comm->executor, world, &comm->blocks_most);
}

static banyan_status comm_open_parts(banyan_comm *comm, const banyan_comm_options *options)
{
    const char *check = getenv("BANYAN_CHECK_CALLS");
    uint32_t check_calls = check && strcmp(check, "1") == 0;
    RETURN_IF_FAILED(banyan_world_broadcast(comm->world, &check_calls, sizeof check_calls, 0));
    comm->check_calls = check_calls != 0;
    banyan_executor_options how = BANYAN_EXECUTOR_OPTIONS_INIT;
    how.workers = options->workers;
    how.device = options->device;
    RETURN_IF_FAILED(banyan_executor_open(comm->world, &how, &comm->executor));
    if (comm->executor->transport)
        RETURN_IF_FAILED(control_agree(
            comm->world, transport_check_reach(comm->executor->transport, "collectives")));
    RETURN_IF_FAILED(comm_share_with(comm, comm->world));
    return tuning_load(&comm->table, comm->world, options->tuning);
}

banyan_status banyan_comm_create(banyan_world *world, const banyan_comm_options *options,
                                 banyan_comm **comm)
{
    CONTROL_ENTER_WITHIN(world, CONTROL_TIMEOUT(options, banyan_comm_options));
    banyan_comm_options taken = BANYAN_COMM_OPTIONS_INIT;
    banyan_comm *made = calloc(1, sizeof *made);
    banyan_status status = made ? BANYAN_OK : error_no_memory(sizeof *made, "a communicator");
    if (status == BANYAN_OK)
        status = options_take(options, "BANYAN_COMM_OPTIONS_INIT", &taken, sizeof taken);
    status = control_agree(world, status);
    if (status != BANYAN_OK) {
        free(made);
        return status;
    }
    made->world = world;
    made->timeout = control_timeout_now(world);
    made->rank = banyan_world_rank(world);
    made->ranks = banyan_world_size(world);
    made->ranks_per_node = common_ranks_per_node(world);
    status = comm_open_parts(made, &taken);
    if (status != BANYAN_OK) {
        comm_free(made);
        return status;
    }
    *comm = made;
    return BANYAN_OK;
}

banyan_status banyan_comm_destroy(banyan_comm *comm)
{
    if (!comm)
        return BANYAN_OK;
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    banyan_status status = comm_forget(comm, NULL);
    comm_free(comm);
    return status;
}

banyan_status banyan_comm_status(banyan_comm *comm)
{
    for (size_t i = 0; i < comm->ready.count; i++)
        RETURN_IF_FAILED(banyan_loaded_plan_status(comm->ready.data[i].loaded));
    return control_check(comm->world);
}

/* Restart the order of use, which decides which plan is unloaded: after a failure, ranks may have
 * made different numbers of calls. */
static void forget_uses(banyan_comm *comm)
{
    comm->uses = 0;
    for (size_t i = 0; i < comm->ready.count; i++)
        comm->ready.data[i].last_use = 0;
}

banyan_status banyan_comm_reset(banyan_comm *comm)
{
    CONTROL_ENTER_WITHIN(comm->world, comm->timeout);
    RETURN_IF_FAILED(control_agree(comm->world, BANYAN_OK));
    for (size_t i = 0; i < comm->ready.count; i++)
        RETURN_IF_FAILED(banyan_loaded_plan_reset(comm->ready.data[i].loaded));
    forget_uses(comm);
    return BANYAN_OK;
}

banyan_status banyan_comm_register(banyan_comm *comm, const banyan_memory *memory)
{
    CONTROL_ENTER_WITHIN(comm->world, comm->timeout);
    banyan_status status = BANYAN_OK;
    if (!memory)
        status =
            error_set(BANYAN_ERR_INVALID, "rank %d: there is no memory to register", comm->rank);
    else
        status = binding_check_device(comm->executor, banyan_memory_device(memory),
                                      banyan_memory_local(memory), "memory to register");
    if (status == BANYAN_OK && !array_reserve(&comm->registered, 1))
        status = BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(control_agree(comm->world, status));
    comm->registered.data[comm->registered.count++] = memory;
    return BANYAN_OK;
}

banyan_status banyan_comm_unregister(banyan_comm *comm, const banyan_memory *memory)
{
    CONTROL_ENTER_WITHIN(comm->world, comm->timeout);
    size_t at = 0;
    while (at < comm->registered.count && comm->registered.data[at] != memory)
        at++;
    banyan_status status = BANYAN_OK;
    if (at == comm->registered.count)
        status = error_set(BANYAN_ERR_INVALID, "rank %d: the memory of %zu bytes is not registered",
                           comm->rank, memory ? banyan_memory_bytes(memory) : 0);
    RETURN_IF_FAILED(control_agree(comm->world, status));
    comm->registered.data[at] = comm->registered.data[--comm->registered.count];
    return comm_forget(comm, memory);
}

static banyan_status check_added(const banyan_comm *comm, const banyan_plan *plan)
{
    if (!plan)
        return error_set(BANYAN_ERR_INVALID, "rank %d: there is no plan to add", comm->rank);
    banyan_plan_info info = banyan_plan_describe(plan);
    if (info.ranks != comm->ranks)
        return error_set(BANYAN_ERR_INVALID, "plan \"%s\" is for %d ranks, the communicator has %d",
                         info.name, info.ranks, comm->ranks);
    if (info.collective == BANYAN_CUSTOM)
        return error_set(
            BANYAN_ERR_INVALID,
            "plan \"%s\" is of the collective \"%s\", for which communicators have no call",
            info.name, info.collective_name);
    return BANYAN_OK;
}

banyan_status banyan_comm_add_plan(banyan_comm *comm, const banyan_plan *plan)
{
    CONTROL_ENTER_WITHIN(comm->world, comm->timeout);
    banyan_status status = check_added(comm, plan);
    if (status == BANYAN_OK && !array_reserve(&comm->added, 1))
        status = BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(control_agree(comm->world, status));
    comm->added.data[comm->added.count++] = plan;
    memset(comm->latest, 0, sizeof comm->latest);
    return BANYAN_OK;
}

banyan_status banyan_comm_choice(banyan_comm *comm, banyan_collective_kind kind,
                                 uint64_t message_bytes, DLDataType dtype, banyan_reduce_op op,
                                 bool in_place, bool registered, const char **name)
{
    call wanted = {.kind = kind,
                   .op = op == BANYAN_AVG ? BANYAN_SUM : op,
                   .shift = 1,
                   .in_place = in_place,
                   .message_bytes = message_bytes,
                   .dtype = dtype};
    if (registered && comm->registered.count > 0)
        wanted.input = wanted.output = comm->registered.data[0];
    choice chosen;
    RETURN_IF_FAILED(comm_choose(comm, &wanted, &chosen));
    *name = chosen.added ? banyan_plan_describe(chosen.added).name : chosen.entry->info.name;
    return BANYAN_OK;
}

banyan_status banyan_comm_save_tuning(banyan_comm *comm, const char *path)
{
    CONTROL_ENTER_WITHIN(comm->world, comm->timeout);
    banyan_status status = BANYAN_OK;
    if (comm->rank == 0) {
        char *text = NULL;
        status = tuning_print(&comm->table, &text);
        if (status == BANYAN_OK)
            status = new_file_write_at(path, text);
        free(text);
    }
    return control_agree(comm->world, status);
}
