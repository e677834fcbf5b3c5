/* The emulated driver's devices and their memory: memory files, mapped as the program asks. */
#include "state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULE ((size_t)2 << 20)
#define DEVICE_BYTES ((size_t)4 << 30)
#define POISON_MOST ((size_t)64 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct emulated_context devices[EMULATED_DEVICES_MAX];
static int device_count;
static __thread CUcontext stack[16];
static __thread int depth;

/* ---- devices and contexts ---- */

CUresult cuInit(unsigned flags)
{
    (void)flags;
    const char *wanted = getenv("BANYAN_EMULATED_DEVICES");
    device_count = wanted ? atoi(wanted) : 4;
    if (device_count < 1 || device_count > EMULATED_DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    for (int i = 0; i < device_count; i++)
        devices[i].device = i;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 12080;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    static __thread char text[48];
    snprintf(text, sizeof text, "CUDA_ERROR_EMULATED_%d", (int)error);
    *name = text;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an emulated error";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    snprintf(name, (size_t)bytes, "emulated GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, device + 1, sizeof *uuid);
    return CUDA_SUCCESS;
}

/* Small, since every thread of a kernel is a fiber. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = EMULATED_THREADS_MAX;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = EMULATED_MULTIPROCESSORS;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = 227 << 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *value = 2;
        return CUDA_SUCCESS;
    default:
        *value = 0;
        return CUDA_SUCCESS;
    }
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    *can = device != peer && !getenv("BANYAN_EMULATED_APART");
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    pthread_mutex_lock(&lock);
    devices[device].users++;
    pthread_mutex_unlock(&lock);
    *context = &devices[device];
    return CUDA_SUCCESS;
}

static void drop_plain_of(CUdevice device);

/* With its last user the context goes, and with it the memory that was allocated in it. */
CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    pthread_mutex_lock(&lock);
    bool used = devices[device].users > 0;
    if (used && --devices[device].users == 0)
        drop_plain_of(device);
    pthread_mutex_unlock(&lock);
    return used ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (depth == 16)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

CUcontext emulated_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    (void)flags;
    return emulated_current() && peer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- physical memory ---- */

typedef struct physical {
    int fd, device, users;
    size_t bytes;
    CUmemAllocationHandleType types; /* that it may be exported as */
} physical;

static size_t taken_bytes[EMULATED_DEVICES_MAX];

static void physical_drop(physical *of)
{
    if (--of->users > 0)
        return;
    if (of->device >= 0)
        taken_bytes[of->device] -= of->bytes;
    close(of->fd);
    free(of);
}

/* Fresh memory holds what nobody would expect. */
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

static CUresult physical_make(int device, size_t bytes, CUmemAllocationHandleType types,
                              physical **made)
{
    if (device < 0 || device >= device_count)
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
    physical *made;
    pthread_mutex_lock(&lock);
    CUresult result = physical_make(prop->location.id, bytes, prop->requestedHandleTypes, &made);
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS)
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return result;
}

static physical *physical_of(CUmemGenericAllocationHandle handle)
{
    return (physical *)(uintptr_t)handle;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock);
    physical_drop(physical_of(handle));
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* What names memory for other processes: its file, as its maker has it open. */
typedef struct file_name {
    pid_t pid;
    int fd, device;
    size_t bytes;
} file_name;

static int file_open(const file_name *name)
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
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return CUDA_SUCCESS;
}

/* ---- addresses ---- */

typedef enum range_kind {
    RANGE_MAPPED, /* by cuMemMap */
    RANGE_PLAIN,  /* cuMemAlloc */
    RANGE_POOL,   /* cuMemAllocAsync */
    RANGE_IPC     /* a peer's, of cuMemAlloc there */
} range_kind;

/* What lies at an address of this process. */
typedef struct range {
    char *base;
    size_t bytes;
    physical *of;
    range_kind kind;
    bool accessible;
    struct range *next;
} range;

static range *ranges;

static range *range_at(CUdeviceptr address)
{
    range *at = ranges;
    while (at && ((char *)(uintptr_t)address < at->base ||
                  (char *)(uintptr_t)address >= at->base + at->bytes))
        at = at->next;
    return at;
}

static range *range_add(char *base, size_t bytes, physical *of)
{
    range *made = calloc(1, sizeof *made);
    if (!made)
        abort();
    *made = (range){.base = base, .bytes = bytes, .of = of, .next = ranges};
    ranges = made;
    return made;
}

static void range_remove(range *old)
{
    range **at = &ranges;
    while (*at != old)
        at = &(*at)->next;
    *at = old->next;
    physical_drop(old->of);
    free(old);
}

static void drop_plain_of(CUdevice device)
{
    for (range *at = ranges, *next; at; at = next) {
        next = at->next;
        if (at->kind != RANGE_PLAIN || at->of->device != device)
            continue;
        munmap(at->base, at->bytes);
        range_remove(at);
    }
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags)
{
    (void)flags, (void)wanted;
    size_t step = alignment > GRANULE ? alignment : GRANULE;
    if (bytes == 0 || bytes % GRANULE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    char *at =
        mmap(NULL, bytes + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *base = (char *)(((uintptr_t)at + step - 1) / step * step);
    if (base > at)
        munmap(at, (size_t)(base - at));
    if (base + bytes < at + bytes + step)
        munmap(base + bytes, (size_t)(at + step - base));
    *address = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool mapped = range_at(address) != NULL;
    pthread_mutex_unlock(&lock);
    if (mapped)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)(uintptr_t)address, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)flags;
    physical *of = physical_of(handle);
    if (offset != 0 || bytes > of->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    of->users++;
    range_add((char *)(uintptr_t)address, bytes, of);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc,
                        size_t count)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (desc[i].location.id < 0 || desc[i].location.id >= device_count)
            result = CUDA_ERROR_INVALID_DEVICE;
    for (size_t done = 0; result == CUDA_SUCCESS && done < bytes;) {
        range *at = range_at(address + done);
        if (!at) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        if (!at->accessible && mmap(at->base, at->bytes, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_FIXED, at->of->fd, 0) == MAP_FAILED)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        at->accessible = true;
        done += at->bytes;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (size_t done = 0; done < bytes;) {
        range *at = range_at(address + done);
        if (!at || at->kind != RANGE_MAPPED) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        done += at->bytes;
        mmap(at->base, at->bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        range_remove(at);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    pthread_mutex_lock(&lock);
    range *at = range_at((CUdeviceptr)(uintptr_t)address);
    bool found = at && at->kind == RANGE_MAPPED;
    if (found) {
        at->of->users++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)at->of;
    }
    pthread_mutex_unlock(&lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    const physical *of = physical_of(handle);
    *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    prop->location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, of->device};
    prop->requestedHandleTypes = of->types;
    return CUDA_SUCCESS;
}

static CUresult map_whole(physical *of, range **made)
{
    char *at = mmap(NULL, of->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, of->fd, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = range_add(at, of->bytes, of);
    (*made)->accessible = true;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, range_kind kind)
{
    CUcontext context = emulated_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > DEVICE_BYTES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t whole = (bytes + 4095) / 4096 * 4096;
    physical *of;
    range *made;
    pthread_mutex_lock(&lock);
    CUresult result = physical_make(context->device, whole, CU_MEM_HANDLE_TYPE_NONE, &of);
    if (result == CUDA_SUCCESS)
        result = map_whole(of, &made);
    if (result == CUDA_SUCCESS) {
        made->kind = kind;
        *address = (CUdeviceptr)(uintptr_t)made->base;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    return allocate(address, bytes, RANGE_PLAIN);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    (void)stream;
    return allocate(address, bytes, RANGE_POOL);
}

bool emulated_takes_values(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    const range *at = range_at(address);
    bool takes = !at || (at->kind != RANGE_POOL && at->kind != RANGE_MAPPED);
    pthread_mutex_unlock(&lock);
    return takes;
}

static CUresult drop_range(CUdeviceptr address, range_kind kind)
{
    pthread_mutex_lock(&lock);
    range *at = range_at(address);
    bool fits = at && at->base == (char *)(uintptr_t)address && at->kind == kind;
    if (fits) {
        munmap(at->base, at->bytes);
        range_remove(at);
    }
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* As the real one does, once all that is queued is done. */
CUresult cuMemFree(CUdeviceptr address)
{
    if (address == 0)
        return CUDA_SUCCESS;
    emulated_wait_for_all();
    return drop_range(address, RANGE_PLAIN);
}

/* The stream is waited for, which the real one need not do. */
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CUresult result = cuStreamSynchronize(stream);
    return result == CUDA_SUCCESS ? drop_range(address, RANGE_POOL) : result;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context = emulated_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    *total_bytes = DEVICE_BYTES;
    *free_bytes = DEVICE_BYTES - taken_bytes[context->device];
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!*address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*address, 0xC9, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *address)
{
    free(address);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned flags)
{
    (void)flags;
    *device = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    range *at = range_at(address);
    if (at && base)
        *base = (CUdeviceptr)(uintptr_t)at->base;
    if (at && bytes)
        *bytes = at->bytes;
    pthread_mutex_unlock(&lock);
    return at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- what an address is ---- */

static CUresult attribute_of(void *value, CUpointer_attribute attribute, const range *at)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = at->of->device < 0 ? 0 : at->of->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)value = at->kind == RANGE_PLAIN;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)value = at->kind == RANGE_MAPPED ? at->of->types : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = (CUdeviceptr)(uintptr_t)at->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = at->bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(const void **)value = at->kind == RANGE_POOL ? &ranges : NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(uint64_t *)value = (uint64_t)(uintptr_t)at->of;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    const range *at = range_at(address);
    CUresult result = at ? attribute_of(value, attribute, at) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Unlike the one above it succeeds for ordinary memory, whose attributes are zero. */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr address)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    const range *at = range_at(address);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (at)
            result = attribute_of(values[i], attributes[i], at);
        else
            memset(values[i], 0, sizeof(unsigned));
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- between processes ---- */

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    const range *at = range_at(address);
    bool fits = at && at->kind == RANGE_PLAIN;
    if (fits) {
        file_name name = {getpid(), at->of->fd, at->of->device, at->bytes};
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &name, sizeof name);
    }
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)flags;
    file_name name;
    memcpy(&name, &handle, sizeof name);
    if (name.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    int fd = file_open(&name);
    physical *of = calloc(1, sizeof *of);
    if (fd < 0 || !of)
        return CUDA_ERROR_INVALID_VALUE;
    *of = (physical){.fd = fd, .device = -1, .users = 1, .bytes = name.bytes};
    range *made;
    pthread_mutex_lock(&lock);
    CUresult result = map_whole(of, &made);
    if (result == CUDA_SUCCESS) {
        made->kind = RANGE_IPC;
        *address = (CUdeviceptr)(uintptr_t)made->base;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    return drop_range(address, RANGE_IPC);
}
