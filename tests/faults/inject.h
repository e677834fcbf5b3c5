/* Let one call into the C library fail. inject.c defines functions of the C library, so that a
 * program that links it calls these in their place. They count the calls that Banyan makes between
 * inject_begin and inject_end, and let one of them fail. */
#ifndef TESTS_FAULTS_INJECT_H
#define TESTS_FAULTS_INJECT_H

#include <stdbool.h>
#include <stdint.h>

/* A function of the library, or several that fail with the same errors. */
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
    INJECT_TRUNCATED, /* recvmsg loses the received descriptors, as when the limit is reached */
    INJECT_SOCKET_OPTION,
    INJECT_SOCKET_NAME, /* getsockname, getpeername */
    INJECT_EPOLL_CREATE,
    INJECT_EPOLL_CTL,
    INJECT_EPOLL_WAIT,
    INJECT_EVENTFD,
    INJECT_PIDFD,
    INJECT_FUTEX, /* waits; a wake cannot fail */
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
    INJECT_RUN_OUT, /* no call: from inject_begin on, the process can open n more descriptors */
    INJECT_KINDS
} inject_kind;

const char *inject_name(inject_kind kind);
/* Return the index-th error with which calls of the kind fail; 0 behind the last. */
int inject_error(inject_kind kind, int index);
/* True if the caller must repeat a call that failed with this error (EINTR). */
bool inject_must_be_retried(inject_kind kind, int error);

/* Calls of a kind with equal call stacks. */
typedef struct inject_site {
    inject_kind kind;
    uint64_t stack; /* hash of the stack, equal in all processes of this build; 0: any stack */
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

/* The innermost return addresses of the failed call that lie in this program, for addr2line. Unused
 * entries are 0. */
#define INJECT_DEPTH 12

/* Begin to count the calls of all threads. With `one`, let that call fail and write its call stack
 * to `stack`. With NULL, list the sites of all calls in `sites`. */
void inject_begin(const inject_one *one, uint64_t stack[INJECT_DEPTH], inject_sites *sites);

/* End counting. True if a call failed. */
bool inject_end(void);

#endif
