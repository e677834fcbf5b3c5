#include "layout/check_reshard.h"

#include <stdio.h>
#include <stdlib.h>

#include <banyan/reshard.h>

#include "cli/options.h"

static int fail(void)
{
    fprintf(stderr, "banyan check: %s\n", banyan_last_error());
    return EXIT_USAGE;
}

static int print_report(const banyan_reshard_report *report, const char *path, bool json)
{
    char *text;
    if (banyan_reshard_report_print(report, path, json, &text) != BANYAN_OK)
        return fail();
    printf("%s%s", text, json ? "\n" : "");
    free(text);
    return banyan_reshard_report_count(report) == 0 ? 0 : 1;
}

static int check_case(const char *path, bool json)
{
    banyan_megatron_case *loaded;
    banyan_reshard_report *report;
    if (banyan_megatron_case_load(path, &loaded) != BANYAN_OK)
        return fail();
    int code;
    if (banyan_reshard_case_check(loaded, NULL, 0, &report) == BANYAN_OK) {
        code = print_report(report, path, json);
        banyan_reshard_report_destroy(report);
    } else {
        code = fail();
    }
    banyan_megatron_case_destroy(loaded);
    return code;
}

int check_reshard_cases(char *const *paths, int count, bool json)
{
    int worst = 0;
    for (int i = 0; i < count; i++) {
        int code = check_case(paths[i], json);
        worst = code > worst ? code : worst;
    }
    return worst;
}
