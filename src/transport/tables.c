#include "transport/tables.h"

#include <stdlib.h>

#include "core/error.h"
#include "memory/user/user.h"
#include "world/control.h"

static const char tables_key;

wake_up *transport_wake_up(const transport_world *of, int local)
{
    return (wake_up *)memory_part_of(of->wake_ups, local);
}

static void host_notify(void *context)
{
    const transport_world *of = context;
    wake_up_notify(transport_wake_up(of, of->space->local_rank));
}

static banyan_status host_with_memory(void *context, uint32_t kind, uint64_t id, memory_use use,
                                      void *argument)
{
    const transport_world *of = context;
    return memory_with(of->space, kind, id, use, argument);
}

/* Memory is freed after failures, too: the caller's error stays. */
static void tables_forget(void *context, uint32_t kind, uint64_t id)
{
    const transport_world *of = context;
    error_kept kept = error_keep(BANYAN_ERR_ABORTED); /* any status keeps the message */
    for (size_t i = 0; i < of->tables.count; i++) {
        const transport_table *table = &of->tables.data[i];
        if (table->ops->forget)
            table->ops->forget(table->state, kind, id);
    }
    (void)error_again(&kept);
}

/* A barrier must mean the same for all transports: what was put before it is there after it. */
static banyan_status tables_flush(void *context)
{
    const transport_world *of = context;
    for (size_t i = 0; i < of->tables.count; i++) {
        const transport_table *table = &of->tables.data[i];
        if (table->ops->flush_all)
            RETURN_IF_FAILED(table->ops->flush_all(table->state));
    }
    return BANYAN_OK;
}

static void transport_world_destroy(void *attachment)
{
    transport_world *of = attachment;
    control_before_messages(of->world, NULL, NULL);
    memory_watch(of->space, NULL, NULL);
    while (of->tables.count > 0) {
        const transport_table *last = &of->tables.data[--of->tables.count];
        last->ops->close(last->state);
    }
    array_free(&of->tables);
    banyan_memory_free(of->wake_ups);
    free(of);
}

static banyan_status transport_world_attach(banyan_world *world, transport_world **of)
{
    transport_world *made = alloc_zeroed(1, sizeof *made, "a world's transports");
    RETURN_IF_NO_MEMORY(made);
    made->world = world;
    made->host = (banyan_transport_host){world, made, host_notify, host_with_memory};
    banyan_status status = memory_space_of(world, &made->space);
    if (status == BANYAN_OK)
        status = world_attach(world, &tables_key, made, transport_world_destroy);
    if (status != BANYAN_OK) {
        free(made);
        return status;
    }
    memory_watch(made->space, tables_forget, made);
    control_before_messages(world, tables_flush, made);
    *of = made;
    return BANYAN_OK;
}

/* Without wake-ups it is of an earlier call, which failed. */
banyan_status transport_world_of(banyan_world *world, transport_world **of)
{
    transport_world *found = world_attachment(world, &tables_key);
    if (!found || !found->wake_ups) {
        banyan_status status = found ? BANYAN_OK : transport_world_attach(world, &found);
        RETURN_IF_FAILED(control_agree(world, status));
        RETURN_IF_FAILED(memory_alloc(world, sizeof(wake_up), true, &found->wake_ups));
        found->spins = wake_up_spins(memory_space_is_crowded(found->space, 1));
    }
    *of = found;
    return BANYAN_OK;
}

banyan_status transport_world_open(transport_world *of, const banyan_transport_ops *ops,
                                   bool is_shared, transport_table *table)
{
    for (size_t i = 0; i < of->tables.count && is_shared; i++) {
        if (of->tables.data[i].is_shared && of->tables.data[i].ops == ops) {
            *table = of->tables.data[i];
            return BANYAN_OK;
        }
    }
    bool has_room = array_reserve(&of->tables, 1);
    RETURN_IF_FAILED(control_agree(of->world, has_room ? BANYAN_OK : BANYAN_ERR_NO_MEMORY));
    transport_table opened = {ops, NULL, is_shared};
    RETURN_IF_FAILED(ops->open(&of->host, &opened.state));
    of->tables.data[of->tables.count++] = opened;
    *table = opened;
    return BANYAN_OK;
}

void transport_world_close(transport_world *of, const transport_table *table)
{
    if (table->is_shared)
        return;
    size_t at = 0;
    while (of->tables.data[at].state != table->state)
        at++;
    of->tables.data[at] = of->tables.data[--of->tables.count];
    table->ops->close(table->state);
}

void transport_ring(const transport_world *of, int local)
{
    wake_up_notify(transport_wake_up(of, local));
}

uint32_t transport_epoch(const transport_world *of)
{
    return wake_up_read(transport_wake_up(of, of->space->local_rank));
}

size_t transport_progress(const transport_world *of)
{
    size_t events = 0;
    for (size_t i = 0; i < of->tables.count; i++) {
        const transport_table *table = &of->tables.data[i];
        if (table->ops->progress)
            events += table->ops->progress(table->state);
    }
    return events;
}

void transport_redirect(const transport_world *of, banyan_redirection *redirection)
{
    for (size_t i = 0; i < of->tables.count; i++) {
        const transport_table *table = &of->tables.data[i];
        if (table->ops->redirect)
            table->ops->redirect(table->state, redirection);
    }
}

void transport_rest(const transport_world *of)
{
    for (size_t i = 0; i < of->tables.count; i++) {
        const transport_table *table = &of->tables.data[i];
        if (table->ops->rest)
            table->ops->rest(table->state);
    }
}

void transport_sleep(const transport_world *of, uint32_t seen, uint64_t nap_ns)
{
    transport_rest(of);
    wake_up_sleep(transport_wake_up(of, of->space->local_rank), seen, nap_ns);
}
