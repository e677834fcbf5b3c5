/* Models inside Banyan: for the layout builder. */
#ifndef RESHARD_MODEL_H
#define RESHARD_MODEL_H

#include "reshard/rules.h"

/* NULL when the model has no tensor of this name. */
const banyan_local_tensor *model_find(const banyan_model *model, const char *name);

typedef struct model_matched model_matched;

/* What the rules say of every tensor, in their order; `rule` is NULL where none matches. The model
 * keeps what the first rules say, since a world's ranks ask again and again; for others `*own` is
 * to be freed. Any thread. NO_MEMORY. */
banyan_status model_match(const banyan_model *model, const banyan_rules *rules,
                          const rule_match **matches, model_matched **own);

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

/* Elements of an attention head, as the model's config.json has it; 0: it is not known. */
int64_t model_head(const banyan_model *model);

#endif
