#include "support/flood.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "support/test.h"
#include "world/net/address.h"
#include "world/net/wire.h"

#define LONGEST_NS (60 * NS_PER_S)
#define MOST_CONNECTS 200000
/* Connections to one port in one round: a round with this many is short. */
#define ROUND_CONNECTS 250
#define ROUND_MS 10

struct target {
    int port;
    int open; /* connections */
    long connects;
};

struct flooder {
    struct flood *flood;
    int epoll_fd;
    struct target targets[FLOOD_PORTS];
    int target_count;
    random_state random;
};

const char *flood_name(enum flood_kind kind)
{
    static const char *const names[FLOOD_KINDS] = {"idle", "garbage", "half a hello",
                                                   "a hello without the key"};
    return names[kind];
}

bool flood_enter_network(void)
{
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return false;
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    if (fd >= 0)
        close(fd);
    return up;
}

static void add_target(struct flooder *flooder, int port)
{
    for (int i = 0; i < flooder->target_count; i++) {
        if (flooder->targets[i].port == port)
            return;
    }
    if (flooder->target_count < FLOOD_PORTS)
        flooder->targets[flooder->target_count++] = (struct target){.port = port};
}

/* The kernel's list of sockets: "sl local_address rem_address st …"; state 0A is a listening
 * one. */
static void find_targets(struct flooder *flooder, const char *path)
{
    char line[512];
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        unsigned int port, state;
        if (sscanf(line, " %*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &port, &state) == 2 &&
            state == 0x0a)
            add_target(flooder, (int)port);
    }
    if (file)
        fclose(file);
}

static void speak(struct flooder *flooder, int fd)
{
    unsigned char data[256];
    struct wire_hello hello = {.magic = WIRE_MAGIC, .version = WIRE_VERSION};
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)random_next(&flooder->random);
    hello.purpose = random_next(&flooder->random) % 2 ? WIRE_PURPOSE_JOIN : WIRE_PURPOSE_PEER;
    hello.to = (int)(random_next(&flooder->random) % 4);
    hello.to = hello.purpose == WIRE_PURPOSE_JOIN ? -1 : hello.to;
    memcpy(hello.nonce, data, sizeof hello.nonce);
    size_t bytes = sizeof hello;
    if (flooder->flood->kind == FLOOD_GARBAGE)
        bytes = sizeof data;
    if (flooder->flood->kind == FLOOD_HALF)
        bytes = sizeof hello / 2;
    if (flooder->flood->kind == FLOOD_GARBAGE)
        send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    else if (flooder->flood->kind != FLOOD_IDLE)
        send(fd, &hello, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static bool connect_once(struct flooder *flooder, struct target *target)
{
    struct address address = address_loopback(target->port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    if (connect(fd, (const struct sockaddr *)&address.socket, address.bytes) != 0 &&
        errno != EINPROGRESS) {
        close(fd);
        return false;
    }
    speak(flooder, fd);
    uint64_t word = (uint64_t)(target - flooder->targets) << 32 | (unsigned)fd;
    struct epoll_event event = {.events = EPOLLRDHUP, .data.u64 = word};
    CHECK(epoll_ctl(flooder->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0);
    target->open++;
    target->connects++;
    flooder->flood->connects++;
    return true;
}

static void fill(struct flooder *flooder, struct target *target)
{
    struct flood *flood = flooder->flood;
    long before = target->connects;
    for (int i = 0; i < ROUND_CONNECTS && target->open < flood->held; i++) {
        if (flood->connects >= MOST_CONNECTS || !connect_once(flooder, target))
            break;
    }
    if (before < flood->held && target->connects >= flood->held)
        flood->full_ports++;
}

/* Connect again where the other side has closed. */
static void forget_closed(struct flooder *flooder, int timeout_ms)
{
    struct epoll_event events[256];
    int count;
    while ((count = epoll_wait(flooder->epoll_fd, events, 256, timeout_ms)) > 0) {
        for (int i = 0; i < count; i++) {
            close((int)(events[i].data.u64 & UINT32_MAX));
            flooder->targets[events[i].data.u64 >> 32].open--;
        }
        timeout_ms = 0;
    }
}

static void run(struct flood *flood)
{
    struct flooder flooder = {.flood = flood, .random = random_from(4711)};
    uint64_t deadline_ns = deadline_after(LONGEST_NS);
    CHECK((flooder.epoll_fd = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    while (!flood->stop && deadline_left_ns(deadline_ns) > 0) {
        find_targets(&flooder, "/proc/net/tcp");
        find_targets(&flooder, "/proc/net/tcp6");
        for (int i = 0; i < flooder.target_count; i++)
            fill(&flooder, &flooder.targets[i]);
        forget_closed(&flooder, ROUND_MS);
    }
}

pid_t flood_start(struct flood *flood)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        run(flood);
        _exit(0);
    }
    return pid;
}

void flood_end(struct flood *flood, pid_t pid)
{
    int status;
    flood->stop = true;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the flooder ended with %#x", status);
}
