/* One machine or several: processors and switches, and the links between them. */
#ifndef SIMULATE_TOPOLOGY_TOPOLOGY_H
#define SIMULATE_TOPOLOGY_TOPOLOGY_H

#include <jansson.h>

#include <banyan/simulate.h>

#include "core/containers.h"

/* The topologies that are compiled in. */
typedef struct shipped_topology {
    const char *name, *text;
} shipped_topology;
extern const shipped_topology shipped_topologies[]; /* ends with an empty one */

/* A thread block's rates per second. Where processors share a memory, "peer's memory" means data
 * that others write or, for writes, touch, wherever it lies. */
typedef struct block_rates {
    double local;        /* bytes of its own memory, read or written */
    double load;         /* bytes of a peer's memory, read */
    double store;        /* bytes of a peer's memory, written */
    double packet;       /* bytes of packets with their flags, read or written, wherever they lie */
    double reduce;       /* bytes of sources, reduced */
    double reduce_load;  /* sources in a peer's memory, reduced */
    double reduce_store; /* bytes of sums that a core writes to data that peers touch */
} block_rates;

/* The rates of a rank that touches this many bytes in a run. */
typedef struct cached_rates {
    double working_set_bytes;
    block_rates rates;
} cached_rates;

typedef struct processor_kind {
    const char *name;
    double memory_bytes_per_s;
    double blocks_at_once; /* thread blocks that can run at their full rates */
    uint64_t launch_ps;    /* before the first operation of a run */
    uint64_t operation_ps; /* of each operation except nop */
    uint64_t sync_ps;      /* of a nop or barrier */
    uint64_t signal_ps;  /* extra time of a signal; in shared memory, of one with data to publish */
    bool shared_memory;  /* with all others of its kind, each with its own caches */
    cached_rates *rates; /* by working set, ascending; a single entry serves every working set */
    size_t rate_count;
    double load_overhead, store_overhead; /* room on links per byte that a thread block moves */
    uint64_t request_ps;                  /* the proxy's work for one request */
    double port_bytes_per_s;
    bool port_takes_block; /* the proxy copies in place of thread blocks */
} processor_kind;

/* Processors come first. */
typedef struct topology_vertex {
    const char *name;
    const processor_kind *kind; /* NULL: a switch */
    bool multicast;
} topology_vertex;

typedef struct topology_link {
    uint32_t from, to;
    uint64_t latency_ps;
    double bytes_per_s;
} topology_link;

struct banyan_topology {
    arena memory;
    json_t *source;
    const char *name;
    processor_kind *kinds;
    size_t kind_count;
    ARRAY(topology_vertex) vertices;
    uint32_t processor_count;
    ARRAY(topology_link) links;
    uint32_t *first_out; /* for each vertex, and one more entry: index into `out` */
    uint32_t *out;       /* links by source vertex */
};

/* Return the rates of a working set: between two known sets, a byte's time is interpolated by the
 * logarithm. */
block_rates rates_for(const processor_kind *kind, double working_set_bytes);

#endif
