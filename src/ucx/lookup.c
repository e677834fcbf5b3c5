/* Keys of peers' memory. A rank asks the owner for the key of a memory once, when it first puts or
 * gets there. */
#include <inttypes.h>
#include <stdlib.h>

#include "ucx/ucx.h"

#define SMALLEST_TABLE 16

static banyan_status keys_grow(const ucx *of, ucx_peer *peer)
{
    ucx_peer larger = {.key_capacity =
                           peer->key_capacity ? 2 * peer->key_capacity : SMALLEST_TABLE};
    larger.keys = calloc(larger.key_capacity, sizeof *larger.keys);
    if (!larger.keys)
        return ucx_no_memory(of, larger.key_capacity * sizeof *larger.keys);
    for (size_t i = 0; i < peer->key_capacity; i++)
        if (peer->keys[i])
            *ucx_key_place(&larger, peer->keys[i]->kind, peer->keys[i]->id) = peer->keys[i];
    free(peer->keys);
    peer->keys = larger.keys;
    peer->key_capacity = larger.key_capacity;
    return BANYAN_OK;
}

/* Add an entry for memory of a peer, and ask the peer. With the lock held. */
static banyan_status key_ask(ucx *of, ucx_peer *peer, const banyan_memory_handle *handle,
                             ucx_key **asked)
{
    banyan_status status = BANYAN_OK;
    if (2 * (peer->key_count + 1) > peer->key_capacity)
        status = keys_grow(of, peer);
    if (status != BANYAN_OK)
        return status;
    ucx_key *key = calloc(1, sizeof *key);
    if (!key)
        return ucx_no_memory(of, sizeof *key);
    key->id = handle->id;
    key->kind = handle->kind;
    ucx_key_message question = {.rank = of->rank, .kind = handle->kind, .id = handle->id};
    status = ucx_send(of, handle->rank, UCX_QUESTION, &question, sizeof question, NULL, 0);
    if (status != BANYAN_OK) {
        free(key);
        return status;
    }
    *ucx_key_place(peer, handle->kind, handle->id) = key;
    peer->key_count++;
    *asked = key;
    return BANYAN_OK;
}

/* Unpack the key that has arrived. With the lock held. */
static banyan_status key_unpack(ucx *of, int rank, ucx_key *key)
{
    ucp_ep_h endpoint;
    banyan_status connected = ucx_connect(of, rank, &endpoint);
    if (connected != BANYAN_OK)
        return connected;
    ucs_status_t status = ucx_calls.ucp_ep_rkey_unpack(endpoint, key->answer, &key->rkey);
    return status == UCS_OK ? BANYAN_OK : ucx_failed(of, "ucp_ep_rkey_unpack", status);
}

/* Check the handle against its memory as the owner described it. */
static banyan_status key_check(const ucx *of, const banyan_memory_handle *handle,
                               const ucx_key *key)
{
    if (key->status != BANYAN_OK)
        return banyan_error_set(key->status, "ucx: rank %d: %s", handle->rank,
                                key->answer ? key->answer : "out of memory");
    uint64_t address = handle->address != 0 ? handle->address : key->address;
    if (address < key->address || address - key->address > key->bytes ||
        handle->bytes > key->bytes - (address - key->address))
        return banyan_error_set(BANYAN_ERR_INVALID,
                                "ucx: rank %d: %" PRIu64 " bytes at %#" PRIx64
                                " extend beyond %" PRIu64 " bytes of rank %d at %#" PRIx64,
                                of->rank, handle->bytes, address, key->bytes, handle->rank,
                                key->address);
    return BANYAN_OK;
}

banyan_status ucx_find_key(ucx *of, const banyan_remote *remote, uint64_t *address,
                           const ucx_key **found)
{
    const banyan_memory_handle *handle = &remote->handle;
    ucx_peer *peer = &of->peers[handle->rank];
    banyan_status status = BANYAN_OK;
    pthread_mutex_lock(&of->lock);
    ucx_key *key = peer->key_capacity > 0 ? *ucx_key_place(peer, handle->kind, handle->id) : NULL;
    if (!key)
        status = key_ask(of, peer, handle, &key);
    if (key && !key->is_answered) {
        pthread_mutex_unlock(&of->lock);
        status = ucx_wait(of, handle->rank, UCX_KEY_ANSWERED, key, "for the key of its memory");
        pthread_mutex_lock(&of->lock);
    }
    if (status == BANYAN_OK)
        status = key_check(of, handle, key);
    if (status == BANYAN_OK && !key->rkey && key->answer_bytes > 0)
        status = key_unpack(of, handle->rank, key);
    if (status == BANYAN_OK) {
        *address = (handle->address != 0 ? handle->address : key->address) + remote->offset;
        *found = key;
    }
    pthread_mutex_unlock(&of->lock);
    return status;
}
