/* What a program is while it is written: the plan's own structures, in lists that grow. */
#ifndef PROGRAM_BUILDER_H
#define PROGRAM_BUILDER_H

/* The functions themselves, not the macros that note where they are called. */
#define BANYAN_NO_PLACES
#include <banyan/program.h>

#include "core/containers/map.h"
#include "plan/plan.h"

/* Of a rank: a block has a place in its rank's list, so that a number is not to be a slip. */
#define PROGRAM_MAX_BLOCKS 1048576

typedef ARRAY(plan_op) op_list;

/* A thread block's own numbers of what the rank has: numbers[place] is the rank's number. */
typedef struct program_numbers {
    ARRAY(uint32_t) numbers;
    map places;
} program_numbers;

typedef struct program_block {
    op_list ops;
    op_list loop_ops; /* of the loop that is open */
    program_numbers channels[PLAN_CHANNEL_TYPES], remote_buffers[PLAN_CHANNEL_TYPES];
} program_block;

/* Thread blocks that meet; the same list, in the same order, is the same barrier. */
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
    map remote_numbers; /* of a peer's rank and buffer */
    ARRAY(uint64_t) semaphores;
    ARRAY(program_barrier) barriers;
} program_rank;

/* Memory and port channels. */
typedef struct program_channel {
    banyan_program *program;
    plan_channel_type type;
    int source, destination;
    uint32_t number; /* of the source's channels of the type */
} program_channel;

struct banyan_program_memory_channel {
    program_channel ends;
};

struct banyan_program_port_channel {
    program_channel ends;
};

struct banyan_program_switch_channel {
    banyan_program *program;
    plan_buffer buffer;
    int *ranks;
    uint32_t *numbers; /* of each rank's switch channels */
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

/* The call under way, for its error: what it does, and where. */
typedef struct program_call {
    plan_line place; /* `file` NULL: not known */
    const char *operation;
    const program_channel *channel;
    const banyan_program_switch_channel *group;
    int rank; /* -1: of no rank */
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
    map line_numbers;

    program_call call;
    banyan_status failed; /* the first error's status, and its sentence */
    char *error;
};

/* ---- calls and errors ---- */

/* Begin a builder call, once in each, and take the place that was noted for it. False when there is
 * nothing to do: no program, or it has failed. */
bool program_call_begin(banyan_program *program, program_call call);
/* The file in which the open loop begins, for an error. */
static inline const char *program_loop_file(const banyan_program *program)
{
    return program->loop_place.file ? program->loop_place.file : "an unknown place";
}
/* Keep the call's error, with its place, operation and ranks in front. */
void program_fail(banyan_program *program, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
/* Keep the thread's last error: memory ran out. */
void program_fail_memory(banyan_program *program) __attribute__((cold));

/* From the program's arena, zeroed. NULL, and the program has failed, when memory ran out. */
void *program_take(banyan_program *program, size_t count, size_t bytes);
char *program_take_text(banyan_program *program, const char *text);

/* ---- checks: false, and the program has failed, when not so ---- */

bool program_has_rank(banyan_program *program, int rank, const char *what);
/* A chunk of this rank, inside its buffer and not empty. `what` names it in errors: "source". */
bool program_has_chunk(banyan_program *program, banyan_chunk chunk, int rank, const char *what);
bool program_same_size(banyan_program *program, banyan_chunk a, const char *a_name, banyan_chunk b,
                       const char *b_name);
/* Packets lie in scratch. */
bool program_in_scratch(banyan_program *program, banyan_chunk chunk, const char *what);

bool program_has_reduce_op(banyan_program *program, banyan_reduce_op op);
/* Each named once. */
bool program_has_blocks(banyan_program *program, const int *thread_blocks, int count);

/* ---- who does it ---- */

/* The thread blocks of a `by`, one after the other: `index` and `size` are plan_op's group_… */
typedef struct program_share {
    int thread_block;
    uint32_t index, size;
} program_share;

/* How many; 0, and the program has failed, for neither a thread block nor a group. */
int program_by_count(banyan_program *program, banyan_program_by by);
program_share program_by_share(banyan_program_by by, int i);

/* ---- adding operations ---- */

/* The rank's thread block of this number, made with all before it. NULL: the program failed. */
program_block *program_block_of(banyan_program *program, int rank, int thread_block);
/* The block's number of the rank's channel, and of a peer's buffer reached through such a channel.
 */
bool program_use_channel(banyan_program *program, program_block *block, plan_channel_type type,
                         uint32_t channel, uint32_t *number);
bool program_use_remote(banyan_program *program, int rank, program_block *block,
                        plan_channel_type type, banyan_chunk remote, plan_operand *operand);
plan_operand program_local(banyan_chunk chunk);
/* A list of one, in the program's arena. */
plan_operand *program_operand(banyan_program *program, plan_operand operand);
uint32_t *program_number(banyan_program *program, uint32_t number);
/* Append to the block, or to its part of the open loop. */
void program_add(banyan_program *program, program_block *block, plan_op op);

unsigned program_sync_bits(banyan_sync sync);

#endif
