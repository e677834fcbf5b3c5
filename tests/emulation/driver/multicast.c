/* The emulated driver's multicast objects. No memory backs their addresses, so ordinary accesses
 * end the process. Multimem accesses find the members' memory here, where each is mapped once
 * more. An object is a file that processes share; bound memory is found by the name of its file. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

#define FILE_NAME "emulated multicast"

/* In the file. */
struct object {
    uint64_t bytes;
    uint32_t devices;
    _Atomic uint32_t joined; /* one bit for each device */
    struct {
        _Atomic uint32_t is_bound;
        file_name memory;
        uint64_t bytes;
    } of[EMULATED_DEVICES_MAX];
};

struct multicast {
    struct object *shared;
    char *members[EMULATED_DEVICES_MAX];   /* mapped ones */
    physical *bound[EMULATED_DEVICES_MAX]; /* by this process */
};

static _Atomic uint64_t calls, accesses;

const char *emulated_multicast(void)
{
    return getenv("BANYAN_EMULATED_MULTICAST");
}

/* For tests: calls of the driver's multicast functions, and multimem accesses, of this process. */
uint64_t emulated_multicast_calls(void);
uint64_t emulated_multicast_calls(void)
{
    return calls;
}

uint64_t emulated_multicast_accesses(void);
uint64_t emulated_multicast_accesses(void)
{
    return accesses;
}

static struct multicast *map_object(int fd)
{
    struct multicast *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->shared = mmap(NULL, sizeof *made->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (made->shared == MAP_FAILED) {
        free(made);
        return NULL;
    }
    return made;
}

bool multicast_import(physical *of)
{
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", of->fd);
    if (readlink(path, name, sizeof name - 1) < 0 || !strstr(name, FILE_NAME))
        return true;
    of->multicast = map_object(of->fd);
    if (!of->multicast)
        return false;
    of->bytes = of->multicast->shared->bytes;
    return true;
}

void multicast_drop(struct multicast *old)
{
    for (int i = 0; i < EMULATED_DEVICES_MAX; i++) {
        if (old->members[i])
            munmap(old->members[i], old->shared->of[i].bytes);
        if (old->bound[i])
            physical_drop(old->bound[i]);
    }
    munmap(old->shared, sizeof *old->shared);
    free(old);
}

bool multicast_is_whole(const struct multicast *object)
{
    return (uint32_t)__builtin_popcount(object->shared->joined) == object->shared->devices;
}

CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option)
{
    (void)prop, (void)option;
    calls++;
    *bytes = GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
    calls++;
    if (!emulated_multicast())
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->numDevices == 0 || prop->numDevices > (unsigned)emulated_device_count() ||
        prop->size == 0 || prop->size % GRANULE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    physical *made = calloc(1, sizeof *made);
    int fd = memfd_create(FILE_NAME, MFD_CLOEXEC);
    if (!made || fd < 0 || ftruncate(fd, sizeof(struct object)) != 0)
        abort();
    *made = (physical){.fd = fd, .device = -1, .users = 1, .bytes = prop->size};
    made->types = (CUmemAllocationHandleType)prop->handleTypes;
    made->multicast = map_object(fd);
    if (!made->multicast)
        abort();
    made->multicast->shared->bytes = prop->size;
    made->multicast->shared->devices = prop->numDevices;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    calls++;
    const physical *of = physical_of(handle);
    if (!of->multicast || device < 0 || device >= emulated_device_count())
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t bit = UINT32_C(1) << device;
    if (multicast_is_whole(of->multicast) ||
        (atomic_fetch_or(&of->multicast->shared->joined, bit) & bit))
        return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

static bool may_bind(const physical *object, const physical *memory, size_t bytes)
{
    return object->multicast && memory->device >= 0 && memory->types != CU_MEM_HANDLE_TYPE_NONE &&
           (object->multicast->shared->joined >> memory->device & 1) &&
           !object->multicast->bound[memory->device] && bytes > 0 && bytes % GRANULE == 0 &&
           bytes <= memory->bytes && bytes <= object->bytes;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                            CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                            unsigned long long flags)
{
    calls++;
    (void)flags;
    const physical *object = physical_of(handle);
    physical *bound = physical_of(memory);
    if (offset != 0 || memory_offset != 0 || !may_bind(object, bound, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!multicast_is_whole(object->multicast))
        return CUDA_ERROR_NOT_READY; /* the real driver waits */
    int device = bound->device;
    if (device == 1 && strcmp(emulated_multicast(), "unbound") == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&memory_lock);
    bound->users++;
    object->multicast->bound[device] = bound;
    pthread_mutex_unlock(&memory_lock);
    struct object *shared = object->multicast->shared;
    shared->of[device].memory = (file_name){getpid(), bound->fd, device, bound->bytes};
    shared->of[device].bytes = bytes;
    atomic_store(&shared->of[device].is_bound, 1);
    return CUDA_SUCCESS;
}

static void refuse(const void *address, const char *why)
{
    fprintf(stderr, "emulated multimem access at %p: %s\n", address, why);
    abort();
}

static char *map_member(struct multicast *object, int device, const void *address)
{
    const struct object *shared = object->shared;
    if (object->members[device])
        return object->members[device];
    if (!atomic_load(&shared->of[device].is_bound))
        refuse(address, "a device has bound no memory there");
    int fd = file_open(&shared->of[device].memory);
    char *at =
        fd < 0 ? MAP_FAILED
               : mmap(NULL, shared->of[device].bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        refuse(address, "memory of a device is gone");
    close(fd);
    object->members[device] = at;
    return at;
}

static char *find_member(const range *at, const void *address, unsigned i)
{
    size_t offset = (size_t)((const char *)address - at->base);
    for (int device = 0; device < EMULATED_DEVICES_MAX; device++) {
        if (!(at->of->multicast->shared->joined >> device & 1) || i-- > 0)
            continue;
        if (offset >= at->of->multicast->shared->of[device].bytes)
            refuse(address, "a device has bound less memory");
        return map_member(at->of->multicast, device, address) + offset;
    }
    return NULL;
}

char *emulated_multicast_member(const void *address, unsigned i);
char *emulated_multicast_member(const void *address, unsigned i)
{
    pthread_mutex_lock(&memory_lock);
    const range *at = range_at((CUdeviceptr)(uintptr_t)address);
    if (!at || !at->of->multicast || !at->accessible || (uintptr_t)address % 16 != 0)
        refuse(address, "no 16 bytes of multicast memory are mapped there");
    char *member = find_member(at, address, i);
    pthread_mutex_unlock(&memory_lock);
    if (i == 0)
        accesses++;
    return member;
}
