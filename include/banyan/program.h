/* Banyan: collective algorithms as programs.
 *
 * A program is written for all ranks at once: copies and reductions over chunks of their input,
 * output and scratch buffers, and puts, gets, signals and waits over channels between them, each by
 * a thread block of a rank. banyan_program_compile makes a plan of it (plan.h), which is then
 * proved, predicted and run. The words and their meaning are those of MSCCL++'s language; the same
 * program gives the same operations.
 *
 * Builder calls do not fail one by one: the program keeps its first error, with the place of the
 * call, and compile reports it. Everything made from a program is freed with it. One thread at a
 * time works on a program.
 *
 * A chunk is the unit in which a program counts; how many bytes it has follows from the message
 * when the plan runs. docs/language.md explains all of it with examples.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_PROGRAM_H
#define BANYAN_PROGRAM_H

#include <banyan/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct banyan_program banyan_program;

/* ---- what is computed ---- */

/* One rank's input chunk that goes into an output chunk. */
typedef struct banyan_contribution {
    int rank;
    uint64_t chunk;
} banyan_contribution;

/* Output chunk `chunk` of `rank` must hold these, reduced (one: copied). */
typedef struct banyan_expected_chunk {
    int rank;
    uint64_t chunk;
    const banyan_contribution *contributions;
    size_t count;
} banyan_expected_chunk;

/* With C ranks' chunk_factor k and n ranks, a rank's input and output have, in chunks: all-reduce,
 * all-to-all n·k and n·k; all-gather k and n·k; reduce-scatter n·k and k; send-recv, broadcast and
 * reduce k and k. */
typedef struct banyan_collective {
    banyan_collective_kind kind;
    int chunk_factor; /* 0: 1 */
    bool in_place; /* all-gather's input is the rank's block of its output, reduce-scatter's output
                      the rank's block of its input; otherwise they are the same memory */
    int root;      /* broadcast, reduce */
    int shift;     /* send-recv, modulo the ranks; 0: 1 */
    /* Custom only: name (NULL: "custom"), sizes in chunks, and, if the author likes, the result. */
    const char *name;
    uint64_t input_chunks, output_chunks;
    /* So many of them are a block: all blocks have equally many bytes, of which a message that does
     * not divide leaves the last chunks fewer. 0: 1, equal chunks. */
    uint64_t block_chunks;
    const banyan_expected_chunk *expected;
    size_t expected_count;
    banyan_reduce_op expected_op;
} banyan_collective;

typedef enum banyan_replication {
    BANYAN_INTERLEAVED = 0, /* instance i of a chunk of size s at index x works on s chunks at
                               x × instances + i × s */
    BANYAN_NOT_REPLICATED   /* instances work on the same chunks: buffers stay as they are */
} banyan_replication;

typedef struct banyan_program_options {
    size_t size; /* of this struct; BANYAN_PROGRAM_OPTIONS_INIT sets it */
    int instances;
    banyan_protocol protocol;
    bool fuse; /* join operations where one does the work of several */
    /* Before that, join what MSCCL++'s language leaves apart: on port channels put + signal → put
     * with signal, + flush → put with signal and flush; and reductions of which the second goes on
     * from where the first one left its result. At the end, drop nops that keep nothing apart. */
    bool fuse_more;
    bool requested_sync; /* put in the synchronisation that signals, waits, flushes and semaphores
                            ask for; off: their banyan_sync means nothing */
    bool
        auto_sync; /* insert the synchronisation inside thread blocks that data dependencies need */
    banyan_replication replication;
    bool reuse_resources; /* a fixed scratch whatever the message: offsets of loops wrap around in
                             it */
    uint64_t
        reused_scratch_bytes; /* of a rank; 0: 64 MiB, as MSCCL++ has it. Less stays in caches. */
    int threads_per_block;
    bool double_scratch; /* alternate runs use the two halves of scratch */
    uint64_t buffer_alignment;
    uint64_t min_message_bytes, max_message_bytes;
    /* Called after each pass of the compiler with its name and what it made of the program; for
     * those who want to see. */
    void (*dump)(void *context, const char *pass, const banyan_plan *plan);
    void *dump_context;
} banyan_program_options;

#define BANYAN_PROGRAM_OPTIONS_INIT                                                                \
    BANYAN_INIT_WITH(banyan_program_options, BANYAN_MEMBER(instances, 1),                          \
                     BANYAN_MEMBER(fuse, true), BANYAN_MEMBER(requested_sync, true),               \
                     BANYAN_MEMBER(auto_sync, true), BANYAN_MEMBER(threads_per_block, 1024),       \
                     BANYAN_MEMBER(buffer_alignment, 16),                                          \
                     BANYAN_MEMBER(max_message_bytes, UINT64_MAX))

/* Begin a program of `ranks` ranks. `options` NULL: the defaults. Errors: INVALID, NO_MEMORY. */
BANYAN_API banyan_status banyan_program_create(const char *name,
                                               const banyan_collective *collective, int ranks,
                                               const banyan_program_options *options,
                                               banyan_program **program);
/* NULL is ignored. */
BANYAN_API void banyan_program_destroy(banyan_program *program);

/* A tag that the plan carries: who made it, for which machine, … */
BANYAN_API void banyan_program_tag(banyan_program *program, const char *key, const char *value);

/* Make the plan, or report the first error of all calls so far, or signals and waits that do not
 * pair up. The program is not changed. Errors: INVALID; FORMAT, with the place in the plan (a
 * channel that is signalled or waited on has no other end, …); NO_MEMORY. */
BANYAN_API banyan_status banyan_program_compile(banyan_program *program, banyan_plan **plan);

/* ---- chunks ---- */

typedef enum banyan_buffer { BANYAN_INPUT = 0, BANYAN_OUTPUT, BANYAN_SCRATCH } banyan_buffer;

/* `size` chunks of a rank's buffer, from `index` on. A plain value. */
typedef struct banyan_chunk {
    int rank;
    banyan_buffer buffer;
    uint64_t index, size;
} banyan_chunk;

/* For a reduction without a destination of its own: its first local source is the destination. */
#define BANYAN_IN_SOURCE (BANYAN_VALUE(banyan_chunk){-1, BANYAN_INPUT, 0, 0})

/* [start, stop) of a rank's input or output. */
BANYAN_API banyan_chunk banyan_input(banyan_program *program, int rank, uint64_t start,
                                     uint64_t stop);
BANYAN_API banyan_chunk banyan_output(banyan_program *program, int rank, uint64_t start,
                                      uint64_t stop);
/* Scratch grows as it is taken: `chunks` more of a rank. */
BANYAN_API banyan_chunk banyan_scratch(banyan_program *program, int rank, uint64_t chunks);
/* [start, stop) of a chunk, counted from its own beginning. */
BANYAN_API banyan_chunk banyan_slice(banyan_program *program, banyan_chunk of, uint64_t start,
                                     uint64_t stop);

/* ---- who does it ---- */

/* Thread blocks of a rank that share an operation's bytes among them. */
typedef struct banyan_group banyan_group;
BANYAN_API banyan_group *banyan_group_create(banyan_program *program, const int *thread_blocks,
                                             int count);

/* One thread block, or a group. */
typedef struct banyan_by {
    int thread_block; /* -1: a group */
    const banyan_group *group;
} banyan_by;

#define BANYAN_TB(number) (BANYAN_VALUE(banyan_by){(number), NULL})
#define BANYAN_TB_GROUP(group) (BANYAN_VALUE(banyan_by){-1, (group)})

/* Synchronisation of the threads of a thread block around an operation. */
typedef enum banyan_sync {
    BANYAN_SYNC_BOTH = 0,
    BANYAN_SYNC_NONE,
    BANYAN_SYNC_BEFORE,
    BANYAN_SYNC_AFTER
} banyan_sync;

/* ---- inside a rank ---- */

BANYAN_API void banyan_copy(banyan_program *program, int rank, banyan_chunk destination,
                            banyan_chunk source, banyan_by by);
/* To packets, which lie in scratch, and from them. */
BANYAN_API void banyan_copy_packets(banyan_program *program, int rank, banyan_chunk destination,
                                    banyan_chunk source, banyan_by by);
BANYAN_API void banyan_unpack_packets(banyan_program *program, int rank, banyan_chunk destination,
                                      banyan_chunk source, banyan_by by);

/* destination = source ⊕ others. `destination` may be BANYAN_IN_SOURCE. */
BANYAN_API void banyan_reduce_chunks(banyan_program *program, int rank, banyan_chunk source,
                                     const banyan_chunk *others, int count,
                                     banyan_chunk destination, banyan_reduce_op op, banyan_by by);
/* The same with `others` in packets, in scratch. */
BANYAN_API void banyan_reduce_packets(banyan_program *program, int rank, banyan_chunk source,
                                      const banyan_chunk *others, int count,
                                      banyan_chunk destination, banyan_reduce_op op, banyan_by by);

/* These thread blocks of the rank wait for each other; for one, its threads do. */
BANYAN_API void banyan_barrier(banyan_program *program, int rank, const int *thread_blocks,
                               int count);

/* A counter of a rank, for its thread blocks: acquire waits until it is above zero and takes one.
 */
typedef struct banyan_semaphore banyan_semaphore;
BANYAN_API banyan_semaphore *banyan_semaphore_create(banyan_program *program, int rank,
                                                     uint64_t initial);
BANYAN_API void banyan_semaphore_acquire(banyan_semaphore *semaphore, int thread_block,
                                         banyan_sync sync);
BANYAN_API void banyan_semaphore_release(banyan_semaphore *semaphore, int thread_block,
                                         banyan_sync sync);

/* ---- memory channels: loads and stores of peers' buffers ---- */

/* From `source` towards `destination`, owned by the source: what it does is done by the source's
 * thread blocks. There may be any number between two ranks; the k-th from a to b pairs with the
 * k-th from b to a: a wait on the one consumes what was signalled on the other. */
typedef struct banyan_memory_channel banyan_memory_channel;
BANYAN_API banyan_memory_channel *banyan_memory_channel_create(banyan_program *program,
                                                               int destination, int source);

BANYAN_API void banyan_memory_signal(banyan_memory_channel *channel, int thread_block,
                                     banyan_sync sync);
BANYAN_API void banyan_memory_wait(banyan_memory_channel *channel, int thread_block,
                                   banyan_sync sync);
/* Without making the rank's own writes visible: for "I am ready", not for "it is there". */
BANYAN_API void banyan_memory_signal_relaxed(banyan_memory_channel *channel, int thread_block,
                                             banyan_sync sync);
BANYAN_API void banyan_memory_wait_relaxed(banyan_memory_channel *channel, int thread_block,
                                           banyan_sync sync);

/* Chunks of the channel's source are local, those of its destination remote. */
BANYAN_API void banyan_memory_get(banyan_memory_channel *channel, banyan_chunk local,
                                  banyan_chunk remote, banyan_by by);
BANYAN_API void banyan_memory_put(banyan_memory_channel *channel, banyan_chunk remote,
                                  banyan_chunk local, banyan_by by);
/* Data to packets in the peer's scratch; and packets of our scratch to packets of the peer's. */
BANYAN_API void banyan_memory_put_packets(banyan_memory_channel *channel, banyan_chunk remote,
                                          banyan_chunk local, banyan_by by);
BANYAN_API void banyan_memory_read_put_packets(banyan_memory_channel *channel, banyan_chunk remote,
                                               banyan_chunk local, banyan_by by);
/* destination = local ⊕ remote chunks. */
BANYAN_API void banyan_memory_reduce(banyan_memory_channel *channel, banyan_chunk local,
                                     const banyan_chunk *remote, int count,
                                     banyan_chunk destination, banyan_reduce_op op, banyan_by by);

/* ---- port channels: a queue to a proxy that moves the bytes ---- */

/* Puts and signals are handed over in order and go on by themselves: the source of a put may be
 * written again after a flush. Pairing is as for memory channels. */
typedef struct banyan_port_channel banyan_port_channel;
BANYAN_API banyan_port_channel *banyan_port_channel_create(banyan_program *program, int destination,
                                                           int source);
BANYAN_API void banyan_port_signal(banyan_port_channel *channel, int thread_block,
                                   banyan_sync sync);
BANYAN_API void banyan_port_wait(banyan_port_channel *channel, int thread_block, banyan_sync sync);
BANYAN_API void banyan_port_flush(banyan_port_channel *channel, int thread_block, banyan_sync sync);
BANYAN_API void banyan_port_put(banyan_port_channel *channel, banyan_chunk remote,
                                banyan_chunk local, int thread_block);
BANYAN_API void banyan_port_put_with_signal(banyan_port_channel *channel, banyan_chunk remote,
                                            banyan_chunk local, int thread_block);
BANYAN_API void banyan_port_put_with_signal_and_flush(banyan_port_channel *channel,
                                                      banyan_chunk remote, banyan_chunk local,
                                                      int thread_block);
BANYAN_API void banyan_port_put_packets(banyan_port_channel *channel, banyan_chunk remote,
                                        banyan_chunk local, int thread_block);
BANYAN_API void banyan_port_read_put_packets(banyan_port_channel *channel, banyan_chunk remote,
                                             banyan_chunk local, banyan_by by);

/* ---- switch channels: one address for the same region of several ranks ---- */

typedef struct banyan_switch_channel banyan_switch_channel;
/* Over the buffers of this kind of `count` ranks, each named once. */
BANYAN_API banyan_switch_channel *banyan_switch_channel_create(banyan_program *program,
                                                               const int *ranks, int count,
                                                               banyan_buffer buffer);

/* At one rank of the group: load chunks [index, index + size) of all ranks' buffers, reduced, into
 * a chunk of that rank; or store a chunk of that rank to all. */
BANYAN_API void banyan_switch_reduce(banyan_switch_channel *channel, int rank, uint64_t index,
                                     uint64_t size, banyan_chunk destination, banyan_reduce_op op,
                                     int thread_block);
BANYAN_API void banyan_switch_broadcast(banyan_switch_channel *channel, int rank,
                                        banyan_chunk source, uint64_t index, uint64_t size,
                                        int thread_block);
/* The same with packets, from scratch to scratch. */
BANYAN_API void banyan_switch_broadcast_packets(banyan_switch_channel *channel, int rank,
                                                banyan_chunk source, uint64_t index, uint64_t size,
                                                int thread_block);

/* ---- loops ---- */

/* What is called between the two is run unit by unit: iteration i of an operation works on bytes
 * [i × unit_bytes, (i + 1) × unit_bytes) of its chunks; there are as many as `chunks` chunks need.
 * Loops do not nest. */
BANYAN_API void banyan_loop_begin(banyan_program *program, uint64_t unit_bytes, uint64_t chunks);
BANYAN_API void banyan_loop_end(banyan_program *program);

/* ---- places of calls ---- */

/* Note, for this thread, where a builder call stands, so that its error can say it: the next call
 * takes the place noted last, so that calls in the arguments of another have places of their own.
 * The macros below do that, unless BANYAN_NO_PLACES is defined. `file` must stay: a literal. */
BANYAN_API void banyan_here(const char *file, int line);

#ifndef BANYAN_NO_PLACES

#define banyan_program_tag(...) (banyan_here(__FILE__, __LINE__), banyan_program_tag(__VA_ARGS__))
#define banyan_input(...) (banyan_here(__FILE__, __LINE__), banyan_input(__VA_ARGS__))
#define banyan_output(...) (banyan_here(__FILE__, __LINE__), banyan_output(__VA_ARGS__))
#define banyan_scratch(...) (banyan_here(__FILE__, __LINE__), banyan_scratch(__VA_ARGS__))
#define banyan_slice(...) (banyan_here(__FILE__, __LINE__), banyan_slice(__VA_ARGS__))
#define banyan_group_create(...) (banyan_here(__FILE__, __LINE__), banyan_group_create(__VA_ARGS__))
#define banyan_copy(...) (banyan_here(__FILE__, __LINE__), banyan_copy(__VA_ARGS__))
#define banyan_copy_packets(...) (banyan_here(__FILE__, __LINE__), banyan_copy_packets(__VA_ARGS__))
#define banyan_unpack_packets(...)                                                                 \
    (banyan_here(__FILE__, __LINE__), banyan_unpack_packets(__VA_ARGS__))
#define banyan_reduce_chunks(...)                                                                  \
    (banyan_here(__FILE__, __LINE__), banyan_reduce_chunks(__VA_ARGS__))
#define banyan_reduce_packets(...)                                                                 \
    (banyan_here(__FILE__, __LINE__), banyan_reduce_packets(__VA_ARGS__))
#define banyan_barrier(...) (banyan_here(__FILE__, __LINE__), banyan_barrier(__VA_ARGS__))
#define banyan_semaphore_create(...)                                                               \
    (banyan_here(__FILE__, __LINE__), banyan_semaphore_create(__VA_ARGS__))
#define banyan_semaphore_acquire(...)                                                              \
    (banyan_here(__FILE__, __LINE__), banyan_semaphore_acquire(__VA_ARGS__))
#define banyan_semaphore_release(...)                                                              \
    (banyan_here(__FILE__, __LINE__), banyan_semaphore_release(__VA_ARGS__))
#define banyan_memory_channel_create(...)                                                          \
    (banyan_here(__FILE__, __LINE__), banyan_memory_channel_create(__VA_ARGS__))
#define banyan_memory_signal(...)                                                                  \
    (banyan_here(__FILE__, __LINE__), banyan_memory_signal(__VA_ARGS__))
#define banyan_memory_wait(...) (banyan_here(__FILE__, __LINE__), banyan_memory_wait(__VA_ARGS__))
#define banyan_memory_signal_relaxed(...)                                                          \
    (banyan_here(__FILE__, __LINE__), banyan_memory_signal_relaxed(__VA_ARGS__))
#define banyan_memory_wait_relaxed(...)                                                            \
    (banyan_here(__FILE__, __LINE__), banyan_memory_wait_relaxed(__VA_ARGS__))
#define banyan_memory_get(...) (banyan_here(__FILE__, __LINE__), banyan_memory_get(__VA_ARGS__))
#define banyan_memory_put(...) (banyan_here(__FILE__, __LINE__), banyan_memory_put(__VA_ARGS__))
#define banyan_memory_put_packets(...)                                                             \
    (banyan_here(__FILE__, __LINE__), banyan_memory_put_packets(__VA_ARGS__))
#define banyan_memory_read_put_packets(...)                                                        \
    (banyan_here(__FILE__, __LINE__), banyan_memory_read_put_packets(__VA_ARGS__))
#define banyan_memory_reduce(...)                                                                  \
    (banyan_here(__FILE__, __LINE__), banyan_memory_reduce(__VA_ARGS__))
#define banyan_port_channel_create(...)                                                            \
    (banyan_here(__FILE__, __LINE__), banyan_port_channel_create(__VA_ARGS__))
#define banyan_port_signal(...) (banyan_here(__FILE__, __LINE__), banyan_port_signal(__VA_ARGS__))
#define banyan_port_wait(...) (banyan_here(__FILE__, __LINE__), banyan_port_wait(__VA_ARGS__))
#define banyan_port_flush(...) (banyan_here(__FILE__, __LINE__), banyan_port_flush(__VA_ARGS__))
#define banyan_port_put(...) (banyan_here(__FILE__, __LINE__), banyan_port_put(__VA_ARGS__))
#define banyan_port_put_with_signal(...)                                                           \
    (banyan_here(__FILE__, __LINE__), banyan_port_put_with_signal(__VA_ARGS__))
#define banyan_port_put_with_signal_and_flush(...)                                                 \
    (banyan_here(__FILE__, __LINE__), banyan_port_put_with_signal_and_flush(__VA_ARGS__))
#define banyan_port_put_packets(...)                                                               \
    (banyan_here(__FILE__, __LINE__), banyan_port_put_packets(__VA_ARGS__))
#define banyan_port_read_put_packets(...)                                                          \
    (banyan_here(__FILE__, __LINE__), banyan_port_read_put_packets(__VA_ARGS__))
#define banyan_switch_channel_create(...)                                                          \
    (banyan_here(__FILE__, __LINE__), banyan_switch_channel_create(__VA_ARGS__))
#define banyan_switch_reduce(...)                                                                  \
    (banyan_here(__FILE__, __LINE__), banyan_switch_reduce(__VA_ARGS__))
#define banyan_switch_broadcast(...)                                                               \
    (banyan_here(__FILE__, __LINE__), banyan_switch_broadcast(__VA_ARGS__))
#define banyan_switch_broadcast_packets(...)                                                       \
    (banyan_here(__FILE__, __LINE__), banyan_switch_broadcast_packets(__VA_ARGS__))
#define banyan_loop_begin(...) (banyan_here(__FILE__, __LINE__), banyan_loop_begin(__VA_ARGS__))
#define banyan_loop_end(...) (banyan_here(__FILE__, __LINE__), banyan_loop_end(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
