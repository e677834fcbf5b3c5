/* Streams of the emulated driver, and their queued work. */
#ifndef EMULATION_STREAMS_H
#define EMULATION_STREAMS_H

#include <time.h>

#include "fibers.h"
#include "frontier.h"
#include "state.h"

typedef enum work_kind {
    WORK_COPY,
    WORK_FILL,
    WORK_KERNEL,
    WORK_RECORD,
    WORK_WAIT_EVENT,
    WORK_WRITE,
    WORK_WAIT_VALUE
} work_kind;

typedef struct work {
    work_kind kind;
    char *to;
    const char *from;
    size_t bytes, rows, to_pitch, from_pitch;
    uint64_t value;
    unsigned flags;
    CUevent event;
    uint64_t ticket; /* of the event */
    const struct emulated_kernel *kernel;
    void *argument; /* a private copy */
    fiber_index grid, block;
    size_t shared_bytes;
    bool early, has_room; /* early: while the previous kernel in its stream runs */
    frontier needs;       /* in a graph */
    struct work *next;
} work;

/* The graph of a capture, in progress or finished. */
struct emulated_graph {
    work *first, **end;
    size_t count;
};

struct emulated_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work *first, **end;
    uint64_t queued, done;
    bool closing, runs_kernel;
    CUgraph capture; /* NULL: none */
    frontier last;   /* dependencies of the next captured work */
    bool is_origin;
    CUstreamCaptureMode capture_mode; /* of an origin */
    CUcontext context;
    struct emulated_stream *next;
};

struct emulated_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, reached; /* tickets */
    struct timespec at;
    CUgraph capture; /* the capture that recorded it last */
    frontier last;   /* its dependencies in that capture */
    bool in_graph;   /* its dependencies are in a graph: waits outside of it ignore them */
};

struct emulated_kernel {
    void (*call)(const void *args);
    size_t args_bytes;
};

#pragma GCC visibility push(hidden)

/* All streams of the process. */
extern pthread_mutex_t streams_lock;
extern CUstream streams;

/* Zeroed; ends the process if out of memory. */
void *emulated_take(size_t bytes);
void work_free(work *old);

/* NULL, and the two other names of default streams, stand for the device's own. */
CUresult stream_find(CUstream given, CUstream *stream);
/* Queue a copy of the work, or add it to the capture. */
CUresult stream_push(CUstream given, const work *wanted);

void event_reach(CUevent event, uint64_t ticket);
void event_wait(CUevent event, uint64_t ticket);

#pragma GCC visibility pop

#endif
