#include "reshard/run/checksum.h"

#include <stdlib.h>
#include <xxhash.h>

#include "core/error.h"

#define CHUNK_BYTES 16384

/* Pack strided elements chunk by chunk, so that the sum does not depend on the strides. */
banyan_status checksum_view(const strided_view *view, uint64_t *sum)
{
    if (strided_view_is_dense(view)) {
        *sum = XXH3_64bits(view->data, view->elems * view->elem_bytes);
        return BANYAN_OK;
    }
    uint64_t chunk_elems = view->elem_bytes < CHUNK_BYTES ? CHUNK_BYTES / view->elem_bytes : 1;
    char *chunk = malloc(chunk_elems * view->elem_bytes);
    XXH3_state_t *state = XXH3_createState();
    banyan_status status = BANYAN_OK;
    if (!chunk || !state) {
        status = error_no_memory(CHUNK_BYTES, "a checksum");
        goto free_state;
    }
    XXH3_64bits_reset(state);
    for (uint64_t first = 0; first < view->elems; first += chunk_elems) {
        uint64_t left = view->elems - first, count = left < chunk_elems ? left : chunk_elems;
        strided_pack(chunk, view, first, count);
        XXH3_64bits_update(state, chunk, count * view->elem_bytes);
    }
    *sum = XXH3_64bits_digest(state);
free_state:
    XXH3_freeState(state);
    free(chunk);
    return status;
}
