/* Entries of a topology that stand for many: {"for": {"n": 8, "g": 4}, "name": "node{n}.gpu{g}"}.
 */
#ifndef SIMULATE_TOPOLOGY_REPEAT_H
#define SIMULATE_TOPOLOGY_REPEAT_H

#include "core/containers.h"
#include "core/text/json.h"

#define REPEAT_VARIABLES 4

typedef struct repeat {
    const char *names[REPEAT_VARIABLES];
    int64_t counts[REPEAT_VARIABLES], at[REPEAT_VARIABLES];
    size_t variables;
} repeat;

/* Begin with the first combination of the variables; one without "for". FORMAT. */
banyan_status repeat_begin(json_path *path, const json_t *entry, repeat *turns);
/* Advance to the next combination: the last variable counts fastest. False after the last. */
bool repeat_next(repeat *turns);

/* Return the entry's text under `key`, with the variables' numbers filled in, from the arena. */
banyan_status repeat_text(json_path *path, const json_t *entry, const char *key,
                          const repeat *turns, arena *memory, const char **text);

#endif
