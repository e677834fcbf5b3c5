/* Records each operation of this rank with its times. */
#ifndef EXECUTE_HOST_TRACE_H
#define EXECUTE_HOST_TRACE_H

#include <banyan/execute.h>

#include "core/deadline.h"

typedef struct trace_record {
    uint64_t begin_ns, end_ns, waited_ns;
    uint64_t run; /* the loaded plan's run, from 1 on */
    uint64_t iteration;
    uint32_t block;      /* id of the thread block */
    uint32_t number;     /* number of the operation in the block */
    int32_t loop_number; /* number of the operation in a loop's body; -1: none */
    uint32_t kind;       /* plan_op_kind */
    int32_t peer;        /* -1: none, or several */
} trace_record;

/* One for each worker, its only writer. A full ring drops its oldest records. */
typedef struct trace_ring {
    trace_record *records;
    uint64_t count; /* number of records ever written */
} trace_ring;

typedef struct trace {
    trace_ring *rings;
    int ring_count;
} trace;

#define TRACE_RING_RECORDS (UINT64_C(1) << 16)

void trace_add(trace_ring *ring, const trace_record *record);
void trace_free(trace *old);

#endif
