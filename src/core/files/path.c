#include "core/files/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/nameless.h"

char *path_join(const char *folder, const char *name)
{
    char *joined;
    if (asprintf(&joined, "%s/%s", folder, name) < 0) {
        error_no_memory(strlen(folder) + strlen(name) + 2, "a path");
        return NULL;
    }
    return joined;
}

/* Return the length without trailing slashes; "/" keeps its slash. */
static size_t path_trimmed(const char *path, size_t length)
{
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

static size_t base_start(const char *path, size_t length)
{
    size_t start = length;
    while (start > 0 && path[start - 1] != '/')
        start--;
    return start;
}

static char *path_copy(const char *text, size_t length)
{
    char *made = strndup(text, length);
    if (!made)
        error_no_memory(length + 1, "a path");
    return made;
}

char *path_parent(const char *path)
{
    char *parent = nameless_folder(path);
    if (!parent)
        error_no_memory(strlen(path) + 1, "a path");
    return parent;
}

char *path_base(const char *path)
{
    size_t length = path_trimmed(path, strlen(path)), start = base_start(path, length);
    return path_copy(path + start, length - start);
}
