#include "cli/out_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_stdout(const char *path)
{
    return strcmp(path, "-") == 0;
}

/* The stream has a descriptor of its own: the nameless file's is needed to name it. */
bool out_file_open(out_file *opened, const char *path)
{
    *opened = (out_file){.path = path};
    if (is_stdout(path)) {
        opened->file = stdout;
        return true;
    }
    if (!nameless_open_for(path, &opened->whole))
        return false;
    int fd = dup(opened->whole.fd);
    opened->file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (opened->file)
        return true;
    int error = errno;
    if (fd >= 0)
        close(fd);
    nameless_close(&opened->whole);
    errno = error;
    return false;
}

bool out_file_finish(out_file *opened)
{
    if (opened->file == stdout)
        return true; /* main checks everything that is printed */
    bool whole = !ferror(opened->file) && fflush(opened->file) == 0;
    int error = errno;
    if (fclose(opened->file) != 0 && whole) {
        whole = false;
        error = errno;
    }
    if (whole && !nameless_publish(&opened->whole, opened->path)) {
        whole = false;
        error = errno;
    }
    nameless_close(&opened->whole);
    errno = error;
    return whole;
}

bool out_file_possible(const char *path)
{
    nameless tried;
    struct stat found;
    if (is_stdout(path))
        return true;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode)) {
        errno = EISDIR;
        return false;
    }
    if (nameless_is_taken(path))
        return access(path, W_OK) == 0;
    if (!nameless_open_for(path, &tried))
        return false;
    nameless_close(&tried);
    return true;
}

bool out_file_flush_stdout(void)
{
    errno = 0;
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    int error = errno;
    /* Discard an earlier error while printing: it occurs again here. */
    if (!written && error == 0)
        error = write(STDOUT_FILENO, "\n", 1) < 0 ? errno : EIO;
    errno = error;
    return written;
}
