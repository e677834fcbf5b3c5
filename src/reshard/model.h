/* Models inside Banyan: for the layout builder. */
#ifndef RESHARD_MODEL_H
#define RESHARD_MODEL_H

#include <banyan/layout.h>

/* NULL when the model has no tensor of this name. */
const banyan_local_tensor *model_find(const banyan_model *model, const char *name);

/* Elements of an attention head, as the model's config.json has it; 0: it is not known. */
int64_t model_head(const banyan_model *model);

#endif
