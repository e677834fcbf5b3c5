/* src/cuda/driver.h over the emulated driver. */
#include "cuda/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "state.h"

#define MEMBER(function) .function = function,
driver_table driver = {DRIVER_FUNCTIONS(MEMBER) DRIVER_MULTICAST_FUNCTIONS(MEMBER)};
#undef MEMBER

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static CUresult initialised;

static void open_once(void)
{
    initialised = cuInit(0);
    const char *multicast = emulated_multicast();
#define FORGET(function) driver.function = NULL;
    if (multicast && strcmp(multicast, "old") == 0) {
        DRIVER_MULTICAST_FUNCTIONS(FORGET)
    }
#undef FORGET
}

banyan_status driver_open(void)
{
    pthread_once(&opened, open_once);
    return initialised == CUDA_SUCCESS
               ? BANYAN_OK
               : banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                  "cuda: BANYAN_EMULATED_DEVICES is not 1 to 8");
}

banyan_status driver_kernel(const void *symbol, int device, CUfunction *kernel)
{
    (void)device;
    *kernel = (CUfunction)(uintptr_t)symbol;
    return BANYAN_OK;
}
