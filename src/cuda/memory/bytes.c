/* Memory, copies and fills that are complete on return, with one stream for each device. */
#include <pthread.h>
#include <string.h>

#include "cuda/memory/memory.h"

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static CUstream streams[DRIVER_DEVICES_MAX];

/* Created once and kept until the process ends. */
static banyan_status stream_of(int device, CUstream *stream)
{
    banyan_status status = BANYAN_OK;
    pthread_mutex_lock(&streams_lock);
    if (!streams[device])
        status = DRIVER(device, cuStreamCreate, &streams[device], CU_STREAM_NON_BLOCKING);
    *stream = streams[device];
    pthread_mutex_unlock(&streams_lock);
    return status;
}

banyan_status bytes_locate(const void *address, DLDevice *device)
{
    unsigned int type = 0, managed = 0;
    int id = -1;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *answers[] = {&type, &managed, &id};
    CUresult result = driver.cuPointerGetAttributes(3, asked, answers, (CUdeviceptr)address);
    if (result != CUDA_SUCCESS)
        type = 0; /* not memory of this driver */
    if (managed)
        *device = (DLDevice){kDLCUDAManaged, id};
    else
        *device = type == CU_MEMORYTYPE_DEVICE ? BANYAN_CUDA(id) : BANYAN_HOST;
    return BANYAN_OK;
}

/* Return the device that has the address mapped; -1 for ordinary memory. */
static int memory_bytes_user_of(const void *address)
{
    mapping found;
    DLDevice device;
    if (mappings_find(address, &found))
        return found.device;
    bytes_locate(address, &device);
    return device.device_type == kDLCUDA ? device.device_id : -1;
}

/* Return the device that must do the work: memory of another device may be mapped for one device
 * only. */
static int device_for(const void *to, const void *from)
{
    mapping found;
    if (mappings_find(to, &found) || mappings_find(from, &found))
        return found.device;
    int device = memory_bytes_user_of(to);
    return device >= 0 ? device : memory_bytes_user_of(from);
}

/* Called with the device entered, and in a state that permits calls which captures of the thread's
 * streams forbid. */
typedef CUresult (*bytes_queue)(const void *job, CUstream stream);

static banyan_status memory_bytes_run_here(int device, const char *call, bytes_queue queue,
                                           const void *job)
{
    CUstream stream;
    RETURN_IF_FAILED(stream_of(device, &stream));
    RETURN_IF_FAILED(driver_check(queue(job, stream), call, device));
    return DRIVER(device, cuStreamSynchronize, stream);
}

static banyan_status memory_bytes_run(int device, const char *call, bytes_queue queue,
                                      const void *job)
{
    return DRIVER_WITHIN_UNCAPTURED(device, memory_bytes_run_here(device, call, queue, job));
}

struct allocation_job {
    CUdeviceptr *address;
    size_t bytes;
};

static CUresult queue_alloc(const void *job, CUstream stream)
{
    const struct allocation_job *wanted = job;
    return driver.cuMemAllocAsync(wanted->address, wanted->bytes, stream);
}

banyan_status bytes_alloc(int device, size_t bytes, void **address)
{
    CUdeviceptr made = 0;
    struct allocation_job wanted = {&made, bytes};
    RETURN_IF_FAILED(memory_bytes_run(device, "cuMemAllocAsync", queue_alloc, &wanted));
    *address = (void *)(uintptr_t)made;
    return BANYAN_OK;
}

static CUresult memory_bytes_queue_free(const void *job, CUstream stream)
{
    return driver.cuMemFreeAsync((CUdeviceptr)job, stream);
}

void bytes_free(int device, void *address)
{
    if (address)
        memory_bytes_run(device, "cuMemFreeAsync", memory_bytes_queue_free, address);
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

static CUresult memory_bytes_queue_copy(const void *job, CUstream stream)
{
    const struct copy *copy = job;
    return driver.cuMemcpyAsync((CUdeviceptr)copy->to, (CUdeviceptr)copy->from, copy->bytes,
                                stream);
}

banyan_status bytes_copy(void *to, const void *from, size_t bytes)
{
    if (bytes == 0)
        return BANYAN_OK;
    int device = device_for(to, from);
    if (device < 0) {
        memcpy(to, from, bytes);
        return BANYAN_OK;
    }
    struct copy copy = {to, from, bytes};
    return memory_bytes_run(device, "cuMemcpyAsync", memory_bytes_queue_copy, &copy);
}

struct fill {
    void *to;
    uint8_t value;
    size_t bytes;
};

static CUresult queue_fill(const void *job, CUstream stream)
{
    const struct fill *fill = job;
    return driver.cuMemsetD8Async((CUdeviceptr)fill->to, fill->value, fill->bytes, stream);
}

banyan_status bytes_fill(void *to, uint8_t value, size_t bytes)
{
    if (bytes == 0)
        return BANYAN_OK;
    int device = memory_bytes_user_of(to);
    if (device < 0) {
        memset(to, value, bytes);
        return BANYAN_OK;
    }
    struct fill fill = {to, value, bytes};
    return memory_bytes_run(device, "cuMemsetD8Async", queue_fill, &fill);
}

banyan_status pinned_alloc(int device, size_t bytes, void **here, void **there)
{
    CUdeviceptr address;
    void *memory;
    RETURN_IF_FAILED(DRIVER(device, cuMemHostAlloc, &memory, bytes,
                            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(memory, 0, bytes);
    banyan_status status = DRIVER(device, cuMemHostGetDevicePointer, &address, memory, 0);
    if (status != BANYAN_OK) {
        driver.cuMemFreeHost(memory);
        return status;
    }
    *here = memory;
    *there = (void *)(uintptr_t)address;
    return BANYAN_OK;
}

void pinned_free(void *here)
{
    if (here)
        driver.cuMemFreeHost(here);
}
