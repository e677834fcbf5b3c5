/* Common code of tests of multicast memory. They never create a multicast object on real GPUs. */
#ifndef TESTS_CUDA_GPU_MULTICAST_H
#define TESTS_CUDA_GPU_MULTICAST_H

#include "support/gpu/gpu.h"
#include "support/test.h"

/* Call it first in main: skips the program unless there are two emulated GPUs. */
static inline void multicast_tests_begin(void)
{
    unsetenv("BANYAN_MULTICAST");
    int count = gpu_count();
    if (gpu_is_emulated() && count >= 2)
        return;
    printf("skipped: multicast objects are made on emulated GPUs only, and take two\n");
    exit(77);
}

static inline uint64_t count_of(const char *name)
{
    uint64_t (*count)(void) = (uint64_t(*)(void))gpu_driver_function(name);
    CHECK(count != NULL, "%s", name);
    return count();
}

static inline uint64_t calls(void)
{
    return count_of("emulated_multicast_calls");
}

/* Sum over all ranks. */
static inline uint64_t accesses(banyan_world *world)
{
    uint64_t mine = count_of("emulated_multicast_accesses"), sum = 0, all[16];
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, all));
    for (int i = 0; i < banyan_world_size(world); i++)
        sum += all[i];
    return sum;
}

/* The last log line about multicast. */
static char logged[1024];

static inline void keep_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    if (level == BANYAN_LOG_INFO && strstr(message, "multicast"))
        snprintf(logged, sizeof logged, "%s", message);
}

/* A rank's environment, set before it uses its GPU. NULL: not set. */
struct setting {
    const char *banyan, *emulated;
};

static inline void set(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static inline void begin(const struct setting *setting)
{
    set("BANYAN_MULTICAST", setting->banyan);
    set("BANYAN_EMULATED_MULTICAST", setting->emulated);
    setenv("BANYAN_LOG", "info", 1);
    banyan_log_set(keep_line, NULL);
    logged[0] = '\0';
}

static const struct setting all_have_it = {"1", "1"};

#endif
