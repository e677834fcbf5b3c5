/* Machines without GPUs: a request for one fails on all ranks with the missing part, and
 * everything else works. */
#include "support/test.h"

#include <dlfcn.h>
#include <unistd.h>

#include "memory/device.h"

/* Only the last rank requests a GPU, or all do. */
struct request {
    bool all;
    const char *missing;
};

static void ask(banyan_world *world, void *context)
{
    const struct request *request = context;
    int rank = banyan_world_rank(world), last = banyan_world_size(world) - 1;
    DLDevice device = request->all || rank == last ? BANYAN_CUDA(0) : BANYAN_HOST;
    banyan_memory *memory = NULL;
    CHECK_FAILS(banyan_memory_alloc_on(world, device, 100, &memory), BANYAN_ERR_UNSUPPORTED,
                request->missing);
    CHECK(memory == NULL && memory_device_loaded(kDLCUDA) == NULL);

    CHECK_OK(banyan_memory_alloc_on(world, BANYAN_HOST, 100, &memory));
    CHECK(banyan_memory_device(memory).device_type == kDLCPU);
    memset(banyan_memory_local(memory), rank, 100);
    DLDevice found;
    CHECK_OK(banyan_memory_locate(banyan_memory_local(memory), &found));
    CHECK(found.device_type == kDLCPU && found.device_id == 0);
    char copied[100];
    CHECK_OK(banyan_memory_copy(copied, banyan_memory_local(memory), sizeof copied));
    CHECK_OK(banyan_memory_copy(NULL, NULL, 0));
    CHECK(memcmp(copied, banyan_memory_local(memory), sizeof copied) == 0);
    banyan_memory_handle handle;
    CHECK_OK(banyan_memory_register(world, &found, sizeof found, &handle));
    CHECK(handle.kind == BANYAN_MEMORY_USER);
    CHECK_OK(banyan_memory_unregister(world, &handle));
    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(memory);
}

static void ask_both_ways(const char *missing)
{
    struct request request = {true, missing};
    ranks_run(3, ask, &request);
    request.all = false;
    ranks_run(3, ask, &request);
}

static void a_build_without_the_module_says_so(void **state)
{
    (void)state;
    setenv("BANYAN_MODULE_PATH", "/nonexistent", 1);
    ask_both_ways("there is no libbanyan_cuda.so");
    unsetenv("BANYAN_MODULE_PATH");
}

static void a_machine_without_a_driver_says_so(void **state)
{
    (void)state;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver || access(BANYAN_BINARY_DIR "/lib/libbanyan_cuda.so", R_OK) != 0) {
        printf("%s\n",
               driver ? "this machine has a CUDA driver" : "this build has no libbanyan_cuda.so");
        skip();
    }
    setenv("BANYAN_MODULE_PATH", BANYAN_BINARY_DIR "/lib", 1);
    ask_both_ways("this machine has no CUDA driver");
    unsetenv("BANYAN_MODULE_PATH");
}

/* A module would take memory and time, and find no device. */
static void a_process_without_a_driver_loads_no_module_for_a_pointer(void **state)
{
    (void)state;
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) ||
        access(BANYAN_EMULATED_MODULES "/libbanyan_cuda.so", R_OK) != 0) {
        printf("this process has a CUDA driver, or this build has no emulated module\n");
        skip();
    }
    char word[] = "word", copied[sizeof word];
    DLDevice found;
    setenv("BANYAN_MODULE_PATH", BANYAN_EMULATED_MODULES, 1);
    CHECK_OK(banyan_memory_locate(word, &found));
    CHECK_OK(banyan_memory_copy(copied, word, sizeof word));
    CHECK(memory_device_loaded(kDLCUDA) == NULL && strcmp(copied, word) == 0);
    unsetenv("BANYAN_MODULE_PATH");
}

static void ask_for_odd_devices(banyan_world *world, void *context)
{
    (void)context;
    banyan_memory *memory = NULL;
    DLDevice odd = {kDLROCM, 0};
    CHECK_FAILS(banyan_memory_alloc_on(world, odd, 100, &memory), BANYAN_ERR_UNSUPPORTED,
                "type 10");
    CHECK(memory == NULL);
}

static void devices_of_other_kinds_are_refused(void **state)
{
    (void)state;
    ranks_run(2, ask_for_odd_devices, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_build_without_the_module_says_so),
        cmocka_unit_test(a_machine_without_a_driver_says_so),
        cmocka_unit_test(a_process_without_a_driver_loads_no_module_for_a_pointer),
        cmocka_unit_test(devices_of_other_kinds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
