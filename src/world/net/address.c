#include "world/net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/error.h"

struct address address_unix(const char *name)
{
    struct address address = {0};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    size_t length = strnlen(name, sizeof local.sun_path - 1);
    memcpy(local.sun_path + 1, name, length);
    memcpy(&address.socket, &local, sizeof local);
    address.bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    return address;
}

bool address_is_unix(const struct address *address)
{
    return address->socket.ss_family == AF_UNIX;
}

bool address_is_ip(const struct address *address)
{
    int family = address->socket.ss_family;
    return (family == AF_INET && address->bytes == sizeof(struct sockaddr_in)) ||
           (family == AF_INET6 && address->bytes == sizeof(struct sockaddr_in6));
}

const char *address_text(const struct address *address, char text[ADDRESS_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (address->socket.ss_family == AF_UNIX) {
        struct sockaddr_un local;
        memcpy(&local, &address->socket, sizeof local);
        int length = (int)(address->bytes - offsetof(struct sockaddr_un, sun_path)) - 1;
        snprintf(text, ADDRESS_TEXT_BYTES, "@%.*s", length > 0 ? length : 0, local.sun_path + 1);
    } else if (address->socket.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, &address->socket, sizeof v6);
        bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
        if (mapped)
            inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], host, sizeof host);
        else
            inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
        snprintf(text, ADDRESS_TEXT_BYTES, mapped ? "%s:%d" : "[%s]:%d", host, ntohs(v6.sin6_port));
    } else if (address->socket.ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, &address->socket, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
        snprintf(text, ADDRESS_TEXT_BYTES, "%s:%d", host, ntohs(v4.sin_port));
    } else {
        snprintf(text, ADDRESS_TEXT_BYTES, "nowhere");
    }
    return text;
}

/* Prepare one port for both versions of IP. The kernel holds back connections that send nothing for
 * some seconds. */
static void prepare_tcp_listener(int fd, int family)
{
    int on = 1, off = 0, silent_s = 5;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silent_s, sizeof silent_s);
    if (family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
}

banyan_status address_listen(const struct address *address, int *fd)
{
    char text[ADDRESS_TEXT_BYTES];
    int family = address->socket.ss_family;
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return error_set_errno("cannot make a socket to listen at %s", address_text(address, text));
    if (family != AF_UNIX)
        prepare_tcp_listener(listener, family);
    if (bind(listener, (const struct sockaddr *)&address->socket, address->bytes) != 0 ||
        listen(listener, SOMAXCONN) != 0) {
        banyan_status status = error_set_errno("cannot listen at %s", address_text(address, text));
        close(listener);
        return status;
    }
    *fd = listener;
    return BANYAN_OK;
}

static struct address any_v6(int port)
{
    struct address address = {.bytes = sizeof(struct sockaddr_in6)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    v6.sin6_addr = in6addr_any;
    memcpy(&address.socket, &v6, sizeof v6);
    return address;
}

static struct address any_v4(bool loopback, int port)
{
    struct address address = {.bytes = sizeof(struct sockaddr_in)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    v4.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    memcpy(&address.socket, &v4, sizeof v4);
    return address;
}

int address_port(const struct address *address)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memcpy(&v4, &address->socket, sizeof v4);
    memcpy(&v6, &address->socket, sizeof v6);
    return ntohs(address->socket.ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
}

struct address address_loopback(int port)
{
    return any_v4(true, port);
}

struct address address_with_port(const struct address *address, int port)
{
    struct address changed = *address;
    in_port_t network = htons((uint16_t)port);
    char *at = (char *)&changed.socket;
    if (changed.socket.ss_family == AF_INET6)
        memcpy(at + offsetof(struct sockaddr_in6, sin6_port), &network, sizeof network);
    else if (changed.socket.ss_family == AF_INET)
        memcpy(at + offsetof(struct sockaddr_in, sin_port), &network, sizeof network);
    return changed;
}

banyan_status address_listen_tcp(bool loopback, int wanted_port, int *fd, int *port)
{
    /* IPv6 sockets accept IPv4 too, except at the loopback address; some machines have no IPv6. */
    struct address address = loopback ? any_v4(true, wanted_port) : any_v6(wanted_port);
    int listener;
    banyan_status status = address_listen(&address, &listener);
    if (status != BANYAN_OK && !loopback) {
        address = any_v4(false, wanted_port);
        status = address_listen(&address, &listener);
    }
    if (status != BANYAN_OK)
        return status;
    address.bytes = sizeof address.socket;
    if (getsockname(listener, (struct sockaddr *)&address.socket, &address.bytes) != 0) {
        status = error_set_errno("getsockname of a new listener");
        close(listener);
        return status;
    }
    *fd = listener;
    *port = address_port(&address);
    return BANYAN_OK;
}

/* Detect a vanished machine within a few seconds, on a silent connection too. */
static void watch_tcp(int fd)
{
    int on = 1, idle_s = 1, interval_s = 1, count = 5;
    unsigned int unacknowledged_ms = 6000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

void address_connect(const struct address *address, int *fd, int *error)
{
    int made = socket(address->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0) {
        *error = errno;
        return;
    }
    if (!address_is_unix(address))
        watch_tcp(made);
    int done;
    do
        done = connect(made, (const struct sockaddr *)&address->socket, address->bytes);
    while (done != 0 && errno == EINTR);
    *error = done == 0 || errno == EISCONN ? 0 : errno == EALREADY ? EINPROGRESS : errno;
    if (*error != 0 && *error != EINPROGRESS)
        close(made);
    else
        *fd = made;
}

bool address_peer_allowed(int fd, char who[ADDRESS_TEXT_BYTES])
{
    struct address peer = {.bytes = sizeof peer.socket};
    if (getpeername(fd, (struct sockaddr *)&peer.socket, &peer.bytes) != 0) {
        int error = errno;
        snprintf(who, ADDRESS_TEXT_BYTES, "a process that is gone");
        errno = error;
        return false;
    }
    if (!address_is_unix(&peer)) {
        watch_tcp(fd);
        address_text(&peer, who);
        return true;
    }
    struct ucred process = {0};
    socklen_t bytes = sizeof process;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &process, &bytes) != 0) {
        int error = errno;
        snprintf(who, ADDRESS_TEXT_BYTES, "a process without credentials");
        errno = error;
        return false;
    }
    snprintf(who, ADDRESS_TEXT_BYTES, "pid %d of user %u", (int)process.pid, (unsigned)process.uid);
    errno = EACCES;
    return process.uid == geteuid();
}

bool address_is_taken(const struct address *address, char who[ADDRESS_TEXT_BYTES])
{
    int fd = -1, error = EAFNOSUPPORT;
    if (address_is_unix(address))
        address_connect(address, &fd, &error);
    if (error != 0)
        return false;
    bool own = address_peer_allowed(fd, who);
    close(fd);
    return !own;
}

banyan_status address_say_taken(const struct address *address, const char *who)
{
    char text[ADDRESS_TEXT_BYTES];
    return error_set(
        BANYAN_ERR_REFUSED,
        "%s has taken the name %.60s of this job's rendezvous: set BANYAN_SECRET to the "
        "same 32 hexadecimal digits (128 random bits) on every rank, so that nobody "
        "else can derive the name",
        who, address_text(address, text));
}

void address_random_name(char name[ADDRESS_NAME_BYTES])
{
    unsigned char random[16];
    char hex[2 * sizeof random + 1];
    randombytes_buf(random, sizeof random);
    snprintf(name, ADDRESS_NAME_BYTES, "banyan-%s",
             sodium_bin2hex(hex, sizeof hex, random, sizeof random));
}

static banyan_status read_boot_id(char boot[40])
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    int fd;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return error_set_errno("cannot open %s, which distinguishes this machine from others (set "
                               "BANYAN_NODE to a name of your own)",
                               path);
    ssize_t got;
    do
        got = read(fd, boot, 36);
    while (got < 0 && errno == EINTR);
    banyan_status status = BANYAN_OK;
    if (got < 0)
        status = error_set_errno("cannot read %s", path);
    else if (got != 36)
        status = error_set(BANYAN_ERR_SYSTEM, "%s holds %zd bytes, not 36", path, got);
    close(fd);
    RETURN_IF_FAILED(status);
    boot[36] = '\0';
    return BANYAN_OK;
}

/* Containers of one machine share a boot id, so their namespaces distinguish them. */
banyan_status address_node(char node[ADDRESS_NODE_BYTES])
{
    char boot[40];
    RETURN_IF_FAILED(read_boot_id(boot));
    static const char *const names[] = {"net", "pid", "user"};
    unsigned long long inode[3] = {0};
    for (int i = 0; i < 3; i++) {
        char path[32];
        struct stat info;
        snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]);
        if (stat(path, &info) == 0)
            inode[i] = info.st_ino;
        else if (errno != ENOENT) /* a kernel without such namespaces */
            return error_set_errno(
                "cannot look at %s, which distinguishes this node from others (set "
                "BANYAN_NODE to a name of your own)",
                path);
    }
    snprintf(node, ADDRESS_NODE_BYTES, "%s-%llx-%llx-%llx", boot, inode[0], inode[1], inode[2]);
    return BANYAN_OK;
}
