/* Which algorithm is best where: a table that is built in, measured, or read from a file. */
#ifndef COLLECTIVE_TUNING_H
#define COLLECTIVE_TUNING_H

#include <banyan/plan.h>

#include "core/containers/array.h"

#define TUNING_NAME_BYTES 64
#define TUNING_FILE_MAX ((size_t)16 << 20)

/* The algorithm for messages of up to `up_to_bytes` (a rank's input), from the next lower row on.
 */
typedef struct tuning_row {
    banyan_collective_kind kind;
    bool on_gpu;        /* buffers lie on GPUs; else on the host */
    int ranks;          /* 0: any number that has no rows of its own */
    int ranks_per_node; /* 0: however many */
    DLDataType dtype;   /* bits 0: any that has no rows of its own */
    bool registered;    /* the buffers are in registered memory, where peers reach them in place */
    uint64_t up_to_bytes;
    char algorithm[TUNING_NAME_BYTES];
    int instances;       /* 0: the algorithm's default */
    uint64_t unit_bytes; /* likewise */
} tuning_row;

typedef struct tuning {
    ARRAY(tuning_row) rows;
} tuning;

/* The built-in table. */
banyan_status tuning_default(tuning *table);
void tuning_free(tuning *table);

/* Replace all rows of this collective, kind of device, number of ranks, ranks a node, type and kind
 * of memory. `count` ≥ 1 rows, alike in these, ascending by up_to_bytes. */
banyan_status tuning_replace(tuning *table, const tuning_row *rows, size_t count);

/* The row for a message, which `wanted` describes as a row for it alone would be; rows for this
 * number of ranks, then of ranks a node, then type come before those for any. NULL: none. */
const tuning_row *tuning_find(const tuning *table, const tuning_row *wanted);

/* The row for an algorithm that the table may give to other sizes alone: that of the next longer
 * size, else of the longest. `wanted` has its name and describes the message. Rows for any number
 * of ranks count up to `any_ranks_most` of them. NULL: the table does not name it. */
const tuning_row *tuning_find_algorithm(const tuning *table, const tuning_row *wanted,
                                        int any_ranks_most);

/* As JSON text, and back: rows of the text replace those of the table. FORMAT names the place. */
banyan_status tuning_print(const tuning *table, char **text);
banyan_status tuning_parse(tuning *table, const char *name, const char *text, size_t bytes);

#endif
