/* Endpoints of peers. UCX reports an endpoint's error in a callback, inside its progress. */
#include <stdlib.h>
#include <time.h>

#include "ucx/ucx.h"

/* How long the world may take to say why a peer has gone. */
#define REASON_TRIES 50
#define REASON_TRY_NS 20000000
/* The longest put that goes in messages where UCX puts without the owner's processor. */
#define MESSAGE_MOST ((size_t)64 << 10)
#define LATENCY_OF_TCP_S 3e-6

banyan_status ucx_failed(const ucx *of, const char *call, ucs_status_t status)
{
    return banyan_error_set(status == UCS_ERR_NO_MEMORY ? BANYAN_ERR_NO_MEMORY : BANYAN_ERR_SYSTEM,
                            "ucx: %s failed at rank %d: %s", call, of->rank,
                            ucx_calls.ucs_status_string(status));
}

banyan_status ucx_peer_lost(ucx *of, int peer)
{
    for (int i = 0; i < REASON_TRIES; i++) {
        banyan_status status = banyan_world_check(of->world);
        if (status != BANYAN_OK)
            return status;
        nanosleep(&(struct timespec){0, REASON_TRY_NS}, NULL);
    }
    const char *why = ucx_calls.ucs_status_string(of->peers[peer].failure);
    const char *allowed = getenv("UCX_TLS");
    if (!of->peers[peer].is_unreachable)
        return banyan_error_set(BANYAN_ERR_PEER_LOST, "ucx: rank %d has lost rank %d: %s", of->rank,
                                peer, why);
    return banyan_error_set(
        BANYAN_ERR_SYSTEM,
        "ucx: rank %d cannot connect to rank %d: %s; UCX needs a transport that "
        "notices lost peers, such as tcp, and UCX_TLS is %s",
        of->rank, peer, why, allowed ? allowed : "not set");
}

static void endpoint_failed(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    ucx_peer *peer = argument;
    peer->has_failed = true;
    peer->failure = status;
}

/* Over TCP, UCX copies the data of its puts in parts of 8 KiB, and acknowledges them: messages are
 * faster at every size. UCX 1.13.1 and 1.22.0 estimate 11 us for a byte over TCP, and less than
 * 2 us over other networks. */
static size_t message_most(ucp_ep_h endpoint)
{
    ucp_ep_evaluate_perf_param_t params = {.field_mask = UCP_EP_PERF_PARAM_FIELD_MESSAGE_SIZE,
                                           .message_size = 1};
    ucp_ep_evaluate_perf_attr_t estimate = {.field_mask = UCP_EP_PERF_ATTR_FIELD_ESTIMATED_TIME};
    ucs_status_t status = ucx_calls.ucp_ep_evaluate_perf(endpoint, &params, &estimate);
    return status == UCS_OK && estimate.estimated_time > LATENCY_OF_TCP_S ? SIZE_MAX : MESSAGE_MOST;
}

/* Some versions of UCX connect at once, and so find that the peer's process has gone. */
static banyan_status connect_failed(ucx *of, int rank, ucs_status_t status)
{
    if (status == UCS_ERR_NO_MEMORY)
        return ucx_failed(of, "ucp_ep_create", status);
    of->peers[rank].is_unreachable = true;
    of->peers[rank].failure = status;
    return banyan_error_set(BANYAN_ERR_PEER_LOST, "ucx: rank %d cannot connect to rank %d: %s",
                            of->rank, rank, ucx_calls.ucs_status_string(status));
}

banyan_status ucx_connect(ucx *of, int rank, ucp_ep_h *endpoint)
{
    ucx_peer *peer = &of->peers[rank];
    if (!peer->endpoint && !peer->has_failed) {
        ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
            .address = (const ucp_address_t *)(of->addresses + (size_t)rank * of->address_bytes),
            .err_mode = UCP_ERR_HANDLING_MODE_PEER,
            .err_handler = {endpoint_failed, peer},
        };
        ucs_status_t status = ucx_calls.ucp_ep_create(of->worker, &params, &peer->endpoint);
        if (status != UCS_OK) {
            peer->endpoint = NULL;
            return connect_failed(of, rank, status);
        }
        peer->is_unreachable = false;
        peer->message_most = message_most(peer->endpoint);
    }
    if (peer->has_failed)
        return banyan_error_set(BANYAN_ERR_PEER_LOST, "ucx: rank %d has lost rank %d: %s", of->rank,
                                rank, ucx_calls.ucs_status_string(peer->failure));
    *endpoint = peer->endpoint;
    return BANYAN_OK;
}

static void operation_completed(void *request, ucs_status_t status, void *argument)
{
    ucx_peer *peer = argument;
    if (status != UCS_OK && !peer->has_failed) {
        peer->has_failed = true;
        peer->failure = status;
    }
    peer->pending--;
    ucx_calls.ucp_request_free(request);
}

ucp_request_param_t ucx_tracked(ucx *of, int peer)
{
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.send = operation_completed},
        .user_data = &of->peers[peer],
    };
}

banyan_status ucx_track(ucx *of, int rank, ucs_status_ptr_t request, const char *call)
{
    if (UCS_PTR_IS_ERR(request))
        return banyan_error_set(BANYAN_ERR_PEER_LOST, "ucx: %s of rank %d to rank %d failed: %s",
                                call, of->rank, rank,
                                ucx_calls.ucs_status_string(UCS_PTR_STATUS(request)));
    of->peers[rank].pending += UCS_PTR_IS_PTR(request);
    return BANYAN_OK;
}
