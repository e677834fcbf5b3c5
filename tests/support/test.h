/* Included by every test: cmocka, and checks that also work in forked ranks. */
#ifndef TESTS_SUPPORT_TEST_H
#define TESTS_SUPPORT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <banyan/banyan.h>

#include "core/threads/sanitizer.h"
#include "support/random.h"
#include "support/ranks.h"

/* Factor by which a sanitizer slows tests down. */
#if defined(SANITIZER_THREAD)
#define TEST_SLOWER 20
#elif defined(SANITIZER_MEMORY)
#define TEST_SLOWER 5
#else
#define TEST_SLOWER 1
#endif

/* A program in which a test was skipped and none failed exits with 77: ctest lists it as skipped.
 */
extern unsigned tests_skipped;
#undef skip
#define skip() (tests_skipped++, _skip(__FILE__, __LINE__))

static inline int test_group_run(const char *name, const struct CMUnitTest *tests, size_t count,
                                 CMFixtureFunction setup, CMFixtureFunction teardown)
{
    int failed = _cmocka_run_group_tests(name, tests, count, setup, teardown);
    return failed == 0 && tests_skipped > 0 ? 77 : failed;
}

#undef cmocka_run_group_tests
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    test_group_run(#tests, tests, sizeof(tests) / sizeof *(tests), setup, teardown)

/* For code that may run in a rank: report the failed condition and its place, then end the rank's
 * process. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, " " __VA_ARGS__);                                                      \
            fprintf(stderr, "\n");                                                                 \
            ranks_fail();                                                                          \
        }                                                                                          \
    } while (0)

#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        banyan_status check_status_ = (call);                                                      \
        CHECK(check_status_ == BANYAN_OK, "%s: %s", banyan_status_name(check_status_),             \
              banyan_last_error());                                                                \
    } while (0)

/* Expect the call to fail with this status and a message that contains `part`. */
#define CHECK_FAILS(call, status, part)                                                            \
    do {                                                                                           \
        banyan_status check_status_ = (call);                                                      \
        CHECK(check_status_ == (status), "got %s: %s", banyan_status_name(check_status_),          \
              banyan_last_error());                                                                \
        CHECK(strstr(banyan_last_error(), (part)), "\"%s\" is not in: %s", (part),                 \
              banyan_last_error());                                                                \
    } while (0)

#endif
