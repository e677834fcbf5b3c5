#include "launch/helper.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

bool helper_start(helper *started, void (*helper_main)(int socket, const void *context),
                  const void *context)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
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
        helper_main(ends[0], context);
        _exit(0);
    }
    int error = errno;
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        errno = error;
        return false;
    }
    *started = (helper){pid, ends[1]};
    return true;
}

void helper_tell(const helper *to, const void *data, size_t bytes)
{
    ssize_t sent;
    do
        sent = send(to->socket, data, bytes, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
}

bool helper_hear(int socket, void *data, size_t bytes)
{
    ssize_t got;
    do
        got = recv(socket, data, bytes, MSG_WAITALL);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)bytes;
}

bool helper_ended(const helper *which, siginfo_t *how)
{
    *how = (siginfo_t){0};
    return waitid(P_PID, (id_t)which->pid, how, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           how->si_pid != 0;
}

void helper_stop(helper *stopped)
{
    close(stopped->socket);
    while (waitpid(stopped->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}
