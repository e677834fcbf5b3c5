/* Wait for operations, and cancel those of a wait that fails. */
#include <poll.h>
#include <sched.h>

#include "ucx/ucx.h"

/* Turns without an event before a wait sleeps. */
#define TURNS_BEFORE_SLEEP 100
#define NAP_MS 10

static void ucx_drive(ucx *of)
{
    atomic_fetch_add_explicit(&of->turns, 1, memory_order_relaxed);
    if (!atomic_load_explicit(&of->is_driven, memory_order_relaxed))
        atomic_store(&of->is_driven, true);
}

size_t ucx_progress(void *state)
{
    ucx *of = state;
    if (pthread_mutex_trylock(&of->lock) != 0)
        return 0; /* the service makes progress */
    ucx_drive(of);
    size_t events = ucx_turn(of);
    pthread_mutex_unlock(&of->lock);
    if (events > 0)
        of->host->notify(of->host->context);
    ucx_report_fault(of);
    return events;
}

/* Sleep until the worker has something to do. With the lock held, which it releases meanwhile. */
static void ucx_sleep(ucx *of)
{
    ucs_status_t armed = ucx_calls.ucp_worker_arm(of->worker);
    pthread_mutex_unlock(&of->lock);
    struct pollfd event = {of->event, POLLIN, 0};
    if (armed == UCS_OK)
        poll(&event, 1, NAP_MS);
    else
        sched_yield();
    pthread_mutex_lock(&of->lock);
}

/* Drop what a key has of the endpoint. */
static bool forget_endpoint(ucx_entry *entry, void *context)
{
    ucx_key *key = (ucx_key *)(void *)entry;
    (void)context;
    if (key->rkey)
        ucx_calls.ucp_rkey_destroy(key->rkey);
    key->rkey = NULL;
    return true;
}

void ucx_disconnect(ucx *of, int rank)
{
    ucx_peer *peer = &of->peers[rank];
    if (!peer->endpoint)
        return;
    ucx_table_filter(&peer->keys, forget_endpoint, NULL);
    ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                  .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = ucx_calls.ucp_ep_close_nbx(peer->endpoint, &params);
    peer->endpoint = NULL;
    if (!peer->has_failed)
        peer->failure = UCS_ERR_CANCELED;
    peer->has_failed = true;
    while (UCS_PTR_IS_PTR(request) && ucx_calls.ucp_request_check_status(request) == UCS_INPROGRESS)
        ucx_calls.ucp_worker_progress(of->worker);
    if (UCS_PTR_IS_PTR(request))
        ucx_calls.ucp_request_free(request);
    ucx_messages_drop(of, rank);
}

static bool wait_is_over(const ucx_peer *peer, ucx_aim aim, const ucx_key *key)
{
    switch (aim) {
    case UCX_SETTLED:
        return peer->pending == 0;
    case UCX_FLUSHED:
        return peer->pending == 0 && peer->flushed >= peer->flush_to;
    case UCX_KEY_ANSWERED:
        return key->is_answered;
    case UCX_HAS_ROOM:
        return ucx_messages_have_room(peer);
    }
    return true;
}

banyan_status ucx_wait(ucx *of, int rank, ucx_aim aim, const ucx_key *key, const char *text)
{
    const ucx_peer *peer = &of->peers[rank];
    module_wait wait;
    banyan_status status = BANYAN_OK;
    size_t events = 0, idle = 0;
    bool waits = false;
    pthread_mutex_lock(&of->lock);
    if (aim == UCX_SETTLED || aim == UCX_FLUSHED)
        status = ucx_messages_release(of, rank);
    while (status == BANYAN_OK && !peer->has_failed && !wait_is_over(peer, aim, key)) {
        ucx_drive(of);
        size_t some = ucx_turn(of);
        events += some;
        idle = some > 0 ? 0 : idle + 1;
        if (idle < TURNS_BEFORE_SLEEP)
            continue;
        idle = 0;
        if (!waits)
            wait = banyan_module_wait_begin(of->world);
        waits = true;
        ucx_sleep(of);
        pthread_mutex_unlock(&of->lock);
        ucx_report_fault(of);
        status = banyan_module_wait_on(&wait, rank, text);
        pthread_mutex_lock(&of->lock);
        if (status != BANYAN_OK)
            break;
    }
    bool has_failed = peer->has_failed;
    if (status != BANYAN_OK || has_failed)
        ucx_disconnect(of, rank);
    pthread_mutex_unlock(&of->lock);
    if (waits)
        banyan_module_wait_end(&wait);
    if (events > 0)
        of->host->notify(of->host->context);
    ucx_report_fault(of);
    return status == BANYAN_OK && has_failed ? ucx_peer_lost(of, rank) : status;
}
