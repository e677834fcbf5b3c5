#include "mixed/check_calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "world/control.h"

/* A call in the form that ranks exchange. */
typedef struct signature {
    uint64_t elems;
    uint32_t op, mode, in_place;
    uint32_t unused; /* explicit padding, so that all bytes are set */
} signature;

banyan_status check_calls_begin(banyan_mixed *mixed)
{
    const char *said = getenv("BANYAN_CHECK_CALLS");
    uint8_t checks = said && strcmp(said, "1") == 0;
    RETURN_IF_FAILED(banyan_world_broadcast(mixed->world, &checks, sizeof checks, 0));
    mixed->checks_calls = checks;
    return BANYAN_OK;
}

static void mixed_check_calls_describe(const banyan_mixed *mixed, const signature *of, char *text,
                                       size_t bytes)
{
    snprintf(text, bytes, "%s (%s) of %" PRIu64 " elements of %s in b rows%s",
             banyan_mixed_op_name((banyan_mixed_op)of->op),
             banyan_mixed_mode_name((banyan_mixed_mode)of->mode), of->elems,
             banyan_dtype_name(mixed->setup.dtype), of->in_place ? ", in place" : "");
}

static banyan_status mixed_check_calls_compare(const banyan_mixed *mixed, const signature *all)
{
    char first[192], other[192];
    for (int rank = 1; rank < mixed->ranks; rank++) {
        if (memcmp(&all[rank], &all[0], sizeof *all) == 0)
            continue;
        mixed_check_calls_describe(mixed, &all[0], first, sizeof first);
        mixed_check_calls_describe(mixed, &all[rank], other, sizeof other);
        return error_set(BANYAN_ERR_MISMATCH, "rank 0 calls %s, but rank %d calls %s", first, rank,
                         other);
    }
    return BANYAN_OK;
}

banyan_status check_call_of_all(banyan_mixed *mixed, const mixed_call *mine, banyan_status checked)
{
    banyan_world *world = mixed->setup.worlds[MIXED_WORLD];
    signature own = {mine->elems, (uint32_t)mine->op, (uint32_t)mine->mode,
                     mine->elems > 0 && mine->input == mine->output, 0};
    void *all;
    RETURN_IF_FAILED(control_enter(world));
    banyan_status status =
        control_gather(world, checked, &own, sizeof own, "a comparison of calls", &all);
    if (status == BANYAN_OK)
        status = control_fail_together(world, mixed_check_calls_compare(mixed, all));
    free(all);
    return status;
}
