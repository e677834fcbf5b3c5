#include "support/gpu/gpu.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emulation/cuda.h"
#include "support/test.h"

#define SKIPPED 77

static int devices;
static bool emulated;

struct answer {
    int count;
    char reason[512];
};

/* Runs in a separate process: return the number of devices that the module finds. */
static void ask(struct answer *answer)
{
    const memory_device_ops *ops;
    if (memory_device_find(kDLCUDA, &ops) == BANYAN_OK) {
        while (answer->count < 64 && ops->open(answer->count) == BANYAN_OK)
            answer->count++;
    }
    snprintf(answer->reason, sizeof answer->reason, "%s", banyan_last_error());
}

static int count_with(const char *module_folder, char *reason, size_t reason_bytes)
{
    if (module_folder)
        setenv("BANYAN_MODULE_PATH", module_folder, 1);
    struct answer *answer =
        mmap(NULL, sizeof *answer, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(answer != MAP_FAILED);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ranks_become_child();
        ask(answer);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    int count = status == 0 ? answer->count : 0;
    snprintf(reason, reason_bytes, "%s", answer->reason);
    munmap(answer, sizeof *answer);
    return count;
}

/* Search beside this program's own folder, even if it was moved. */
static void find_modules(char *folder, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", folder, bytes - 1);
    assert_true(length > 0);
    folder[length] = '\0';
    char *name = strrchr(folder, '/');
    snprintf(name, bytes - (size_t)(name - folder), "/../lib");
}

int gpu_count(void)
{
    if (devices > 0)
        return devices;
    char reason[512], emulated_reason[512], modules[4096];
    const char *chosen = getenv("BANYAN_MODULE_PATH");
    find_modules(modules, sizeof modules);
    devices = count_with(chosen ? NULL : modules, reason, sizeof reason);
    if (devices == 0 && !chosen) {
        devices = count_with(BANYAN_EMULATED_MODULES, emulated_reason, sizeof emulated_reason);
    }
    if (devices == 0) {
        printf("skipped: no GPU (%s)%s%s\n", reason,
               chosen ? "" : " and none is emulated: ", chosen ? "" : emulated_reason);
        exit(SKIPPED);
    }
    emulated = strcmp(getenv("BANYAN_MODULE_PATH"), BANYAN_EMULATED_MODULES) == 0;
    if (emulated) {
        setenv("BANYAN_NCCL", BANYAN_EMULATED_MODULES "/libnccl.so.2", 1);
        setenv("BANYAN_UCX", BANYAN_EMULATED_MODULES "/libucp_cuda.so", 0);
    }
    printf("on %d%s GPUs\n", devices, emulated ? " emulated" : "");
    return devices;
}

bool gpu_is_emulated(void)
{
    return emulated;
}

DLDevice gpu_device_for(int rank)
{
    return BANYAN_CUDA(rank % devices);
}

const memory_device_ops *gpu_memory(void)
{
    const memory_device_ops *ops;
    CHECK_OK(memory_device_find(kDLCUDA, &ops));
    return ops;
}

void *gpu_driver_function(const char *name)
{
    const char *file = emulated ? BANYAN_EMULATED_MODULES "/libbanyan_cuda.so" : "libcuda.so.1";
    gpu_memory();
    void *library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL, "%s", dlerror());
    char newer[64];
    snprintf(newer, sizeof newer, "%s_v2", name);
    void *function = dlsym(library, newer);
    if (!function)
        function = dlsym(library, name);
    dlclose(library);
    return function;
}

#define FUNCTION(name) __typeof__(&name) call_##name = (__typeof__(&name))gpu_driver_function(#name)
#define CHECK_CUDA(call) CHECK((call) == CUDA_SUCCESS)

static void enter(DLDevice device)
{
    FUNCTION(cuDevicePrimaryCtxRetain);
    FUNCTION(cuCtxPushCurrent);
    CUcontext context;
    CHECK_CUDA(call_cuDevicePrimaryCtxRetain(&context, device.device_id));
    CHECK_CUDA(call_cuCtxPushCurrent(context));
}

/* Keep the context retained: without users it would be destroyed with all its memory. */
static void leave(void)
{
    FUNCTION(cuCtxPopCurrent);
    CUcontext context;
    CHECK_CUDA(call_cuCtxPopCurrent(&context));
}

void *gpu_plain_alloc(DLDevice device, size_t bytes)
{
    FUNCTION(cuMemAlloc);
    CUdeviceptr made;
    enter(device);
    CHECK_CUDA(call_cuMemAlloc(&made, bytes));
    leave();
    return (void *)(uintptr_t)made;
}

void gpu_plain_free(DLDevice device, void *address)
{
    FUNCTION(cuMemFree);
    enter(device);
    CHECK_CUDA(call_cuMemFree((CUdeviceptr)(uintptr_t)address));
    leave();
}

void gpu_copy(void *to, const void *from, size_t bytes)
{
    CHECK_OK(gpu_memory()->copy(to, from, bytes));
}

void gpu_fill(void *to, uint8_t value, size_t bytes)
{
    CHECK_OK(gpu_memory()->fill(to, value, bytes));
}

void gpu_poison(void *to, size_t bytes)
{
    gpu_fill(to, 0xC9, bytes);
}

void *gpu_read(const void *from, size_t bytes)
{
    void *here = malloc(bytes > 0 ? bytes : 1);
    CHECK(here != NULL);
    gpu_copy(here, from, bytes);
    return here;
}

size_t gpu_mapped_here(void)
{
    char line[512];
    size_t bytes = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (strstr(line, "memfd:emulated") && sscanf(line, "%lx-%lx", &start, &end) == 2)
            bytes += end - start;
    }
    fclose(maps);
    return bytes;
}

size_t gpu_free_bytes(banyan_world *world)
{
    size_t free_bytes, all_bytes;
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(gpu_memory()->room(gpu_device_for(banyan_world_rank(world)).device_id, &free_bytes,
                                &all_bytes));
    CHECK_OK(banyan_world_barrier(world));
    return free_bytes;
}
