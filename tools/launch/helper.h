/* A process that outlives the command briefly, to clean up after a kill. */
#ifndef TOOLS_HELPER_H
#define TOOLS_HELPER_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct helper {
    pid_t pid;
    int socket; /* its other end closes when the command and all its forks have ended */
} helper;

/* Fork `helper_main`, which reads from its end of the socket. No signal but SIGKILL ends it. False
 * with errno. */
bool helper_start(helper *started, void (*helper_main)(int socket, const void *context),
                  const void *context);

/* Send bytes. A helper that has ended gets none, without a SIGPIPE. */
void helper_tell(const helper *to, const void *data, size_t bytes);

/* Read `bytes` bytes. False when the command has ended. */
bool helper_hear(int socket, void *data, size_t bytes);

/* True once it has ended, by itself or by a signal. */
bool helper_ended(const helper *which, siginfo_t *how);

/* Close the socket and wait for its end. */
void helper_stop(helper *stopped);

#endif
