/* The end of memory that peers may put to. */
#include "ucx/ucx.h"

/* Drop all endpoints and the worker. Without the worker UCX takes nothing from peers any more; an
 * endpoint that is closed may still receive. */
static void forget_peers(ucx *of)
{
    ucx_service_stop(of);
    pthread_mutex_lock(&of->lock);
    for (int rank = 0; rank < of->size; rank++) {
        ucx_disconnect(of, rank);
        of->peers[rank].has_failed = true;
    }
    if (of->worker)
        ucx_calls.ucp_worker_destroy(of->worker);
    of->worker = NULL;
    pthread_mutex_unlock(&of->lock);
}

/* When the world has ended, a peer may not know it yet, and still put into this memory. */
void ucx_forget(void *state, uint32_t kind, uint64_t id)
{
    ucx *of = state;
    pthread_mutex_lock(&of->lock);
    bool is_mapped = ucx_find_mapping(of, kind, id) != NULL;
    pthread_mutex_unlock(&of->lock);
    if (is_mapped && banyan_world_check(of->world) != BANYAN_OK)
        forget_peers(of);
    ucx_unmap(of, kind, id);
}
