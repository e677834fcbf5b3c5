/* The fastest algorithm for each call: a table that is built in, measured, or read from a file. */
#ifndef COLLECTIVE_TUNING_H
#define COLLECTIVE_TUNING_H

#include <banyan/plan.h>
#include <banyan/world.h>

#include "core/containers.h"

#define TUNING_NAME_BYTES 64
#define TUNING_FILE_MAX ((size_t)16 << 20)

/* An algorithm for messages (a rank's input) larger than the previous row's, up to
 * `up_to_bytes`. */
typedef struct tuning_row {
    banyan_collective_kind kind;
    bool on_gpu;        /* buffers lie on GPUs, not on the host */
    int ranks;          /* 0: any number without rows of its own */
    int ranks_per_node; /* 0: any number */
    bool several_nodes; /* ranks_per_node is 0, and the ranks are on several nodes */
    DLDataType dtype;   /* bits 0: any type without rows of its own */
    bool registered;    /* buffers are in registered memory, which peers access in place */
    uint64_t up_to_bytes;
    char algorithm[TUNING_NAME_BYTES];
    int instances;       /* 0: the algorithm's default */
    uint64_t unit_bytes; /* as for instances */
} tuning_row;

typedef struct tuning {
    ARRAY(tuning_row) rows;
} tuning;

/* The built-in table. */
banyan_status tuning_default(tuning *table);
/* Load the built-in table, then over it the rows of the file `path`, or of BANYAN_TUNING's. With a
 * world all ranks take rank 0's choice and file, since those of different machines may differ;
 * collective then. NULL: the caller alone. */
banyan_status tuning_load(tuning *table, banyan_world *world, const char *path);
void tuning_free(tuning *table);

/* Replace all rows with the collective, kind of device, number of ranks, ranks per node, type and
 * kind of memory of `rows`. `count` ≥ 1 rows, equal in these, ascending by up_to_bytes. */
banyan_status tuning_replace(tuning *table, const tuning_row *rows, size_t count);

/* Return the row for a message; NULL: none. `wanted` describes the message as a row for it alone.
 * Rows for this number of ranks, then of ranks per node, then type precede those for any. */
const tuning_row *tuning_find(const tuning *table, const tuning_row *wanted);

/* Return an algorithm's row even if the table uses the algorithm only for other sizes: the row of
 * the next longer size, else of the longest. `wanted` has its name and describes the message. Rows
 * for any number of ranks apply up to `any_ranks_most` ranks. NULL: the table does not name the
 * algorithm. */
const tuning_row *tuning_find_algorithm(const tuning *table, const tuning_row *wanted,
                                        int any_ranks_most);

/* print: write JSON text. parse: read it; its rows replace those of the table. FORMAT gives the
 * position of an error. */
banyan_status tuning_print(const tuning *table, char **text);
banyan_status tuning_parse(tuning *table, const char *name, const char *text, size_t bytes);

#endif
