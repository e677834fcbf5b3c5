/* Files that appear under their name only when they are whole, and output that must arrive. */
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

/* Of "-": stdout. False with errno. */
bool out_file_open(out_file *opened, const char *path);
/* Give it its name. False with errno: a full disk, say; nothing is left behind. */
bool out_file_finish(out_file *opened);

/* Could a file be written there? Asked before work whose result it will hold. False with errno. */
bool out_file_possible(const char *path);

/* Has all that was printed been written? False with errno. */
bool out_file_flush_stdout(void);

#endif
