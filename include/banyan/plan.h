/* Banyan: execution plans, the compiled form of collective algorithms.
 *
 * A plan lists, for every rank and thread block, operations over chunks of the rank's input, output
 * and scratch buffers, through channels. The checker, the simulator and the executor all read the
 * same plan. A plan does not change after it is made: several threads may use it at the same time.
 *
 * Plans come from banyan_program_compile (program.h), banyan_algorithm_compile (collective.h) or a
 * file. The file format is MSCCL++'s execution-plan JSON. Banyan's additions (a collective's root
 * or expected result, and tags) are under the key "banyan", which other readers may ignore.
 * docs/plans.md describes the format and how chunks map to bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_PLAN_H
#define BANYAN_PLAN_H

#include <banyan/core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A compiled collective algorithm: the operations of all ranks. It does not change. */
typedef struct banyan_plan banyan_plan;

/* Collective that a plan implements. */
typedef enum banyan_collective_kind {
    BANYAN_CUSTOM = 0, /* the author gives the sizes and, optionally, the expected result */
    BANYAN_ALLREDUCE,
    BANYAN_ALLGATHER,
    BANYAN_REDUCESCATTER,
    BANYAN_ALLTOALL,
    BANYAN_SENDRECV, /* the input of rank r becomes the output of rank r + shift, modulo ranks */
    BANYAN_BROADCAST,
    BANYAN_REDUCE
} banyan_collective_kind;

/* Return the collective's name in the JSON format, for example "allreduce", or "?" for another
 * value. The string is static. Any thread. */
BANYAN_API const char *banyan_collective_kind_name(banyan_collective_kind kind);

/* Find a collective by its name, as banyan_collective_kind_name spells it. Errors: NOT_FOUND
 * (unknown name). Any thread. */
BANYAN_API banyan_status banyan_collective_kind_parse(const char *name,
                                                      banyan_collective_kind *kind);

/* Protocol of a plan. SIMPLE: write the data, then signal. LL: packets in scratch, which carry a
 * flag with each few bytes of data and take twice the data's bytes (NCCL's LL protocol). */
typedef enum banyan_protocol { BANYAN_SIMPLE = 0, BANYAN_LL } banyan_protocol;

/* Program that runs plans. All read the same file format, but not all do the same with it. */
typedef enum banyan_plan_executor {
    BANYAN_EXECUTOR_BANYAN = 0, /* this library */
    BANYAN_EXECUTOR_MSCCLPP     /* MSCCL++'s (docs/mscclpp.md has its rules) */
} banyan_plan_executor;

/* Return the executor's name, "banyan" or "mscclpp", or "?" for another value. The string is
 * static. Any thread. */
BANYAN_API const char *banyan_plan_executor_name(banyan_plan_executor executor);

/* Find an executor by its name. Errors: NOT_FOUND (unknown name). Any thread. */
BANYAN_API banyan_status banyan_plan_executor_parse(const char *name,
                                                    banyan_plan_executor *executor);

/* Properties of a plan. */
typedef struct banyan_plan_info {
    const char *name;                  /* of the plan */
    banyan_collective_kind collective; /* that the plan implements */
    const char *collective_name;       /* as in the JSON; a custom collective has its own name */
    int ranks;                         /* number of ranks */
    int root;                          /* broadcast and reduce */
    int shift;                         /* send-recv */
    banyan_protocol protocol;          /* as the author recorded it */
    bool in_place; /* input and output share memory (see banyan_loaded_plan_run in execute.h) */
    bool reuse_resources;      /* scratch has a fixed size, whatever the message */
    bool double_scratch;       /* consecutive runs alternate between two halves of scratch */
    int threads_per_block;     /* of a thread block on a GPU */
    uint64_t buffer_alignment; /* bytes */
    /* Message sizes that the author meant the plan for, both included: bytes of a rank's input, but
     * of the output for all-gather, as the format defines. */
    uint64_t min_message_bytes, max_message_bytes;
    /* A message is a multiple of this many elements. 0: the plan has no buffers, and its only
     * message is empty. */
    uint64_t message_parts;
    uint64_t operations; /* of all ranks; an operation inside a loop counts once */
    int thread_blocks;   /* maximum over the ranks */
    /* Executor that the file is written for (banyan_plan_adapt). Banyan runs the plan all the same.
     */
    banyan_plan_executor executor;
} banyan_plan_info;

/* Return the properties of a plan. The strings live as long as the plan. Any thread. */
BANYAN_API banyan_plan_info banyan_plan_describe(const banyan_plan *plan);

/* Return the value of a tag, or NULL if the plan has no tag with this key. The string lives as long
 * as the plan. Any thread. */
BANYAN_API const char *banyan_plan_tag(const banyan_plan *plan, const char *key);

/* Return the key of the tag at `index`, or NULL if `index` is not below the number of tags. The
 * string lives as long as the plan. Any thread. */
BANYAN_API const char *banyan_plan_tag_key(const banyan_plan *plan, size_t index);

/* Set the sizes of a rank's input and output for a message of `message_bytes`. `message_bytes` is
 * the input size of the rank with the most input chunks. In most collectives, both sizes equal it.
 * All-gather's output is `ranks` times as long, reduce-scatter's output is 1 / `ranks` as long, and
 * a custom collective's sizes follow from its chunks. Errors: INVALID (the message does not divide
 * into message_parts; `rank` is out of range). Any thread. */
BANYAN_API banyan_status banyan_plan_sizes(const banyan_plan *plan, int rank,
                                           uint64_t message_bytes, uint64_t *input_bytes,
                                           uint64_t *output_bytes);

/* The input of `rank` from byte `offset`. */
typedef struct banyan_plan_source {
    int rank;
    uint64_t offset;
} banyan_plan_source;

/* Expected content of output bytes [offset, offset + bytes): the element-wise reduction of as many
 * bytes of each source, or a copy if there is only one source. */
typedef struct banyan_plan_result {
    uint64_t offset, bytes;
    const banyan_plan_source *sources; /* input bytes of the same length */
    size_t source_count;
} banyan_plan_result;

/* Set `*parts` to the expected output of `rank` after a run with a message of `message_bytes` (see
 * banyan_plan_sizes). It follows from the definition of the collective; the author of a custom
 * collective may have given it. The parts are in ascending order. The plan does not define the
 * output bytes outside of them. `*op` is the reduction. `*parts` is NULL if there are none;
 * otherwise free it with one free(), which includes the sources. Errors: INVALID (the plan cannot
 * run at this size), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_plan_expected(const banyan_plan *plan, int rank,
                                              uint64_t message_bytes, banyan_plan_result **parts,
                                              size_t *count, banyan_reduce_op *op);

/* Read a plan from a regular file, or from a pipe given as /dev/stdin or /dev/fd/N. Every index in
 * it is checked. The caller owns the plan. Errors: NOT_FOUND (no such file), INVALID (the path is
 * not a file, or the file has more than 4 GiB), SYSTEM, FORMAT (the content is not a valid plan),
 * NO_MEMORY. A FORMAT message has the path of keys, for example
 * "gpus[2].threadblocks[0].ops[7].src_buff[0].index". Any thread. */
BANYAN_API banyan_status banyan_plan_read(const char *path, banyan_plan **plan);

/* Parse a plan from `bytes` bytes of JSON text, which need no NUL at the end. Error messages call
 * the text `name`. Errors: FORMAT, NO_MEMORY, as for banyan_plan_read. Any thread. */
BANYAN_API banyan_status banyan_plan_parse(const char *text, size_t bytes, const char *name,
                                           banyan_plan **plan);

/* Write a plan to a file. Reading the file gives an equal plan. The file appears at `path`, or
 * replaces an old one, only when it is complete. A device, pipe or symbolic link is written to as
 * it is. Errors: INVALID (a name or tag is not UTF-8, or has control characters), SYSTEM,
 * NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_plan_write(const banyan_plan *plan, const char *path);

/* Set `*text` to the JSON text of a plan, with a NUL at the end. `*bytes` is its length without the
 * NUL; `bytes` may be NULL. Free the text with free(). Errors: INVALID (as for banyan_plan_write),
 * NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_plan_print(const banyan_plan *plan, char **text, size_t *bytes);

/* Make a plan whose file does on `executor` what `plan` does here, and set `*adapted` to it, owned
 * by the caller. It is `plan` with other synchronization, scratch, or division into operations; it
 * has the same ranks, chunks of input and output, and results, and runs here as well. Its message
 * bounds are those that the executor runs. For BANYAN_EXECUTOR_BANYAN it is a copy. For MSCCL++'s
 * executor, prove the result with banyan_plan_check and its option `executor`. Errors: UNSUPPORTED
 * (the executor cannot do this; the message has the operation and the reason), INVALID (unknown
 * executor), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_plan_adapt(const banyan_plan *plan, banyan_plan_executor executor,
                                           banyan_plan **adapted);

/* Free a plan. NULL is ignored. */
BANYAN_API void banyan_plan_destroy(banyan_plan *plan);

/* Set `*text` to a listing of the operations for people, by rank and thread block. `rank` -1 lists
 * all ranks. Free the text with free(). Errors: INVALID (`rank` is out of range), NO_MEMORY. Any
 * thread. */
BANYAN_API banyan_status banyan_plan_list(const banyan_plan *plan, int rank, char **text);

/* Compare two plans, including their names, tags and message bounds. `*text` has one line for each
 * difference ("rank 2, thread block 0, operation 7: …"), and at most `most` lines. It is empty if
 * the plans are equal. Free the text with free(). `*differences` is the number of all differences.
 * Errors: NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_plan_diff(const banyan_plan *a, const banyan_plan *b, size_t most,
                                          char **text, size_t *differences);

/* Traffic from rank `source` to rank `destination`, by puts of the one or gets of the other. */
typedef struct banyan_plan_link {
    int source, destination; /* ranks */
    uint64_t bytes;          /* packets count with their flags */
} banyan_plan_link;

/* Traffic of a run. */
typedef struct banyan_plan_stats {
    uint64_t input_bytes, output_bytes, scratch_bytes; /* of a rank: maximum over the ranks */
    uint64_t local_bytes; /* that ranks write to their own buffers; sum over the ranks */
    uint64_t signals;     /* of all ranks, every loop iteration counted */
    /* Length of the longest chain of dependent messages between ranks. 0 also if it is unknown: a
     * wait never ends, or the plan takes more than 4,194,304 steps. */
    uint64_t critical_hops;
    banyan_plan_link *links; /* by source, then destination; only those with traffic */
    size_t link_count;
} banyan_plan_stats;

/* Count the traffic of a run with a message of `message_bytes` (see banyan_plan_sizes). Free
 * `stats->links` with free(). Errors: INVALID (the plan cannot run at this size), NO_MEMORY. Any
 * thread. */
BANYAN_API banyan_status banyan_plan_measure(const banyan_plan *plan, uint64_t message_bytes,
                                             banyan_plan_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
