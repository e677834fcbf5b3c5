/* Internals of models, for the layout builder. */
#ifndef RESHARD_MODEL_MODEL_H
#define RESHARD_MODEL_MODEL_H

#include <banyan/layout.h>

#include "reshard/rules/rules.h"

/* Return the tensor of this name, or NULL. */
const banyan_local_tensor *model_find(const banyan_model *model, const char *name);

/* True if banyan_model_skip has left tensor `i` out. */
bool model_skips(const banyan_model *model, size_t i);

/* Return the tensor of this name after prefixes, or NULL. */
const banyan_local_tensor *subject_find(const rule_subject *subject, const char *name);

/* The rules' match of every tensor of a model. */
typedef struct model_matched {
    uint64_t serial;     /* of the rules */
    rule_match *matches; /* in the tensors' order; `rule` is NULL if no rule fits */
    int64_t layers;      /* one more than the highest layer that has a tensor */
    int64_t no_layer;    /* the lowest number of a layer without a tensor */
    bool has_prefixes;   /* some name has a prefix; then: */
    hash_map by_name;    /* tensors by their names after prefixes */
    names names;
} model_matched;

void model_matched_free(model_matched *matched);
rule_subject model_matched_subject(const model_matched *matched, const banyan_model *model);

/* Match every tensor. The model caches the first rules' matches, since the ranks of a world ask for
 * them again and again; for other rules `*own` is to be freed. Any thread. INVALID for two tensors
 * whose names are equal without their prefixes; NO_MEMORY. */
banyan_status model_match(const banyan_model *model, const banyan_rules *rules,
                          const model_matched **matched, model_matched **own);

/* Return the value of a key of the model's config.json, or of the saved folder, as JSON text ("64",
 * "true", "\"silu\""); NULL: unknown. Members of "text_config" count as top-level members. */
const char *model_fact(const banyan_model *model, const char *key);
/* True, setting the value, if the key is known and an integer. */
bool model_fact_int(const banyan_model *model, const char *key, int64_t *value);

/* True if the tensors are those of saved ranks or of a layout file. Such a set may be a part of a
 * model: a draft model, or one without tensors that were left out. */
bool model_is_saved(const banyan_model *model);

/* Keep in the layout all facts that were saved with the model's tensors, so that saving that layout
 * in turn does not lose them. */
void model_pass_facts(const banyan_model *model, banyan_layout *layout);

/* Add the rank's tensors of that side. Returns the layout's first error, if there is one. */
banyan_status case_add_layout(const banyan_megatron_case *loaded, int rank, banyan_side side,
                              banyan_layout *layout);

#endif
