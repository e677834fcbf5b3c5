#include "cli/plan_file.h"

#include <string.h>

banyan_status plan_file_read(const char *path, banyan_plan **plan)
{
    return banyan_plan_read(strcmp(path, "-") == 0 ? "/dev/stdin" : path, plan);
}

banyan_status plan_file_compile(const char *algorithm, const banyan_algorithm_params *params,
                                banyan_plan **plan)
{
    banyan_status status = banyan_algorithm_compile(algorithm, params, plan);
    if (status == BANYAN_ERR_NOT_FOUND)
        return banyan_error_set(status, "%s; banyan algo list names them", banyan_last_error());
    return status;
}
