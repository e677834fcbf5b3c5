/* Files that appear under their name only when complete, and checked output. */
#ifndef TOOLS_OUT_FILE_H
#define TOOLS_OUT_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "core/files/nameless.h"

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

#endif
