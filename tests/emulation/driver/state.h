/* Declarations that the parts of the emulated driver share. */
#ifndef EMULATION_STATE_H
#define EMULATION_STATE_H

#include <pthread.h>
#include <stdbool.h>

#include <cuda.h>

#define EMULATED_DEVICES_MAX 16
#define EMULATED_THREADS_MAX 32
#define EMULATED_MULTIPROCESSORS 16
#define EMULATED_BLOCKS_A_MULTIPROCESSOR 4

struct emulated_context {
    int device;
    int users;
    CUstream null_stream; /* created at its first use */
};

int emulated_device_count(void);
bool emulated_fabric_is(const char *what);

/* BANYAN_EMULATED_MULTICAST enables multicast: "1"; "old": devices have it, but the driver has no
 * functions for it; "unbound": devices have it, but device 1 cannot bind memory. */
const char *emulated_multicast(void);

/* The thread's current context; NULL: none. */
CUcontext emulated_current(void);

/* True if a capture in progress forbids the call to this thread. */
bool emulated_capture_forbids(void);

/* True if streams may write values there. False for memory of a pool, or memory mapped piece by
 * piece. */
bool emulated_takes_values(CUdeviceptr address);

/* Wait until all streams of the process have done their work. */
void emulated_wait_for_all(void);

#endif
