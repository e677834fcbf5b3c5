/* Building a rank's layout of a model: tensors become parts (boxes that a rank holds of a tensor),
 * parts become local tensors (fused, stacked, transposed, padded, cut into rows). */
#ifndef RESHARD_MODEL_LAYOUT_H
#define RESHARD_MODEL_LAYOUT_H

#include "reshard/model/model.h"
#include "reshard/model/spec.h"
#include "reshard/rules/rules.h"

/* A tensor of the model, and how this rank gets it. */
typedef struct model_tensor {
    const banyan_local_tensor *global;
    rule_match match;
    bool is_expert;            /* one expert's, or all experts' stacked */
    bool is_tied;              /* the last stage holds it in place of another */
    bool is_at_ends;           /* held by the first and the last stage */
    bool is_left_out;          /* left out by banyan_model_skip */
    const rule_packed *packed; /* place in the packing; NULL: its own name */
} model_tensor;

/* The level of a part's replica set that the ranks of the shard axis form. */
#define MODEL_SHARD_LEVEL 3

/* A box of a tensor that this rank holds, before rows are cut. */
typedef struct model_part {
    const banyan_local_tensor *global;
    const model_rule *rule;
    banyan_box box;
    int64_t padding;   /* extra elements along the rule's dimension, behind the box */
    int64_t heads;     /* in the box; 0: not divided into heads */
    int64_t head_rows; /* elements per head */
    /* Per head: even rows first, then odd ones. Vectors fused beside them keep their order. */
    bool halves;
    /* Heads of the whole tensor, or of the enclosing part, and their start along the rule's
     * dimension. */
    int64_t all_heads, first_head;
    banyan_rank_set replicas;
    int slot, slots; /* first slot, and their number; -1: not fused */
    bool absent;     /* zeros take its place */
    bool left_alone; /* the engine computes its values */
    uint32_t map;    /* BANYAN_PIECE_…: the value map of its pieces; 0: none */
    int64_t expert;  /* in the stack; 0 without one */
    size_t next;     /* next part of the same local tensor; SIZE_MAX: none */
} model_part;

/* A local tensor to be built, with its parts. */
typedef struct model_target {
    const char *name;
    const rule_packed *packed; /* of the first part; NULL: an unchanged tensor */
    const spec_axes *axes;
    size_t first_part, part_count;
} model_target;

typedef struct model_build {
    banyan_layout *layout;
    const banyan_model *model;
    const banyan_rules *rules;
    const model_matched *matched;
    rule_subject subject;
    const banyan_spec *spec;
    rule_packing packing;
    uint64_t skips; /* bits: lines of rules->skips for this packing */
    spec_place place;
    int rank_offset;
    int64_t layers, experts; /* one more than the model's highest number; without */
    int64_t layers_behind;   /* these layers, which the packing puts last */
    const rule_behind *behind;
    int64_t first_layer, last_layer;    /* of this stage: first, and one past the last */
    int64_t first_expert, expert_count; /* of this rank */
    ARRAY(model_part) parts;
    ARRAY(model_target) targets;
    hash_map target_by_name;
    names names;
} model_build;

/* Add this rank's parts of a tensor to its local tensor. False: the layout has failed. */
bool model_tensor_cut(model_build *build, const model_tensor *tensor, const char *name);

/* Add the part to its local tensor. */
bool model_part_file(model_build *build, const char *name, const rule_packed *packed,
                     const spec_axes *axes, const model_part *part);

/* Build the local tensor from all its parts. */
bool model_target_build(model_build *build, const model_target *target);

/* Evaluate a size of a rule. `size` is the tensor's extent along the sharded dimension. The layout
 * keeps the facts that are used. False: the value is unknown; then the layout has failed if it is
 * `needed`. */
bool model_size(model_build *build, const model_tensor *tensor, const char *expression,
                int64_t size, bool needed, int64_t *value);

/* Fail the layout, naming the tensor and its rule. Returns false. */
bool model_tensor_fail(model_build *build, const model_tensor *tensor, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* Return the dimension along which a rule's fused tensors are concatenated. */
int model_fuse_dim(const model_rule *rule);

#endif
