/* What the parts of the emulated driver share. */
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
    CUstream null_stream; /* made when it is first used */
};

int emulated_device_count(void);
bool emulated_fabric_is(const char *what);

/* Multicast is there when BANYAN_EMULATED_MULTICAST says so: "1"; "old": devices have it, and the
 * driver has no functions for it; "unbound": they have it, and device 1 cannot bind memory. */
const char *emulated_multicast(void);

/* The thread's current context; NULL: none. */
CUcontext emulated_current(void);

/* Must this thread not ask for what a capture that is under way does not allow? */
bool emulated_capture_forbids(void);

/* May streams write values there? Not to memory of a pool, or that is mapped piece by piece. */
bool emulated_takes_values(CUdeviceptr address);

/* All streams of the process have done what they were given. */
void emulated_wait_for_all(void);

#endif
