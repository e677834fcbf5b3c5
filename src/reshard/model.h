/* Models inside Banyan: for the layout builder. */
#ifndef RESHARD_MODEL_H
#define RESHARD_MODEL_H

#include <banyan/layout.h>

/* NULL when the model has no tensor of this name. */
const banyan_local_tensor *model_find(const banyan_model *model, const char *name);

#endif
