#include "core/files/nameless.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MODE 0666
/* Time that a pipe's reader may take to open it. */
#define READER_MS 5000
#define READER_POLL_MS 10

uint64_t nameless_random(void)
{
    uint64_t random = 0;
    struct timespec now;
    if (getrandom(&random, sizeof random, 0) == (ssize_t)sizeof random)
        return random;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000007 + (uint64_t)now.tv_nsec;
}

static char *hidden_name(const char *folder)
{
    char *name;
    if (asprintf(&name, "%s/.banyan-%016" PRIx64, folder, nameless_random()) >= 0)
        return name;
    errno = ENOMEM;
    return NULL;
}

bool nameless_open(const char *folder, nameless *file)
{
    nameless made = {.fd = TEMP_FAILURE_RETRY(open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, MODE))};
    bool no_folder = made.fd < 0 && (errno == ENOENT || errno == ENOTDIR);
    if (made.fd < 0 && !no_folder) {
        made.name = hidden_name(folder);
        if (made.name)
            made.fd =
                TEMP_FAILURE_RETRY(open(made.name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, MODE));
    }
    if (made.fd < 0) {
        int error = errno;
        free(made.name);
        errno = error;
        return false;
    }
    *file = made;
    return true;
}

int nameless_open_taken(const char *path)
{
    int fd = -1;
    for (int waited_ms = 0; fd < 0 && waited_ms <= READER_MS; waited_ms += READER_POLL_MS) {
        if (waited_ms > 0)
            usleep(READER_POLL_MS * 1000);
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, MODE);
        if (fd < 0 && errno != ENXIO)
            return -1;
    }
    int flags = fd >= 0 ? fcntl(fd, F_GETFL) : -1;
    if (flags >= 0)
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    return fd;
}

bool nameless_open_for(const char *path, nameless *file)
{
    if (nameless_is_taken(path)) {
        *file = (nameless){.fd = nameless_open_taken(path), .is_named = true};
        return file->fd >= 0;
    }
    char *folder = nameless_folder(path);
    bool opened = folder && nameless_open(folder, file);
    int error = errno;
    free(folder);
    errno = error;
    return opened;
}

/* Link an unnamed file to this path, which must be free. */
static bool link_as(const nameless *file, const char *path)
{
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", file->fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
}

/* Link an unnamed file to a hidden name, from which a rename can then replace the existing file. */
static bool link_hidden(nameless *file, const char *path)
{
    char *folder = nameless_folder(path);
    char *name = folder ? hidden_name(folder) : NULL;
    free(folder);
    if (!name || !link_as(file, name)) {
        int error = name ? errno : ENOMEM;
        free(name);
        errno = error;
        return false;
    }
    file->name = name;
    return true;
}

/* False for a device and for a link to one, such as /dev/stdout: a file must not replace them. */
static bool is_replaceable(const char *path)
{
    struct stat found;
    return stat(path, &found) != 0 || S_ISREG(found.st_mode) || S_ISDIR(found.st_mode);
}

bool nameless_publish(nameless *file, const char *path)
{
    if (file->is_named)
        return true;
    if (!is_replaceable(path)) {
        errno = EEXIST;
        return false;
    }
    if (!file->name && link_as(file, path))
        return true;
    if (!file->name && (errno != EEXIST || !link_hidden(file, path)))
        return false;
    if (rename(file->name, path) != 0)
        return false;
    free(file->name);
    file->name = NULL;
    return true;
}

void nameless_close(nameless *file)
{
    if (file->fd >= 0)
        close(file->fd);
    if (file->name)
        unlink(file->name);
    free(file->name);
    *file = (nameless){.fd = -1};
}

char *nameless_folder(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length == 0 ? strdup(".") : strndup(path, length);
}

bool nameless_is_taken(const char *path)
{
    struct stat found;
    return lstat(path, &found) == 0 && !S_ISREG(found.st_mode);
}
