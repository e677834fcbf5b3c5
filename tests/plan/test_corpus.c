/* Plans in the format's own language: read, written, read again. */
#include "support/test.h"

#include <glob.h>

#include "support/plans.h"

static void check_equal(const banyan_plan *a, const banyan_plan *b, const char *what)
{
    char *text;
    size_t differences;
    CHECK_OK(banyan_plan_diff(a, b, 10, &text, &differences));
    CHECK(differences == 0, "%s: %zu differences:\n%s", what, differences, text);
    free(text);
}

/* The files that MSCCL++ itself wrote are read too where they lie beside the project. */
static void every_plan_is_read_written_and_read_again_equal(void **state)
{
    (void)state;
    char pattern[512];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.json", plans_dir());
    CHECK(glob(pattern, 0, NULL, &found) == 0, "%s", pattern);
    glob(BANYAN_SOURCE_DIR "/../shared/plans/*.json", GLOB_APPEND, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        banyan_plan *plan, *again;
        char *text;
        size_t bytes;
        CHECK_OK(banyan_plan_read(path, &plan));
        CHECK_OK(banyan_plan_print(plan, &text, &bytes));
        CHECK(banyan_plan_parse(text, bytes, "again", &again) == BANYAN_OK, "%s: %s", path,
              banyan_last_error());
        check_equal(plan, again, path);
        free(text);
        banyan_plan_destroy(again);
        banyan_plan_destroy(plan);
    }
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_is_read_written_and_read_again_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
