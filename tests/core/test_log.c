/* Log lines: the effect of BANYAN_LOG, and the warning for a value that is not a level. */
#include "support/test.h"

#include "core/log.h"

typedef struct lines {
    int count[BANYAN_LOG_DEBUG + 1];
    char first[512];
} lines;

static void note_line(banyan_log_level level, const char *message, void *context)
{
    lines *seen = context;
    if (seen->first[0] == '\0')
        snprintf(seen->first, sizeof seen->first, "%s", message);
    seen->count[level]++;
}

static lines logged(void)
{
    lines seen = {0};
    banyan_log_set(note_line, &seen);
    log_error("an error");
    log_warn("a warning");
    log_info("some news");
    log_debug("a detail");
    banyan_log_set(NULL, NULL);
    return seen;
}

/* The level is read once: each value gets a process. */
static void log_in_rank(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)count;
    (void)id;
    const char *const *values = context;
    setenv("BANYAN_LOG", values[rank], 1);
    lines seen = logged();
    CHECK(strcmp(seen.first, "an error") == 0, "%s", seen.first);
    for (int level = 0; level <= BANYAN_LOG_DEBUG; level++)
        CHECK(seen.count[level] == (level <= rank), "BANYAN_LOG=%s: level %d: %d lines",
              values[rank], level, seen.count[level]);
}

static void each_level_lets_itself_and_the_graver_through(void **state)
{
    (void)state;
    const char *values[] = {"error", "warn", "info", "debug"};
    int statuses[4];
    ranks_fork(4, log_in_rank, values, statuses);
    for (int i = 0; i < 4; i++)
        assert_int_equal(statuses[i], 0);
}

static void log_nonsense(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)rank;
    (void)count;
    (void)id;
    (void)context;
    setenv("BANYAN_LOG", "loudly", 1);
    lines seen = logged();
    CHECK(strstr(seen.first, "BANYAN_LOG=loudly") &&
              strstr(seen.first, "error, warn, info or debug"),
          "%s", seen.first);
    CHECK(seen.count[BANYAN_LOG_WARN] == 2 && seen.count[BANYAN_LOG_INFO] == 0);
    CHECK(logged().count[BANYAN_LOG_WARN] == 1, "the value is named once");
}

static void a_value_that_is_no_level_is_named_once_and_warnings_stay(void **state)
{
    (void)state;
    int status;
    ranks_fork(1, log_nonsense, NULL, &status);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_level_lets_itself_and_the_graver_through),
        cmocka_unit_test(a_value_that_is_no_level_is_named_once_and_warnings_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
