/* Files that commands read and write. */
#ifndef TOOLS_FILES_H
#define TOOLS_FILES_H

#include <stdbool.h>
#include <stdio.h>

#include <banyan/collective.h>
#include <jansson.h>

#include "core/files/nameless.h"

/* A file that appears under its name only when complete. */
typedef struct out_file {
    const char *path;
    nameless whole; /* no descriptor: path is a device, a pipe or a link */
    FILE *file;
} out_file;

/* Open the file; "-" is stdout. False with errno. */
bool out_file_open(out_file *opened, const char *path);
/* Rename the file to its name. False with errno, for example on a full disk; nothing is left
 * behind. */
bool out_file_finish(out_file *opened);

/* True if a file can be written there; ask before long work. False with errno. */
bool out_file_possible(const char *path);

/* Flush stdout: true if everything printed was written. False with errno. */
bool out_file_flush_stdout(void);

/* Read a regular file; anything else, a FIFO for example, is refused without waiting for it. NULL
 * with error->text on failure. */
json_t *json_file_load(const char *path, json_error_t *error);

/* Print an object or array on stdout and free it. NO_MEMORY if `made` is NULL, as jansson's
 * functions return it then. */
banyan_status json_print(json_t *made);

/* Read a plan from a file, or from stdin for "-". */
banyan_status plan_file_read(const char *path, banyan_plan **plan);

/* Compile a built-in algorithm. The message of NOT_FOUND names the command that lists them. */
banyan_status plan_file_compile(const char *algorithm, const banyan_algorithm_params *params,
                                banyan_plan **plan);

#endif
