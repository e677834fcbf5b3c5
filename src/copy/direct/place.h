/* Locations of tensors, described so that a peer can reach them: symmetric memory, or ordinary
 * memory that is registered as long as the schedule lives. */
#ifndef COPY_DIRECT_PLACE_H
#define COPY_DIRECT_PLACE_H

#include "copy/direct/moves.h"
#include "core/containers.h"

/* A tensor in memory of this rank or a peer. `view.data` is not an address but element 0's offset
 * into the handle's memory; handle.kind is 0 for memory that only its owner reaches. */
typedef struct direct_place {
    banyan_memory_handle handle;
    int64_t offset;
    strided_view view;
} direct_place;

/* The places of a batch's operations, by index. */
typedef struct direct_places {
    banyan_world *world;
    direct_place *sends, *recvs;
    ARRAY(banyan_memory_handle) windows; /* registered here */
    /* On a device: receives memory that no peer can map, and the moves from it to its place. */
    banyan_memory *landing;
    direct_moves landed;
} direct_places;

/* True if this rank reaches the peer by puts, but does not map its memory. */
bool direct_is_remote(banyan_transport *transport, int peer);

/* Allocate the places of a batch, none of them found yet. */
banyan_status direct_places_make(banyan_world *world, const banyan_copy_batch *batch,
                                 direct_places *places);
/* False for memory that does not lie entirely in symmetric memory. */
bool direct_place_find_symmetric(banyan_world *world, direct_place *place);

/* Find all operations with other ranks, and register ordinary memory that a peer accesses: sources
 * that a peer reads, which maps memory of this rank, and destinations into which another one puts.
 * Places near each other share a registration, so that peers need few calls and keys. */
banyan_status direct_places_find(banyan_world *world, banyan_transport *transport,
                                 const banyan_copy_batch *batch, direct_places *places);
/* End the registrations. */
void direct_places_withdraw(direct_places *places);
/* Find the places on a device, where the sender writes: sources may lie anywhere in its memory, and
 * have no place for a peer. Destinations that are not symmetric are registered; where CUDA lets no
 * peer map them, they get places in a landing. Collective. */
banyan_status direct_places_find_on_device(banyan_world *world, DLDevice device,
                                           const banyan_copy_batch *batch, direct_places *places);
/* Unregister and free the places. */
void direct_places_free(direct_places *places);

bool direct_place_is_symmetric(const direct_place *place);

void direct_place_write(const direct_place *place, bytes_writer *note);
/* Read a peer's description of a tensor of `elems` elements. FORMAT for a tensor that reaches out
 * of its handle, or is not of that size. */
banyan_status direct_place_read(const void *note, size_t bytes, int peer, uint64_t elems,
                                size_t elem_bytes, direct_place *place);

#endif
