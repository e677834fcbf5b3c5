/* Why a job of forked ranks failed, reported once, by the process that started it. */
#ifndef TOOLS_FAILURE_H
#define TOOLS_FAILURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include <banyan/core.h>

#define FAILURE_TEXT_BYTES 4224

typedef struct failure_slot {
    atomic_bool taken;
    int rank;
    char sentence[4096];
} failure_slot;

/* In memory that the ranks share. A rank that only lost another is not the cause. */
typedef struct failure {
    failure_slot cause, consequence;
} failure;

/* Create it before the ranks are forked. NULL when memory ran out. */
failure *failure_create(void);
void failure_destroy(failure *shared);

/* Note the last error of a rank. The first note is kept. */
void failure_note(failure *shared, int rank, banyan_status status);

/* Return "rank 3: message", or NULL when nothing was noted. */
const char *failure_sentence(const failure *shared, char text[FAILURE_TEXT_BYTES]);

#endif
