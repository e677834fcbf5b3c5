/* The functions of banyan/device, called by a kernel: on a GPU, or on an emulated one. */
#ifndef TESTS_CUDA_DEVICE_FUNCTIONS_H
#define TESTS_CUDA_DEVICE_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <banyan/device/port.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FUNCTIONS_MOST 9

typedef enum function_kind {
    FUNCTION_COPY,    /* from[0] to all places */
    FUNCTION_REDUCE,  /* all sources to all places */
    FUNCTION_GROUP,   /* all places, reduced, to all places */
    FUNCTION_PACKETS, /* from[0], as packets to to[0], and from there to to[1] */
    FUNCTION_SIGNALS, /* the two halves of the threads signal each other `bytes` times */
    /* `places` pieces of from[0] are posted to to[0], with a signal after every third, and
     * overwritten with FUNCTION_OVER after a flush; another thread is the proxy. function_ports
     * are at to[1]. */
    FUNCTION_PORTS
} function_kind;

#define FUNCTION_OVER 0xEE
#define FUNCTION_PORT_ROOM 4

/* Initially zeroed. */
typedef struct function_ports {
    banyan_port_queue queue;
    uint64_t done, signals;
    banyan_port_request requests[FUNCTION_PORT_ROOM];
} function_ports;

/* Places are offsets into the memory of the call. */
typedef struct function_call {
    uint32_t kind;
    uint32_t type; /* F32, F16, BF16, E4M3, E5M2, I32, U32, I64, U8 */
    uint32_t op;   /* banyan_reduce_op */
    uint32_t sources, places;
    uint64_t from[FUNCTIONS_MOST], to[FUNCTIONS_MOST];
    uint64_t bytes;
} function_call;

/* True if there is a GPU. */
bool functions_can_run(void);

/* Let `threads` threads of one block make the call on a copy of `memory`, then copy the result
 * back. False: the launch failed, or a wait failed. */
bool functions_run(const function_call *call, void *memory, size_t bytes, uint32_t threads);

#ifdef __cplusplus
}
#endif

#endif
