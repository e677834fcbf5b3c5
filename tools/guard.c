#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"

static bool read_word(int from, pid_t *word)
{
    ssize_t got;
    do
        got = read(from, word, sizeof *word);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof *word;
}

/* Positive words add a group, negative ones remove it. What is left when the pipe closes is killed.
 */
static void watch(int from)
{
    static pid_t groups[LAUNCH_MAX_RANKS];
    int count = 0;
    pid_t word;
    while (read_word(from, &word)) {
        if (word > 0 && count < LAUNCH_MAX_RANKS)
            groups[count++] = word;
        for (int i = 0; word < 0 && i < count; i++) {
            if (groups[i] == -word)
                groups[i--] = groups[--count];
        }
    }
    for (int i = 0; i < count; i++)
        kill(-groups[i], SIGKILL);
}

bool guard_start(guard *started)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, NULL);
        setpgid(0, 0);
        close(ends[1]);
        for (int fd = 0; fd <= 2; fd++)
            close(fd);
        watch(ends[0]);
        _exit(0);
    }
    int error = errno;
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        errno = error;
        return false;
    }
    *started = (guard){pid, ends[1]};
    return true;
}

/* A word is shorter than PIPE_BUF, so that it is written whole. */
static void tell(const guard *to, pid_t word)
{
    ssize_t written;
    do
        written = write(to->pipe, &word, sizeof word);
    while (written < 0 && errno == EINTR);
}

void guard_add(const guard *over, pid_t group)
{
    tell(over, group);
}

void guard_remove(const guard *over, pid_t group)
{
    tell(over, -group);
}

void guard_stop(guard *over)
{
    close(over->pipe);
    while (waitpid(over->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}
