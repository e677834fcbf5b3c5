/* Bad inputs in process: calls of public functions with random arguments, most of them wrong, some
 * right. A call returns a status, with a message on failure, and a correct result on success. */
#ifndef TESTS_SOAK_INPUTS_H
#define TESTS_SOAK_INPUTS_H

#include <stdatomic.h>

#include "support/test.h"

enum { INPUTS_MAX_RANKS = 4 };

/* The state of one rank of a batch; a rank is a thread. */
typedef struct inputs {
    banyan_world *world;
    random_state together; /* all ranks draw equal values from it */
    random_state alone;
    const char *folder; /* this rank's own, initially empty */
    _Atomic uint64_t *calls, *refused;
} inputs;

/* Count a call. True if it succeeded; a refusal must have a message. */
bool input_taken(inputs *of, banyan_status status);
/* Count a call that either succeeds on all ranks or on none. Collective. */
bool input_taken_by_all(inputs *of, banyan_status status);

/* Draws. */
bool input_chance(random_state *random, int one_in);
int input_int(random_state *random);        /* small, or an edge of the type */
int64_t input_extent(random_state *random); /* usually small, else an edge of the type */
DLDataType input_dtype(random_state *random);
const char *input_text(random_state *random); /* may be NULL; valid until the thread's next one */

/* Kinds of inputs. Those of worlds are collective; all free their objects. */
typedef void (*inputs_fn)(inputs *of);
void inputs_texts(inputs *of);
void inputs_layouts(inputs *of);
void inputs_programs(inputs *of);
void inputs_files(inputs *of);
void inputs_memory(inputs *of);
void inputs_worlds(inputs *of);
void inputs_collectives(inputs *of);
void inputs_mixed(inputs *of);
void inputs_copies(inputs *of);
void inputs_reshard(inputs *of);

#endif
