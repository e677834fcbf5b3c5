/* Plans that commands are given. */
#ifndef TOOLS_PLAN_FILE_H
#define TOOLS_PLAN_FILE_H

#include <banyan/plan.h>

/* From a file, or from stdin for "-". */
banyan_status plan_file_read(const char *path, banyan_plan **plan);

#endif
