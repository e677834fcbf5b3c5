/* Building a rank's layout of a model: tensors become parts (what a rank holds of a tensor), parts
 * become local tensors (fused, stacked, transposed, padded, cut into rows). */
#ifndef RESHARD_LAYOUT_MODEL_H
#define RESHARD_LAYOUT_MODEL_H

#include "reshard/rules.h"
#include "reshard/spec.h"

/* A tensor of the model, and how it comes to this rank. */
typedef struct model_tensor {
    const banyan_local_tensor *global;
    rule_match match;
    bool is_expert;
    bool is_tied; /* held by the first and the last stage */
} model_tensor;

/* What this rank holds of a tensor, before rows are cut: one box. */
typedef struct model_part {
    const banyan_local_tensor *global;
    const model_rule *rule;
    banyan_box box;
    int64_t padding; /* further elements along the rule's dimension, behind the box */
    int64_t heads;   /* that the box is made of; 0: it is not */
    banyan_rank_set replicas;
    int slot;
    int64_t expert; /* in the stack; 0 without one */
    size_t next;    /* part of the same local tensor; SIZE_MAX: none */
} model_part;

/* A local tensor to be, with its parts. */
typedef struct model_target {
    const char *name;
    const rule_packed *packed; /* of the first part; NULL: a tensor as it is */
    const spec_axes *axes;
    size_t first_part, part_count;
} model_target;

typedef struct model_build {
    banyan_layout *layout;
    const banyan_model *model;
    const banyan_rules *rules;
    const rule_match *matches; /* of the model's tensors */
    const banyan_spec *spec;
    rule_packing packing;
    spec_place place;
    int rank_offset;
    int64_t layers, experts;            /* of the model: the highest number and one */
    int64_t first_layer, last_layer;    /* of this stage: from, and up to but not */
    int64_t first_expert, expert_count; /* of this rank */
    ARRAY(model_part) parts;
    ARRAY(model_target) targets;
    map target_by_name;
    names names;
} model_build;

/* The range of a tensor that this rank holds. False: the layout has failed. */
bool model_part_cut(model_build *build, const model_tensor *tensor, model_part *part);

/* File the part under its local tensor. */
bool model_part_file(model_build *build, const char *name, const rule_packed *packed,
                     const spec_axes *axes, const model_part *part);

/* Make the local tensor of all its parts. */
bool model_target_build(model_build *build, const model_target *target);

#endif
