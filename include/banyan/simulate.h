/* Banyan: predicting how long a plan takes on a machine, before there is one.
 *
 * A discrete-event simulation: thread blocks run their operations in order, at rates that the
 * topology gives; bytes flow over links with latency and bandwidth, shared fairly; port channels
 * have a proxy with its own cost; signals take their time. docs/simulate.md explains the model and
 * the topology files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_SIMULATE_H
#define BANYAN_SIMULATE_H

#include <banyan/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Processors (GPUs, or processes of a host), switches, and links between them. */
typedef struct banyan_topology banyan_topology;

/* Read a topology from a JSON file, or one that Banyan ships by its name ("h200x4", "h200x8",
 * "dgx-h100x64", "gb200-nvl72", "ethernet16", …). Errors: NOT_FOUND (names those there are), FORMAT
 * with the path of keys. */
BANYAN_API banyan_status banyan_topology_read(const char *path_or_name, banyan_topology **topology);
BANYAN_API banyan_status banyan_topology_parse(const char *text, size_t bytes, const char *name,
                                               banyan_topology **topology);
/* As JSON text, to be freed with free(). */
BANYAN_API banyan_status banyan_topology_print(const banyan_topology *topology, char **text);
BANYAN_API void banyan_topology_destroy(banyan_topology *topology);
BANYAN_API int banyan_topology_processors(const banyan_topology *topology);
/* The index-th shipped one's name; NULL behind the last. */
BANYAN_API const char *banyan_topology_shipped(size_t index);

typedef struct banyan_simulation banyan_simulation; /* the result */

typedef struct banyan_simulate_options {
    size_t size;            /* of this struct; BANYAN_SIMULATE_OPTIONS_INIT sets it */
    uint64_t message_bytes; /* a rank's input */
    size_t elem_bytes;
    int runs;   /* consecutive runs; the time is that of the last one */
    bool trace; /* keep every operation's times */
} banyan_simulate_options;

#define BANYAN_SIMULATE_OPTIONS_INIT                                                               \
    {                                                                                              \
        .size = sizeof(banyan_simulate_options), .message_bytes = 1 << 20, .elem_bytes = 4,        \
        .runs = 1                                                                                  \
    }

/* Run the plan on the topology, rank i on processor i. Errors: INVALID (more ranks than processors,
 * a size that the plan cannot run at), UNSUPPORTED (a switch channel without a switch that can),
 * MISMATCH (the plan hangs: the sentence names who waits for whom). */
BANYAN_API banyan_status banyan_plan_simulate(const banyan_plan *plan,
                                              const banyan_topology *topology,
                                              const banyan_simulate_options *options,
                                              banyan_simulation **simulation);
BANYAN_API void banyan_simulation_destroy(banyan_simulation *simulation);

/* Seconds from the first rank's start to the last rank's end. */
BANYAN_API double banyan_simulation_seconds(const banyan_simulation *simulation);

typedef struct banyan_link_use {
    const char *name; /* "gpu0 -> nvswitch0" */
    uint64_t bytes;
    double busy; /* share of the time in which something flowed */
} banyan_link_use;

/* The index-th link; false behind the last. */
BANYAN_API bool banyan_simulation_link(const banyan_simulation *simulation, size_t index,
                                       banyan_link_use *use);

typedef struct banyan_path_step {
    int rank, thread_block, operation, loop_operation;
    const char *what; /* "put", "wait for rank 3" */
    double began_s, ended_s;
} banyan_path_step;

/* The critical path: what the end waited for, from the start on. False behind the last step. */
BANYAN_API bool banyan_simulation_path(const banyan_simulation *simulation, size_t index,
                                       banyan_path_step *step);

/* Chrome's trace JSON, as banyan_trace_write's. UNSUPPORTED without options.trace. */
BANYAN_API banyan_status banyan_simulation_write_trace(const banyan_simulation *simulation,
                                                       const char *path);

#ifdef __cplusplus
}
#endif
#endif
