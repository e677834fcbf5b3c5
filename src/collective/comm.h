/* The parts of a communicator. */
#ifndef COLLECTIVE_COMM_H
#define COLLECTIVE_COMM_H

#include <banyan/collective.h>

#include "collective/algorithms/algorithms.h"
#include "collective/tuning.h"
#include "core/containers.h"
#include "world/control.h"

/* The parameters that select a call's plan; equal on all ranks. */
typedef struct call {
    banyan_collective_kind kind;
    banyan_reduce_op op;
    int root, shift;
    bool in_place;
    bool scaled;            /* a sum of inputs that are multiplied by factors; plans do not know */
    uint64_t message_bytes; /* bytes of a rank's input */
    DLDataType dtype;
    const banyan_memory *input, *output; /* registered; NULL: ordinary memory */
    uint64_t input_offset,
        output_offset; /* offsets in these; they select nothing, but must be equal */
} call;

/* A plan that serves calls: an added one, or one that the communicator compiles from an
 * algorithm. */
typedef struct choice {
    const banyan_plan *added; /* NULL: the plan of an algorithm */
    const algorithm_entry *entry;
    tuning_row row; /* the row that named the algorithm */
} choice;

/* A loaded plan, kept for calls like the one it was loaded for. */
typedef struct ready {
    call for_call; /* message_bytes: the largest message; the dtype selected the plan and is not
                      used any more */
    choice chosen;
    banyan_loaded_plan *loaded;
    uint64_t last_use;
} ready;

#define COMM_READY_MAX 48

struct banyan_comm {
    banyan_world *world;
    control_timeout timeout;
    banyan_executor *executor;
    int rank, ranks;
    int ranks_per_node; /* 1: also where nodes have different numbers of ranks */
    bool check_calls;
    uint32_t blocks_most; /* most thread blocks of a rank that fit on its device */
    tuning table;
    ARRAY(const banyan_plan *) added;
    ARRAY(const banyan_memory *) registered;
    ARRAY(banyan_memory *) scaled; /* for scaled inputs; each larger than the one before */
    /* At most COMM_READY_MAX, not counting those that graphs hold. The least recently used one is
     * unloaded first. */
    ARRAY(ready) ready;
    uint64_t uses;
    /* The latest call of each kind, so that an equal call finds its plan by one comparison. */
    struct {
        call last;
        size_t ready; /* 1 + its index in `ready`; 0: none */
    } latest[BANYAN_REDUCE + 1];
};

/* Choose the plan for a call. NOT_FOUND if there is none. Local, with one result on all ranks. */
banyan_status comm_choose(const banyan_comm *comm, const call *wanted, choice *chosen);

/* Return the loaded plan for the call. Collective if it must be loaded first. */
banyan_status comm_prepare(banyan_comm *comm, const call *wanted, banyan_loaded_plan **loaded);

/* Take account of the ranks of `world`, a world that contains the communicator's: they use the same
 * processors and devices. Collective over `world`. */
banyan_status comm_share_with(banyan_comm *comm, banyan_world *world);

/* True if the call needs no plan, as on one rank, or its plan is loaded. */
bool comm_is_ready(const banyan_comm *comm, const call *wanted);

/* Unload the call's plan if it is loaded. Collective. */
banyan_status comm_unprepare(banyan_comm *comm, const call *wanted);

/* Return the call that banyan_comm_allreduce, banyan_comm_reducescatter (with a sum) or
 * banyan_comm_allgather makes for these arguments in ordinary memory. The arguments must be valid.
 * Local. */
banyan_status comm_call_of(const banyan_comm *comm, banyan_collective_kind kind, const void *input,
                           void *output, size_t count, DLDataType dtype, call *wanted);

/* Load the choice for messages up to the call's size. Collective. */
banyan_status comm_load(banyan_comm *comm, const call *wanted, const choice *chosen,
                        banyan_loaded_plan **loaded);

/* Unload all plans, or those that use `memory`. Collective. */
banyan_status comm_forget(banyan_comm *comm, const banyan_memory *memory);

/* True if graphs hold runs of its plans. */
bool comm_is_captured(const banyan_comm *comm);

/* BANYAN_CHECK_CALLS: check that all ranks make this call. MISMATCH, with the difference in the
 * message. If `status`, the result of a rank's own argument check, is an error, all ranks receive
 * it. Collective. */
banyan_status comm_check_call(banyan_comm *comm, const call *mine, banyan_status status);

#endif
