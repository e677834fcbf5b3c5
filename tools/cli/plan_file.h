/* Plans that are arguments of commands. */
#ifndef TOOLS_PLAN_FILE_H
#define TOOLS_PLAN_FILE_H

#include <banyan/collective.h>
#include <banyan/plan.h>

/* Read a plan from a file, or from stdin for "-". */
banyan_status plan_file_read(const char *path, banyan_plan **plan);

/* Compile a built-in algorithm. NOT_FOUND says where names are listed. */
banyan_status plan_file_compile(const char *algorithm, const banyan_algorithm_params *params,
                                banyan_plan **plan);

#endif
