/* Plans for other executors: banyan plan adapt, and banyan algo emit --executor. */
#ifndef TOOLS_RUN_PLAN_ADAPT_H
#define TOOLS_RUN_PLAN_ADAPT_H

#include <banyan/plan.h>

/* Replace a plan by one that is adapted to the executor and proved sound there. On an error `*plan`
 * remains to be destroyed. */
banyan_status plan_adapt(banyan_plan **plan, banyan_plan_executor executor);

/* Write a plan to a file, or to stdout for NULL or "-". */
banyan_status plan_emit(const banyan_plan *plan, const char *out);

int plan_adapt_command(int argc, char **argv);

#endif
