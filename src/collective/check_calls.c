/* BANYAN_CHECK_CALLS=1: compare every call on all ranks before anything moves. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/comm.h"
#include "core/error.h"
#include "world/control.h"

/* A call in the form that ranks exchange, and compare as bytes: without padding. */
typedef struct call_signature {
    uint64_t message_bytes;
    uint64_t input_offset, output_offset; /* offsets in registered buffers */
    uint32_t kind, op, root, shift, dtype;
    uint16_t in_place, scaled;
    uint32_t input, output; /* 1 + the registered buffer's number; 0: ordinary memory */
} call_signature;

_Static_assert(sizeof(call_signature) == 56, "a signature has padding");

static uint32_t collective_check_calls_number_of(const banyan_comm *comm,
                                                 const banyan_memory *memory)
{
    for (size_t i = 0; i < comm->registered.count; i++) {
        if (comm->registered.data[i] == memory)
            return (uint32_t)i + 1;
    }
    return 0;
}

static call_signature signature_of(const banyan_comm *comm, const call *made)
{
    return (call_signature){
        .message_bytes = made->message_bytes,
        .input_offset = made->input_offset,
        .output_offset = made->output_offset,
        .kind = (uint32_t)made->kind,
        .op = (uint32_t)made->op,
        .root = (uint32_t)made->root,
        .shift = (uint32_t)made->shift,
        .in_place = made->in_place,
        .scaled = made->scaled,
        .dtype =
            (uint32_t)made->dtype.code << 24 | (uint32_t)made->dtype.bits << 16 | made->dtype.lanes,
        .input = collective_check_calls_number_of(comm, made->input),
        .output = collective_check_calls_number_of(comm, made->output),
    };
}

static void collective_check_calls_describe(const call_signature *of, char *text, size_t bytes)
{
    DLDataType dtype = {(uint8_t)(of->dtype >> 24), (uint8_t)(of->dtype >> 16),
                        (uint16_t)of->dtype};
    snprintf(text, bytes,
             "%s of %" PRIu64 " bytes of %s (%s%s, root %" PRIu32 ", shift %" PRIu32 ", %s, from "
             "buffer %" PRIu32 " + %" PRIu64 " to %" PRIu32 " + %" PRIu64 ")",
             banyan_collective_kind_name((banyan_collective_kind)of->kind), of->message_bytes,
             banyan_dtype_name(dtype), of->scaled ? "scaled " : "",
             banyan_reduce_op_name((banyan_reduce_op)of->op), of->root, of->shift,
             of->in_place ? "in place" : "not in place", of->input, of->input_offset, of->output,
             of->output_offset);
}

banyan_status comm_check_call(banyan_comm *comm, const call *mine, banyan_status status)
{
    call_signature own = signature_of(comm, mine);
    void *gathered;
    RETURN_IF_FAILED(control_enter(comm->world));
    status =
        control_gather(comm->world, status, &own, sizeof own, "a comparison of calls", &gathered);
    const call_signature *all = gathered;
    for (int rank = 1; rank < comm->ranks && status == BANYAN_OK; rank++) {
        if (memcmp(&all[rank], &all[0], sizeof own) == 0)
            continue;
        char first[256], other[256];
        collective_check_calls_describe(&all[0], first, sizeof first);
        collective_check_calls_describe(&all[rank], other, sizeof other);
        status = control_fail_together(
            comm->world, error_set(BANYAN_ERR_MISMATCH, "rank 0 calls %s, but rank %d calls %s",
                                   first, rank, other));
    }
    free(gathered);
    return status;
}
