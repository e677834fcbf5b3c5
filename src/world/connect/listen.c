#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "world/connect/join.h"
#include "world/connect/options.h"
#include "world/connect/queue.h"
#include "world/world.h"

#define DEFAULT_OPENING_NS (30 * NS_PER_S)
/* Time for a world that is accepted to report that all its ranks are there. */
#define ANSWER_NS (5 * NS_PER_S)

/* Values that rank 0 sends all ranks of the listening world. */
struct listener_terms {
    char address[ADDRESS_TEXT_BYTES];
    uint64_t opening_ns, timeout_ns;
};

struct banyan_listener {
    banyan_world *world;
    struct listener_terms terms;
    struct connect_queue *queue; /* at rank 0 */
};

static banyan_status listen_open_queue(banyan_listener *listener, const char *address,
                                       const char *secret, const banyan_connect_options *options)
{
    banyan_world *world = listener->world;
    banyan_connect_options taken;
    unsigned char key[WIRE_KEY_BYTES];
    RETURN_IF_FAILED(connect_take_options(world, options, &taken));
    RETURN_IF_FAILED(connect_key(secret, key));
    uint64_t opening_ns = taken.connect_timeout_ns ? taken.connect_timeout_ns : DEFAULT_OPENING_NS;
    uint64_t most_ns = banyan_world_timeout_ns(world);
    listener->terms.opening_ns = opening_ns < most_ns ? opening_ns : most_ns;
    listener->terms.timeout_ns = taken.timeout_ns;
    banyan_status status = connect_queue_open(world, address ? address : ":0", key, taken.name,
                                              listener->terms.address, &listener->queue);
    sodium_memzero(key, sizeof key);
    return status;
}

banyan_status banyan_world_listen(banyan_world *world, const char *address, const char *secret,
                                  const banyan_connect_options *options, banyan_listener **listener)
{
    RETURN_IF_NULL(world);
    RETURN_IF_NULL(listener);
    CONTROL_ENTER(world);
    banyan_listener *opened = calloc(1, sizeof *opened);
    banyan_status status = opened ? BANYAN_OK : error_no_memory(sizeof *opened, "a listener");
    if (opened) {
        opened->world = world;
        if (world->rank == 0)
            status = listen_open_queue(opened, address, secret, options);
    }
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = banyan_world_broadcast(world, &opened->terms, sizeof opened->terms, 0);
    if (status == BANYAN_OK)
        *listener = opened;
    else
        banyan_listener_close(opened);
    return status;
}

const char *banyan_listener_address(const banyan_listener *listener)
{
    return listener->terms.address;
}

void banyan_listener_close(banyan_listener *listener)
{
    if (!listener)
        return;
    connect_queue_close(listener->queue);
    free(listener);
}

/* ---- accepting ---- */

/* A message of rank 0 to the others. */
struct accept_step {
    enum { ACCEPT_FAILED, ACCEPT_WAITS, ACCEPT_OPENS } kind;
    bool is_last; /* no time is left after it */
    struct join_plan plan;
};

/* State of rank 0 while it accepts a world. */
struct accepting {
    struct connect_party party;
    struct address local; /* by which it came */
    struct rendezvous *rendezvous;
    bool has_taken;
};

static void accept_end(banyan_listener *listener, struct accepting *accepting,
                       const error_kept *why)
{
    char text[CONNECT_PARTY_BYTES];
    if (!accepting->has_taken)
        return;
    (void)rendezvous_stop(accepting->rendezvous, NULL);
    if (why)
        log_warn("the listener at %s drops %s: %s", listener->terms.address,
                 connect_party_text(&accepting->party, text), why->message);
    connect_queue_release(listener->queue, why);
    accepting->has_taken = false;
}

static banyan_status accept_start_rendezvous(banyan_listener *listener, struct accepting *accepting,
                                             struct join_plan *plan)
{
    const banyan_world *world = listener->world;
    struct rendezvous_place place = {0};
    int tcp_fd = -1;
    const char *node = world->endpoint->members[context_job_rank(world->context, world->rank)].node;
    plan->listening_size = world->size;
    plan->size = world->size + accepting->party.size;
    plan->limit_ns = listener->terms.opening_ns;
    plan->timeout_ns = listener->terms.timeout_ns;
    RETURN_IF_FAILED(rendezvous_place_new(node, &place, &plan->id, &tcp_fd));
    rendezvous_id_prefer(&plan->id, &accepting->local);
    banyan_status status =
        rendezvous_start(&place, tcp_fd, plan->size, false, &accepting->rendezvous);
    sodium_memzero(&place, sizeof place);
    return status;
}

static uint64_t listen_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Do rank 0's part until it has something to say to the others, which wait for it. */
static banyan_status accept_look(banyan_listener *listener, struct accepting *accepting,
                                 uint64_t until_ns, struct accept_step *step)
{
    uint64_t slice_ns = connect_slice_ns(listener->world);
    uint64_t answer_ns = banyan_world_timeout_ns(listener->world) / 2;
    answer_ns = listen_least(answer_ns, listen_least(ANSWER_NS, listener->terms.opening_ns));
    step->kind = ACCEPT_WAITS;
    accepting->has_taken =
        connect_queue_take(listener->queue, listen_least(deadline_left_ns(until_ns), slice_ns),
                           &accepting->party, &accepting->local);
    if (!accepting->has_taken)
        return BANYAN_OK;
    banyan_status status = accept_start_rendezvous(listener, accepting, &step->plan);
    error_kept kept = error_keep(status);
    if (status == BANYAN_OK)
        kept = error_keep(connect_queue_invite(listener->queue, &step->plan.id, answer_ns));
    if (kept.status == BANYAN_OK)
        step->kind = ACCEPT_OPENS;
    else
        accept_end(listener, accepting, &kept);
    return status;
}

static banyan_status accept_check(void *context)
{
    return connect_queue_check(context);
}

/* Open the joined world on all ranks. A failure is one of the connecting world, unless the
 * listening world has ended. */
static banyan_status accept_taken(banyan_listener *listener, struct accepting *accepting,
                                  const struct join_plan *plan, banyan_world **joined)
{
    banyan_world *world = listener->world;
    struct join_guard guard = {accept_check, listener->queue};
    banyan_world *opened = NULL;
    banyan_status status =
        join_open(world, plan, world->rank, listener->queue ? &guard : NULL, &opened);
    if (status != BANYAN_OK && accepting->rendezvous) { /* the others need not wait there */
        error_kept failed = error_keep(status);
        (void)rendezvous_stop(accepting->rendezvous, NULL);
        accepting->rendezvous = NULL;
        (void)error_again(&failed);
    }
    status = join_agree(world, plan, status, opened, joined);
    error_kept kept = error_keep(status);
    accept_end(listener, accepting, status == BANYAN_OK ? NULL : &kept);
    return control_check(world);
}

/* Accept a world, or wait for one for a slice of the time. `*again` receives whether time is left.
 */
static banyan_status accept_once(banyan_listener *listener, uint64_t until_ns, bool *again,
                                 banyan_world **joined)
{
    banyan_world *world = listener->world;
    struct accepting accepting = {0};
    struct accept_step step = {0};
    error_kept kept = {0};
    if (listener->queue) {
        kept = error_keep(accept_look(listener, &accepting, until_ns, &step));
        step.kind = kept.status == BANYAN_OK ? step.kind : ACCEPT_FAILED;
        step.is_last = deadline_left_ns(until_ns) == 0;
    }
    banyan_status status = banyan_world_broadcast(world, &step, sizeof step, 0);
    if (status != BANYAN_OK) {
        kept = error_keep(status);
        accept_end(listener, &accepting, &kept);
        return error_again(&kept);
    }
    *again = !step.is_last;
    switch (step.kind) {
    case ACCEPT_FAILED:
        return control_agree(world, error_again(&kept));
    case ACCEPT_OPENS:
        return accept_taken(listener, &accepting, &step.plan, joined);
    default:
        return BANYAN_OK;
    }
}

banyan_status banyan_listener_accept(banyan_listener *listener, uint64_t wait_ns,
                                     banyan_world **joined)
{
    RETURN_IF_NULL(listener);
    RETURN_IF_NULL(joined);
    banyan_world *world = listener->world, *opened = NULL;
    uint64_t looks = listener->queue && (wait_ns > 0 || connect_queue_has(listener->queue));
    CONTROL_CALL(world, __func__);
    RETURN_IF_FAILED(control_enter_max(world, looks, &looks));
    uint64_t until_ns = deadline_after(wait_ns);
    for (bool again = looks; again && !opened;)
        RETURN_IF_FAILED(accept_once(listener, until_ns, &again, &opened));
    *joined = opened;
    return BANYAN_OK;
}
