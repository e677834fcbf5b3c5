/* What the operations of this rank did, and when. */
#ifndef EXECUTE_HOST_TRACE_H
#define EXECUTE_HOST_TRACE_H

#include <banyan/execute.h>

#include "core/deadline.h"

typedef struct trace_record {
    uint64_t begin_ns, end_ns, waited_ns;
    uint64_t run; /* of the loaded plan, from 1 on */
    uint64_t iteration;
    uint32_t block;      /* its id */
    uint32_t number;     /* of the operation in it */
    int32_t loop_number; /* of the operation in the loop at `number`; -1: in none */
    uint32_t kind;       /* plan_op_kind */
    int32_t peer;        /* -1: none, or several */
} trace_record;

/* One a worker: nobody else writes it. When it is full the oldest records go. */
typedef struct trace_ring {
    trace_record *records;
    uint64_t count; /* ever written */
} trace_ring;

typedef struct trace {
    trace_ring *rings;
    int ring_count;
} trace;

#define TRACE_RING_RECORDS (UINT64_C(1) << 16)

void trace_add(trace_ring *ring, const trace_record *record);
void trace_free(trace *old);

#endif
