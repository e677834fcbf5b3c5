/* NCCL, found at run time: the functions of its C interface that Banyan needs, unchanged since
 * 2.14. */
#ifndef CUDA_COPY_NCCL_LIBRARY_H
#define CUDA_COPY_NCCL_LIBRARY_H

#include <stddef.h>

#include <banyan/core.h>

typedef struct nccl_unique_id {
    char bytes[128];
} nccl_unique_id;

/* The beginning of ncclConfig_t. From its size NCCL knows to use defaults for the rest. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;

#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
/* ncclDataType_t */
enum { NCCL_BYTES = 1, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_BF16 = 9 };
enum { NCCL_SUM = 0 };

typedef struct nccl_library {
    int (*ncclGetUniqueId)(nccl_unique_id *id);
    int (*ncclCommInitRankConfig)(void **comm, int ranks, nccl_unique_id id, int rank,
                                  nccl_config *config);
    int (*ncclCommFinalize)(void *comm);
    int (*ncclCommDestroy)(void *comm);
    int (*ncclCommAbort)(void *comm);
    int (*ncclCommGetAsyncError)(void *comm, int *error);
    const char *(*ncclGetErrorString)(int error);
    int (*ncclGetVersion)(int *version); /* NULL: the library does not have it */
    const char *(*ncclGetLastError)(void *comm);
    int (*ncclGroupStart)(void);
    int (*ncclGroupEnd)(void);
    int (*ncclSend)(const void *from, size_t count, int type, int peer, void *comm, void *stream);
    int (*ncclRecv)(void *to, size_t count, int type, int peer, void *comm, void *stream);
    /* Counts are elements: of all ranks' input, or of one rank's part. */
    int (*ncclAllReduce)(const void *from, void *to, size_t count, int type, int op, void *comm,
                         void *stream);
    int (*ncclAllGather)(const void *from, void *to, size_t count, int type, void *comm,
                         void *stream);
    int (*ncclReduceScatter)(const void *from, void *to, size_t count, int type, int op, void *comm,
                             void *stream);
} nccl_library;

extern nccl_library nccl;

/* Load the NCCL of this process, else the one that BANYAN_NCCL names, else libnccl.so.2; once for
 * each process. UNSUPPORTED, with the missing part. Unless BANYAN_MULTICAST is 1 or the
 * environment sets it, NCCL_NVLS_ENABLE is set so that NCCL does not use NVLink multicast. */
banyan_status nccl_load(void);

/* True if the library starts between ranks that share a GPU. Call it after nccl_load. */
bool nccl_shares_gpus(void);

/* Return SYSTEM with NCCL's error text. */
banyan_status nccl_failed(int error, const char *call, int rank);

#endif
