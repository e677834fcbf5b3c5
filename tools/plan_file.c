#include "plan_file.h"

#include <string.h>

banyan_status plan_file_read(const char *path, banyan_plan **plan)
{
    return banyan_plan_read(strcmp(path, "-") == 0 ? "/dev/stdin" : path, plan);
}
