/* The begin and end of each operation, and the step that it waited for. */
#ifndef SIMULATE_ENGINE_RECORD_H
#define SIMULATE_ENGINE_RECORD_H

#include "core/containers.h"

#define NO_STEP UINT32_MAX
/* In place of an operation's number. */
#define STEP_LAUNCH UINT32_MAX
#define STEP_NOT_IN_LOOP UINT32_MAX

typedef struct step_record {
    uint64_t began_ps, end_ps;
    uint64_t waited_ps;
    uint64_t iteration;
    const char *what;
    uint32_t after; /* the step that delayed its end; NO_STEP */
    uint32_t lane;
    uint32_t at, inner;
    int rank;
    uint32_t thread_block;
    bool proxy;
} step_record;

typedef struct record {
    ARRAY(step_record) steps;
    bool wanted;
    bool too_long; /* recording has stopped */
} record;

/* Set the step's number, or NO_STEP after recording has stopped. False when memory ran out. */
bool record_add(record *to, const step_record *step, uint32_t *number);
/* Return the chain that leads to the last end, first step first, as numbers; to be freed. */
banyan_status record_path(const record *of, uint32_t **path, size_t *count);
/* Write Chrome's trace JSON. */
banyan_status record_write(const record *of, const char *path);

#endif
