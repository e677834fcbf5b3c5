#include <string.h>

#include "core/error.h"

static const char *const names[] = {[BANYAN_SUM] = "sum",
                                    [BANYAN_MIN] = "min",
                                    [BANYAN_MAX] = "max",
                                    [BANYAN_PROD] = "prod",
                                    [BANYAN_AVG] = "avg"};

#define NAME_COUNT (sizeof names / sizeof names[0])

const char *banyan_reduce_op_name(banyan_reduce_op op)
{
    return (size_t)op < NAME_COUNT ? names[op] : "?";
}

banyan_status banyan_reduce_op_parse(const char *name, banyan_reduce_op *op)
{
    for (size_t i = 0; i < NAME_COUNT; i++) {
        if (strcmp(names[i], name) == 0) {
            *op = (banyan_reduce_op)i;
            return BANYAN_OK;
        }
    }
    return error_set(BANYAN_ERR_NOT_FOUND, "\"%s\" names no reduction: sum, min, max, prod, avg",
                     name);
}
