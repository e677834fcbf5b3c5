#include "world/connect/join.h"

#include <sodium.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "world/world.h"

/* Time for the reason of a failure to arrive. */
#define REASON_NS (300 * NS_PER_MS)

uint64_t connect_slice_ns(const banyan_world *world)
{
    uint64_t quarter = banyan_world_timeout_ns(world) / 4;
    return quarter < NS_PER_S ? quarter : NS_PER_S;
}

struct watched_world {
    banyan_world *world;
    const struct join_guard *guard;
};

/* The status is never PEER_LOST: the opening world's ranks are there, and must be informed. */
static banyan_status check_world(void *context)
{
    const struct watched_world *watched = context;
    if (control_check(watched->world) != BANYAN_OK)
        return error_set(BANYAN_ERR_ABORTED, "the world that it joins from has ended: %s",
                         banyan_last_error());
    return watched->guard ? watched->guard->check(watched->guard->context) : BANYAN_OK;
}

/* A rank that finds the rendezvous gone may be told why a little later. */
static banyan_status join_first_reason(const struct join_guard *guard, banyan_status status)
{
    error_kept kept = error_keep(status);
    uint64_t until_ns = deadline_after(REASON_NS);
    while (deadline_left_ns(until_ns) > 0) {
        RETURN_IF_FAILED(guard->check(guard->context));
        usleep(1000);
    }
    return error_again(&kept);
}

/* Give the joined world the node's name that this rank was started with. */
static const char *own_node(const banyan_world *world)
{
    const struct member *self =
        &world->endpoint->members[context_job_rank(world->context, world->rank)];
    bool is_named = strncmp(self->node, self->host, sizeof self->host - 1) == 0;
    return is_named ? self->node : NULL;
}

banyan_status join_open(banyan_world *world, const struct join_plan *plan, int rank,
                        const struct join_guard *guard, banyan_world **opened)
{
    struct watched_world watched = {world, guard};
    struct join_guard both = {check_world, &watched};
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = plan->size;
    options.unique_id = &plan->id;
    options.node = own_node(world);
    options.timeout_ns = plan->limit_ns;
    unsigned interrupts = interrupt_count();
    banyan_status status = world_open_guarded(&options, &both, opened);
    if (status != BANYAN_OK && interrupt_count() != interrupts)
        return control_fail(world, status);
    if (status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_SYSTEM)
        status = join_first_reason(&both, status);
    if (status != BANYAN_OK) /* its ranks have other numbers than those of `world` */
        return error_set(status, "in the joined world of %d ranks: %s", plan->size,
                         banyan_last_error());
    return BANYAN_OK;
}

banyan_status join_agree(banyan_world *world, const struct join_plan *plan, banyan_status status,
                         banyan_world *opened, banyan_world **joined)
{
    status = control_agree_on_other_world(world, status);
    if (status == BANYAN_OK) {
        opened->listening_size = plan->listening_size;
        opened->opened_timeout_ns = plan->timeout_ns;
        opened->timeout_ns = plan->timeout_ns;
        *joined = opened;
        return BANYAN_OK;
    }
    if (opened) {
        error_kept kept = error_keep(status);
        banyan_world_abort(opened, kept.message);
        (void)banyan_world_close(opened);
        (void)error_again(&kept);
    }
    return status;
}

int banyan_world_listening_size(const banyan_world *world)
{
    return world->listening_size;
}
