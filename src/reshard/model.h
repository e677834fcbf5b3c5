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

/* Elements of an attention head, as the model's config.json has it; 0: it is not known. */
int64_t model_head(const banyan_model *model);

#endif
