#include "run/plan_adapt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/check.h>

#include "cli/files.h"
#include "cli/options.h"
#include "cli/text.h"

banyan_status plan_adapt(banyan_plan **plan, banyan_plan_executor executor)
{
    banyan_plan *adapted;
    banyan_check_report *report;
    banyan_check_options options = BANYAN_CHECK_OPTIONS_INIT;
    options.executor = executor;
    options.warnings = false;
    banyan_status status = banyan_plan_adapt(*plan, executor, &adapted);
    if (status != BANYAN_OK)
        return status;
    banyan_plan_destroy(*plan);
    *plan = adapted;
    status = banyan_plan_check(adapted, &options, &report);
    if (status != BANYAN_OK)
        return status;
    if (!banyan_check_report_is_sound(report))
        status = banyan_error_set(
            BANYAN_ERR_UNSUPPORTED, "the plan is not sound on the executor \"%s\": %s",
            banyan_plan_executor_name(executor), banyan_check_report_finding(report, 0)->message);
    banyan_check_report_destroy(report);
    return status;
}

banyan_status plan_emit(const banyan_plan *plan, const char *out)
{
    char *text;
    size_t bytes;
    if (out && strcmp(out, "-") != 0)
        return banyan_plan_write(plan, out);
    banyan_status status = banyan_plan_print(plan, &text, &bytes);
    if (status != BANYAN_OK)
        return status;
    fwrite(text, 1, bytes, stdout);
    free(text);
    return BANYAN_OK;
}

static int adapt_file(const char *who, const char *path, const char *name, const char *out)
{
    banyan_plan *plan;
    banyan_plan_executor executor;
    if (banyan_plan_executor_parse(name, &executor) != BANYAN_OK ||
        plan_file_read(path, &plan) != BANYAN_OK)
        return text_fail(who);
    banyan_status status = plan_adapt(&plan, executor);
    if (status == BANYAN_OK)
        status = plan_emit(plan, out);
    banyan_plan_destroy(plan);
    return status == BANYAN_OK ? 0 : text_fail(who);
}

int plan_adapt_command(int argc, char **argv)
{
    const char *path, *executor = "mscclpp", *out = NULL;
    const option_entry entries[] = {
        {"executor", '\0', OPTION_CHOICE, &executor, "banyan|mscclpp",
         "executor that shall run the plan (mscclpp)", 0, 0},
        {"out", 'o', OPTION_TEXT, &out, "FILE", "output file (-: stdout)", 0, 0},
    };
    const option_table table = {
        "banyan plan adapt", "PLAN.json [--executor mscclpp] [-o FILE]",
        "Print a plan that does on another executor what this plan does here, and is proved\n"
        "sound there, or report why there is none. docs/mscclpp.md has the rules of MSCCL++'s\n"
        "executor.\n",
        entries, sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(options_parse_one(&table, argc, argv, "which plan: PLAN.json", &path));
    return adapt_file(table.command, path, executor, out);
}
