#include "cli/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

json_t *json_file_load(const char *path, json_error_t *error)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about) != 0) {
        snprintf(error->text, sizeof error->text, "%s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    json_t *root = NULL;
    if (S_ISREG(about.st_mode))
        root = json_loadfd(fd, 0, error);
    else
        snprintf(error->text, sizeof error->text, "it is %s, not a file",
                 S_ISFIFO(about.st_mode) ? "a named pipe" : "of another kind");
    close(fd);
    return root;
}
