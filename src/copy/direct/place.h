/* Where tensors lie, said so that a peer can reach them: symmetric memory, or ordinary memory that
 * is registered for as long as the schedule lives. */
#ifndef COPY_DIRECT_PLACE_H
#define COPY_DIRECT_PLACE_H

#include "copy/direct/moves.h"
#include "core/containers/array.h"
#include "core/containers/bytes.h"

/* A tensor in memory of this rank or a peer. `view.data` is not an address but element 0's offset
 * into what the handle names; handle.kind is 0 for memory that only its owner reaches. */
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
    /* On a device: where peers write what no peer can write in its place, and how it gets there. */
    banyan_memory *landing;
    direct_moves landed;
} direct_places;

/* Room for the places of a batch, and none found yet. */
banyan_status direct_places_make(banyan_world *world, const banyan_copy_batch *batch,
                                 direct_places *places);
/* False for what does not lie in symmetric memory, whole. */
bool direct_place_find_symmetric(banyan_world *world, direct_place *place);

/* Find all operations with other ranks; sources in ordinary memory are registered. Those near each
 * other share a registration, so that many small tensors are read in few calls. */
banyan_status direct_places_find(banyan_world *world, const banyan_copy_batch *batch,
                                 direct_places *places);
/* The same on a device, where whoever sends writes: sources may lie anywhere in its memory, and
 * have no place that a peer is told. Destinations that are not symmetric are registered, and have
 * places in a landing where CUDA lets no peer map them. Collective. */
banyan_status direct_places_find_on_device(banyan_world *world, DLDevice device,
                                           const banyan_copy_batch *batch, direct_places *places);
/* Unregister; the places themselves go too. */
void direct_places_free(direct_places *places);

bool direct_place_is_symmetric(const direct_place *place);

void direct_place_write(const direct_place *place, bytes_writer *note);
/* What a peer wrote about a tensor of `elems` elements. FORMAT for anything that reaches out of its
 * handle or is no tensor of that size. */
banyan_status direct_place_read(const void *note, size_t bytes, int peer, uint64_t elems,
                                size_t elem_bytes, direct_place *place);

#endif
