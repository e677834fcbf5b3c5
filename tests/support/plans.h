/* The plans that test_program_mscclpp writes. */
#ifndef TESTS_SUPPORT_PLANS_H
#define TESTS_SUPPORT_PLANS_H

#include <stdlib.h>

/* Their folder; BANYAN_PLANS names it for tests that were copied to another machine. */
static inline const char *plans_dir(void)
{
    const char *carried = getenv("BANYAN_PLANS");
    return carried ? carried : BANYAN_BINARY_DIR "/tests/plans";
}

#endif
