/* Two collectives, or one of the world, through NCCL, for comparison with the fused modes. */
#include "cuda/memory/memory.h"
#include "cuda/mixed/engine.h"

_Static_assert(sizeof((mixed_nccl *)0)->gpu == DEVICE_UUID_BYTES,
               "a GPU is identified by its UUID");

static int type_of(DLDataType dtype)
{
    if (dtype.bits == 32)
        return NCCL_F32;
    return dtype.code == kDLBfloat ? NCCL_BF16 : NCCL_F16;
}

static banyan_status open_session(cuda_mixed *engine, mixed_group group)
{
    banyan_world *world = engine->setup->worlds[group];
    nccl_session *session = &engine->nccl[group];
    banyan_status status = DRIVER_WITHIN_UNCAPTURED(
        engine->device, nccl_session_open(world, engine->device, NULL, session));
    if (status != BANYAN_OK)
        *session = (nccl_session){0};
    return status;
}

banyan_status mixed_nccl_find(void *opened, mixed_nccl *found)
{
    const cuda_mixed *engine = opened;
    RETURN_IF_FAILED(nccl_load());
    found->shares_gpus = nccl_shares_gpus();
    return device_identify(engine->device, found->gpu);
}

banyan_status mixed_nccl_open(void *opened, mixed_group group)
{
    cuda_mixed *engine = opened;
    const banyan_world *world = engine->setup->worlds[group];
    RETURN_IF_FAILED(nccl_load());
    return world && banyan_world_size(world) > 1 ? open_session(engine, group) : BANYAN_OK;
}

static enum nccl_collective_kind nccl_kind_of(banyan_mixed_op op)
{
    return op == BANYAN_MIXED_ALLREDUCE   ? NCCL_ALLREDUCE
           : op == BANYAN_MIXED_ALLGATHER ? NCCL_ALLGATHER
                                          : NCCL_REDUCESCATTER;
}

banyan_status mixed_nccl_run(void *opened, mixed_group group, banyan_mixed_op op, const void *input,
                             void *output, uint64_t elems, void *stream)
{
    cuda_mixed *engine = opened;
    if (!engine->nccl[group].world) /* a group of one rank */
        return DRIVER_WITHIN(engine->device,
                             DRIVER(engine->device, cuMemcpyAsync, (CUdeviceptr)output,
                                    (CUdeviceptr)input, elems * engine->elem_bytes, stream));
    nccl_collective what = {
        .kind = nccl_kind_of(op),
        .from = input,
        .to = output,
        .count = elems,
        .type = type_of(engine->setup->dtype),
    };
    return DRIVER_WITHIN(engine->device,
                         nccl_session_collective(&engine->nccl[group], &what, stream));
}

banyan_status mixed_nccl_check(void *opened, mixed_group group)
{
    cuda_mixed *engine = opened;
    return engine->nccl[group].world ? nccl_session_check(&engine->nccl[group]) : BANYAN_OK;
}

void mixed_nccl_close(cuda_mixed *engine)
{
    for (int i = 0; i < MIXED_GROUPS; i++) {
        if (engine->nccl[i].world)
            nccl_session_close(&engine->nccl[i]);
        engine->nccl[i] = (nccl_session){0};
    }
}
