#include "out_file.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* A device, a pipe or a link is written to as it is: a rename would put a file in its place. */
static bool is_special(const char *path)
{
    struct stat found;
    return lstat(path, &found) == 0 && !S_ISREG(found.st_mode);
}

bool out_file_open(out_file *opened, const char *path)
{
    *opened = (out_file){.path = path};
    if (is_special(path)) {
        opened->file = fopen(path, "w");
        return opened->file;
    }
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
    bool whole = !ferror(opened->file) && fflush(opened->file) == 0 &&
                 (!opened->temporary || give_mode(opened->file));
    int error = errno;
    if (fclose(opened->file) != 0 && whole) {
        whole = false;
        error = errno;
    }
    if (whole && opened->temporary && rename(opened->temporary, opened->path) != 0) {
        whole = false;
        error = errno;
    }
    if (!whole && opened->temporary)
        unlink(opened->temporary);
    free(opened->temporary);
    errno = error;
    return whole;
}

bool out_file_possible(const char *path)
{
    struct stat found;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode)) {
        errno = EISDIR;
        return false;
    }
    if (is_special(path))
        return access(path, W_OK) == 0;
    out_file tried;
    if (!out_file_open(&tried, path))
        return false;
    fclose(tried.file);
    unlink(tried.temporary);
    free(tried.temporary);
    return true;
}

bool out_file_flush_stdout(void)
{
    errno = 0;
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (!written && errno == 0)
        errno = EIO;
    return written;
}
