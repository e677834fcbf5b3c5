/* The emulated driver's physical memory: memory files. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

#define POISON_MOST ((size_t)64 << 20)

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t taken_bytes[EMULATED_DEVICES_MAX];

void physical_drop(physical *of)
{
    if (--of->users > 0)
        return;
    if (of->multicast)
        multicast_drop(of->multicast);
    if (of->device >= 0)
        taken_bytes[of->device] -= of->bytes;
    close(of->fd);
    free(of);
}

/* New memory has unexpected contents. */
static void poison(int fd, size_t bytes)
{
    if (bytes > POISON_MOST)
        return;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return;
    memset(at, 0xC9, bytes);
    munmap(at, bytes);
}

CUresult physical_make(int device, size_t bytes, CUmemAllocationHandleType types, physical **made)
{
    if (device < 0 || device >= emulated_device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    if (bytes > DEVICE_BYTES || taken_bytes[device] > DEVICE_BYTES - bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical *new = calloc(1, sizeof *new);
    int fd = memfd_create("emulated", MFD_CLOEXEC);
    if (!new || fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        free(new);
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    poison(fd, bytes);
    *new = (physical){.fd = fd, .device = device, .users = 1, .bytes = bytes};
    new->types = types;
    taken_bytes[device] += bytes;
    *made = new;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    (void)prop, (void)option;
    *bytes = GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)flags;
    if (bytes == 0 || bytes % GRANULE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if ((prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) &&
        (emulated_fabric_is("none") || emulated_fabric_is("refused")))
        return CUDA_ERROR_NOT_SUPPORTED;
    physical *made;
    pthread_mutex_lock(&memory_lock);
    CUresult result = physical_make(prop->location.id, bytes, prop->requestedHandleTypes, &made);
    pthread_mutex_unlock(&memory_lock);
    if (result == CUDA_SUCCESS)
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return result;
}

physical *physical_of(CUmemGenericAllocationHandle handle)
{
    return (physical *)(uintptr_t)handle;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&memory_lock);
    physical_drop(physical_of(handle));
    pthread_mutex_unlock(&memory_lock);
    return CUDA_SUCCESS;
}

int file_open(const file_name *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)name->pid, name->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)flags;
    const physical *of = physical_of(handle);
    if (!(of->types & type))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        file_name name = {getpid(), of->fd, of->device, of->bytes};
        memset(shareable, 0, sizeof(CUmemFabricHandle));
        memcpy(shareable, &name, sizeof name);
        return CUDA_SUCCESS;
    }
    int fd = fcntl(of->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
    int fd = -1;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
    else if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        fd = file_open(shareable);
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    physical *made = calloc(1, sizeof *made);
    if (bytes < 0 || !made)
        return CUDA_ERROR_INVALID_VALUE;
    *made = (physical){.fd = fd, .device = -1, .users = 1, .bytes = (size_t)bytes, .types = type};
    if (!multicast_import(made))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return CUDA_SUCCESS;
}

size_t physical_free_bytes(int device)
{
    return DEVICE_BYTES - taken_bytes[device];
}
