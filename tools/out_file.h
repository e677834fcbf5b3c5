/* Files that appear under their name only when they are whole. */
#ifndef TOOLS_OUT_FILE_H
#define TOOLS_OUT_FILE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct out_file {
    const char *path;
    char *temporary;
    FILE *file;
} out_file;

/* False with errno. */
bool out_file_open(out_file *opened, const char *path);
/* Give it its name. False with errno: a full disk, say; nothing is left behind. */
bool out_file_finish(out_file *opened);

#endif
