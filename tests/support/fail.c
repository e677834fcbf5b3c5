#include "support/test.h"

#include <unistd.h>

bool ranks_in_child;
unsigned tests_skipped;

/* A test may fork while one of its threads answers ranks. */
const char *__tsan_default_options(void) __attribute__((visibility("default")));
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

void ranks_fail(void)
{
    if (ranks_in_child) {
        fflush(NULL);
        _exit(1);
    }
    fail();
    abort();
}
