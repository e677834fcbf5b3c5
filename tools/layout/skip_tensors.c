#include "layout/skip_tensors.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

static banyan_status skip_one(banyan_model *model, const char *pattern)
{
    size_t count;
    RETURN_IF_FAILED(banyan_model_skip(model, pattern, &count));
    return count > 0 ? BANYAN_OK
                     : banyan_error_set(BANYAN_ERR_INVALID, "no tensor of the model fits \"%s\"",
                                        pattern);
}

banyan_status skip_tensors(banyan_model *model, const char *patterns)
{
    char *text = strdup(patterns), *rest = text;
    if (!text)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for patterns");
    banyan_status status = BANYAN_OK;
    for (char *pattern; status == BANYAN_OK && (pattern = strtok_r(rest, ",", &rest));)
        status = skip_one(model, pattern);
    free(text);
    return status;
}
