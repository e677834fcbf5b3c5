/* Banyan: write a collective algorithm as a program and compile it to a plan.
 *
 * A program describes all ranks at once. Each builder call adds an operation to a thread block of a
 * rank. Operations copy and reduce chunks; over channels they put, get, signal and wait. The
 * function banyan_program_compile makes an execution plan of the program (plan.h). You can then
 * check the plan (check.h), simulate it (simulate.h) and run it (execute.h).
 *
 * The operations and their meaning are those of MSCCL++'s Python DSL. docs/language.md is the
 * manual, with examples and a list of the differences.
 *
 * - Chunks. A program addresses buffers in chunks. The message size at run time determines the
 *   bytes of a chunk.
 * - Errors. A builder call does not return a status. The program keeps the first error and the
 *   source line of that call; banyan_program_compile reports them. Comments call this a program
 *   error. Later calls add nothing and return NULL, or a chunk of rank -1. Builder calls also
 *   ignore a NULL program or handle.
 * - Ownership. banyan_program_destroy frees the channels, semaphores and groups of the program.
 *   Chunks are plain values. Arrays and strings are copied during the call.
 * - Threads. One thread at a time may use a program. No call involves other ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_PROGRAM_H
#define BANYAN_PROGRAM_H

#include <banyan/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A collective algorithm under construction. */
typedef struct banyan_program banyan_program;

/* ---- the collective ---- */

/* An input chunk of a rank that contributes to an output chunk. */
typedef struct banyan_contribution {
    int rank;       /* whose input it is */
    uint64_t chunk; /* index in the input */
} banyan_contribution;

/* Expected content of output chunk `chunk` of `rank`: the reduction of the contributions, or a copy
 * if there is only one. */
typedef struct banyan_expected_chunk {
    int rank;
    uint64_t chunk;
    const banyan_contribution *contributions;
    size_t count; /* number of contributions */
} banyan_expected_chunk;

/* The collective that a program implements. For n ranks and chunk_factor k, each rank has these
 * buffers, in chunks:
 *
 *                                  input    output
 *     all-reduce, all-to-all        n·k      n·k
 *     all-gather                     k       n·k
 *     reduce-scatter                n·k       k
 *     send-recv, broadcast, reduce   k        k
 */
typedef struct banyan_collective {
    banyan_collective_kind kind; /* which collective */
    int chunk_factor;            /* k; 0: 1 */
    /* Input and output share memory. An all-gather's input is the rank's block of its output. A
     * reduce-scatter's output is the rank's block of its input. Otherwise both are the same. */
    bool in_place;
    int root;         /* broadcast, reduce */
    int shift;        /* send-recv: rank r sends to rank r + shift, modulo n; 0: 1 */
    const char *name; /* of BANYAN_CUSTOM; NULL: "custom" */
    uint64_t input_chunks, output_chunks; /* BANYAN_CUSTOM: of each rank */
    /* BANYAN_CUSTOM: chunks in a block. All blocks have the same number of bytes. If a block does
     * not divide into equal aligned chunks, its last chunks are shorter. 0: 1, so all chunks are
     * equal. */
    uint64_t block_chunks;
    /* BANYAN_CUSTOM: the expected output. NULL: the checker does not verify the result. */
    const banyan_expected_chunk *expected;
    size_t expected_count;
    banyan_reduce_op expected_op; /* BANYAN_CUSTOM: reduction of the contributions */
} banyan_collective;

/* Chunks that instance i of an operation uses, for an operation on `size` chunks at `index`. */
typedef enum banyan_replication {
    BANYAN_INTERLEAVED = 0, /* `size` chunks at index × instances + i × size; buffers have
                               `instances` times as many chunks */
    BANYAN_NOT_REPLICATED   /* all instances use the same chunks */
} banyan_replication;

/* Options of banyan_program_create. */
typedef struct banyan_program_options {
    size_t size;   /* of this struct; BANYAN_PROGRAM_OPTIONS_INIT sets it */
    int instances; /* copies of the program, on thread blocks and channels of their own */
    banyan_protocol protocol; /* recorded in the plan, for information only */
    bool fuse;                /* fuse adjacent operations where one does the work of both */
    /* Fuse more than MSCCL++'s compiler does. On port channels, put + signal becomes put with
     * signal, and + flush becomes put with signal and flush. A reduction of the previous
     * reduction's result joins it. At the end, nops that order nothing are removed. */
    bool fuse_more;
    /* Insert the synchronization that the banyan_sync arguments of signals, waits, flushes and
     * semaphores request. If false, these arguments have no effect. */
    bool requested_sync;
    bool auto_sync; /* insert the nops that data dependencies inside a thread block need */
    banyan_replication replication; /* chunks of the instances */
    bool reuse_resources; /* scratch has a fixed size; offsets of loops wrap around in it */
    /* With reuse_resources: bytes of a rank's scratch. 0: 64 MiB, as in MSCCL++. A smaller scratch
     * stays in the caches. */
    uint64_t reused_scratch_bytes;
    int threads_per_block;     /* of a thread block on a GPU */
    bool double_scratch;       /* consecutive runs alternate between two halves of scratch */
    uint64_t buffer_alignment; /* bytes; chunks start at multiples of it */
    /* Message sizes that the plan is meant for, both included: bytes of a rank's input, but of the
     * output for all-gather. */
    uint64_t min_message_bytes, max_message_bytes;
    /* If not NULL: receive the program as it was written (pass "program"), and then its state after
     * each compiler pass (docs/internals/compiler.md). `plan` is valid during the call. */
    void (*dump)(void *context, const char *pass, const banyan_plan *plan);
    void *dump_context; /* passed to `dump` */
} banyan_program_options;

#define BANYAN_PROGRAM_OPTIONS_INIT                                                                \
    BANYAN_INIT_WITH(banyan_program_options, BANYAN_MEMBER(instances, 1),                          \
                     BANYAN_MEMBER(fuse, true), BANYAN_MEMBER(requested_sync, true),               \
                     BANYAN_MEMBER(auto_sync, true), BANYAN_MEMBER(threads_per_block, 1024),       \
                     BANYAN_MEMBER(buffer_alignment, 16),                                          \
                     BANYAN_MEMBER(max_message_bytes, UINT64_MAX))

/* Create an empty program of `ranks` ranks, from 1 to BANYAN_MAX_RANKS. `name` NULL is "".
 * `options` NULL means the defaults. Errors: INVALID (ranks, collective or options out of range),
 * NO_MEMORY. */
BANYAN_API banyan_status banyan_program_create(const char *name,
                                               const banyan_collective *collective, int ranks,
                                               const banyan_program_options *options,
                                               banyan_program **program);

/* Free the program and all that it owns. Compiled plans stay valid. NULL is ignored. */
BANYAN_API void banyan_program_destroy(banyan_program *program);

/* Set a tag of the plan, for example its author or the machine it is for. A second call with the
 * same key replaces the value. Both strings are UTF-8. */
BANYAN_API void banyan_program_tag(banyan_program *program, const char *key, const char *value);

/* Return the first error of the builder calls, or OK, for a binding that reports it at the call.
 * The message is that of banyan_program_compile. */
BANYAN_API banyan_status banyan_program_status(const banyan_program *program);

/* Compile the program. The caller owns the plan. The program does not change: you may add to it and
 * compile it again. Errors:
 * - INVALID: the first error of the builder calls, with its source line. A loop has no end. Two
 *   ranks differ in the number of signals and waits on a type of channel.
 * - FORMAT: an operation that no plan may contain, with its path in the plan. For example, a signal
 *   on a channel that has no other end.
 * - NO_MEMORY. */
BANYAN_API banyan_status banyan_program_compile(banyan_program *program, banyan_plan **plan);

/* ---- chunks ---- */

/* Buffer of a rank. */
typedef enum banyan_buffer { BANYAN_INPUT = 0, BANYAN_OUTPUT, BANYAN_SCRATCH } banyan_buffer;

/* Chunks [index, index + size) of a buffer of a rank. */
typedef struct banyan_chunk {
    int rank;             /* that has the buffer; -1 after a program error */
    banyan_buffer buffer; /* of the rank */
    uint64_t index, size; /* in chunks */
} banyan_chunk;

/* As the destination of a reduction: write the result to its first local source. */
#define BANYAN_IN_SOURCE (BANYAN_VALUE(banyan_chunk){-1, BANYAN_INPUT, 0, 0})

/* Return chunks [start, stop) of the input of `rank`. Program error: a range outside the buffer. */
BANYAN_API banyan_chunk banyan_program_input(banyan_program *program, int rank, uint64_t start,
                                             uint64_t stop);

/* Return chunks [start, stop) of the output of `rank`. Program error: a range outside the buffer.
 */
BANYAN_API banyan_chunk banyan_program_output(banyan_program *program, int rank, uint64_t start,
                                              uint64_t stop);

/* Enlarge the scratch buffer of `rank` by `chunks` chunks and return these. */
BANYAN_API banyan_chunk banyan_program_scratch(banyan_program *program, int rank, uint64_t chunks);

/* Return chunks [start, stop) of `of`, counted from the start of `of`. Program error: a range
 * outside `of`. */
BANYAN_API banyan_chunk banyan_program_slice(banyan_program *program, banyan_chunk of,
                                             uint64_t start, uint64_t stop);

/* ---- thread blocks ---- */

/* Thread blocks of a rank have numbers from 0 to 1,048,575. A rank has as many as its highest
 * number requires. The operations of a thread block start in program order. Only signals, waits,
 * semaphores, barriers and packets order the operations of different thread blocks. */

/* A group of thread blocks of one rank. They divide the bytes of an operation in multiples of
 * buffer_alignment; the first thread blocks take the remainder. */
typedef struct banyan_program_group banyan_program_group;

/* Create a group of `count` different thread blocks. */
BANYAN_API banyan_program_group *banyan_program_group_create(banyan_program *program,
                                                             const int *thread_blocks, int count);

/* The thread blocks that carry out an operation: one, or a group. */
typedef struct banyan_program_by {
    int thread_block;                  /* -1: a group */
    const banyan_program_group *group; /* with thread_block -1 */
} banyan_program_by;

/* One thread block, and a group, as the last argument of an operation. */
#define BANYAN_TB(number) (BANYAN_VALUE(banyan_program_by){(number), NULL})
#define BANYAN_TB_GROUP(group) (BANYAN_VALUE(banyan_program_by){-1, (group)})

/* Synchronization of the threads of a thread block (__syncthreads on a GPU) around an operation.
 * BOTH is always correct. Before a signal, it ensures that all threads have finished the operations
 * that the signal announces. After a wait, it keeps all threads from running ahead of the wait. */
typedef enum banyan_sync {
    BANYAN_SYNC_BOTH = 0,
    BANYAN_SYNC_NONE,
    BANYAN_SYNC_BEFORE,
    BANYAN_SYNC_AFTER
} banyan_sync;

/* ---- operations inside a rank ---- */

/* Every operation requires chunks of the rank that it names, at least one chunk, and the same
 * number of chunks in all operands. */

/* Copy `source` to `destination`. */
BANYAN_API void banyan_program_copy(banyan_program *program, int rank, banyan_chunk destination,
                                    banyan_chunk source, banyan_program_by by);

/* ---- packets inside a rank ---- */

/* Packets store data together with a flag for each few bytes (NCCL's LL protocol). A reader waits
 * for the flags, so packets need no signal. Packets lie in scratch and take twice the bytes of
 * their data; `index` and `size` of a chunk count its data. */

/* Copy data from `source` to packets at `destination`, in scratch. */
BANYAN_API void banyan_program_copy_packets(banyan_program *program, int rank,
                                            banyan_chunk destination, banyan_chunk source,
                                            banyan_program_by by);

/* Wait for the packets at `source`, in scratch, and copy their data to `destination`. */
BANYAN_API void banyan_program_unpack_packets(banyan_program *program, int rank,
                                              banyan_chunk destination, banyan_chunk source,
                                              banyan_program_by by);

/* destination = source ⊕ others[0] ⊕ … ⊕ others[count - 1], with count ≥ 1. `destination` may be
 * BANYAN_IN_SOURCE. */
BANYAN_API void banyan_program_reduce(banyan_program *program, int rank, banyan_chunk source,
                                      const banyan_chunk *others, int count,
                                      banyan_chunk destination, banyan_reduce_op op,
                                      banyan_program_by by);

/* As banyan_program_reduce, but `others` are packets in scratch. Wait for them. */
BANYAN_API void banyan_program_reduce_packets(banyan_program *program, int rank,
                                              banyan_chunk source, const banyan_chunk *others,
                                              int count, banyan_chunk destination,
                                              banyan_reduce_op op, banyan_program_by by);

/* Barrier of `count` different thread blocks of the rank. With one thread block, its threads
 * synchronize (a nop). */
BANYAN_API void banyan_program_barrier(banyan_program *program, int rank, const int *thread_blocks,
                                       int count);

/* A counting semaphore of a rank, for its thread blocks. */
typedef struct banyan_program_semaphore banyan_program_semaphore;

/* Create a semaphore of `rank` whose counter starts at `initial` in every run. */
BANYAN_API banyan_program_semaphore *banyan_program_semaphore_create(banyan_program *program,
                                                                     int rank, uint64_t initial);

/* Wait until the counter is above zero, then subtract one. */
BANYAN_API void banyan_program_semaphore_acquire(banyan_program_semaphore *semaphore,
                                                 int thread_block, banyan_sync sync);

/* Add one to the counter. */
BANYAN_API void banyan_program_semaphore_release(banyan_program_semaphore *semaphore,
                                                 int thread_block, banyan_sync sync);

/* ---- memory channels: thread blocks load from and store to a peer's memory ---- */

/* A channel from rank `source` to rank `destination`. Thread blocks of the source use it. In the
 * calls below, local chunks belong to the source and remote chunks to the destination.
 *
 * Two ranks may have any number of channels. The k-th channel created from a to b pairs with the
 * k-th created from b to a: a wait on one consumes a signal on the other. */
typedef struct banyan_program_memory_channel banyan_program_memory_channel;

/* Create a memory channel between two different ranks. The destination comes first. */
BANYAN_API banyan_program_memory_channel *
banyan_program_memory_channel_create(banyan_program *program, int destination, int source);

/* Signal the destination, with release semantics: writes of the thread block before its last
 * synchronization are visible to a rank that has waited for the signal. */
BANYAN_API void banyan_program_memory_signal(banyan_program_memory_channel *channel,
                                             int thread_block, banyan_sync sync);

/* Wait for a signal or relaxed signal on the paired channel, with acquire semantics. */
BANYAN_API void banyan_program_memory_wait(banyan_program_memory_channel *channel, int thread_block,
                                           banyan_sync sync);

/* Signal without making the thread block's own writes visible. Use it to say "I have read your
 * data" or "my buffer is free", never "my data is there". */
BANYAN_API void banyan_program_memory_signal_relaxed(banyan_program_memory_channel *channel,
                                                     int thread_block, banyan_sync sync);

/* Wait for a signal or relaxed signal on the paired channel, without acquire semantics: data that
 * the peer wrote before the signal may not be visible. */
BANYAN_API void banyan_program_memory_wait_relaxed(banyan_program_memory_channel *channel,
                                                   int thread_block, banyan_sync sync);

/* Load `remote` and store it to `local`. */
BANYAN_API void banyan_program_memory_get(banyan_program_memory_channel *channel,
                                          banyan_chunk local, banyan_chunk remote,
                                          banyan_program_by by);

/* Store `local` to `remote`. */
BANYAN_API void banyan_program_memory_put(banyan_program_memory_channel *channel,
                                          banyan_chunk remote, banyan_chunk local,
                                          banyan_program_by by);

/* Store data from `local` to packets at `remote`, in the peer's scratch. */
BANYAN_API void banyan_program_memory_put_packets(banyan_program_memory_channel *channel,
                                                  banyan_chunk remote, banyan_chunk local,
                                                  banyan_program_by by);

/* Wait for the packets at `local`, in this rank's scratch, and store them to packets at `remote`,
 * in the peer's scratch. */
BANYAN_API void banyan_program_memory_read_put_packets(banyan_program_memory_channel *channel,
                                                       banyan_chunk remote, banyan_chunk local,
                                                       banyan_program_by by);

/* destination = local ⊕ remote[0] ⊕ … ⊕ remote[count - 1], with count ≥ 1. `destination` is local
 * and may be BANYAN_IN_SOURCE. */
BANYAN_API void banyan_program_memory_reduce(banyan_program_memory_channel *channel,
                                             banyan_chunk local, const banyan_chunk *remote,
                                             int count, banyan_chunk destination,
                                             banyan_reduce_op op, banyan_program_by by);

/* ---- port channels: a proxy moves the bytes ---- */

/* A queue of puts, signals and flushes that a proxy processes in order, as over a network. A put is
 * asynchronous: overwrite its source only after a flush, or after the destination has waited for a
 * later signal of the channel. Ends, local and remote chunks, and the pairing of channels are as
 * for memory channels. */
typedef struct banyan_program_port_channel banyan_program_port_channel;

/* Create a port channel between two different ranks. The destination comes first. */
BANYAN_API banyan_program_port_channel *
banyan_program_port_channel_create(banyan_program *program, int destination, int source);

/* Post a signal. It arrives after the puts that were posted before it. */
BANYAN_API void banyan_program_port_signal(banyan_program_port_channel *channel, int thread_block,
                                           banyan_sync sync);

/* Wait for a signal on the paired channel. The data of the puts before it is visible then. */
BANYAN_API void banyan_program_port_wait(banyan_program_port_channel *channel, int thread_block,
                                         banyan_sync sync);

/* Wait until the proxy has finished everything that was posted to the channel. */
BANYAN_API void banyan_program_port_flush(banyan_program_port_channel *channel, int thread_block,
                                          banyan_sync sync);

/* Post a put of `local` to `remote`. */
BANYAN_API void banyan_program_port_put(banyan_program_port_channel *channel, banyan_chunk remote,
                                        banyan_chunk local, int thread_block);

/* Post a put and then a signal. */
BANYAN_API void banyan_program_port_put_with_signal(banyan_program_port_channel *channel,
                                                    banyan_chunk remote, banyan_chunk local,
                                                    int thread_block);

/* Post a put and then a signal, and flush. */
BANYAN_API void banyan_program_port_put_with_signal_and_flush(banyan_program_port_channel *channel,
                                                              banyan_chunk remote,
                                                              banyan_chunk local, int thread_block);

/* Post a put of the data in `local` to packets at `remote`, in the peer's scratch. */
BANYAN_API void banyan_program_port_put_packets(banyan_program_port_channel *channel,
                                                banyan_chunk remote, banyan_chunk local,
                                                int thread_block);

/* Wait for the packets at `local`, in this rank's scratch, and post a put of them to packets at
 * `remote`, in the peer's scratch. */
BANYAN_API void banyan_program_port_read_put_packets(banyan_program_port_channel *channel,
                                                     banyan_chunk remote, banyan_chunk local,
                                                     banyan_program_by by);

/* ---- switch channels: one multicast address for a buffer of several ranks ---- */

/* A channel to a buffer of several ranks, by the switch that connects them. */
typedef struct banyan_program_switch_channel banyan_program_switch_channel;

/* Create a switch channel over one buffer of `count` different ranks. */
BANYAN_API banyan_program_switch_channel *
banyan_program_switch_channel_create(banyan_program *program, const int *ranks, int count,
                                     banyan_buffer buffer);

/* At `rank`, a member of the channel: load chunks [index, index + size) of all members' buffers.
 * The switch reduces them. Store the result to `destination`, `size` chunks of `rank`. */
BANYAN_API void banyan_program_switch_reduce(banyan_program_switch_channel *channel, int rank,
                                             uint64_t index, uint64_t size,
                                             banyan_chunk destination, banyan_reduce_op op,
                                             int thread_block);

/* At `rank`, a member of the channel: store `source`, `size` chunks of `rank`, to chunks [index,
 * index + size) of all members' buffers. */
BANYAN_API void banyan_program_switch_broadcast(banyan_program_switch_channel *channel, int rank,
                                                banyan_chunk source, uint64_t index, uint64_t size,
                                                int thread_block);

/* As banyan_program_switch_broadcast, for packets. `source` and the channel's buffer are scratch.
 */
BANYAN_API void banyan_program_switch_broadcast_packets(banyan_program_switch_channel *channel,
                                                        int rank, banyan_chunk source,
                                                        uint64_t index, uint64_t size,
                                                        int thread_block);

/* ---- loops ---- */

/* Begin a loop over `chunks` chunks in units of `unit_bytes`. The operations up to
 * banyan_program_loop_end form its body, separately in each thread block. Iteration i of an
 * operation works on bytes [i × unit_bytes, (i + 1) × unit_bytes) of its chunks. There are as many
 * iterations as `chunks` chunks need at the size of the message. Program errors: nested loops,
 * `chunks` or `unit_bytes` 0, an operation in the body on more than `chunks` chunks. */
BANYAN_API void banyan_program_loop_begin(banyan_program *program, uint64_t unit_bytes,
                                          uint64_t chunks);

/* End the loop. */
BANYAN_API void banyan_program_loop_end(banyan_program *program);

/* ---- source lines in errors ---- */

/* Record, for this thread, the source line of the next builder call, so that its error, and
 * findings about its operation (check.h), can name it. The macros below do this for every builder
 * call; define BANYAN_NO_PLACES before the include to disable them, for example in a language
 * binding. Calls take the most recent line first: a builder call in the arguments of another one
 * has its own line. `file` is not copied; pass a string literal. Any thread. */
BANYAN_API void banyan_program_here(const char *file, int line);

#ifndef BANYAN_NO_PLACES

#define banyan_program_tag(...)                                                                    \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_tag(__VA_ARGS__))
#define banyan_program_input(...)                                                                  \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_input(__VA_ARGS__))
#define banyan_program_output(...)                                                                 \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_output(__VA_ARGS__))
#define banyan_program_scratch(...)                                                                \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_scratch(__VA_ARGS__))
#define banyan_program_slice(...)                                                                  \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_slice(__VA_ARGS__))
#define banyan_program_group_create(...)                                                           \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_group_create(__VA_ARGS__))
#define banyan_program_copy(...)                                                                   \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_copy(__VA_ARGS__))
#define banyan_program_copy_packets(...)                                                           \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_copy_packets(__VA_ARGS__))
#define banyan_program_unpack_packets(...)                                                         \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_unpack_packets(__VA_ARGS__))
#define banyan_program_reduce(...)                                                                 \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_reduce(__VA_ARGS__))
#define banyan_program_reduce_packets(...)                                                         \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_reduce_packets(__VA_ARGS__))
#define banyan_program_barrier(...)                                                                \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_barrier(__VA_ARGS__))
#define banyan_program_semaphore_create(...)                                                       \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_semaphore_create(__VA_ARGS__))
#define banyan_program_semaphore_acquire(...)                                                      \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_semaphore_acquire(__VA_ARGS__))
#define banyan_program_semaphore_release(...)                                                      \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_semaphore_release(__VA_ARGS__))
#define banyan_program_memory_channel_create(...)                                                  \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_channel_create(__VA_ARGS__))
#define banyan_program_memory_signal(...)                                                          \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_signal(__VA_ARGS__))
#define banyan_program_memory_wait(...)                                                            \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_wait(__VA_ARGS__))
#define banyan_program_memory_signal_relaxed(...)                                                  \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_signal_relaxed(__VA_ARGS__))
#define banyan_program_memory_wait_relaxed(...)                                                    \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_wait_relaxed(__VA_ARGS__))
#define banyan_program_memory_get(...)                                                             \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_get(__VA_ARGS__))
#define banyan_program_memory_put(...)                                                             \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_put(__VA_ARGS__))
#define banyan_program_memory_put_packets(...)                                                     \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_put_packets(__VA_ARGS__))
#define banyan_program_memory_read_put_packets(...)                                                \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_read_put_packets(__VA_ARGS__))
#define banyan_program_memory_reduce(...)                                                          \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_memory_reduce(__VA_ARGS__))
#define banyan_program_port_channel_create(...)                                                    \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_port_channel_create(__VA_ARGS__))
#define banyan_program_port_signal(...)                                                            \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_port_signal(__VA_ARGS__))
#define banyan_program_port_wait(...)                                                              \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_port_wait(__VA_ARGS__))
#define banyan_program_port_flush(...)                                                             \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_port_flush(__VA_ARGS__))
#define banyan_program_port_put(...)                                                               \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_port_put(__VA_ARGS__))
#define banyan_program_port_put_with_signal(...)                                                   \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_port_put_with_signal(__VA_ARGS__))
#define banyan_program_port_put_with_signal_and_flush(...)                                         \
    (banyan_program_here(__FILE__, __LINE__),                                                      \
     banyan_program_port_put_with_signal_and_flush(__VA_ARGS__))
#define banyan_program_port_put_packets(...)                                                       \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_port_put_packets(__VA_ARGS__))
#define banyan_program_port_read_put_packets(...)                                                  \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_port_read_put_packets(__VA_ARGS__))
#define banyan_program_switch_channel_create(...)                                                  \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_switch_channel_create(__VA_ARGS__))
#define banyan_program_switch_reduce(...)                                                          \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_switch_reduce(__VA_ARGS__))
#define banyan_program_switch_broadcast(...)                                                       \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_switch_broadcast(__VA_ARGS__))
#define banyan_program_switch_broadcast_packets(...)                                               \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_switch_broadcast_packets(__VA_ARGS__))
#define banyan_program_loop_begin(...)                                                             \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_loop_begin(__VA_ARGS__))
#define banyan_program_loop_end(...)                                                               \
    (banyan_program_here(__FILE__, __LINE__), banyan_program_loop_end(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
