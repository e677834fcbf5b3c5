/* Banyan: predict the time that a plan takes on a machine, without the machine.
 *
 * The simulation is event-driven. Thread blocks run their operations in order, at the rates of the
 * topology. Bytes flow over links that have a latency and a bandwidth, which concurrent flows share
 * max-min fairly. Port channels have a proxy with its own cost, and signals have a latency.
 * docs/internals/simulation.md describes the model, docs/simulate.md the topology files.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_SIMULATE_H
#define BANYAN_SIMULATE_H

#include <banyan/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A machine: processors (GPUs, or processes of a host), switches, and links between them. A
 * topology does not change after it is read: several threads may use it at the same time. */
typedef struct banyan_topology banyan_topology;

/* Read a topology from a JSON file, or find one that Banyan ships by its name ("h200x4",
 * "gb200-nvl72", …). The caller owns it. Errors: NOT_FOUND (neither a file nor a shipped name; the
 * message lists these), INVALID (the path is not a file), FORMAT (with the path of keys), SYSTEM,
 * NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_topology_read(const char *path_or_name, banyan_topology **topology);

/* Parse a topology from `bytes` bytes of JSON text. Error messages call the text `name`. Errors:
 * FORMAT (with the path of keys), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_topology_parse(const char *text, size_t bytes, const char *name,
                                               banyan_topology **topology);

/* Set `*text` to the JSON text of a topology, with all keys that were read, in their order. Free it
 * with free(). Errors: NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_topology_print(const banyan_topology *topology, char **text);

/* Free a topology. NULL is ignored. */
BANYAN_API void banyan_topology_destroy(banyan_topology *topology);

/* Properties of a topology. */
typedef struct banyan_topology_info {
    const char *name, *about; /* live as long as the topology */
    int processors, switches; /* their numbers */
    size_t links;             /* each direction counts */
    int thread_blocks;        /* that a processor runs at their full rate at once */
    /* Processors of a node: consecutive ones whose names are equal up to the last dot. The number
     * of all processors if nodes differ in size. */
    int processors_per_node;
} banyan_topology_info;

/* Return the properties of a topology. Any thread. */
BANYAN_API banyan_topology_info banyan_topology_describe(const banyan_topology *topology);

/* Return the name of a shipped topology, or NULL if `index` is not below their number. The string
 * is static. Any thread. */
BANYAN_API const char *banyan_topology_shipped(size_t index);

/* Result of a simulation. It does not change. */
typedef struct banyan_simulation banyan_simulation;

/* Options of banyan_plan_simulate. */
typedef struct banyan_simulate_options {
    size_t size;            /* of this struct; BANYAN_SIMULATE_OPTIONS_INIT sets it */
    uint64_t message_bytes; /* as in banyan_plan_sizes */
    size_t elem_bytes;      /* bytes of an element */
    bool steps; /* record the start and end of every operation, for the critical path and traces */
    /* Limit on the steps of the plan's loops. An iteration takes one step for each operation in it,
     * and one for each operand, channel and semaphore of these. Ten million steps take some
     * seconds. */
    uint64_t max_steps;
} banyan_simulate_options;

#define BANYAN_SIMULATE_OPTIONS_INIT                                                               \
    BANYAN_INIT_WITH(banyan_simulate_options, BANYAN_MEMBER(message_bytes, 1 << 20),               \
                     BANYAN_MEMBER(elem_bytes, 4), BANYAN_MEMBER(max_steps, UINT64_C(1) << 25))

/* Simulate one run of a plan, with rank i on processor i. `options` NULL means the defaults. The
 * caller owns the result; the plan and the topology must outlive it. The simulation is
 * deterministic. Any thread. Errors:
 * - INVALID: the plan has more ranks than the topology has processors, the plan cannot run at this
 *   size, or a rank cannot reach a peer.
 * - UNSUPPORTED: the loops take more than max_steps steps, or no multicast switch connects the
 *   ranks of a switch channel.
 * - MISMATCH: the plan hangs. The message lists the dependencies.
 * - NO_MEMORY. */
BANYAN_API banyan_status banyan_plan_simulate(const banyan_plan *plan,
                                              const banyan_topology *topology,
                                              const banyan_simulate_options *options,
                                              banyan_simulation **simulation);

/* Free a result. NULL is ignored. */
BANYAN_API void banyan_simulation_destroy(banyan_simulation *simulation);

/* Return the predicted time in seconds, from the start of all ranks to the end of the last one. Any
 * thread. */
BANYAN_API double banyan_simulation_seconds(const banyan_simulation *simulation);

/* Return the time in seconds until all work of `rank` is done and its data has arrived. For
 * simulated moves, this includes the moves from other ranks to it. Return 0 if `rank` is out of
 * range. Any thread. */
BANYAN_API double banyan_simulation_rank_seconds(const banyan_simulation *simulation, int rank);

/* Utilization of a link, or of the memory of a rank. */
typedef struct banyan_link_use {
    const char *source, *destination; /* "gpu0", "nvswitch"; destination is NULL for a memory */
    uint64_t bytes;                   /* transferred in the run */
    double busy;                      /* fraction of the time with any traffic, from 0 to 1 */
    double full; /* bytes as a fraction of the capacity over the whole time, from 0 to 1 */
} banyan_link_use;

/* Set `*use` to the utilization at `index`: first the links of the topology, then the memories of
 * the ranks. Return false if `index` is out of range. The names live as long as the topology. Any
 * thread. */
BANYAN_API bool banyan_simulation_link(const banyan_simulation *simulation, size_t index,
                                       banyan_link_use *use);

/* One operation, recorded with options.steps. */
typedef struct banyan_simulation_step {
    int rank, thread_block;  /* that execute the operation */
    int operation;           /* index in the thread block; -1: the kernel launch */
    int loop_operation;      /* index in the loop body; -1: outside of loops */
    uint64_t iteration;      /* of the loop */
    bool proxy;              /* the rank's proxy works, for that operation */
    const char *what;        /* name of the operation in the format, such as "put"; static */
    double began_s, ended_s; /* seconds from the start of all ranks */
    size_t after;            /* index of the step that delayed this one last; SIZE_MAX: none */
} banyan_simulation_step;

/* Set `*step` to the step at `index`, in the order of their ends. An operation that waits for its
 * transfers through port channels makes two steps. Return false if `index` is out of range. There
 * are no steps without options.steps, or if a simulation has more than 8,388,608. Any thread. */
BANYAN_API bool banyan_simulation_step_at(const banyan_simulation *simulation, size_t index,
                                          banyan_simulation_step *step);

/* Set `*step` to the step at `index` of the critical path: the chain of dependent steps, from the
 * start, that determines the end. In this chain, `began_s` is the end of the previous step. Return
 * false if `index` is out of range. Any thread. */
BANYAN_API bool banyan_simulation_path(const banyan_simulation *simulation, size_t index,
                                       banyan_simulation_step *step);

/* ---- moves: transfers without a plan ---- */

/* Means by which a rank carries out a move. */
typedef enum banyan_move_method {
    BANYAN_MOVE_BY_BLOCKS, /* all thread blocks of the rank, in a kernel launched for this move */
    BANYAN_MOVE_BY_PROXY   /* the rank's proxy, as for a port channel */
} banyan_move_method;

/* In a move's `after`: no move. */
#define BANYAN_NO_MOVE SIZE_MAX

/* A transfer of `bytes` from the memory of `rank` to that of `peer`, which may be the same rank.
 * The moves of one lane of a rank run one after another, in the order of the list. A move also
 * waits for the moves in `after`, which may belong to any rank and stand anywhere in the list.
 * Another rank learns of the end of a move one link latency later. A move of 0 bytes only adds an
 * order. */
typedef struct banyan_move {
    int rank, peer;
    int lane;              /* of the rank, from 0 */
    banyan_move_method by; /* means by which `rank` carries it out */
    const char *what;      /* name in steps and traces; must outlive the result */
    uint64_t bytes;
    size_t after[2]; /* indices of moves; BANYAN_NO_MOVE: none */
} banyan_move;

/* Options of banyan_moves_simulate. */
typedef struct banyan_moves_options {
    size_t size; /* of this struct; BANYAN_MOVES_OPTIONS_INIT sets it */
    bool steps;  /* record the start and end of every move, for the critical path and traces */
    /* Accuracy, from 0 to 1. The simulation recomputes all rates when a move ends, which takes long
     * if many moves share links. With a grain, running moves keep their rates longer: up to this
     * fraction of the time that the busiest link or memory needs for all its bytes. 0: exact. */
    double grain;
} banyan_moves_options;

#define BANYAN_MOVES_OPTIONS_INIT BANYAN_INIT(banyan_moves_options)

/* Simulate `count` moves, with rank i on processor i. Links, memories and thread blocks are shared
 * as for a plan. `options` NULL means the defaults. In the steps of the result, `what` is the
 * move's name, `thread_block` its lane, and `operation` its index in the lane. The caller owns the
 * result. The topology must outlive it; `moves` need not. Errors: INVALID (more ranks than
 * processors; an index, rank, lane or grain out of range; a rank that cannot reach a peer),
 * MISMATCH (moves wait for each other; the message names one), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_moves_simulate(const banyan_move *moves, size_t count, int ranks,
                                               const banyan_topology *topology,
                                               const banyan_moves_options *options,
                                               banyan_simulation **simulation);

/* Write the steps as a trace in Chrome's JSON format, which Perfetto shows: one process for each
 * rank and one thread for each thread block, as in banyan_executor_trace_write (execute.h). The
 * file appears at `path`, or replaces an old one, only when it is complete. Errors: UNSUPPORTED
 * (the simulation has no steps; see banyan_simulation_step_at), SYSTEM. Any thread. */
BANYAN_API banyan_status banyan_simulation_write_trace(const banyan_simulation *simulation,
                                                       const char *path);

#ifdef __cplusplus
}
#endif
#endif
