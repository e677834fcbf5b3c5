#include "layout/check_reshard.h"

#include <stddef.h>

#include <banyan/reshard.h>

#include "cli/options.h"

int check_reshard_case(const char *path, bool json, char **text)
{
    banyan_megatron_case *loaded;
    banyan_reshard_report *report;
    int code = EXIT_USAGE;
    *text = NULL;
    if (banyan_megatron_case_load(path, &loaded) != BANYAN_OK)
        return code;
    if (banyan_reshard_case_check(loaded, NULL, 0, &report) == BANYAN_OK) {
        if (banyan_reshard_report_print(report, path, json, text) == BANYAN_OK)
            code = banyan_reshard_report_count(report) == 0 ? 0 : 1;
        banyan_reshard_report_destroy(report);
    }
    banyan_megatron_case_destroy(loaded);
    return code;
}
