#include "cuda/copy/nccl/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nccl_library nccl;

/* 2.30: the first release with NCCL_MULTI_RANK_GPU_ENABLE. */
#define SHARES_GPUS_VERSION 23000

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static char missing[512];

/* Use a library that the process has loaded already (PyTorch's, say): the symbols of two copies
 * would collide. */
static void *open_library(void)
{
    const char *named = getenv("BANYAN_NCCL");
    bool is_named = named && *named;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        library = dlopen(is_named ? named : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(missing, sizeof missing, "%s%s", dlerror(),
                 is_named ? "" : " (BANYAN_NCCL can name it)");
    return library;
}

static bool library_find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    if (!found)
        snprintf(missing, sizeof missing, "libnccl.so.2 has no %s: it is older than 2.14", name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static void load_once(void)
{
    const char *multicast = getenv("BANYAN_MULTICAST");
    if (!multicast || strcmp(multicast, "1") != 0)
        setenv("NCCL_NVLS_ENABLE", "0", 0);
    void *library = open_library();
    if (!library)
        return;
#define FIND(function) library_find(library, #function, (void *)&nccl.function)
    if (FIND(ncclGetUniqueId) && FIND(ncclCommInitRankConfig) && FIND(ncclCommFinalize) &&
        FIND(ncclCommDestroy) && FIND(ncclCommAbort) && FIND(ncclCommGetAsyncError) &&
        FIND(ncclGetErrorString) && FIND(ncclGetLastError) && FIND(ncclGroupStart) &&
        FIND(ncclGroupEnd) && FIND(ncclSend) && FIND(ncclRecv) && FIND(ncclAllReduce) &&
        FIND(ncclAllGather) && FIND(ncclReduceScatter))
        missing[0] = '\0';
#undef FIND
    void *version = dlsym(library, "ncclGetVersion");
    memcpy((void *)&nccl.ncclGetVersion, &version, sizeof version);
}

banyan_status nccl_load(void)
{
    pthread_once(&loaded, load_once);
    return missing[0] == '\0' ? BANYAN_OK
                              : banyan_error_set(BANYAN_ERR_UNSUPPORTED, "nccl: %s", missing);
}

bool nccl_shares_gpus(void)
{
    const char *wanted = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    int version = 0;
    return wanted && strcmp(wanted, "1") == 0 && nccl.ncclGetVersion &&
           nccl.ncclGetVersion(&version) == NCCL_SUCCESS && version >= SHARES_GPUS_VERSION;
}

banyan_status nccl_failed(int error, const char *call, int rank)
{
    const char *last = nccl.ncclGetLastError(NULL);
    return banyan_error_set(BANYAN_ERR_SYSTEM, "nccl: rank %d: %s: %s; NCCL's last warning: %s",
                            rank, call, nccl.ncclGetErrorString(error),
                            last && *last ? last : "none");
}
