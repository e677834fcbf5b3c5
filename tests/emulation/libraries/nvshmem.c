/* NVSHMEM's host library for emulated devices: one memory file for the heaps of all ranks, which
 * every rank maps; puts and signals are work of emulated streams. Like the real one it has no
 * deadlines: a wait for a rank that does not come never ends. It starts only without multicast.
 * The emulated network carries kernels' puts. EMULATED_NVSHMEM_ABSENT=n: rank n never comes.
 * EMULATED_NVSHMEM, any of: apart (no rank's heap is mapped), old (than any device library),
 * closed (to all of them), stuck (when one comes). */
#include "cuda/pipeline/nvshmem.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image.h"
#include "network.h"

#define HEAP_BYTES ((size_t)512 << 20)
#define HEADER_BYTES ((size_t)4096)
#define RANKS_MAX 16
#define FILE_BYTES (HEADER_BYTES + RANKS_MAX * HEAP_BYTES)
#define INVALID_USE 7

/* The emulated driver declares this as well. */
struct emulated_kernel {
    void (*call)(const void *args);
    size_t args_bytes;
};

static struct {
    char *file;
    int rank, ranks;
    size_t used;
    uint64_t barriers;
    bool is_ready;
    CUresult (*copy)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
    CUresult (*launch)(CUfunction kernel, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned, unsigned, CUstream stream, void **params, void **extra);
} world;

/* In the file's first page, after the barriers' counters. */
static uint32_t *unplaced_of(int rank)
{
    return (uint32_t *)(void *)(world.file + 64) + rank;
}

static char *heap_of(int rank)
{
    return world.file + HEADER_BYTES + (size_t)rank * HEAP_BYTES;
}

static void barrier(void)
{
    uint64_t *count = (uint64_t *)(void *)world.file;
    uint64_t all = ++world.barriers * (uint64_t)world.ranks;
    __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(count, __ATOMIC_SEQ_CST) < all)
        sched_yield();
}

int nvshmemx_get_uniqueid(nvshmem_id *id)
{
    int fd = memfd_create("nvshmem", MFD_CLOEXEC);
    if (id->version != NVSHMEM_VERSION_OF(nvshmem_id) || fd < 0 ||
        ftruncate(fd, (off_t)FILE_BYTES) != 0)
        return INVALID_USE;
    snprintf(id->inside, sizeof id->inside, "/proc/%d/fd/%d", (int)getpid(), fd);
    return 0;
}

int nvshmemx_set_attr_uniqueid_args(int rank, int ranks, const nvshmem_id *id,
                                    nvshmem_attributes *attributes)
{
    if (attributes->version != NVSHMEM_VERSION_OF(nvshmem_attributes) || rank >= ranks ||
        ranks > RANKS_MAX)
        return INVALID_USE;
    attributes->args.id_args.id = (nvshmem_id *)(uintptr_t)id;
    attributes->args.id_args.rank = rank;
    attributes->args.id_args.ranks = ranks;
    return 0;
}

static bool find_driver(void)
{
    void *library = dlopen(EMULATED_DRIVER, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return false;
    *(void **)&world.copy = dlsym(library, "cuMemcpyAsync");
    *(void **)&world.launch = dlsym(library, "cuLaunchKernel");
    return world.copy && world.launch;
}

static bool is_rank_of(const char *variable, int rank)
{
    const char *given = getenv(variable);
    return given && atoi(given) == rank;
}

int nvshmemx_hostlib_init_attr(unsigned flags, nvshmem_attributes *attributes)
{
    const nvshmem_id_args *args = &attributes->args.id_args;
    const char *multicast = getenv("NVSHMEM_DISABLE_NVLS");
    if (flags != NVSHMEM_WITH_ID || !multicast || strcmp(multicast, "1") != 0 || !find_driver())
        return INVALID_USE;
    int fd = open(args->id->inside, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return INVALID_USE;
    void *file = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return INVALID_USE;
    world.file = file;
    world.rank = args->rank;
    world.ranks = args->ranks;
    if (is_rank_of("EMULATED_NVSHMEM_FAILS", world.rank))
        return INVALID_USE;
    while (is_rank_of("EMULATED_NVSHMEM_ABSENT", world.rank))
        usleep(100000);
    barrier();
    world.is_ready = true;
    return 0;
}

int nvshmemx_init_status(void)
{
    return world.is_ready ? NVSHMEM_STATUS_READY : 0;
}

int nvshmem_my_pe(void)
{
    return world.rank;
}

int nvshmem_n_pes(void)
{
    return world.ranks;
}

void *nvshmem_malloc(size_t bytes)
{
    size_t at = world.used, wanted = (bytes + 4095) / 4096 * 4096;
    barrier();
    if (wanted > HEAP_BYTES - at)
        return NULL;
    world.used += wanted;
    return memset(heap_of(world.rank) + at, 0xC9, bytes < 65536 ? bytes : 65536);
}

typedef struct addition {
    uint64_t *word;
    uint64_t value;
} addition;

static void add(const void *given)
{
    const addition *made = given;
    __atomic_add_fetch(made->word, made->value, __ATOMIC_SEQ_CST);
}

static void set(const void *given)
{
    const addition *made = given;
    __atomic_store_n(made->word, made->value, __ATOMIC_SEQ_CST);
}

static void *at_rank(const void *here, int rank)
{
    return heap_of(rank) + ((const char *)here - heap_of(world.rank));
}

static bool is(const char *what)
{
    const char *given = getenv("EMULATED_NVSHMEM");
    return given && strstr(given, what);
}

void *nvshmem_ptr(const void *here, int pe)
{
    return pe != world.rank && is("apart") ? NULL : at_rank(here, pe);
}

/* A failed call ends the process, since there is no status to return. */
static void check(CUresult result)
{
    if (result != CUDA_SUCCESS)
        abort();
}

void nvshmemx_signal_op_on_stream(uint64_t *word, uint64_t value, int how, int pe, CUstream stream)
{
    static const struct emulated_kernel adds = {add, sizeof(addition)};
    static const struct emulated_kernel sets = {set, sizeof(addition)};
    if (how != NVSHMEM_ADD && how != NVSHMEM_SET)
        abort();
    const struct emulated_kernel *kernel = how == NVSHMEM_ADD ? &adds : &sets;
    addition made = {at_rank(word, pe), value};
    void *params[] = {&made};
    check(world.launch((CUfunction)(uintptr_t)kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

void nvshmemx_putmem_signal_on_stream(void *to, const void *from, size_t bytes, uint64_t *word,
                                      uint64_t value, int how, int pe, CUstream stream)
{
    check(world.copy((CUdeviceptr)(uintptr_t)at_rank(to, pe), (CUdeviceptr)(uintptr_t)from, bytes,
                     stream));
    nvshmemx_signal_op_on_stream(word, value, how, pe, stream);
}

void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch)
{
    *major = 3;
    *minor = is("old") ? 0 : 8;
    *patch = 0;
}

static void put(void *to, const void *from, size_t bytes, uint64_t *word, uint64_t value, int pe)
{
    network_take(&(network_put){.to = at_rank(to, pe),
                                .from = from,
                                .bytes = bytes,
                                .word = at_rank(word, pe),
                                .value = value,
                                .unplaced = unplaced_of(pe)});
}

int nvshmemx_cumodule_init(CUmodule module)
{
    while (is("stuck"))
        usleep(100000);
    if (!world.is_ready || is("closed"))
        return INVALID_USE;
    *module->nvshmem = (emulated_nvshmem_state){.put = put, .unplaced = unplaced_of(world.rank)};
    return 0;
}
