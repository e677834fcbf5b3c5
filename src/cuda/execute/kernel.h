/* What the host hands the kernel that runs plans, and how a program lies in the device's memory.
 *
 * A launch has a thread block for each of the plan's. Each copies its own section of the program
 * into shared memory in one go, at the same time as it reads its state, so that nothing but these
 * two loads comes before its first step. Everything that outlives a run is in the device's memory
 * and is changed by the kernel alone: launches may be captured and played again.
 *
 * All pointers are addresses on the device; what is pinned host memory says so. "Zeroed" is what it
 * is before the first run, and after a reset. */
#ifndef CUDA_EXECUTE_KERNEL_H
#define CUDA_EXECUTE_KERNEL_H

#include <banyan/device/port.h>

#include "cuda/runtime/waits.h"
#include "execute/device/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- programs ---- */

/* A channel's end, or a semaphore, as a step of a section has it. */
typedef struct kernel_end {
    uint64_t *incoming;       /* of a semaphore: its value in even runs */
    uint64_t *outgoing;       /* of a semaphore: its value in odd runs */
    uint64_t *consumed;       /* signals that waits here have taken; zeroed */
    banyan_port_queue *queue; /* PORT that has a proxy; else others have copied what was put */
} kernel_end;

/* Of a step that moves bytes, in `relaxed`: it uses bytes that an earlier part of the same
 * operation wrote, or the other way round, so that the threads meet before it. Its `barrier` is how
 * many pieces each of the steps has that it does, itself first; 0: they are not told apart. */
#define KERNEL_MEETS 1

/* Of a step that moves bytes outside of loops: the units of 8 bytes of all its pieces, or the most
 * that there can be. */
#define KERNEL_STEP_UNITS(step) ((step)->barrier_members)

/* A word of a piece behind its bytes: where an operand lies, from a base on, whether packets lie
 * there, and whether in scratch. Each piece of a step has bases of its own; which are packets is
 * the same in all. */
#define KERNEL_PLACE_PACKETS (UINT64_C(1) << 63)
#define KERNEL_PLACE_SCRATCH (UINT64_C(1) << 62)
#define KERNEL_PLACE_SHIFT 48
#define KERNEL_PLACE_OFFSET ((UINT64_C(1) << KERNEL_PLACE_SHIFT) - 1)
#define KERNEL_PLACE_BASE(place) ((uint32_t)((place) >> KERNEL_PLACE_SHIFT) & 0x3fff)
#define KERNEL_PLACE(operand, offset)                                                              \
    (((operand)&ENGINE_PACKETS ? KERNEL_PLACE_PACKETS : 0) |                                       \
     (((operand) & ~ENGINE_PACKETS) % 3 == 2 ? KERNEL_PLACE_SCRATCH : 0) |                         \
     (uint64_t)((operand) & ~ENGINE_PACKETS) << KERNEL_PLACE_SHIFT | (offset))

/* A step that another one does; passed over. */
#define KERNEL_PASS (ENGINE_MULTICAST + 1)

/* Where an array lies: in the section, so many bytes from its start, or anywhere on the device. Of
 * the entry that the program counts as its first, so that a resident array, which is a part of the
 * program's, may seem to begin before the section. */
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

/* A thread block's section. The arrays lie behind it, as far as they fit; otherwise they are read
 * where the whole program's lie. */
typedef struct kernel_section {
    uint32_t step_count;
    uint32_t first_end, end_count; /* as the program counts */
    uint32_t has_ports;            /* some of its ends are of port channels */
    kernel_array arrays[KERNEL_ARRAYS];
} kernel_section;

/* Of a section: what the largest thread block loads with four accesses a thread. */
#define KERNEL_SECTION_MOST 32768

/* A program in the device's memory: sections, one `section_bytes` (a multiple of 16) after the
 * other, then the program's whole arrays. src/cuda/execute/pack.h makes it. */

/* ---- what lasts ---- */

/* A thread block's; zeroed. 16 bytes, read at once. */
typedef struct kernel_state {
    uint64_t runs;  /* that this block has begun */
    uint64_t flags; /* that their packets have used up */
} kernel_state;

/* Counters that thread blocks share lie this far apart. */
#define KERNEL_COUNTER_BYTES 128
#define KERNEL_COUNTER_WORDS (KERNEL_COUNTER_BYTES / sizeof(uint64_t))

/* How a run ended that failed; pinned host memory; zeroed. The kernel writes `report` and then,
 * with release, `written`. */
typedef struct kernel_report {
    engine_report report;
    uint32_t written;
    /* `what`: block and step << 32, index and iteration << 32, uploaded. */
    device_waits waits;
} kernel_report;

/* ---- port channels ---- */

/* What a proxy is to do, in order; signals are of the peer's counter, to which 1 is added. Packets
 * are not posted: the kernel waits until what was posted before them is done, and writes them
 * itself. Requests are pinned host memory; `done` is written by the proxy, with release or by
 * stream order; all counts are zeroed. */
#define KERNEL_PUT BANYAN_PORT_PUT
#define KERNEL_SIGNAL BANYAN_PORT_SIGNAL
typedef banyan_port_request kernel_request;
typedef banyan_port_queue kernel_queue;

/* What thread blocks that wait for each other wait longer than those that wait for a peer, which
 * know better whom to name. */
#define KERNEL_GRACE_NS UINT64_C(1000000000)

/* ---- traces ---- */

typedef struct kernel_trace {
    uint64_t begin_ns, end_ns, waited_ns; /* by the device's globaltimer */
    uint64_t iteration;
    uint32_t block, step;
    uint64_t loaded, uploaded; /* as kernel_args has them */
    uint64_t unused;
} kernel_trace;

/* In the device's memory, one an engine. Record n lies at records[n % room]. */
typedef struct kernel_tracer {
    uint64_t room;  /* a power of two; 0: nothing is recorded */
    uint64_t count; /* of records, those that were written over among them */
    kernel_trace *records;
} kernel_tracer;

/* ---- launches ---- */

#define KERNEL_BASES (ENGINE_GROUP_BASES + ENGINE_GROUPS_MAX * 3)

typedef struct kernel_args {
    char *bases[KERNEL_BASES]; /* as engine_run has them, its group_bases from ENGINE_GROUP_BASES on
                                */
    uint64_t scratch_half;

    const char *sections;
    uint32_t section_bytes; /* dynamic shared memory: see execute_shared_bytes */
    uint32_t flags;         /* that packets of a run use up */

    kernel_state *states; /* one a thread block */
    uint32_t *broken;     /* set by the first thread block that fails, to end the others and later
                             runs; zeroed */
    const uint32_t *stop; /* pinned host memory: not 0 when kernels are to end */
    kernel_report *report;
    uint64_t timeout_ns; /* of every wait */

    /* KERNEL_COUNTER_BYTES apart: the plan's barriers, then one of all thread blocks; zeroed. */
    uint64_t *barriers;
    uint32_t barrier_count; /* the plan's */
    uint32_t semaphore_count;
    /* Values of even runs, then those of odd ones, KERNEL_COUNTER_BYTES apart; at first both are as
     * the runs begin, semaphore_starts (side by side). */
    uint64_t *semaphores;
    const uint64_t *semaphore_starts;

    char *copy_in_to; /* as engine_run has them */
    const char *copy_in_from;
    uint64_t copy_in_bytes;
    char *copy_out_to;
    const char *copy_out_from;
    const engine_span *spans; /* in the program */
    uint32_t span_count;
    uint32_t unused;

    kernel_tracer *tracer; /* NULL: none */
    uint64_t loaded, uploaded;

    /* Steps [first_step, end_step) of every thread block; the quick kernel does all.
     * `goes_on`: another launch ends the run, and counts it. */
    uint32_t first_step, end_step;
    uint32_t goes_on, unused_too;
} kernel_args;

/* Kernels with less in them are there sooner. They are for some programs (pack_kind), launched
 * without copies before or after, without traces, and with all bases and the half of scratch
 * multiples of KERNEL_ALIGNMENT; they need no more of anything than the whole one. */
typedef enum kernel_kind {
    KERNEL_WHOLE,
    KERNEL_QUICK,  /* for packets */
    KERNEL_DIRECT, /* for data and signals */
    KERNEL_KINDS
} kernel_kind;

#define KERNEL_ALIGNMENT 16

/* Sources of a step of KERNEL_QUICK, and destinations, at most. */
#define KERNEL_QUICK_OPERANDS 8

/* The kernel for a type, as driver_kernel takes it; types that cannot be reduced have one too. */
const void *execute_kernel(DLDataType dtype, kernel_kind kind);

#define KERNEL_THREADS_MOST 512

/* Of shared memory, what a thread block's threads have in common in front of its section. */
#define KERNEL_SHARED_BYTES 640

/* Threads of a block for a plan that asks for so many: whole warps, KERNEL_THREADS_MOST at most. */
uint32_t execute_threads(uint32_t threads_per_block);

/* Dynamic shared memory of a launch. */
uint32_t execute_shared_bytes(uint32_t section_bytes);

#ifdef __cplusplus
}
#endif

#endif
