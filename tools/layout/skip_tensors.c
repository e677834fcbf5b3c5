#include "layout/skip_tensors.h"

#include <stdlib.h>
#include <string.h>

#include "core/nearest.h"
#include "core/status.h"

static banyan_status skip_one(banyan_model *model, const char *pattern)
{
    size_t count;
    RETURN_IF_FAILED(banyan_model_skip(model, pattern, &count));
    if (count > 0)
        return BANYAN_OK;
    names_search search = names_search_for(pattern);
    for (size_t i = 0; i < banyan_model_tensor_count(model); i++)
        names_search_try(&search, banyan_model_tensor(model, i)->name);
    return banyan_error_set(BANYAN_ERR_INVALID, "no tensor of the model fits \"%s\"%s%s%s", pattern,
                            search.nearest ? " (did you mean " : "",
                            search.nearest ? search.nearest : "", search.nearest ? "?)" : "");
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
