#include "common/nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* The parts used of NCCL's C interface, stable since 2.10. */
typedef struct {
    char bytes[128];
} unique_id;
enum { BF16 = 9, SUM = 0 };
#define BF16_BYTES 2

#define FUNCTIONS(X)                                                                               \
    X(ncclGetVersion, int, (int *version))                                                         \
    X(ncclGetUniqueId, int, (unique_id * id))                                                      \
    X(ncclCommInitRank, int, (void **comm, int ranks, unique_id id, int rank))                     \
    X(ncclCommDestroy, int, (void *comm))                                                          \
    X(ncclGetErrorString, const char *, (int result))                                              \
    X(ncclGroupStart, int, (void))                                                                 \
    X(ncclGroupEnd, int, (void))                                                                   \
    X(ncclAllReduce, int, (const void *, void *, size_t, int, int, void *, cudaStream_t))          \
    X(ncclAllGather, int, (const void *, void *, size_t, int, void *, cudaStream_t))               \
    X(ncclReduceScatter, int, (const void *, void *, size_t, int, int, void *, cudaStream_t))      \
    X(ncclSend, int, (const void *, size_t, int, int, void *, cudaStream_t))                       \
    X(ncclRecv, int, (void *, size_t, int, int, void *, cudaStream_t))

#define DECLARE(name, result, arguments) static result(*name) arguments;
FUNCTIONS(DECLARE)

struct nccl {
    void *comm;
    int rank, ranks;
    char version[32];
};

static bool load(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    const char *named = getenv("BANYAN_NCCL");
    if (!library && named)
        library = dlopen(named, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return false;
#define FIND(name, result, arguments)                                                              \
    *(void **)&name = dlsym(library, #name);                                                       \
    if (!name)                                                                                     \
        return false;
    FUNCTIONS(FIND)
    return true;
}

static void check(int result, const char *call)
{
    if (result == 0)
        return;
    fprintf(stderr, "gpu_bench: %s: %s\n", call, ncclGetErrorString(result));
    exit(1);
}
#define NCCL(call) check((call), #call)

nccl *nccl_open(const gpu *on)
{
    int mine = load(), all[64], least = 1;
    need(banyan_world_allgather(on->world, &mine, sizeof mine, all));
    for (int i = 0; i < on->ranks; i++)
        least &= all[i];
    if (!least) {
        if (on->rank == 0)
            printf("no libnccl.so.2 here (BANYAN_NCCL can name it): measured without NCCL\n");
        return NULL;
    }
    nccl *made = calloc(1, sizeof *made);
    unique_id id;
    int version;
    if (!made)
        exit(1);
    if (on->rank == 0)
        NCCL(ncclGetUniqueId(&id));
    need(banyan_world_broadcast(on->world, &id, sizeof id, 0));
    NCCL(ncclGetVersion(&version));
    snprintf(made->version, sizeof made->version, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    made->rank = on->rank;
    made->ranks = on->ranks;
    NCCL(ncclCommInitRank(&made->comm, on->ranks, id, on->rank));
    return made;
}

void nccl_close(nccl *old)
{
    if (old)
        NCCL(ncclCommDestroy(old->comm));
    free(old);
}

const char *nccl_version(const nccl *of)
{
    return of->version;
}

void nccl_allreduce(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream)
{
    NCCL(ncclAllReduce(in, out, count, BF16, SUM, of->comm, stream));
}

void nccl_allgather(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream)
{
    NCCL(ncclAllGather(in, out, count, BF16, of->comm, stream));
}

void nccl_reducescatter(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream)
{
    NCCL(ncclReduceScatter(in, out, count, BF16, SUM, of->comm, stream));
}

void nccl_alltoall(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream)
{
    const size_t block_bytes = count * BF16_BYTES;
    NCCL(ncclGroupStart());
    for (int peer = 0; peer < of->ranks; peer++) {
        const size_t at = (size_t)peer * block_bytes;
        NCCL(ncclSend((const char *)in + at, count, BF16, peer, of->comm, stream));
        NCCL(ncclRecv((char *)out + at, count, BF16, peer, of->comm, stream));
    }
    NCCL(ncclGroupEnd());
}

void nccl_shift(nccl *of, const void *in, void *out, size_t count, cudaStream_t stream)
{
    NCCL(ncclGroupStart());
    NCCL(ncclSend(in, count, BF16, (of->rank + 1) % of->ranks, of->comm, stream));
    NCCL(ncclRecv(out, count, BF16, (of->rank + of->ranks - 1) % of->ranks, of->comm, stream));
    NCCL(ncclGroupEnd());
}
