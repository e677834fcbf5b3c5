/* A program while it is built: the plan's own structures, in growing lists. */
#ifndef PROGRAM_BUILDER_H
#define PROGRAM_BUILDER_H

/* Declare the functions themselves, not the macros that record the call's place. */
#define BANYAN_NO_PLACES
#include <banyan/program.h>

#include "core/containers.h"
#include "plan/plan.h"

/* Most thread blocks of a rank. A block's number is an index into its rank's list, so a mistyped
 * large number must not allocate. */
#define PROGRAM_MAX_BLOCKS 1048576

typedef ARRAY(plan_op) op_list;

/* A thread block's own numbers for the rank's resources: numbers[place] is the rank's number. */
typedef struct program_numbers {
    ARRAY(uint32_t) numbers;
    hash_map places;
} program_numbers;

typedef struct program_block {
    op_list ops;
    op_list loop_ops; /* of the open loop */
    program_numbers channels[PLAN_CHANNEL_TYPES], remote_buffers[PLAN_CHANNEL_TYPES];
} program_block;

/* Thread blocks of a barrier. An identical list, in identical order, is the same barrier. */
typedef struct program_barrier {
    int *blocks;
    int count;
} program_barrier;

typedef struct program_rank {
    uint64_t chunks[PLAN_BUFFERS];
    ARRAY(program_block) blocks;
    ARRAY(int) peers[PLAN_CHANNEL_TYPES];
    ARRAY(plan_switch) switches;
    ARRAY(plan_remote_buffer) remote_buffers;
    hash_map remote_numbers; /* key: a peer's rank and buffer */
    ARRAY(uint64_t) semaphores;
    ARRAY(program_barrier) barriers;
} program_rank;

/* The object behind the handles of memory and port channels. */
typedef struct program_channel {
    banyan_program *program;
    plan_channel_type type;
    int source, destination;
    uint32_t number; /* among the source's channels of the type */
} program_channel;

struct banyan_program_switch_channel {
    banyan_program *program;
    plan_buffer buffer;
    int *ranks;
    uint32_t *numbers; /* one per switch channel of each rank */
    int count;
};

struct banyan_program_semaphore {
    banyan_program *program;
    int rank;
    uint32_t number;
};

struct banyan_program_group {
    int *blocks;
    int count;
};

/* The call in progress, for its error: its operation and its place. */
typedef struct program_call {
    plan_line place; /* `file` NULL: unknown */
    const char *operation;
    const program_channel *channel;
    const banyan_program_switch_channel *group;
    int rank; /* -1: none */
} program_call;

struct banyan_program {
    arena memory; /* handles, operands, names */
    const char *name, *collective_name;
    banyan_collective collective;
    banyan_program_options options;
    int rank_count;
    program_rank *ranks;
    plan_expected **expected;
    ARRAY(plan_tag) tags;

    bool in_loop;
    uint64_t loop_unit_bytes, loop_chunks;
    plan_line loop_place;
    ARRAY(plan_line) lines; /* of the operations */
    hash_map line_numbers;

    program_call call;
    banyan_status failed; /* status of the first error, whose message is kept too */
    char *error;
};

/* Begin a builder call, once in each call, and take its recorded place. False when there is nothing
 * to do: no program, or it has failed. */
bool program_call_begin(banyan_program *program, program_call call);
/* Return the file in which the open loop begins, for an error. */
static inline const char *program_loop_file(const banyan_program *program)
{
    return program->loop_place.file ? program->loop_place.file : "an unknown place";
}
/* Set the call's error, with its place, operation and ranks in front. */
void program_fail(banyan_program *program, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
/* Set the program's error to the thread's last error, after out of memory. */
void program_fail_memory(banyan_program *program) __attribute__((cold));

/* Allocate zeroed memory from the program's arena. NULL, and the program has failed, when out of
 * memory. */
void *program_take(banyan_program *program, size_t count, size_t bytes);
char *program_take_text(banyan_program *program, const char *text);

/* Checks; each sets the program's error and returns false on failure. */

bool program_has_rank(banyan_program *program, int rank, const char *what);
/* Check that the chunk is on this rank, inside its buffer, and not empty. `what` names it in
 * errors: "source". */
bool program_has_chunk(banyan_program *program, banyan_chunk chunk, int rank, const char *what);
bool program_same_size(banyan_program *program, banyan_chunk a, const char *a_name, banyan_chunk b,
                       const char *b_name);
/* Check that a packet chunk is in scratch. */
bool program_in_scratch(banyan_program *program, banyan_chunk chunk, const char *what);

bool program_has_reduce_op(banyan_program *program, banyan_reduce_op op);
/* Check that each thread block is named once. */
bool program_has_blocks(banyan_program *program, const int *thread_blocks, int count);

/* The thread blocks of a `by`, in order: `index` and `size` are plan_op's group_index and
 * group_size. */
typedef struct program_share {
    int thread_block;
    uint32_t index, size;
} program_share;

/* Return the number of thread blocks; 0, and the program has failed, when `by` names neither a
 * thread block nor a group. */
int program_by_count(banyan_program *program, banyan_program_by by);
program_share program_by_share(banyan_program_by by, int i);

/* Get the rank's thread block with this number; creates it and all before it. NULL: the program
 * failed. */
program_block *program_block_of(banyan_program *program, int rank, int thread_block);
/* Get the block's number of the rank's channel, or of a peer's buffer reached through such a
 * channel. */
bool program_use_channel(banyan_program *program, program_block *block, plan_channel_type type,
                         uint32_t channel, uint32_t *number);
bool program_use_remote(banyan_program *program, int rank, program_block *block,
                        plan_channel_type type, banyan_chunk remote, plan_operand *operand);
plan_operand program_local(banyan_chunk chunk);
/* Return a list of one operand, in the program's arena. */
plan_operand *program_operand(banyan_program *program, plan_operand operand);
uint32_t *program_number(banyan_program *program, uint32_t number);
/* Append to the block, or to its part of the open loop. */
void program_add(banyan_program *program, program_block *block, plan_op op);

unsigned program_sync_bits(banyan_sync sync);

#endif
