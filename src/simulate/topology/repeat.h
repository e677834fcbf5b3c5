/* Entries of a topology that stand for many: {"for": {"n": 8, "g": 4}, "name": "node{n}.gpu{g}"}.
 */
#ifndef SIMULATE_TOPOLOGY_REPEAT_H
#define SIMULATE_TOPOLOGY_REPEAT_H

#include "core/containers/arena.h"
#include "core/text/json.h"

#define REPEAT_VARIABLES 4

typedef struct repeat {
    const char *names[REPEAT_VARIABLES];
    int64_t counts[REPEAT_VARIABLES], at[REPEAT_VARIABLES];
    size_t variables;
} repeat;

/* At the first of the entry's turns; one turn without "for". FORMAT. */
banyan_status repeat_begin(json_path *path, const json_t *entry, repeat *turns);
/* To the next one: the last variable counts fastest. False behind the last. */
bool repeat_next(repeat *turns);

/* The entry's text under `key`, with the variables' numbers in it. From the arena. */
banyan_status repeat_text(json_path *path, const json_t *entry, const char *key,
                          const repeat *turns, arena *memory, const char **text);

#endif
