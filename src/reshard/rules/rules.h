/* Rules: how tensors are cut, and where they lie in an engine's packing. */
#ifndef RESHARD_RULES_RULES_H
#define RESHARD_RULES_RULES_H

#include <stddef.h>

#include <banyan/rules.h>

#include "core/containers.h"
#include "reshard/layout/names.h"
#include "reshard/model/glob.h"

typedef enum rule_stage { STAGE_ALL = 0, STAGE_FIRST, STAGE_LAST } rule_stage;

/* A condition: a tensor that the model has, or a fact of its config.json. */
typedef struct rule_condition {
    bool is_fact;
    bool is_negated;
    const char *text;    /* template of the tensor's name; the fact's key */
    const char **values; /* allowed values of the fact; */
    size_t value_count;  /* 0: any */
} rule_condition;

typedef struct rule_conditions {
    ARRAY(rule_condition) list; /* all must hold */
} rule_conditions;

/* The model needs one of these tensors beside the rule's tensor. */
typedef struct rule_need {
    const char **names; /* templates */
    size_t count;
    rule_conditions conditions; /* an unknown fact counts as missing */
    int line;
} rule_need;

/* Place of a tensor in one packing. */
typedef struct rule_packed {
    const char *packing;
    const char *name; /* template of the local tensor's */
    int slot;         /* among the parts that are fused; -1: not fused */
    bool by_group;    /* fused by query groups, not by blocks */
    bool is_none;     /* the packing has no place for the tensor */
    const char *why;  /* the reason for none, and advice; NULL: none is given */
    bool stacked;     /* one of the experts in a leading dimension */
    bool unstacked;   /* of a tensor of all experts: one local tensor for each */
    bool transposed;
    bool halves;   /* per head: even rows first, then odd ones */
    bool once;     /* the first rank that would hold a replica holds it, the others zeros */
    bool whole;    /* every rank holds it, though the rule shards it */
    bool computed; /* the engine computes other values from the tensor's: it cannot be moved */
    uint32_t map;  /* BANYAN_PIECE_…: the value map of its pieces; 0: none */
    bool has_dtype;
    DLDataType dtype;
    int line;
    uint64_t slots; /* bits: the slots of all rules for this local tensor */
    rule_conditions conditions;
} rule_packed;

/* A block of a tensor that is itself fused: expressions. */
typedef struct rule_part {
    const char *size;
    const char *heads; /* NULL: cut evenly */
    bool heads_shared;
    bool whole; /* every rank holds it */
} rule_part;

typedef struct model_rule {
    const char *file;
    int line;
    const char *text; /* of the pattern */
    glob pattern;
    int shard_dim;     /* -1: replicated */
    bool is_vocab;     /* the sharded dimension is padded */
    const char *heads; /* expression: elements per head; NULL: no heads */
    const char
        *head_source; /* template of a tensor whose last extent is the head size too; NULL: none */
    const char *head_count; /* expression: number of heads, if known; NULL: any number */
    bool heads_shared;      /* fewer heads than ranks: neighbours hold the same one */
    bool stacks_experts;    /* dimension 0 counts experts */
    bool is_buffer;         /* a persistent buffer: takes the source's type */
    rule_stage stage;
    /* Fills the tensor in a destination when no source has it; NULL: none. */
    const char *fallback;
    const char *tied;         /* on the last stage it replaces this tensor if that is missing */
    const char *scale_suffix; /* of the tensor of block scales beside it */
    int64_t scale_block;
    ARRAY(rule_part) parts;
    ARRAY(rule_need) needs;
    rule_conditions conditions;
    ARRAY(rule_packed) packed;
} model_rule;

/* Properties of a packing as a whole. */
typedef struct rule_packing {
    const char *name;
    const char *like;    /* packing to follow where a rule has no place in this one */
    const char *release; /* engine release that the rules were checked against; NULL: none */
    const char *file;
    int line;
    int64_t vocab_multiple;
    bool vocab_per_tp;
    bool strict; /* a tensor without a place in it is an error */
} rule_packing;

/* A fact that a config.json may leave out. */
typedef struct rule_default {
    const char *key, *value; /* an expression */
    rule_conditions conditions;
} rule_default;

/* Tensors that a packing lacks, or has as an exception: the first line that fits decides. */
typedef struct rule_skip {
    const char *file;
    int line;
    bool keeps;
    const char *packing; /* NULL: every packing except hf */
    const char *text;
    glob pattern;
    rule_conditions conditions;
} rule_skip;

/* Names that begin with `from` count as if they began with `to`. */
typedef struct rule_prefix {
    const char *from, *to;
    const char *packing, *out; /* local names of this packing begin with `out` instead; or NULL */
    rule_conditions conditions;
} rule_prefix;

/* Layers that a packing has behind all others: on the last stage, with their own numbers. */
typedef struct rule_behind {
    const char *packing, *text;
    glob pattern;      /* of a tensor that each of them has, and no other layer */
    const char *needs; /* a tensor of the first stage that they need on the last; NULL: none */
} rule_behind;

/* Local names that one packing changes. */
typedef struct rule_rename {
    bool behind; /* for tensors of layers behind all others */
    const char *packing, *text;
    glob pattern;
    const char *name; /* template */
    rule_conditions conditions;
} rule_rename;

/* Skips are bits of a match. */
#define RULES_MAX_SKIPS 64

struct banyan_rules {
    uint64_t serial; /* unique among the rules of this process */
    names names;
    ARRAY(const char *) expert_facts; /* the first known fact is the number of experts */
    const char *layer_fact;           /* the number of layers; NULL: layers are not counted */
    ARRAY(model_rule) rules;
    ARRAY(rule_packing) packings;
    ARRAY(rule_default) defaults;
    ARRAY(rule_skip) skips;
    ARRAY(rule_prefix) prefixes;
    ARRAY(rule_behind) behinds;
    ARRAY(rule_rename) renames;
};

/* A tensor and the first rule that fits it. */
typedef struct rule_match {
    const char *name; /* the tensor's, after prefixes */
    const model_rule *rule;
    const rule_condition
        *undecided;            /* condition of the rule with an unknown fact; NULL: all hold */
    const rule_prefix *prefix; /* NULL: none */
    const char *missing;       /* a tensor that the rule needs; NULL: none is missing */
    int missing_line;          /* of the rule's file */
    glob_captures captures;    /* point into `name` */
    bool is_scale;
    bool ends_experts; /* one expert's tensor, and the model lacks the next expert's */
    uint64_t skips, undecided_skips; /* bits: lines of rules->skips */
} rule_match;

/* A model as conditions see it. */
typedef struct rule_subject {
    const banyan_model *model;
    const hash_map *by_name; /* tensors by their names after prefixes */
} rule_subject;

typedef enum rule_answer { RULE_NO = 0, RULE_YES, RULE_UNDECIDED } rule_answer;

/* Decide whether all conditions hold for a tensor that matched so. `which` is the first that fails,
 * or that depends on an unknown fact; it may be NULL. */
rule_answer rules_decide(const rule_conditions *conditions, const rule_subject *subject,
                         const glob_captures *captures, const rule_condition **which);

/* True if the condition holds. An unknown fact counts as missing. */
bool rule_condition_holds(const rule_condition *condition, const rule_subject *subject,
                          const glob_captures *captures);

/* Find the first tensor that the rule needs beside the matched one and that the model lacks: return
 * the clause and set `name`; NULL: none. */
const rule_need *rules_find_missing(const rule_subject *subject, const rule_match *match,
                                    char *name, size_t bytes);

/* Write the matched tensor's name for the expert `step` further on. False: the name is too long, or
 * the pattern has no expert. */
bool rules_expert_name(const rule_match *match, int step, char *name, size_t bytes);

/* True if the rule's pattern fits, or the pattern of its scales. */
bool rule_fits(const model_rule *rule, const char *name, glob_captures *captures, bool *is_scale);

/* Find the rule of a name, and the skips. False when no rule fits. The captures point into `name`.
 */
bool rules_match(const banyan_rules *rules, const rule_subject *subject, const char *name,
                 rule_match *match);

/* Return the first prefix that fits, or NULL. Its conditions ask for names as the model spells
 * them. */
const rule_prefix *rules_find_prefix(const banyan_rules *rules, const rule_subject *subject,
                                     const char *name);

/* Explain in `text` which rule comes nearest to a name that no rule fits, and why it does not fit.
 */
void rules_explain_nearest(const banyan_rules *rules, const rule_subject *subject, const char *name,
                           char *text, size_t bytes);

/* Write a condition as text: `with "x"`, `when model_type = a b`. */
const char *rule_condition_format(const rule_condition *condition, char *text, size_t bytes);

/* Return as bits the lines of rules->skips that are about a packing. */
uint64_t rules_skips_of(const banyan_rules *rules, const char *packing);

/* Decide whether a packing whose skips are `lines` lacks the tensor. `which` is the line that
 * decides, also if that depends on an unknown fact; NULL: none. */
rule_answer rules_skip(const banyan_rules *rules, const rule_match *match, uint64_t lines,
                       const rule_skip **which);

/* The first rename of the packing that fits a local name, with what its pattern captured; or NULL.
 * `behind`: the tensor's layer is behind all others.
 */
const rule_rename *rules_find_rename(const banyan_rules *rules, const rule_subject *subject,
                                     const char *packing, const char *name, bool behind,
                                     glob_captures *captures);

/* Return the line about layers that the packing has behind all others; NULL: it has none. */
const rule_behind *rules_find_behind(const banyan_rules *rules, const char *packing);

/* Find a packing. INVALID, naming the known ones, if the rules do not describe it; "hf" always
 * exists. */
banyan_status rules_find_packing(const banyan_rules *rules, const char *name,
                                 rule_packing *packing);

/* True if `packing` is this one, or follows it with `like`. */
bool rules_packing_is(const banyan_rules *rules, const char *packing, const char *name);

/* Find the tensor's place in the packing, or in one that it follows. RULE_NO: it has none, and
 * `*packed` is the clause that applies, or unchanged; UNDECIDED: `which` depends on an unknown
 * fact. */
rule_answer rule_find_packed(const banyan_rules *rules, const rule_subject *subject,
                             const rule_match *match, const char *packing,
                             const rule_packed **packed, const rule_condition **which);

/* Return a rule file that is part of the library; NULL: there is none of this name. */
const char *rules_embedded(const char *name);

typedef struct rules_file {
    const char *name; /* without its ending */
    const char *text;
} rules_file;

/* Up to one without a name. */
extern const rules_file rules_files[];

#endif
