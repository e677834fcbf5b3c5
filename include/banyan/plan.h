/* Banyan: execution plans, what a collective algorithm is once it is compiled.
 *
 * A plan says, for every rank and thread block, which operations run over which chunks of the
 * rank's input, output and scratch buffers, through which channels. It is data: it can be read,
 * written, compared, counted and run, and it does not change once it is made, so that threads may
 * share it.
 *
 * On disk a plan is MSCCL++'s execution-plan JSON, read and written; what Banyan adds lies under
 * one key, "banyan", that others may ignore: a collective's root or expected result, and tags.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_PLAN_H
#define BANYAN_PLAN_H

#include <banyan/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct banyan_plan banyan_plan;

typedef enum banyan_collective_kind {
    BANYAN_CUSTOM = 0, /* sizes, and perhaps the expected result, are the author's */
    BANYAN_ALLREDUCE,
    BANYAN_ALLGATHER,
    BANYAN_REDUCESCATTER,
    BANYAN_ALLTOALL,
    BANYAN_SENDRECV, /* every rank's input becomes the output of the rank `shift` further on */
    BANYAN_BROADCAST,
    BANYAN_REDUCE
} banyan_collective_kind;

/* "allreduce", as the JSON has it. Any thread. */
BANYAN_API const char *banyan_collective_name(banyan_collective_kind kind);
/* NOT_FOUND for a name that is none of these. */
BANYAN_API banyan_status banyan_collective_parse(const char *name, banyan_collective_kind *kind);

/* How data and its arrival are told. SIMPLE: data, then a signal. LL: every few bytes of data carry
 * a flag, in packets in the scratch buffer, which take twice the data's bytes. */
typedef enum banyan_protocol { BANYAN_SIMPLE = 0, BANYAN_LL } banyan_protocol;

typedef struct banyan_plan_info {
    const char *name;
    banyan_collective_kind collective;
    const char *collective_name; /* as the JSON has it; a custom collective has a name of its own */
    int ranks;
    int root;  /* of broadcast and reduce */
    int shift; /* of sendrecv */
    banyan_protocol protocol;
    bool in_place; /* input and output share their memory (see banyan_plan_run in execute.h) */
    bool reuse_resources;
    bool double_scratch;
    int threads_per_block;
    uint64_t buffer_alignment; /* bytes */
    /* Messages that the author meant it for: a rank's input, but for all-gather, where the format
     * counts the output. */
    uint64_t min_message_bytes, max_message_bytes;
    /* A message is a multiple of so many elements; 0: the plan has no buffers, and only the empty
     * message. */
    uint64_t message_parts;
    uint64_t operations; /* of all ranks; those inside a loop count once */
    int thread_blocks;   /* of the rank that has most */
} banyan_plan_info;

/* Pointers in it live as long as the plan. */
BANYAN_API banyan_plan_info banyan_plan_describe(const banyan_plan *plan);

/* A tag of the plan, NULL when it has none of this key; the index-th tag's key, NULL behind the
 * last.
 */
BANYAN_API const char *banyan_plan_tag(const banyan_plan *plan, const char *key);
BANYAN_API const char *banyan_plan_tag_key(const banyan_plan *plan, size_t index);

/* Bytes of a rank's input and output when its input, or that of the rank with most chunks, has
 * `message_bytes`: the same, but for all-gather's output (ranks times as much), reduce-scatter's
 * (a share) and custom collectives. INVALID: the message cannot be cut so. */
BANYAN_API banyan_status banyan_plan_sizes(const banyan_plan *plan, int rank,
                                           uint64_t message_bytes, uint64_t *input_bytes,
                                           uint64_t *output_bytes);

/* A rank's input, from this byte on. */
typedef struct banyan_plan_source {
    int rank;
    uint64_t offset;
} banyan_plan_source;

/* Bytes of an output that must hold as many bytes of these sources, reduced element by element
 * (one: copied). */
typedef struct banyan_plan_result {
    uint64_t offset, bytes;
    const banyan_plan_source *sources;
    size_t source_count;
} banyan_plan_result;

/* What the output of `rank` must hold after a run on a message of `message_bytes`, by the
 * definition of the plan's collective, or as the author of a custom one says: ascending parts;
 * nothing is said of bytes that none of them covers. `*op` is how they are reduced. `*parts`,
 * sources and all, is to be freed with one free(); NULL without any. Errors: INVALID (the plan
 * cannot run at this size), NO_MEMORY. */
BANYAN_API banyan_status banyan_plan_expected(const banyan_plan *plan, int rank,
                                              uint64_t message_bytes, banyan_plan_result **parts,
                                              size_t *count, banyan_reduce_op *op);

/* Read a plan from a file or pipe, or from text. Every index in it is checked; what is wrong is
 * refused with its path of keys ("gpus[2].threadblocks[0].ops[7].src_buff[0].index"). Errors:
 * NOT_FOUND, SYSTEM and INVALID (the file), FORMAT (what is in it), NO_MEMORY. Any thread. `name`
 * is what the text is called in errors. */
BANYAN_API banyan_status banyan_plan_read(const char *path, banyan_plan **plan);
BANYAN_API banyan_status banyan_plan_parse(const char *text, size_t bytes, const char *name,
                                           banyan_plan **plan);

/* Write it so that reading gives an equal plan. The file appears under its name only when it is
 * whole. `*text`, ended by a NUL, is to be freed with free(). */
BANYAN_API banyan_status banyan_plan_write(const banyan_plan *plan, const char *path);
BANYAN_API banyan_status banyan_plan_print(const banyan_plan *plan, char **text, size_t *bytes);

/* NULL is ignored. */
BANYAN_API void banyan_plan_destroy(banyan_plan *plan);

/* A listing for people, by rank and thread block; `rank` -1: all. To be freed with free(). */
BANYAN_API banyan_status banyan_plan_list(const banyan_plan *plan, int rank, char **text);

/* What differs between two plans, a line each ("rank 2, thread block 0, operation 7: …"), at most
 * `most` of them; `*differences` counts all. Names, tags and message bounds count as well. To be
 * freed with free(); empty when the plans are equal. */
BANYAN_API banyan_status banyan_plan_diff(const banyan_plan *a, const banyan_plan *b, size_t most,
                                          char **text, size_t *differences);

typedef struct banyan_plan_link {
    int source, destination; /* ranks: bytes flow from source to destination, whoever moves them */
    uint64_t bytes;
} banyan_plan_link;

typedef struct banyan_plan_stats {
    uint64_t input_bytes, output_bytes, scratch_bytes; /* of the rank with most */
    uint64_t local_bytes;                              /* written by a rank into its own buffers */
    uint64_t signals;
    /* Dependent steps from one rank to another on the longest way to the end; 0: there are none, or
     * they cannot be told, since a wait never ends or the plan is too long to be walked. */
    uint64_t critical_hops;
    banyan_plan_link *links; /* sorted by source, then destination; only those that carry bytes */
    size_t link_count;
} banyan_plan_stats;

/* Count for a message of `message_bytes` (a rank's input). `stats->links` is to be freed with
 * free(). Errors: INVALID (the plan cannot run at this size). */
BANYAN_API banyan_status banyan_plan_measure(const banyan_plan *plan, uint64_t message_bytes,
                                             banyan_plan_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
