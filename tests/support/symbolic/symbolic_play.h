/* Declarations that the parts of the symbolic executor share: see symbolic.h. */
#ifndef TESTS_SUPPORT_SYMBOLIC_PLAY_H
#define TESTS_SUPPORT_SYMBOLIC_PLAY_H

#include "support/random.h"
#include "support/symbolic/symbolic.h"

/* A vector clock over all agents. `order`: the agent's earlier accesses are over; `seen`: its
 * earlier writes are also visible. */
typedef struct clocks {
    uint32_t *order, *seen;
} clocks;

/* Messages of one agent to another, oldest first; a NULL clock is an initial credit. */
typedef struct post {
    ARRAY(clocks) words;
    size_t taken;
} post;

typedef struct port_task {
    const plan_op *op;
    const plan_thread_block *block;
    uint32_t operand; /* of a put; UINT32_MAX: a signal */
    int64_t unit;     /* in a loop; -1: all */
    uint32_t flag;
    clocks posted;
} port_task;

typedef enum agent_kind { AGENT_USER, AGENT_BLOCK, AGENT_PORT } agent_kind;

typedef struct agent {
    agent_kind kind;
    int rank;
    uint32_t index;
    clocks knows;
    /* AGENT_BLOCK */
    const plan_thread_block *block;
    uint32_t at, inner;
    uint64_t iteration;
    bool ended, half_done;
    /* AGENT_PORT */
    uint32_t channel;
    ARRAY(port_task) tasks;
    size_t tasks_done;
} agent;

/* The contents of a unit of a chunk. */
typedef struct cell {
    bool valid;
    uint64_t sum, order;  /* of the symbols in it, and of the order of their addition */
    uint32_t packet_flag; /* 0: no packet */
    clocks packet_clocks;
    uint32_t writer, write_time;
    uint32_t *read_times; /* by agent */
} cell;

typedef struct rank_state {
    cell *buffers[PLAN_BUFFERS];
    post *channels[PLAN_CHANNEL_TYPES];
    post *semaphores;
    uint32_t user, first_block, first_port; /* numbers of agents */
    int run;
    bool running, lags;
} rank_state;

typedef struct play {
    const banyan_plan *plan;
    symbolic_options options;
    arena memory;
    random_state random;
    uint32_t agent_count;
    agent *agents;
    rank_state *ranks;
    uint64_t *run_units;   /* of a chunk, the stride */
    uint64_t *run_message; /* units of a block of input or output: its last chunks are clipped */
    uint64_t block_chunks;
    uint64_t ring;  /* units of a scratch chunk, in every run */
    uint64_t *bits; /* the order of addition of rank 0's outputs in each run */
    bool failed;
    char *problem;
    size_t problem_bytes;
} play;

/* Record the first problem; later ones are ignored. */
void play_fail(play *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Zeroed, freed with the play. */
void *play_take(play *p, size_t count, size_t bytes);
const char *play_name(const play *p, uint32_t agent_number, char room[64]);

clocks play_clocks(play *p);
/* Return the agent's clock for a message; its next accesses are later than that. */
clocks play_tell(play *p, agent *by);
/* `data_too`: the sender's writes become visible as well. */
void play_hear(play *p, agent *by, clocks told, bool data_too);

void post_add(post *to, clocks told);
bool post_ready(const post *from);

uint64_t play_mix(uint64_t x);
uint64_t play_symbol(int rank, uint64_t chunk, uint64_t unit, int run);

/* Return the number of units of a chunk: those of input and output end with their block. */
uint64_t chunk_units(const play *p, int run, plan_buffer buffer, uint64_t chunk);
cell *cell_at(play *p, int rank, int run, plan_buffer buffer, uint64_t chunk, uint64_t unit);
void cell_write(play *p, agent *by, cell *c, cell value);
cell cell_read(play *p, agent *by, cell *c, bool packet);

/* Perform the agent's next step; false if it cannot continue. */
bool play_block_step(play *p, agent *block);
bool play_port_step(play *p, agent *port);

#endif
