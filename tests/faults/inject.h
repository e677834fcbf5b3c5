/* Failing one call into the C library, on purpose: functions of the program stand before those of
 * the library, count the calls that Banyan makes between two marks, and fail the n-th of a kind.
 * Only programs that link inject.c have them. */
#ifndef TESTS_FAULTS_INJECT_H
#define TESTS_FAULTS_INJECT_H

#include <stdbool.h>
#include <stdint.h>

/* A function of the library, or several that fail alike. */
typedef enum inject_kind {
    INJECT_MALLOC, /* malloc, calloc, realloc, aligned_alloc */
    INJECT_TEXT,   /* strdup, strndup, asprintf, vasprintf, open_memstream */
    INJECT_OPEN,   /* open, openat */
    INJECT_MEMFD,
    INJECT_MMAP,
    INJECT_MADVISE,
    INJECT_FTRUNCATE,
    INJECT_FALLOCATE,
    INJECT_FCNTL,
    INJECT_SOCKET,
    INJECT_BIND, /* bind, listen */
    INJECT_CONNECT,
    INJECT_ACCEPT,
    INJECT_SENDMSG,
    INJECT_RECV,      /* recv, recvmsg */
    INJECT_TRUNCATED, /* recvmsg loses the descriptors that come: there is no room for them */
    INJECT_SOCKET_OPTION,
    INJECT_SOCKET_NAME, /* getsockname, getpeername */
    INJECT_EPOLL_CREATE,
    INJECT_EPOLL_CTL,
    INJECT_EPOLL_WAIT,
    INJECT_EVENTFD,
    INJECT_PIDFD,
    INJECT_FUTEX, /* waits: wakes cannot fail */
    INJECT_VM,    /* process_vm_readv, process_vm_writev */
    INJECT_THREAD,
    INJECT_READ,
    INJECT_WRITE, /* write, pwrite */
    INJECT_STAT,  /* stat, lstat, fstat, fstatvfs, access */
    INJECT_SYNC,  /* fsync */
    INJECT_NAME,  /* rename, linkat, unlink, unlinkat, mkdir, rmdir */
    INJECT_FOLDER,
    INJECT_FILE,  /* fopen, fdopen */
    INJECT_FLUSH, /* fflush, fclose of a file that is written */
    INJECT_LOCK,  /* flock */
    INJECT_RANDOM,
    INJECT_SLEEP,   /* nanosleep, usleep */
    INJECT_CPUS,    /* sched_getaffinity, sched_setaffinity */
    INJECT_HOST,    /* gethostname, sysinfo, getifaddrs */
    INJECT_RUN_OUT, /* no call: only n more descriptors from the mark on */
    INJECT_KINDS
} inject_kind;

const char *inject_name(inject_kind kind);
/* The errors that calls of the kind are given, in turn; 0 behind the last. */
int inject_error(inject_kind kind, int index);
/* A call that ends with EINTR is to be made again. */
bool inject_must_be_retried(inject_kind kind, int error);

/* Calls of a kind with equal call stacks. */
typedef struct inject_site {
    inject_kind kind;
    uint64_t stack; /* a hash of the stack, equal in all processes of this build; 0: any stack */
    int count;
} inject_site;

#define INJECT_MOST_SITES 4096
typedef struct inject_sites {
    int count;
    inject_site at[INJECT_MOST_SITES];
} inject_sites;

typedef struct inject_one {
    inject_site site;
    int n; /* from 0, among the site's calls */
    int error;
} inject_one;

/* Innermost return addresses in this program of the call that failed, for addr2line; 0 behind the
 * last. */
#define INJECT_DEPTH 12

/* Watch the calls of all threads from here. Fail `one`, unless it is NULL, and write its call stack
 * to `stack`; otherwise list the sites in `sites`. */
void inject_begin(const inject_one *one, uint64_t stack[INJECT_DEPTH], inject_sites *sites);

/* Returns if a call failed. */
bool inject_end(void);

#endif
