/* Models inside Banyan: for the layout builder. */
#ifndef RESHARD_MODEL_MODEL_H
#define RESHARD_MODEL_MODEL_H

#include "reshard/rules/rules.h"

/* NULL when the model has no tensor of this name. */
const banyan_local_tensor *model_find(const banyan_model *model, const char *name);

/* Has banyan_model_skip left tensor `i` out? */
bool model_skips(const banyan_model *model, size_t i);

/* The tensor of this name after prefixes, or NULL. */
const banyan_local_tensor *subject_find(const rule_subject *subject, const char *name);

/* What rules say of every tensor of a model. */
typedef struct model_matched {
    uint64_t serial;     /* of the rules */
    rule_match *matches; /* in the tensors' order; `rule` is NULL where none fits */
    bool has_prefixes;   /* some name has one; then: */
    map by_name;         /* tensors by their names after prefixes */
    names names;
} model_matched;

void model_matched_free(model_matched *matched);
rule_subject model_matched_subject(const model_matched *matched, const banyan_model *model);

/* Match every tensor. The model keeps what the first rules say, since a world's ranks ask again and
 * again; for others `*own` is to be freed. Any thread. INVALID for two tensors that are one without
 * their prefixes; NO_MEMORY. */
banyan_status model_match(const banyan_model *model, const banyan_rules *rules,
                          const model_matched **matched, model_matched **own);

/* What the model's config.json says, or the folder that ranks saved: the value of a key as JSON
 * text
 * ("64", "true", "\"silu\""); NULL: it is not known. Members of "text_config" count as if they
 * stood at the top. */
const char *model_fact(const banyan_model *model, const char *key);
/* True, with the value, for a key that is known and an integer. */
bool model_fact_int(const banyan_model *model, const char *key, int64_t *value);

/* Keep in the layout all facts that were saved with the model's tensors, so that they are not lost
 * when that layout is saved in its turn. */
void model_pass_facts(const banyan_model *model, banyan_layout *layout);

#endif
