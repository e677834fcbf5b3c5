#include "run/run_check.h"

#include <stdio.h>
#include <stdlib.h>

#include <banyan/check.h>

/* Per rule; banyan check reports all findings. */
#define FINDINGS_TOLD 3

static void run_check_tell(const char *who, const banyan_check_report *report, const char *path)
{
    char *text;
    if (banyan_check_report_print(report, path, false, &text) != BANYAN_OK) {
        fprintf(stderr, "%s: %s\n", who, banyan_last_error());
        return;
    }
    fprintf(stderr,
            "%s: the plan is not sound, and was not run (banyan check tells more; --no-check runs "
            "it all the same):\n%s",
            who, text);
    free(text);
}

bool run_check(const char *who, const banyan_plan *plan, const char *path)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    options.warnings = false;
    options.max_findings = FINDINGS_TOLD;
    if (banyan_plan_check(plan, &options, &report) != BANYAN_OK) {
        fprintf(stderr, "%s: the plan cannot be checked (--no-check runs it all the same): %s\n",
                who, banyan_last_error());
        return false;
    }
    bool sound = banyan_check_report_is_sound(report);
    if (!sound)
        run_check_tell(who, report, path);
    banyan_check_report_destroy(report);
    return sound;
}
