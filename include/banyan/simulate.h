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

/* Processors (GPUs, or processes of a host), switches, and links between them. It does not change
 * once it is read, so that threads may share it. */
typedef struct banyan_topology banyan_topology;

/* Read a topology from a JSON file, or one that Banyan ships by its name ("h200x4", "gb200-nvl72",
 * …). Errors: NOT_FOUND (names those there are), FORMAT with the path of keys, SYSTEM, NO_MEMORY.
 * Any thread. `name` is what the text is called in errors. */
BANYAN_API banyan_status banyan_topology_read(const char *path_or_name, banyan_topology **topology);
BANYAN_API banyan_status banyan_topology_parse(const char *text, size_t bytes, const char *name,
                                               banyan_topology **topology);
/* As JSON text, to be freed with free(): what was read, in order and with all its keys. */
BANYAN_API banyan_status banyan_topology_print(const banyan_topology *topology, char **text);
/* NULL is ignored. */
BANYAN_API void banyan_topology_destroy(banyan_topology *topology);

typedef struct banyan_topology_info {
    const char *name, *about; /* as long as the topology lives */
    int processors, switches;
    size_t links; /* each way counts */
} banyan_topology_info;

BANYAN_API banyan_topology_info banyan_topology_describe(const banyan_topology *topology);
/* The index-th shipped one's name; NULL behind the last. */
BANYAN_API const char *banyan_topology_shipped(size_t index);

typedef struct banyan_simulation banyan_simulation; /* the result */

typedef struct banyan_simulate_options {
    size_t size;            /* of this struct; BANYAN_SIMULATE_OPTIONS_INIT sets it */
    uint64_t message_bytes; /* a rank's input */
    size_t elem_bytes;
    bool steps; /* keep when each operation began and ended: for the critical path and the trace */
    /* Steps that the plan's loops may make: an iteration takes one for each operation in it, and
     * one for each of their operands, channels and semaphores. Ten million take some seconds. */
    uint64_t max_steps;
} banyan_simulate_options;

#define BANYAN_SIMULATE_OPTIONS_INIT                                                               \
    BANYAN_INIT_WITH(banyan_simulate_options, BANYAN_MEMBER(message_bytes, 1 << 20),               \
                     BANYAN_MEMBER(elem_bytes, 4), BANYAN_MEMBER(max_steps, UINT64_C(1) << 25))

/* Run the plan once on the topology, rank i on processor i. `options` NULL: the defaults. The plan
 * and the topology must outlive the result. The same arguments give the same result. Errors:
 * INVALID (more ranks than processors, a size that the plan cannot run at, a rank that cannot reach
 * another), UNSUPPORTED (more steps than options.max_steps, a switch channel whose ranks have no
 * multicast switch in common), MISMATCH (the plan hangs: the sentence names who waits for whom),
 * NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_plan_simulate(const banyan_plan *plan,
                                              const banyan_topology *topology,
                                              const banyan_simulate_options *options,
                                              banyan_simulation **simulation);
/* NULL is ignored. */
BANYAN_API void banyan_simulation_destroy(banyan_simulation *simulation);

/* Seconds from the start of the ranks to the end of the last one. */
BANYAN_API double banyan_simulation_seconds(const banyan_simulation *simulation);

/* Seconds until all that the rank does is done and has arrived; of moves, also what others move to
 * it. 0 for a rank that is none. */
BANYAN_API double banyan_simulation_rank_seconds(const banyan_simulation *simulation, int rank);

typedef struct banyan_link_use {
    const char *source, *destination; /* "gpu0", "nvswitch"; a memory has no destination: NULL */
    uint64_t bytes;
    double busy; /* share of the time in which something flowed */
    double full; /* bytes, as a share of what could have flowed in the time */
} banyan_link_use;

/* The index-th link, and behind those the ranks' own memories; false behind the last. Names live as
 * long as the topology. */
BANYAN_API bool banyan_simulation_link(const banyan_simulation *simulation, size_t index,
                                       banyan_link_use *use);

typedef struct banyan_simulation_step {
    int rank, thread_block;
    int operation;      /* index in the thread block; -1: the launch */
    int loop_operation; /* index in the loop's body; -1: outside of any */
    uint64_t iteration; /* of the loop */
    bool proxy;         /* done by the rank's proxy, for that operation */
    const char *what;   /* "put", as in the format; as long as the program runs */
    double began_s, ended_s;
    size_t after; /* the step without which it had ended earlier; SIZE_MAX: none */
} banyan_simulation_step;

/* The index-th step, in the order of their ends; false behind the last, and at once without
 * options.steps or when there were more than are kept, some eight million. An operation that waits
 * for its transfers through port channels makes two steps. */
BANYAN_API bool banyan_simulation_step_at(const banyan_simulation *simulation, size_t index,
                                          banyan_simulation_step *step);

/* The critical path: the chain of steps that the end waited for, from the start on; here each step
 * begins when the one before has ended. False behind the last. */
BANYAN_API bool banyan_simulation_path(const banyan_simulation *simulation, size_t index,
                                       banyan_simulation_step *step);

/* ---- moves: transfers that no plan describes ---- */

/* Who carries the bytes of a move. */
typedef enum banyan_mover {
    BANYAN_BY_BLOCKS, /* all thread blocks of its rank, in one kernel, which is launched for it */
    BANYAN_BY_PROXY   /* the rank's proxy, as for a port channel */
} banyan_mover;

#define BANYAN_NO_MOVE SIZE_MAX

/* `rank` carries bytes from its memory to that of `peer`, which may be itself. The moves of a
 * rank's lane follow each other as they are listed. A move also comes after those in `after`, which
 * may be anybody's and stand anywhere in the list; what another rank has done is known a way's
 * latency later. Without bytes it only keeps the order. */
typedef struct banyan_move {
    int rank, peer;
    int lane; /* of the rank, from 0 on */
    banyan_mover by;
    const char *what; /* its name in steps and traces; as long as the simulation */
    uint64_t bytes;
    size_t after[2]; /* indices of moves, BANYAN_NO_MOVE: none */
} banyan_move;

typedef struct banyan_moves_options {
    size_t size; /* of this struct; BANYAN_MOVES_OPTIONS_INIT sets it */
    bool steps;  /* keep when each move began and ended */
    /* Rates are found anew whenever a move ends: where there are many that share links, that takes
     * long. With a grain, those that go on keep their rates for up to this share of the time that
     * the busiest link or memory needs for all that it carries. 0: they do not. */
    double grain;
} banyan_moves_options;

#define BANYAN_MOVES_OPTIONS_INIT BANYAN_INIT(banyan_moves_options)

/* Simulate the moves on the topology, rank i on processor i: links, memories and thread blocks are
 * shared as for a plan. `what` is in the steps' place of an operation's name, the lane in that of
 * the thread block, and the index of the move among its lane's in that of the operation. The
 * topology must outlive the result; `moves` need not. Errors: INVALID (more ranks than processors,
 * an index, rank or lane that is none, a rank that cannot reach another), MISMATCH (moves that wait
 * for each other: the sentence names one), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_moves_simulate(const banyan_move *moves, size_t count, int ranks,
                                               const banyan_topology *topology,
                                               const banyan_moves_options *options,
                                               banyan_simulation **simulation);

/* What every thread block did and when, as a trace in Chrome's JSON, which Perfetto shows; like
 * banyan_trace_write's. UNSUPPORTED without options.steps or when there were more steps than are
 * kept; SYSTEM. */
BANYAN_API banyan_status banyan_simulation_write_trace(const banyan_simulation *simulation,
                                                       const char *path);

#ifdef __cplusplus
}
#endif
#endif
