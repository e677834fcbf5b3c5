/* The report of a check. */
#ifndef CHECK_REPORT_H
#define CHECK_REPORT_H

#include "check/findings.h"

struct banyan_check_report {
    findings findings;
    char *limits;
};

#endif
