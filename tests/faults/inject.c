#include "faults/inject.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <link.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <banyan/core.h>

#include "core/threads/sanitizer.h"

#define MOST_ERRORS 6

static const struct {
    const char *name;
    int errors[MOST_ERRORS];
} kinds[INJECT_KINDS] = {
    [INJECT_MALLOC] = {"malloc", {ENOMEM}},
    [INJECT_TEXT] = {"strdup", {ENOMEM}},
    [INJECT_OPEN] = {"open", {EMFILE, EACCES, EINTR}},
    [INJECT_MEMFD] = {"memfd_create", {EMFILE, ENOMEM}},
    [INJECT_MMAP] = {"mmap", {ENOMEM, EPERM}},
    [INJECT_MADVISE] = {"madvise", {ENOMEM, EINVAL}},
    [INJECT_FTRUNCATE] = {"ftruncate", {ENOSPC, ENOMEM, EINTR}},
    [INJECT_FALLOCATE] = {"fallocate", {ENOSPC, EOPNOTSUPP, EINTR}},
    [INJECT_FCNTL] = {"fcntl", {EMFILE}},
    [INJECT_SOCKET] = {"socket", {EMFILE, ENOBUFS}},
    [INJECT_BIND] = {"bind", {ENOMEM, EACCES}},
    [INJECT_CONNECT] = {"connect", {EAGAIN, EPERM, EINTR}},
    [INJECT_ACCEPT] = {"accept", {EMFILE, ENOBUFS, EPERM, EINTR}},
    [INJECT_SENDMSG] = {"sendmsg", {EAGAIN, ENOBUFS, ENOMEM, EPERM, EINTR}},
    [INJECT_RECV] = {"recv", {EAGAIN, ENOBUFS, ENOMEM, EPERM, EINTR}},
    [INJECT_TRUNCATED] = {"recvmsg without its descriptors", {EMFILE}},
    [INJECT_SOCKET_OPTION] = {"getsockopt", {ENOBUFS}},
    [INJECT_SOCKET_NAME] = {"getsockname", {ENOBUFS}},
    [INJECT_EPOLL_CREATE] = {"epoll_create", {EMFILE, ENOMEM}},
    [INJECT_EPOLL_CTL] = {"epoll_ctl", {ENOSPC, ENOMEM}},
    [INJECT_EPOLL_WAIT] = {"epoll_wait", {EINTR}},
    [INJECT_EVENTFD] = {"eventfd", {EMFILE, ENOMEM}},
    [INJECT_PIDFD] = {"pidfd_open", {EMFILE, ENOSYS, EPERM}},
    [INJECT_FUTEX] = {"futex", {EINTR, EAGAIN}},
    [INJECT_VM] = {"process_vm", {EPERM, ENOMEM, EFAULT}},
    [INJECT_THREAD] = {"pthread_create", {EAGAIN, EPERM}},
    [INJECT_READ] = {"read", {EIO, EINTR}},
    [INJECT_WRITE] = {"write", {ENOSPC, EIO, EINTR}},
    [INJECT_STAT] = {"stat", {EIO, ENOMEM}},
    [INJECT_SYNC] = {"fsync", {EIO, ENOSPC}},
    [INJECT_NAME] = {"rename", {ENOSPC, EACCES}},
    [INJECT_FOLDER] = {"opendir", {EMFILE, ENOMEM}},
    [INJECT_FILE] = {"fopen", {EMFILE, ENOMEM}},
    [INJECT_FLUSH] = {"fflush", {ENOSPC}},
    [INJECT_LOCK] = {"flock", {ENOLCK, EINTR}},
    [INJECT_RANDOM] = {"getrandom", {EINTR}},
    [INJECT_SLEEP] = {"nanosleep", {EINTR}},
    [INJECT_CPUS] = {"sched_getaffinity", {EINVAL}},
    [INJECT_HOST] = {"gethostname", {ENOMEM}},
    [INJECT_RUN_OUT] = {"descriptors left", {EMFILE}},
};

const char *inject_name(inject_kind kind)
{
    return kinds[kind].name;
}

int inject_error(inject_kind kind, int index)
{
    return index < MOST_ERRORS ? kinds[kind].errors[index] : 0;
}

bool inject_must_be_retried(inject_kind kind, int error)
{
    return error == EINTR || (error == EAGAIN && kind != INJECT_THREAD);
}

#define MOST_FRAMES 64

static struct {
    atomic_bool looks, has_failed;
    atomic_int count; /* calls at the site of `one` so far */
    inject_one one;
    bool fails;
    uint64_t *stack;
    inject_sites *sites;
    pthread_mutex_t lock; /* guards `sites` */
    pthread_t thread;     /* the thread that makes the collective call */
    int outside;          /* its stack frames outside the caller of inject_begin */
    struct rlimit before;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Code whose calls are counted: the program and Banyan's modules. */
#define MOST_RANGES 8
static struct {
    uintptr_t low, high;
} ranges[MOST_RANGES];
static int range_count;

static int note_range(struct dl_phdr_info *info, size_t bytes, void *context)
{
    bool first = *(int *)context == 0;
    (void)bytes;
    ++*(int *)context;
    if (!first && !strstr(info->dlpi_name, "libbanyan"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && range_count < MOST_RANGES; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
            ranges[range_count].low = info->dlpi_addr + part->p_vaddr;
            ranges[range_count++].high = info->dlpi_addr + part->p_vaddr + part->p_memsz;
        }
    }
    return 0;
}

void inject_begin(const inject_one *one, uint64_t stack[INJECT_DEPTH], inject_sites *sites)
{
    int seen = 0;
    void *frames[MOST_FRAMES];
    range_count = 0;
    dl_iterate_phdr(note_range, &seen);
    state.thread = pthread_self();
    state.outside = backtrace(frames, MOST_FRAMES) - 2;
    atomic_store(&state.count, 0);
    state.fails = one != NULL;
    if (one)
        state.one = *one;
    state.stack = stack;
    state.sites = sites;
    atomic_store(&state.has_failed, false);
    getrlimit(RLIMIT_NOFILE, &state.before);
    if (one && one->site.kind == INJECT_RUN_OUT) {
        int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
        close(lowest);
        struct rlimit less = {(rlim_t)(lowest + one->n), state.before.rlim_max};
        setrlimit(RLIMIT_NOFILE, &less);
    }
    atomic_store(&state.looks, true);
}

bool inject_end(void)
{
    atomic_store(&state.looks, false);
    pthread_mutex_lock(&state.lock);
    pthread_mutex_unlock(&state.lock);
    setrlimit(RLIMIT_NOFILE, &state.before);
    return atomic_load(&state.has_failed);
}

/* Sanitizers define these functions too, and call some of them before these can run. */
#if !defined(SANITIZER_MEMORY) && !defined(SANITIZER_THREAD)

static bool is_looked_at(uintptr_t caller, inject_kind kind)
{
    /* In modules, count only allocations of the calling thread. System calls and other threads
     * there belong to the emulated driver. */
    bool modules = kind <= INJECT_TEXT && pthread_equal(pthread_self(), state.thread);
    int count = modules ? range_count : 1;
    for (int i = 0; i < count; i++) {
        if (caller >= ranges[i].low && caller < ranges[i].high)
            return true;
    }
    return false;
}

/* Return the offset of `address` in its range, which does not depend on the load address; 0 if it
 * is in none. */
static uint64_t place_of(uintptr_t address)
{
    for (int i = 0; i < range_count; i++) {
        if (address >= ranges[i].low && address < ranges[i].high)
            return ((uint64_t)i << 48) + (address - ranges[i].low);
    }
    return 0;
}

/* Hash the call stack, without frames of foreign libraries. */
static uint64_t hash_stack(const void *caller, uint64_t places[INJECT_DEPTH])
{
    extern char __executable_start;
    void *frames[MOST_FRAMES];
    int count = backtrace(frames, MOST_FRAMES), kept = 0;
    uint64_t hash = 0xcbf29ce484222325;
    memset(places, 0, INJECT_DEPTH * sizeof *places);
    int i = 0;
    if (pthread_equal(pthread_self(), state.thread))
        count -= state.outside;
    while (i < count && frames[i] != caller) /* frames of this file */
        i++;
    for (; i < count; i++) {
        uint64_t place = place_of((uintptr_t)frames[i]);
        if (place == 0)
            continue;
        hash = (hash ^ place) * 0x100000001b3;
        if (kept < INJECT_DEPTH)
            places[kept++] = (uintptr_t)frames[i] - (uintptr_t)&__executable_start;
    }
    return hash | 1;
}

static void note_site(inject_kind kind, uint64_t stack)
{
    inject_sites *sites = state.sites;
    int at = 0;
    pthread_mutex_lock(&state.lock);
    while (at < sites->count && (sites->at[at].kind != kind || sites->at[at].stack != stack))
        at++;
    if (at == sites->count && at < INJECT_MOST_SITES)
        sites->at[sites->count++] = (inject_site){kind, stack, 0};
    if (at < sites->count)
        sites->at[at].count++;
    pthread_mutex_unlock(&state.lock);
}

/* True, with errno set, if this call is the one to fail. */
static bool must_fail(inject_kind kind, void *caller)
{
    uint64_t places[INJECT_DEPTH];
    if (!atomic_load(&state.looks) || !is_looked_at((uintptr_t)caller, kind) ||
        (state.fails && kind != state.one.site.kind))
        return false;
    uint64_t stack = hash_stack(caller, places);
    if (!state.fails) {
        note_site(kind, stack);
        return false;
    }
    if ((state.one.site.stack != 0 && stack != state.one.site.stack) ||
        atomic_fetch_add(&state.count, 1) != state.one.n)
        return false;
    memcpy(state.stack, places, sizeof places);
    atomic_store(&state.has_failed, true);
    errno = state.one.error;
    return true;
}

#define CALLER __builtin_return_address(0)

static void *library(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

/* The C library's function of this name, looked up once. */
#define LIBRARY(function)                                                                          \
    __extension__({                                                                                \
        static _Atomic(void *) found_;                                                             \
        if (!atomic_load(&found_))                                                                 \
            atomic_store(&found_, library(#function));                                             \
        (__typeof__(&function))atomic_load(&found_);                                               \
    })

#define STAND_BEFORE(kind, failed, result, function, parameters, ...)                              \
    BANYAN_API result function parameters                                                          \
    {                                                                                              \
        if (must_fail(kind, CALLER))                                                               \
            return failed;                                                                         \
        return LIBRARY(function)(__VA_ARGS__);                                                     \
    }

extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_malloc(size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t unit, size_t bytes);

BANYAN_API void *calloc(size_t count, size_t bytes)
{
    return must_fail(INJECT_MALLOC, CALLER) ? NULL : __libc_calloc(count, bytes);
}

BANYAN_API void *malloc(size_t bytes)
{
    return must_fail(INJECT_MALLOC, CALLER) ? NULL : __libc_malloc(bytes);
}

BANYAN_API void *realloc(void *old, size_t bytes)
{
    return must_fail(INJECT_MALLOC, CALLER) ? NULL : __libc_realloc(old, bytes);
}

BANYAN_API void *aligned_alloc(size_t unit, size_t bytes)
{
    return must_fail(INJECT_MALLOC, CALLER) ? NULL : __libc_memalign(unit, bytes);
}

STAND_BEFORE(INJECT_TEXT, NULL, char *, strdup, (const char *text), text)
STAND_BEFORE(INJECT_TEXT, NULL, char *, strndup, (const char *text, size_t most), text, most)
STAND_BEFORE(INJECT_TEXT, NULL, FILE *, open_memstream, (char **text, size_t *bytes), text, bytes)

BANYAN_API int vasprintf(char **text, const char *format, va_list args)
{
    if (must_fail(INJECT_TEXT, CALLER))
        return -1;
    return LIBRARY(vasprintf)(text, format, args);
}

BANYAN_API int asprintf(char **text, const char *format, ...)
{
    if (must_fail(INJECT_TEXT, CALLER))
        return -1;
    va_list args;
    va_start(args, format);
    int written = LIBRARY(vasprintf)(text, format, args);
    va_end(args);
    return written;
}

STAND_BEFORE(INJECT_MMAP, MAP_FAILED, void *, mmap,
             (void *at, size_t bytes, int allowed, int flags, int fd, off_t offset), at, bytes,
             allowed, flags, fd, offset)
STAND_BEFORE(INJECT_MADVISE, -1, int, madvise, (void *at, size_t bytes, int advice), at, bytes,
             advice)
STAND_BEFORE(INJECT_MEMFD, -1, int, memfd_create, (const char *name, unsigned flags), name, flags)
STAND_BEFORE(INJECT_FTRUNCATE, -1, int, ftruncate, (int fd, off_t bytes), fd, bytes)
STAND_BEFORE(INJECT_FALLOCATE, -1, int, fallocate, (int fd, int mode, off_t from, off_t bytes), fd,
             mode, from, bytes)
STAND_BEFORE(INJECT_VM, -1, ssize_t, process_vm_readv,
             (pid_t pid, const struct iovec *to, unsigned long to_count, const struct iovec *from,
              unsigned long from_count, unsigned long flags),
             pid, to, to_count, from, from_count, flags)
STAND_BEFORE(INJECT_VM, -1, ssize_t, process_vm_writev,
             (pid_t pid, const struct iovec *from, unsigned long from_count, const struct iovec *to,
              unsigned long to_count, unsigned long flags),
             pid, from, from_count, to, to_count, flags)

BANYAN_API int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (must_fail(INJECT_OPEN, CALLER))
        return -1;
    return LIBRARY(open)(path, flags, mode);
}

BANYAN_API int openat(int folder, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (must_fail(INJECT_OPEN, CALLER))
        return -1;
    return LIBRARY(openat)(folder, path, flags, mode);
}

BANYAN_API int fcntl(int fd, int command, ...)
{
    va_list args;
    va_start(args, command);
    void *argument = va_arg(args, void *);
    va_end(args);
    bool can_fail = command == F_DUPFD_CLOEXEC || command == F_ADD_SEALS;
    if (can_fail && must_fail(INJECT_FCNTL, CALLER))
        return -1;
    return LIBRARY(fcntl)(fd, command, argument);
}

STAND_BEFORE(INJECT_READ, -1, ssize_t, read, (int fd, void *to, size_t bytes), fd, to, bytes)
/* Writes of 8 bytes go to eventfds, which do not fail. */
BANYAN_API ssize_t write(int fd, const void *from, size_t bytes)
{
    if (bytes != sizeof(uint64_t) && must_fail(INJECT_WRITE, CALLER))
        return -1;
    return LIBRARY(write)(fd, from, bytes);
}

STAND_BEFORE(INJECT_WRITE, -1, ssize_t, pwrite, (int fd, const void *from, size_t bytes, off_t at),
             fd, from, bytes, at)
STAND_BEFORE(INJECT_STAT, -1, int, stat, (const char *path, struct stat *info), path, info)
STAND_BEFORE(INJECT_STAT, -1, int, lstat, (const char *path, struct stat *info), path, info)
STAND_BEFORE(INJECT_STAT, -1, int, fstat, (int fd, struct stat *info), fd, info)
STAND_BEFORE(INJECT_STAT, -1, int, fstatvfs, (int fd, struct statvfs *info), fd, info)
STAND_BEFORE(INJECT_STAT, -1, int, access, (const char *path, int mode), path, mode)
STAND_BEFORE(INJECT_SYNC, -1, int, fsync, (int fd), fd)
STAND_BEFORE(INJECT_NAME, -1, int, rename, (const char *from, const char *to), from, to)
STAND_BEFORE(INJECT_NAME, -1, int, linkat,
             (int from_folder, const char *from, int to_folder, const char *to, int flags),
             from_folder, from, to_folder, to, flags)
STAND_BEFORE(INJECT_NAME, -1, int, mkdir, (const char *path, mode_t mode), path, mode)
STAND_BEFORE(INJECT_FOLDER, NULL, DIR *, opendir, (const char *path), path)
STAND_BEFORE(INJECT_FOLDER, NULL, DIR *, fdopendir, (int fd), fd)
STAND_BEFORE(INJECT_FILE, NULL, FILE *, fopen, (const char *path, const char *mode), path, mode)
STAND_BEFORE(INJECT_FILE, NULL, FILE *, fdopen, (int fd, const char *mode), fd, mode)
STAND_BEFORE(INJECT_FLUSH, EOF, int, fflush, (FILE * file), file)
STAND_BEFORE(INJECT_LOCK, -1, int, flock, (int fd, int operation), fd, operation)

STAND_BEFORE(INJECT_SOCKET, -1, int, socket, (int family, int kind, int protocol), family, kind,
             protocol)
STAND_BEFORE(INJECT_BIND, -1, int, bind, (int fd, const struct sockaddr *to, socklen_t bytes), fd,
             to, bytes)
STAND_BEFORE(INJECT_BIND, -1, int, listen, (int fd, int backlog), fd, backlog)
STAND_BEFORE(INJECT_CONNECT, -1, int, connect, (int fd, const struct sockaddr *to, socklen_t bytes),
             fd, to, bytes)
STAND_BEFORE(INJECT_ACCEPT, -1, int, accept4,
             (int fd, struct sockaddr *from, socklen_t *bytes, int flags), fd, from, bytes, flags)
STAND_BEFORE(INJECT_SENDMSG, -1, ssize_t, sendmsg,
             (int fd, const struct msghdr *message, int flags), fd, message, flags)
STAND_BEFORE(INJECT_RECV, -1, ssize_t, recv, (int fd, void *to, size_t bytes, int flags), fd, to,
             bytes, flags)
STAND_BEFORE(INJECT_SOCKET_OPTION, -1, int, getsockopt,
             (int fd, int level, int name, void *value, socklen_t *bytes), fd, level, name, value,
             bytes)
STAND_BEFORE(INJECT_SOCKET_OPTION, -1, int, setsockopt,
             (int fd, int level, int name, const void *value, socklen_t bytes), fd, level, name,
             value, bytes)
STAND_BEFORE(INJECT_SOCKET_NAME, -1, int, getsockname,
             (int fd, struct sockaddr *name, socklen_t *bytes), fd, name, bytes)
STAND_BEFORE(INJECT_SOCKET_NAME, -1, int, getpeername,
             (int fd, struct sockaddr *name, socklen_t *bytes), fd, name, bytes)
STAND_BEFORE(INJECT_EPOLL_CREATE, -1, int, epoll_create1, (int flags), flags)

BANYAN_API int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    if (operation != EPOLL_CTL_DEL && must_fail(INJECT_EPOLL_CTL, CALLER))
        return -1;
    return LIBRARY(epoll_ctl)(epoll, operation, fd, event);
}

STAND_BEFORE(INJECT_EPOLL_WAIT, -1, int, epoll_wait,
             (int epoll, struct epoll_event *events, int most, int timeout_ms), epoll, events, most,
             timeout_ms)
STAND_BEFORE(INJECT_EVENTFD, -1, int, eventfd, (unsigned value, int flags), value, flags)

/* Close the descriptors of a message and set MSG_CTRUNC, as the kernel does at the limit. */
static bool lose_descriptors(struct msghdr *message)
{
    bool lost = false;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            close(fd);
            lost = true;
        }
    }
    if (lost) {
        message->msg_controllen = 0;
        message->msg_flags |= MSG_CTRUNC;
    }
    return lost;
}

static bool has_descriptors(struct msghdr *message)
{
    const struct cmsghdr *header = CMSG_FIRSTHDR(message);
    return header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS;
}

BANYAN_API ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    if (must_fail(INJECT_RECV, CALLER))
        return -1;
    ssize_t got = LIBRARY(recvmsg)(fd, message, flags);
    if (got >= 0 && has_descriptors(message) && must_fail(INJECT_TRUNCATED, CALLER))
        lose_descriptors(message);
    return got;
}

BANYAN_API long syscall(long number, ...)
{
    va_list args;
    long a[6];
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_pidfd_open && must_fail(INJECT_PIDFD, CALLER))
        return -1;
    if (number == SYS_futex && a[1] == FUTEX_WAIT && must_fail(INJECT_FUTEX, CALLER))
        return -1;
    return LIBRARY(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

BANYAN_API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                              void *(*run)(void *), void *argument)
{
    if (must_fail(INJECT_THREAD, CALLER))
        return errno;
    return LIBRARY(pthread_create)(thread, attributes, run, argument);
}

STAND_BEFORE(INJECT_RANDOM, -1, ssize_t, getrandom, (void *to, size_t bytes, unsigned flags), to,
             bytes, flags)
STAND_BEFORE(INJECT_SLEEP, -1, int, nanosleep,
             (const struct timespec *wanted, struct timespec *left), wanted, left)
STAND_BEFORE(INJECT_SLEEP, -1, int, usleep, (useconds_t wanted), wanted)
STAND_BEFORE(INJECT_CPUS, -1, int, sched_getaffinity, (pid_t pid, size_t bytes, cpu_set_t *set),
             pid, bytes, set)
STAND_BEFORE(INJECT_CPUS, -1, int, sched_setaffinity,
             (pid_t pid, size_t bytes, const cpu_set_t *set), pid, bytes, set)
STAND_BEFORE(INJECT_HOST, -1, int, gethostname, (char *name, size_t bytes), name, bytes)
STAND_BEFORE(INJECT_HOST, -1, int, sysinfo, (struct sysinfo * info), info)
STAND_BEFORE(INJECT_HOST, -1, int, getifaddrs, (struct ifaddrs * *list), list)

#endif
