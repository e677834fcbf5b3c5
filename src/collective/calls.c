/* The collectives of the public interface: check the arguments, find the plan, run it. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "channel/reduce.h"
#include "collective/comm.h"
#include "core/error.h"
#include "execute/executor.h"
#include "world/control.h"

/* A call's buffers on this rank, and for calls in place the block of one that is the other. */
typedef struct buffers {
    const void *input;
    void *output;
    uint64_t input_bytes, output_bytes;
    uint64_t input_at, output_at; /* bytes: in place, the offset of the buffer in the other */
    const void *copied; /* input that is copied to the output before a run in place; NULL: none */
    double factor;      /* of a scaled sum */
} buffers;

static banyan_status check_element(const banyan_comm *comm, const char *name, const call *wanted)
{
    DLDataType dtype = wanted->dtype;
    if (banyan_dtype_bytes(dtype) == 0)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: %s of elements of %d bits × %d, which do not fill whole bytes",
                         comm->rank, name, dtype.bits, dtype.lanes);
    if ((unsigned)wanted->op > BANYAN_AVG)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: %s with reduction %d, which is not a reduction", comm->rank,
                         name, (int)wanted->op);
    return BANYAN_OK;
}

static bool takes_integers(DLDataType dtype)
{
    return dtype.code == kDLInt || dtype.code == kDLUInt;
}

/* Reductions of plans check the type when they run; scaling comes before. */
static banyan_status check_scaling(const banyan_comm *comm, const char *name, const call *wanted,
                                   double factor)
{
    DLDataType dtype = wanted->dtype;
    if (!wanted->scaled && wanted->op != BANYAN_AVG)
        return BANYAN_OK;
    if (!reduce_find(dtype, BANYAN_SUM))
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: %s, and elements of type %s (code %d, %d bits × %d) cannot be "
                         "reduced",
                         comm->rank, name, banyan_dtype_name(dtype), dtype.code, dtype.bits,
                         dtype.lanes);
    if (!wanted->scaled || !takes_integers(dtype))
        return BANYAN_OK;
    double most = ldexp(1, dtype.code == kDLInt ? dtype.bits - 1 : dtype.bits);
    double least = dtype.code == kDLInt ? -most : 0;
    if (factor >= least && factor < most && factor == trunc(factor))
        return BANYAN_OK;
    return error_set(
        BANYAN_ERR_INVALID,
        "rank %d: %s of %s scaled by %g: a factor of integers is a value of their type", comm->rank,
        name, banyan_dtype_name(dtype), factor);
}

static banyan_status calls_bytes_of(const banyan_comm *comm, const char *name, size_t count,
                                    int blocks, DLDataType dtype, uint64_t *bytes)
{
    uint64_t elems, product;
    if (__builtin_mul_overflow((uint64_t)count, (uint64_t)blocks, &elems) ||
        __builtin_mul_overflow(elems, (uint64_t)banyan_dtype_bytes(dtype), &product) ||
        product > PTRDIFF_MAX)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: %s of %zu elements for each of %d ranks is more than any memory",
                         comm->rank, name, count, blocks);
    *bytes = product;
    return BANYAN_OK;
}

static bool calls_overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return first < second + b_bytes && second < first + a_bytes;
}

static banyan_status calls_check_buffers(const banyan_comm *comm, const char *name,
                                         const buffers *given, bool *in_place)
{
    if (!given->input || !given->output)
        return error_set(BANYAN_ERR_INVALID, "rank %d: %s without an %s buffer", comm->rank, name,
                         given->input ? "output" : "input");
    *in_place =
        (uintptr_t)given->input - given->input_at == (uintptr_t)given->output - given->output_at;
    if (!*in_place &&
        calls_overlap(given->input, given->input_bytes, given->output, given->output_bytes))
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: %s from %" PRIu64 " bytes at %p to %" PRIu64
                         " bytes at %p: they overlap, but not as in place",
                         comm->rank, name, given->input_bytes, given->input, given->output_bytes,
                         given->output);
    return BANYAN_OK;
}

/* Return the registered buffer that holds the whole buffer; NULL: ordinary memory. */
static const banyan_memory *registered_holder(const banyan_comm *comm, const void *address,
                                              uint64_t bytes)
{
    for (size_t i = 0; i < comm->registered.count; i++) {
        const banyan_memory *memory = comm->registered.data[i];
        uintptr_t start = (uintptr_t)banyan_memory_local(memory), at = (uintptr_t)address;
        uint64_t room = banyan_memory_bytes(memory);
        if (at >= start && at - start <= room && bytes <= room - (at - start))
            return memory;
    }
    return NULL;
}

/* Return the offset of the whole buffer. In place, `address` may be a block of it. */
static uint64_t offset_in(const banyan_memory *memory, const void *address, uint64_t block_at)
{
    return memory
               ? (uint64_t)((uintptr_t)address - (uintptr_t)banyan_memory_local(memory)) - block_at
               : 0;
}

/* Return the memory of the communicator for scaled inputs. Buffers that became too small remain for
 * the graphs that use them; together they are smaller than the latest. Collective if it grows. */
static banyan_status scaled_room(banyan_comm *comm, uint64_t bytes, banyan_memory **room)
{
    size_t count = comm->scaled.count;
    uint64_t capacity = UINT64_C(64) << 10;
    if (count > 0 && banyan_memory_bytes(comm->scaled.data[count - 1]) >= bytes) {
        *room = comm->scaled.data[count - 1];
        return BANYAN_OK;
    }
    while (capacity < bytes && capacity <= UINT64_MAX / 2)
        capacity *= 2;
    capacity = capacity < bytes ? bytes : capacity;
    RETURN_IF_FAILED(control_enter(comm->world));
    banyan_status status = array_reserve(&comm->scaled, 1) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(control_agree(comm->world, status));
    RETURN_IF_FAILED(banyan_memory_alloc_on(comm->world, comm->executor->device, capacity, room));
    comm->scaled.data[comm->scaled.count++] = *room;
    return BANYAN_OK;
}

/* Place a call's scaled input: in the output where that is as long, else in the communicator's
 * memory. Then the plan's input is there. */
static banyan_status scaled_place(banyan_comm *comm, call *wanted, buffers *given)
{
    bool has_result = wanted->kind != BANYAN_REDUCE || wanted->root == comm->rank;
    banyan_memory *room = NULL;
    if (wanted->kind == BANYAN_REDUCE ||
        (wanted->kind == BANYAN_REDUCESCATTER && !wanted->in_place))
        RETURN_IF_FAILED(scaled_room(comm, wanted->message_bytes, &room));
    if (wanted->kind == BANYAN_ALLREDUCE) {
        wanted->in_place = true;
        wanted->input = wanted->output;
        wanted->input_offset = wanted->output_offset;
        given->input = given->output;
    } else if (wanted->kind == BANYAN_REDUCESCATTER && !wanted->in_place) {
        wanted->input = room;
        wanted->input_offset = 0;
        given->input = banyan_memory_local(room);
    } else if (!has_result) {
        given->output = banyan_memory_local(room);
        given->input = given->output;
    }
    return BANYAN_OK;
}

/* Sums of scaled inputs are sums, of which the plans know no more. */
static banyan_status scaled_run(banyan_comm *comm, const call *made, const buffers *with,
                                void *stream)
{
    call wanted = *made;
    buffers given = *with;
    const void *source = given.copied ? given.copied : given.input;
    uint64_t elems = given.input_bytes / banyan_dtype_bytes(wanted.dtype);
    uint64_t results = given.output_bytes / banyan_dtype_bytes(wanted.dtype);
    bool divides = wanted.op == BANYAN_AVG && takes_integers(wanted.dtype);
    engine_scaling by = {.factor = wanted.scaled ? (float)given.factor : 1.0f / (float)comm->ranks,
                         .divides = divides};
    by.whole = divides ? comm->ranks : takes_integers(wanted.dtype) ? (int64_t)given.factor : 0;
    wanted.op = BANYAN_SUM;
    wanted.scaled = false;
    if (comm->ranks == 1) {
        RETURN_IF_FAILED(
            executor_scale(comm->executor, given.output, source, elems, wanted.dtype, &by, stream));
        return control_check(comm->world);
    }
    if (divides && given.copied)
        RETURN_IF_FAILED(
            executor_copy(comm->executor, given.output, given.copied, given.input_bytes, stream));
    if (!divides)
        RETURN_IF_FAILED(scaled_place(comm, &wanted, &given));
    banyan_loaded_plan *loaded;
    RETURN_IF_FAILED(comm_prepare(comm, &wanted, &loaded));
    if (!divides)
        RETURN_IF_FAILED(executor_scale(comm->executor, (void *)(uintptr_t)given.input, source,
                                        elems, wanted.dtype, &by, stream));
    RETURN_IF_FAILED(banyan_loaded_plan_run(loaded, given.input, given.output, wanted.message_bytes,
                                            wanted.dtype, stream));
    if (divides && (wanted.kind != BANYAN_REDUCE || wanted.root == comm->rank))
        RETURN_IF_FAILED(executor_scale(comm->executor, given.output, given.output, results,
                                        wanted.dtype, &by, stream));
    return BANYAN_OK;
}

static banyan_status calls_run(banyan_comm *comm, call *wanted, const buffers *given, void *stream)
{
    /* Only the root knows where reduce's output lies. */
    if (comm->registered.count > 0 && wanted->kind != BANYAN_REDUCE) {
        wanted->input = registered_holder(comm, given->input, given->input_bytes);
        wanted->output = registered_holder(comm, given->output, given->output_bytes);
        wanted->input_offset = offset_in(wanted->input, given->input, given->input_at);
        wanted->output_offset = offset_in(wanted->output, given->output, given->output_at);
    }
    if (comm->check_calls)
        RETURN_IF_FAILED(comm_check_call(comm, wanted, BANYAN_OK));
    if (given->input_bytes == 0 || given->output_bytes == 0)
        return control_check(comm->world);
    if (wanted->scaled || wanted->op == BANYAN_AVG)
        return scaled_run(comm, wanted, given, stream);
    if (given->copied)
        RETURN_IF_FAILED(executor_copy(comm->executor, given->output, given->copied,
                                       given->input_bytes, stream));
    if (comm->ranks == 1) {
        if (given->input != given->output)
            RETURN_IF_FAILED(executor_copy(comm->executor, given->output, given->input,
                                           given->input_bytes, stream));
        return control_check(comm->world);
    }
    banyan_loaded_plan *loaded;
    RETURN_IF_FAILED(comm_prepare(comm, wanted, &loaded));
    return banyan_loaded_plan_run(loaded, given->input, given->output, wanted->message_bytes,
                                  wanted->dtype, stream);
}

/* `input_blocks` and `output_blocks`: numbers of blocks of `count` elements. */
static banyan_status call_check(const banyan_comm *comm, call *wanted, buffers *given, size_t count,
                                int input_blocks, int output_blocks)
{
    const char *name = banyan_collective_kind_name(wanted->kind);
    uint64_t block_bytes = 0;
    RETURN_IF_FAILED(check_element(comm, name, wanted));
    RETURN_IF_FAILED(check_scaling(comm, name, wanted, given->factor));
    RETURN_IF_FAILED(calls_bytes_of(comm, name, count, 1, wanted->dtype, &block_bytes));
    RETURN_IF_FAILED(
        calls_bytes_of(comm, name, count, input_blocks, wanted->dtype, &given->input_bytes));
    RETURN_IF_FAILED(
        calls_bytes_of(comm, name, count, output_blocks, wanted->dtype, &given->output_bytes));
    if (input_blocks < output_blocks)
        given->input_at = (uint64_t)comm->rank * block_bytes;
    if (output_blocks < input_blocks)
        given->output_at = (uint64_t)comm->rank * block_bytes;
    wanted->message_bytes = given->input_bytes;
    if (count > 0)
        RETURN_IF_FAILED(calls_check_buffers(comm, name, given, &wanted->in_place));
    if (!wanted->in_place)
        given->input_at = given->output_at = 0;
    return BANYAN_OK;
}

banyan_status comm_call_of(const banyan_comm *comm, banyan_collective_kind kind, const void *input,
                           void *output, size_t count, DLDataType dtype, call *wanted)
{
    buffers given = {.input = input, .output = output};
    *wanted = (call){.kind = kind, .op = BANYAN_SUM, .dtype = dtype};
    return call_check(comm, wanted, &given, count, kind == BANYAN_REDUCESCATTER ? comm->ranks : 1,
                      kind == BANYAN_ALLGATHER ? comm->ranks : 1);
}

/* Fail a call with a wrong argument. If calls are compared, the other ranks receive the error. */
static banyan_status calls_refuse(banyan_comm *comm, const call *wanted, banyan_status status)
{
    return comm->check_calls ? comm_check_call(comm, wanted, status) : status;
}

static banyan_status call_run(banyan_comm *comm, call *wanted, buffers *given, size_t count,
                              int input_blocks, int output_blocks, void *stream)
{
    banyan_status status = call_check(comm, wanted, given, count, input_blocks, output_blocks);
    if (status != BANYAN_OK)
        return calls_refuse(comm, wanted, status);
    return calls_run(comm, wanted, given, stream);
}

banyan_status banyan_comm_allreduce(banyan_comm *comm, const void *input, void *output,
                                    size_t count, DLDataType dtype, banyan_reduce_op op,
                                    void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_ALLREDUCE, .op = op, .dtype = dtype};
    buffers given = {.input = input, .output = output};
    return call_run(comm, &wanted, &given, count, 1, 1, stream);
}

banyan_status banyan_comm_allreduce_scaled(banyan_comm *comm, const void *input, void *output,
                                           size_t count, DLDataType dtype, double factor,
                                           void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_ALLREDUCE, .scaled = true, .dtype = dtype};
    buffers given = {.input = input, .output = output, .factor = factor};
    return call_run(comm, &wanted, &given, count, 1, 1, stream);
}

banyan_status banyan_comm_allgather(banyan_comm *comm, const void *input, void *output,
                                    size_t count, DLDataType dtype, void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_ALLGATHER, .dtype = dtype};
    buffers given = {.input = input, .output = output};
    return call_run(comm, &wanted, &given, count, 1, comm->ranks, stream);
}

banyan_status banyan_comm_reducescatter(banyan_comm *comm, const void *input, void *output,
                                        size_t count, DLDataType dtype, banyan_reduce_op op,
                                        void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_REDUCESCATTER, .op = op, .dtype = dtype};
    buffers given = {.input = input, .output = output};
    return call_run(comm, &wanted, &given, count, comm->ranks, 1, stream);
}

banyan_status banyan_comm_reducescatter_scaled(banyan_comm *comm, const void *input, void *output,
                                               size_t count, DLDataType dtype, double factor,
                                               void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_REDUCESCATTER, .scaled = true, .dtype = dtype};
    buffers given = {.input = input, .output = output, .factor = factor};
    return call_run(comm, &wanted, &given, count, comm->ranks, 1, stream);
}

banyan_status banyan_comm_alltoall(banyan_comm *comm, const void *input, void *output, size_t count,
                                   DLDataType dtype, void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_ALLTOALL, .dtype = dtype};
    buffers given = {.input = input, .output = output};
    return call_run(comm, &wanted, &given, count, comm->ranks, comm->ranks, stream);
}

/* Broadcast and reduce. Only the root knows whether its buffers are in place, so the plan is
 * always an in-place one. On the other ranks, the buffer in use stands for both. */
static banyan_status rooted_run(banyan_comm *comm, call *wanted, buffers *given, size_t count,
                                void *stream)
{
    if (wanted->root < 0 || wanted->root >= comm->ranks)
        return calls_refuse(
            comm, wanted,
            error_set(BANYAN_ERR_INVALID, "rank %d: %s with root %d between %d ranks", comm->rank,
                      banyan_collective_kind_name(wanted->kind), wanted->root, comm->ranks));
    banyan_status status = call_check(comm, wanted, given, count, 1, 1);
    if (status != BANYAN_OK)
        return calls_refuse(comm, wanted, status);
    given->copied = wanted->in_place ? NULL : given->input;
    given->input = given->output;
    wanted->in_place = count > 0;
    return calls_run(comm, wanted, given, stream);
}

banyan_status banyan_comm_broadcast(banyan_comm *comm, const void *input, void *output,
                                    size_t count, DLDataType dtype, int root, void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_BROADCAST, .root = root, .dtype = dtype};
    buffers given = {.input = comm->rank == root ? input : output, .output = output};
    return rooted_run(comm, &wanted, &given, count, stream);
}

/* Plans for reduce do not modify the input of ranks other than the root. */
banyan_status banyan_comm_reduce(banyan_comm *comm, const void *input, void *output, size_t count,
                                 DLDataType dtype, banyan_reduce_op op, int root, void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_REDUCE, .op = op, .root = root, .dtype = dtype};
    buffers given = {.input = input,
                     .output = comm->rank == root ? output : (void *)(uintptr_t)input};
    return rooted_run(comm, &wanted, &given, count, stream);
}

banyan_status banyan_comm_reduce_scaled(banyan_comm *comm, const void *input, void *output,
                                        size_t count, DLDataType dtype, double factor, int root,
                                        void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_REDUCE, .scaled = true, .root = root, .dtype = dtype};
    buffers given = {.input = input,
                     .output = comm->rank == root ? output : (void *)(uintptr_t)input,
                     .factor = factor};
    return rooted_run(comm, &wanted, &given, count, stream);
}

banyan_status banyan_comm_sendrecv(banyan_comm *comm, const void *input, void *output, size_t count,
                                   DLDataType dtype, int shift, void *stream)
{
    CONTROL_CALL_WITHIN(comm->world, __func__, comm->timeout);
    call wanted = {.kind = BANYAN_SENDRECV, .dtype = dtype};
    wanted.shift = (int)(((int64_t)shift % comm->ranks + comm->ranks) % comm->ranks);
    buffers given = {.input = input, .output = output};
    return call_run(comm, &wanted, &given, count, 1, 1, stream);
}
