#include "cli/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

banyan_status json_print(json_t *made)
{
    char *text = made ? json_dumps(made, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(made);
    if (!text)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for the report as JSON");
    puts(text); /* main reports a failed write */
    free(text);
    return BANYAN_OK;
}

banyan_status plan_file_read(const char *path, banyan_plan **plan)
{
    return banyan_plan_read(strcmp(path, "-") == 0 ? "/dev/stdin" : path, plan);
}

banyan_status plan_file_compile(const char *algorithm, const banyan_algorithm_params *params,
                                banyan_plan **plan)
{
    banyan_status status = banyan_algorithm_compile(algorithm, params, plan);
    if (status == BANYAN_ERR_NOT_FOUND)
        return banyan_error_set(status, "%s; banyan algo list names them", banyan_last_error());
    return status;
}
