/* What a communicator is made of. */
#ifndef COLLECTIVE_COMM_H
#define COLLECTIVE_COMM_H

#include <banyan/collective.h>

#include "collective/algorithms/algorithms.h"
#include "collective/tuning.h"
#include "core/containers/array.h"
#include "world/control.h"

/* All that decides which plan serves a call, equal on all ranks. */
typedef struct call {
    banyan_collective_kind kind;
    banyan_reduce_op op;
    int root, shift;
    bool in_place;
    uint64_t message_bytes; /* a rank's input */
    DLDataType dtype;
    const banyan_memory *input, *output;  /* registered; NULL: ordinary memory */
    uint64_t input_offset, output_offset; /* into these; they do not decide, but must be equal */
} call;

/* A plan that serves calls. The communicator's own are compiled from an algorithm. */
typedef struct choice {
    const banyan_plan *added; /* NULL: an algorithm */
    const algorithm_entry *entry;
    tuning_row row; /* that named it */
} choice;

/* A loaded plan, kept for calls like the one that it was loaded for. */
typedef struct ready {
    call
        for_call; /* message_bytes: the most it serves; the dtype has chosen, and matters no more */
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
    int ranks_per_node; /* 0: nodes have different numbers of ranks */
    bool check_calls;
    uint32_t blocks_most; /* thread blocks of a rank that its device has room for */
    tuning table;
    ARRAY(const banyan_plan *) added;
    ARRAY(const banyan_memory *) registered;
    /* At most COMM_READY_MAX and those that graphs hold; what was used longest ago makes room. */
    ARRAY(ready) ready;
    uint64_t uses;
    /* The latest call of each kind, to find its plan by one comparison. */
    struct {
        call last;
        size_t ready; /* 1 + its place in `ready`; 0: none */
    } latest[BANYAN_REDUCE + 1];
};

/* What serves the call. NOT_FOUND when nothing does. Local, and the same on every rank. */
banyan_status comm_choose(const banyan_comm *comm, const call *wanted, choice *chosen);

/* The loaded plan for the call: collective when it is not there yet. */
banyan_status comm_prepare(banyan_comm *comm, const call *wanted, banyan_loaded_plan **loaded);

/* Is it there? */
bool comm_is_ready(const banyan_comm *comm, const call *wanted);

/* Unload it again, where it is there. Collective. */
banyan_status comm_unprepare(banyan_comm *comm, const call *wanted);

/* The call, whose arguments are right, that a sum by banyan_comm_allreduce or
 * banyan_comm_reducescatter or a banyan_comm_allgather of these arguments makes, in ordinary
 * memory. Local. */
banyan_status comm_call_of(const banyan_comm *comm, banyan_collective_kind kind, const void *input,
                           void *output, size_t count, DLDataType dtype, call *wanted);

/* Load what is chosen for messages up to the call's. Collective. */
banyan_status comm_load(banyan_comm *comm, const call *wanted, const choice *chosen,
                        banyan_loaded_plan **loaded);

/* Forget loaded plans, all of them or those that use `memory`. Collective. */
banyan_status comm_forget(banyan_comm *comm, const banyan_memory *memory);

/* Do graphs hold runs of its plans? */
bool comm_is_captured(const banyan_comm *comm);

/* BANYAN_CHECK_CALLS: do all ranks make this call? MISMATCH says what differs. All receive the
 * error of a rank whose `status`, of its own arguments, is one. Collective. */
banyan_status comm_check_call(banyan_comm *comm, const call *mine, banyan_status status);

#endif
