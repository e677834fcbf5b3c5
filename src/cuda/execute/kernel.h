/* The interface between the host and the kernel that runs plans, and the layout of a program in
 * device memory.
 *
 * A launch has one thread block for each of the plan's. Each copies its section of the program
 * into shared memory in one go, while it reads its state: only these two loads precede its first
 * step. Everything that outlives a run lies in device memory and is changed by the kernel alone,
 * so launches may be captured and replayed.
 *
 * All pointers are device addresses; pinned host memory is marked. "Zeroed" is the state before
 * the first run, and after a reset. */
#ifndef CUDA_EXECUTE_KERNEL_H
#define CUDA_EXECUTE_KERNEL_H

#include <banyan/device/port.h>

#include "cuda/runtime/report.h"
#include "execute/device/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A channel's end, or a semaphore, in the form for a step of a section. */
typedef struct kernel_end {
    uint64_t *incoming; /* for a semaphore: its value in even runs */
    uint64_t *outgoing; /* for a semaphore: its value in odd runs */
    uint64_t *consumed; /* signals that waits here have taken; zeroed */
    banyan_port_queue
        *queue; /* a PORT with a proxy; NULL: copy engines have already done the puts */
} kernel_end;

/* In `relaxed` of a step that moves bytes: the step uses bytes that an earlier part of its
 * operation wrote, or the reverse, so the threads synchronize before it. Its `barrier` is the
 * number of pieces of each of the steps that it performs, itself first; 0: they are not
 * distinguished. */
#define KERNEL_BARRIER_FIRST 1

/* In a step that moves bytes outside of loops: the number of 8-byte units of all its pieces, or
 * the largest number if that is exceeded. */
#define KERNEL_STEP_UNITS(step) ((step)->barrier_members)

/* A word of a piece after its bytes: an operand's offset from a base, and whether it lies in
 * packets, and in scratch. Each piece of a step has its own bases; all pieces agree on which
 * operands are packets. */
#define KERNEL_PLACE_PACKETS (UINT64_C(1) << 63)
#define KERNEL_PLACE_SCRATCH (UINT64_C(1) << 62)
#define KERNEL_PLACE_SHIFT 48
#define KERNEL_PLACE_OFFSET ((UINT64_C(1) << KERNEL_PLACE_SHIFT) - 1)
#define KERNEL_PLACE_BASE(place) ((uint32_t)((place) >> KERNEL_PLACE_SHIFT) & 0x3fff)
#define KERNEL_PLACE(operand, offset)                                                              \
    (((operand)&ENGINE_PACKETS ? KERNEL_PLACE_PACKETS : 0) |                                       \
     (((operand) & ~ENGINE_PACKETS) % 3 == 2 ? KERNEL_PLACE_SCRATCH : 0) |                         \
     (uint64_t)((operand) & ~ENGINE_PACKETS) << KERNEL_PLACE_SHIFT | (offset))

/* A step that another one performs; skipped. */
#define KERNEL_PASS (ENGINE_MULTICAST + 1)

/* The position of an array: in the section, at this offset from its start, or anywhere on the
 * device. The position is that of the entry that the program counts as its first. So a resident
 * array, which is a part of the program's, may seem to begin before the section. */
typedef struct kernel_array {
    uint64_t address;
    uint64_t is_resident;
} kernel_array;

typedef enum kernel_arrays {
    KERNEL_STEPS, /* from the block's first step on */
    KERNEL_ENDS,
    KERNEL_WORDS,
    KERNEL_ARRAYS
} kernel_arrays;

/* A thread block's section. The arrays follow it, as far as they fit; the others are read from the
 * whole program. */
typedef struct kernel_section {
    uint32_t step_count;
    uint32_t first_end, end_count; /* numbered as in the program */
    uint32_t has_ports;            /* some of its ends are of port channels */
    kernel_array arrays[KERNEL_ARRAYS];
} kernel_section;

/* Size limit of a section: the bytes that the largest thread block loads with four accesses per
 * thread. */
#define KERNEL_SECTION_MOST 32768

/* A program in device memory: sections of `section_bytes` (a multiple of 16) each, then the
 * program's whole arrays. src/cuda/execute/pack.h creates it. */

/* State of a thread block; zeroed. 16 bytes, read at once. */
typedef struct kernel_state {
    uint64_t runs;  /* that this block has begun */
    uint64_t flags; /* number of flags that their packets have used */
} kernel_state;

/* Distance of counters that thread blocks share. */
#define KERNEL_COUNTER_BYTES 128
#define KERNEL_COUNTER_WORDS (KERNEL_COUNTER_BYTES / sizeof(uint64_t))

/* Requests to a proxy, executed in order. A signal adds 1 to the peer's counter. Packets are not
 * posted: the kernel waits until the earlier requests are done, and writes them itself. Requests
 * lie in pinned host memory. The proxy writes `done`, with release or by stream order; all counts
 * are zeroed. */
#define KERNEL_PUT BANYAN_PORT_PUT
#define KERNEL_SIGNAL BANYAN_PORT_SIGNAL
typedef banyan_port_request kernel_request;
typedef banyan_port_queue kernel_queue;

/* Additional timeout for waits among a rank's own thread blocks: waits for a peer name the culprit
 * better, so they report first. */
#define KERNEL_GRACE_NS UINT64_C(1000000000)

typedef struct kernel_trace {
    uint64_t begin_ns, end_ns, waited_ns; /* by the device's globaltimer */
    uint64_t iteration;
    uint32_t block, step;
    uint64_t loaded, uploaded; /* as in kernel_args */
    uint64_t unused;
} kernel_trace;

/* In device memory, one for each engine. Record n lies at records[n % room]. */
typedef struct kernel_tracer {
    uint64_t room;  /* a power of two; 0: nothing is recorded */
    uint64_t count; /* of records, including overwritten ones */
    kernel_trace *records;
} kernel_tracer;

#define KERNEL_BASES (ENGINE_GROUP_BASES + ENGINE_GROUPS_MAX * 3)

typedef struct kernel_args {
    char *bases[KERNEL_BASES]; /* as in engine_run; its group_bases begin at ENGINE_GROUP_BASES */
    uint64_t scratch_half;

    const char *sections;
    uint32_t section_bytes; /* dynamic shared memory: see execute_shared_bytes */
    uint32_t flags;         /* number of flags that a run's packets use */

    kernel_state *states; /* one for each thread block */
    uint32_t *broken; /* set by the first failing thread block, to end the others and later runs;
                         zeroed */
    report_words *reports; /* of engine_wait */
    uint64_t timeout_ns;   /* of every wait */

    /* KERNEL_COUNTER_BYTES apart: the plan's barriers, then one of all thread blocks; zeroed. */
    uint64_t *barriers;
    uint32_t barrier_count; /* number of the plan's barriers */
    uint32_t semaphore_count;
    /* Values of even runs, then those of odd runs, KERNEL_COUNTER_BYTES apart. Both begin as
     * semaphore_starts (contiguous), the values at the start of a run. */
    uint64_t *semaphores;
    const uint64_t *semaphore_starts;

    char *copy_in_to; /* as in engine_run */
    const char *copy_in_from;
    uint64_t copy_in_bytes;
    char *copy_out_to;
    const char *copy_out_from;
    const engine_span *spans; /* in the program */
    uint32_t span_count;
    uint32_t unused;

    kernel_tracer *tracer; /* NULL: no trace */
    uint64_t loaded, uploaded;

    /* Steps [first_step, end_step) of every thread block; the quick kernel runs all. `goes_on`: a
     * later launch ends the run, and counts it. */
    uint32_t first_step, end_step;
    uint32_t goes_on, unused_too;
} kernel_args;

/* Smaller kernels start faster. They serve some programs (pack_kind), launched without copies
 * before or after, without traces, and with all bases and the half of scratch multiples of
 * KERNEL_ALIGNMENT. They need no more of any resource than the whole kernel. */
typedef enum kernel_kind {
    KERNEL_WHOLE,
    KERNEL_QUICK,  /* for packets */
    KERNEL_DIRECT, /* for data and signals */
    KERNEL_KINDS
} kernel_kind;

#define KERNEL_ALIGNMENT 16

/* Most sources, and most destinations, of a step of KERNEL_QUICK. */
#define KERNEL_QUICK_OPERANDS 8

/* The element types with kernels of their own; the last one serves all other types. */
#define EXECUTE_TYPES(X)                                                                           \
    X(bf16, BANYAN_BF16)                                                                           \
    X(f16, BANYAN_F16)                                                                             \
    X(f32, BANYAN_F32)                                                                             \
    X(e4m3, BANYAN_F8_E4M3)                                                                        \
    X(e5m2, BANYAN_F8_E5M2)                                                                        \
    X(i32, BANYAN_I32)                                                                             \
    X(u32, BANYAN_U32)                                                                             \
    X(i64, BANYAN_I64)                                                                             \
    X(u8, BANYAN_U8)

#define EXECUTE_DECLARE_KERNEL(type, dtype) const void *execute_kernel_##type(kernel_kind kind);
EXECUTE_TYPES(EXECUTE_DECLARE_KERNEL)
#undef EXECUTE_DECLARE_KERNEL

/* Return the kernel for a type, for driver_kernel; types that cannot be reduced have one too. */
const void *execute_kernel(DLDataType dtype, kernel_kind kind);

#define KERNEL_THREADS_MOST 512

/* Shared memory before a thread block's section, used by all its threads. */
#define KERNEL_SHARED_BYTES 640

/* Return the threads of a block for a plan that requests this many: whole warps, at most
 * KERNEL_THREADS_MOST. */
uint32_t execute_threads(uint32_t threads_per_block);

/* Return the dynamic shared memory of a launch. */
uint32_t execute_shared_bytes(uint32_t section_bytes);

#ifdef __cplusplus
}
#endif

#endif
