#include "out_file.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

bool out_file_open(out_file *opened, const char *path)
{
    *opened = (out_file){.path = path};
    if (asprintf(&opened->temporary, "%s.XXXXXX", path) < 0)
        return false;
    int fd = mkstemp(opened->temporary);
    opened->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (opened->file)
        return true;
    int error = errno;
    if (fd >= 0) {
        close(fd);
        unlink(opened->temporary);
    }
    free(opened->temporary);
    errno = error;
    return false;
}

/* mkstemp gives the file to its owner alone; others get what the umask allows. */
static bool give_mode(FILE *file)
{
    mode_t mask = umask(0);
    umask(mask);
    return fchmod(fileno(file), 0666 & ~mask) == 0;
}

bool out_file_finish(out_file *opened)
{
    bool whole = !ferror(opened->file) && fflush(opened->file) == 0 && give_mode(opened->file);
    int error = errno;
    if (fclose(opened->file) != 0 && whole) {
        whole = false;
        error = errno;
    }
    if (whole && rename(opened->temporary, opened->path) != 0) {
        whole = false;
        error = errno;
    }
    if (!whole)
        unlink(opened->temporary);
    free(opened->temporary);
    errno = error;
    return whole;
}
