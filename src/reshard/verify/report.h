/* The findings of a check. */
#ifndef RESHARD_VERIFY_REPORT_H
#define RESHARD_VERIFY_REPORT_H

#include <banyan/reshard.h>

#include "core/containers/array.h"

#define CHECK_REPORT_MOST 100 /* of each rule */

struct banyan_reshard_report {
    const char *subject; /* the plan being checked: begins every message; NULL: none */
    ARRAY(banyan_reshard_finding) findings; /* the report owns their messages */
    size_t counts[BANYAN_RESHARD_RULES];
};

banyan_status check_report_create(banyan_reshard_report **report);

/* Add a finding, unless there are enough of its rule. NO_MEMORY is the only error. */
banyan_status check_report_add(banyan_reshard_report *report, banyan_reshard_rule rule, int rank,
                               const char *format, ...) __attribute__((format(printf, 4, 5), cold));

#endif
