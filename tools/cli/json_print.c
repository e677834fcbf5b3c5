#include "cli/json_print.h"

#include <stdio.h>

banyan_status json_print(json_t *made)
{
    char *text = made ? json_dumps(made, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(made);
    if (!text)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for the report as JSON");
    puts(text); /* main reports a failed write */
    free(text);
    return BANYAN_OK;
}
