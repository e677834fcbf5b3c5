/* Rules: which tensors are cut how, and where they lie in an engine's packing. */
#ifndef RESHARD_RULES_RULES_H
#define RESHARD_RULES_RULES_H

#include <banyan/rules.h>

#include "core/containers/array.h"
#include "reshard/layout/names.h"
#include "reshard/model/glob.h"

typedef enum rule_stage { STAGE_ALL = 0, STAGE_FIRST, STAGE_LAST } rule_stage;

/* A condition: a tensor that the model has, or a fact of its config.json. */
typedef struct rule_condition {
    bool is_fact;
    bool is_negated;
    const char *text;    /* template of the tensor's name; the fact's key */
    const char **values; /* that the fact may have; */
    size_t value_count;  /* 0: any */
} rule_condition;

typedef struct rule_conditions {
    ARRAY(rule_condition) list; /* all must hold */
} rule_conditions;

/* Tensors of which a model has one beside the rule's tensor. */
typedef struct rule_need {
    const char **names; /* templates */
    size_t count;
    rule_conditions conditions; /* a fact that is not known counts as missing */
    int line;
} rule_need;

/* Where a tensor lies in one packing. */
typedef struct rule_packed {
    const char *packing;
    const char *name; /* template of the local tensor's */
    int slot;         /* among the parts that are fused; -1: not fused */
    bool by_group;    /* fused by query groups, not by blocks */
    bool is_none;     /* the packing has no place for the tensor */
    bool stacked;     /* one of the experts in a leading dimension */
    bool unstacked;   /* of a tensor of all experts: one local tensor for each */
    bool transposed;
    bool halves;   /* of each head the even rows come first, then the odd ones */
    bool once;     /* the first rank that would hold a replica has it, the others zeros */
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
    int shard_dim;           /* -1: replicated */
    bool is_vocab;           /* the sharded dimension is padded */
    const char *heads;       /* expression: elements of a head; NULL: not of heads */
    const char *head_source; /* template of a tensor whose last extent is that too; NULL: none */
    const char *head_count;  /* expression: heads there are, where it is known; NULL: any number */
    bool heads_shared;       /* fewer heads than ranks: neighbours hold the same one */
    bool stacks_experts;     /* dimension 0 counts experts */
    bool is_buffer;          /* a persistent buffer: takes the source's type */
    rule_stage stage;
    const char *fallback;     /* fills it, in a destination, when no source has it; NULL: none */
    const char *tied;         /* stands in for this tensor, on the last stage, when it is missing */
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
    const char *like;    /* where a rule has nothing for it */
    const char *release; /* of the engine, that the rules were held against; NULL: none */
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

/* Tensors that a packing does not have, or has after all: the first line that fits decides. */
typedef struct rule_skip {
    const char *file;
    int line;
    bool keeps;
    const char *packing; /* NULL: every one but hf */
    const char *text;
    glob pattern;
    rule_conditions conditions;
} rule_skip;

/* Names that begin with `from` count as if they began with `to`. */
typedef struct rule_prefix {
    const char *from, *to;
    const char *packing, *out; /* in this packing local names begin with `out` instead; or NULL */
    rule_conditions conditions;
} rule_prefix;

/* Layers that a packing has behind all others: on the last stage, and numbered by themselves. */
typedef struct rule_behind {
    const char *packing, *text;
    glob pattern;      /* of a tensor that each of them has, and no other layer */
    const char *needs; /* a tensor of the first stage that they need on the last; NULL: none */
} rule_behind;

/* Local names that are others in one packing. */
typedef struct rule_rename {
    bool behind; /* for tensors of layers behind all others */
    const char *packing, *text;
    glob pattern;
    const char *name; /* template */
    rule_conditions conditions;
} rule_rename;

/* Skips are counted in bits of a match. */
#define RULES_MAX_SKIPS 64

struct banyan_rules {
    uint64_t serial; /* no other rules of this process have it */
    names names;
    ARRAY(const char *) expert_facts; /* the first that is known counts the experts */
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
    const rule_condition *undecided; /* of the rule: its fact is not known; NULL: all hold */
    const rule_prefix *prefix;       /* NULL: none */
    const char *missing;             /* a tensor that the rule needs; NULL: none */
    int missing_line;                /* of the rule's file */
    glob_captures captures;          /* point into `name` */
    bool is_scale;
    bool ends_experts; /* it is one expert's, and the model has none of the next one */
    uint64_t skips, undecided_skips; /* bits: lines of rules->skips */
} rule_match;

/* A model as conditions see it. */
typedef struct rule_subject {
    const banyan_model *model;
    const map *by_name; /* tensors by their names after prefixes */
} rule_subject;

typedef enum rule_answer { RULE_NO = 0, RULE_YES, RULE_UNDECIDED } rule_answer;

/* Do all conditions hold for a tensor that matched so? `which` is the first that does not, or that
 * depends on an unknown fact; NULL is allowed. */
rule_answer rules_decide(const rule_conditions *conditions, const rule_subject *subject,
                         const glob_captures *captures, const rule_condition **which);

/* Does the condition hold? A fact that is not known counts as missing. */
bool rule_condition_holds(const rule_condition *condition, const rule_subject *subject,
                          const glob_captures *captures);

/* The first tensor that the rule needs beside the matched one and that the model lacks: its name in
 * `name`, and the clause; NULL: none. */
const rule_need *rules_find_missing(const rule_subject *subject, const rule_match *match,
                                    char *name, size_t bytes);

/* The name that the matched tensor has for the expert `step` behind. False: it is too long, or the
 * pattern does not tell. */
bool rules_expert_name(const rule_match *match, int step, char *name, size_t bytes);

/* Does the rule's pattern fit, or its scales'? */
bool rule_fits(const model_rule *rule, const char *name, glob_captures *captures, bool *is_scale);

/* Find the rule of a name, and the skips. False when no rule fits. The captures point into `name`.
 */
bool rules_match(const banyan_rules *rules, const rule_subject *subject, const char *name,
                 rule_match *match);

/* The first prefix that fits, or NULL. Its conditions ask for names as the model has them. */
const rule_prefix *rules_find_prefix(const banyan_rules *rules, const rule_subject *subject,
                                     const char *name);

/* Say in `text` which rule comes nearest to a name that none fits, and why it does not fit. */
void rules_explain_nearest(const banyan_rules *rules, const rule_subject *subject, const char *name,
                           char *text, size_t bytes);

/* Say in `text` what a condition asks for: `with "x"`, `when model_type = a b`. */
const char *rule_condition_format(const rule_condition *condition, char *text, size_t bytes);

/* Bits: the lines of rules->skips that are about a packing. */
uint64_t rules_skips_of(const banyan_rules *rules, const char *packing);

/* Does a packing whose skips are `lines` have no such tensor? `which` is the line that decides,
 * also where that depends on an unknown fact; NULL: none. */
rule_answer rules_skip(const banyan_rules *rules, const rule_match *match, uint64_t lines,
                       const rule_skip **which);

/* The first rename of the packing that fits a local name, with what its pattern captured; or NULL.
 * `behind`: the tensor's layer is behind all others.
 */
const rule_rename *rules_find_rename(const banyan_rules *rules, const rule_subject *subject,
                                     const char *packing, const char *name, bool behind,
                                     glob_captures *captures);

/* The line that says which layers the packing has behind all others; NULL: it has none. */
const rule_behind *rules_find_behind(const banyan_rules *rules, const char *packing);

/* INVALID, naming those there are, for a packing of which the rules say nothing; "hf" is always
 * there. */
banyan_status rules_find_packing(const banyan_rules *rules, const char *name,
                                 rule_packing *packing);

/* Is `packing` this one, or one that it is like? */
bool rules_packing_is(const banyan_rules *rules, const char *packing, const char *name);

/* The tensor's place in the packing, or in one that it is like. RULE_NO: it has none; UNDECIDED:
 * `which` depends on an unknown fact. */
rule_answer rule_find_packed(const banyan_rules *rules, const rule_subject *subject,
                             const rule_match *match, const char *packing,
                             const rule_packed **packed, const rule_condition **which);

/* A rule file that is part of the library; NULL: there is none of this name. */
const char *rules_embedded(const char *name);

#endif
