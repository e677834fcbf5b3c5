/* Rules: which tensors are cut how, and where they lie in an engine's packing. */
#ifndef RESHARD_RULES_H
#define RESHARD_RULES_H

#include <banyan/layout.h>

#include "core/array.h"
#include "reshard/glob.h"
#include "reshard/names.h"

typedef enum rule_stage { STAGE_ALL = 0, STAGE_FIRST, STAGE_LAST } rule_stage;

/* Where a tensor lies in one packing. */
typedef struct rule_packed {
    const char *packing;
    const char *name; /* template of the local tensor's */
    int slot;         /* among the parts that are fused; -1: not fused */
    bool by_group;    /* fused by query groups, not by blocks */
    bool stacked;     /* one of the experts in a leading dimension */
    bool transposed;
} rule_packed;

typedef struct model_rule {
    const char *file;
    int line;
    const char *text; /* of the pattern */
    glob pattern;
    int shard_dim; /* -1: replicated */
    bool is_vocab; /* the sharded dimension is padded */
    int64_t head_rows;
    const char *head_source; /* template of a tensor whose last extent is head_rows; NULL: none */
    int64_t head_wide;       /* head_rows holds, by itself, for tensors of this width and more */
    bool heads_shared;       /* fewer heads than ranks: neighbours hold the same one */
    bool is_buffer;          /* a persistent buffer: takes the source's type */
    rule_stage stage;
    const char *tied;         /* stands in for this tensor, on the last stage, when it is missing */
    const char *scale_suffix; /* of the tensor of block scales beside it */
    int64_t scale_block;
    ARRAY(rule_packed) packed;
} model_rule;

/* What is known of a packing as a whole. */
typedef struct rule_packing {
    const char *name;
    const char *like; /* where a rule has nothing for it */
    int64_t vocab_multiple;
    bool vocab_per_tp;
} rule_packing;

struct banyan_rules {
    uint64_t serial; /* no other rules of this process have it */
    names names;
    ARRAY(model_rule) rules;
    ARRAY(rule_packing) packings;
};

/* A tensor and the first rule that fits it. */
typedef struct rule_match {
    const model_rule *rule;
    glob_captures captures;
    bool is_scale;
} rule_match;

/* False when no rule fits. The captures point into `name`. */
bool rules_match(const banyan_rules *rules, const char *name, rule_match *match);

/* INVALID, naming those there are, for a packing of which the rules say nothing; "hf" is always
 * there. */
banyan_status rules_find_packing(const banyan_rules *rules, const char *name,
                                 rule_packing *packing);

/* The tensor's place in the packing, or in one that it is like; NULL: under its own name. */
const rule_packed *rule_find_packed(const banyan_rules *rules, const model_rule *rule,
                                    const char *packing);

extern const char rules_builtin[];

#endif
