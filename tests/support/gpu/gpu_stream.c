#include "support/gpu/gpu_stream.h"

#include <dlfcn.h>
#include <pthread.h>

#include "support/test.h"

/* The driver's functions, with the types of its stable interface. */
typedef struct driver_functions {
    int (*cuInit)(unsigned flags);
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuCtxPushCurrent)(void *context);
    int (*cuCtxPopCurrent)(void **context);
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamDestroy)(void *stream);
    int (*cuStreamSynchronize)(void *stream);
    int (*cuMemcpyAsync)(unsigned long long to, unsigned long long from, size_t bytes,
                         void *stream);
    int (*cuMemsetD8Async)(unsigned long long to, unsigned char value, size_t bytes, void *stream);
    int (*cuStreamBeginCapture)(void *stream, int mode);
    int (*cuStreamEndCapture)(void *stream, void **graph);
    int (*cuGraphInstantiateWithFlags)(void **made, void *graph, unsigned long long flags);
    int (*cuGraphDestroy)(void *graph);
    int (*cuGraphLaunch)(void *graph, void *stream);
    int (*cuGraphExecDestroy)(void *graph);
} driver_functions;

#define DELAY_NS 4000000
#define NON_BLOCKING 1u
#define CAPTURE_THREAD_LOCAL 1

static driver_functions driver;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

/* Newer versions of a function have separate names. */
static void find(void *library, const char *name, void *function)
{
    char newer[64];
    snprintf(newer, sizeof newer, "%s_v2", name);
    void *found = dlsym(library, newer);
    if (!found)
        found = dlsym(library, name);
    CHECK(found, "there is no %s", name);
    memcpy(function, &found, sizeof found);
}

static void open_driver(void)
{
    const char *name =
        gpu_is_emulated() ? BANYAN_EMULATED_MODULES "/libbanyan_cuda.so" : "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
#define FIND(function) find(library, #function, (void *)&driver.function)
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxPushCurrent);
    FIND(cuCtxPopCurrent);
    FIND(cuStreamCreate);
    FIND(cuStreamDestroy);
    FIND(cuStreamSynchronize);
    FIND(cuMemcpyAsync);
    FIND(cuMemsetD8Async);
    FIND(cuStreamBeginCapture);
    FIND(cuStreamEndCapture);
    FIND(cuGraphInstantiateWithFlags);
    FIND(cuGraphDestroy);
    FIND(cuGraphLaunch);
    FIND(cuGraphExecDestroy);
#undef FIND
    CHECK(driver.cuInit(0) == 0, "cuInit");
}

static void enter(DLDevice device)
{
    void *context;
    pthread_once(&opened, open_driver);
    CHECK(driver.cuDevicePrimaryCtxRetain(&context, device.device_id) == 0, "device %d",
          device.device_id);
    CHECK(driver.cuCtxPushCurrent(context) == 0, "device %d", device.device_id);
}

static void leave(void)
{
    void *context;
    driver.cuCtxPopCurrent(&context);
}

#define DRIVER(device, call)                                                                       \
    do {                                                                                           \
        enter(device);                                                                             \
        int driver_result_ = driver.call;                                                          \
        leave();                                                                                   \
        CHECK(driver_result_ == 0, "CUDA's error %d", driver_result_);                             \
    } while (0)

void *gpu_stream_create(DLDevice device)
{
    void *stream;
    DRIVER(device, cuStreamCreate(&stream, NON_BLOCKING));
    return stream;
}

void gpu_stream_destroy(DLDevice device, void *stream)
{
    DRIVER(device, cuStreamDestroy(stream));
}

void gpu_stream_wait(DLDevice device, void *stream)
{
    DRIVER(device, cuStreamSynchronize(stream));
}

void gpu_stream_copy(DLDevice device, void *stream, void *to, const void *from, size_t bytes)
{
    DRIVER(device, cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, stream));
}

void gpu_stream_fill(DLDevice device, void *stream, void *to, uint8_t value, size_t bytes)
{
    DRIVER(device, cuMemsetD8Async((uintptr_t)to, value, bytes, stream));
}

/* Fill at the rate of a current GPU, or of a core that emulates one. */
void gpu_stream_delay(DLDevice device, void *stream, void *scratch, size_t bytes)
{
    size_t bytes_a_ns = gpu_is_emulated() ? 8 : 3000;
    size_t fills = DELAY_NS * bytes_a_ns / bytes + 1;
    for (size_t i = 0; i < fills; i++)
        gpu_stream_fill(device, stream, scratch, (uint8_t)i, bytes);
}

void gpu_capture_begin(DLDevice device, void *stream)
{
    DRIVER(device, cuStreamBeginCapture(stream, CAPTURE_THREAD_LOCAL));
}

void *gpu_capture_end(DLDevice device, void *stream)
{
    void *graph, *made;
    DRIVER(device, cuStreamEndCapture(stream, &graph));
    DRIVER(device, cuGraphInstantiateWithFlags(&made, graph, 0));
    DRIVER(device, cuGraphDestroy(graph));
    return made;
}

void gpu_graph_launch(DLDevice device, void *graph, void *stream)
{
    DRIVER(device, cuGraphLaunch(graph, stream));
}

void gpu_graph_destroy(DLDevice device, void *graph)
{
    DRIVER(device, cuGraphExecDestroy(graph));
}
