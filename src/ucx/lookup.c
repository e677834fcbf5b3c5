/* Keys of peers' memory. A rank asks the owner for the key of a memory once, when it first puts or
 * gets there. The owner reports when the memory ends. */
#include <inttypes.h>
#include <stdlib.h>

#include "ucx/ucx.h"

/* Keys of ended memory are dropped when they are so many, and a quarter of all. */
#define ENDED_MOST 64

static bool key_stays(ucx_entry *entry, void *context)
{
    ucx_key *key = (ucx_key *)(void *)entry;
    ucx_peer *peer = context;
    if (!key->has_ended || key->users > 0)
        return true;
    ucx_key_free(key);
    peer->ended--;
    return false;
}

/* Operations under way may use any key. With the lock held. */
static void keys_sweep(ucx_peer *peer)
{
    if (peer->ended >= ENDED_MOST && peer->ended >= peer->keys.count / 4 && peer->pending == 0)
        ucx_table_filter(&peer->keys, key_stays, peer);
}

/* Add an entry for memory of a peer, and ask the peer. With the lock held. */
static banyan_status key_ask(ucx *of, ucx_peer *peer, const banyan_memory_handle *handle,
                             ucx_key **asked)
{
    keys_sweep(peer);
    ucx_key *key = calloc(1, sizeof *key);
    if (!key)
        return ucx_no_memory(of, sizeof *key);
    key->entry = (ucx_entry){.id = handle->id, .kind = handle->kind};
    if (!ucx_table_add(&peer->keys, &key->entry)) {
        free(key);
        return ucx_no_memory(of, 2 * peer->keys.count * sizeof(ucx_entry *));
    }
    ucx_key_message question = {.rank = of->rank, .kind = handle->kind, .id = handle->id};
    banyan_status status =
        ucx_send(of, handle->rank, UCX_QUESTION, &question, sizeof question, NULL, 0);
    if (status != BANYAN_OK) {
        ucx_table_remove(&peer->keys, &key->entry);
        free(key);
        return status;
    }
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

banyan_status ucx_find_key(ucx *of, const banyan_remote *remote, uint64_t *address, ucx_key **found)
{
    const banyan_memory_handle *handle = &remote->handle;
    ucx_peer *peer = &of->peers[handle->rank];
    banyan_status status = BANYAN_OK;
    pthread_mutex_lock(&of->lock);
    ucx_key *key = (ucx_key *)(void *)ucx_table_find(&peer->keys, handle->kind, handle->id);
    if (!key)
        status = key_ask(of, peer, handle, &key);
    if (key)
        key->users++;
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
    } else if (key) {
        key->users--;
    }
    pthread_mutex_unlock(&of->lock);
    return status;
}
