#include "support/proof.h"

#include "plan/plan.h"
#include "support/test.h"

static banyan_check_report *check(const banyan_plan *plan)
{
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    banyan_check_report *report;
    options.warnings = false;
    options.max_findings = 2;
    CHECK_OK(banyan_plan_check(plan, &options, &report));
    return report;
}

bool proof_holds(const banyan_plan *plan)
{
    banyan_check_report *report = check(plan);
    bool holds = banyan_check_report_is_sound(report);
    banyan_check_report_destroy(report);
    return holds;
}

void proof_demand(const banyan_plan *plan, const char *name)
{
    banyan_check_report *report = check(plan);
    char *text;
    CHECK_OK(banyan_check_report_print(report, name, false, &text));
    CHECK(banyan_check_report_is_sound(report), "%s", text);
    /* The outputs of a custom collective without expected contents are the test's to compare. */
    bool has_outputs = plan->collective != BANYAN_CUSTOM || plan->expected;
    CHECK(!has_outputs || strlen(banyan_check_report_limits(report)) == 0, "%s",
          banyan_check_report_limits(report));
    free(text);
    banyan_check_report_destroy(report);
}
