#include "support/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test.h"

static pid_t holders[NODES_MAX];

static bool ip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Run a command of iproute2. */
static bool ip(const char *format, ...)
{
    char command[200] = "ip ";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command + 3, sizeof command - 3, format, arguments);
    va_end(arguments);
    return system(command) == 0;
}

void nodes_address(int node, char address[NODES_ADDRESS_BYTES])
{
    snprintf(address, NODES_ADDRESS_BYTES, "10.77.0.%d", node + 1);
}

/* A view of the node's own network cards in /sys: UCX lists them there. */
static bool mount_own_sysfs(void)
{
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("sysfs", "/sys", "sysfs", 0, NULL) == 0;
}

/* A process that keeps a node's namespaces alive. */
static pid_t hold_namespace(void)
{
    int ready[2];
    char byte = 0;
    CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        byte =
            unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 && mount_own_sysfs() && ip("link set lo up");
        CHECK(write(ready[1], &byte, 1) == 1);
        for (;;)
            pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    return byte ? pid : -1;
}

static bool node_make(int node)
{
    holders[node] = hold_namespace();
    int pid = (int)holders[node];
    return pid > 0 && ip("link add port%d type veth peer name eth0 netns %d", node, pid) &&
           ip("link set port%d master switch up", node);
}

/* Set up a node's own side of its cable, in a process that enters the node. */
static bool node_configure(int node)
{
    char address[NODES_ADDRESS_BYTES];
    int status;
    nodes_address(node, address);
    pid_t pid = fork();
    if (pid == 0) {
        nodes_enter(node);
        bool is_set = ip("address add %s/24 dev eth0", address) && ip("link set eth0 up");
        /* UCX leaves out cards that are not up. */
        while (is_set && system("grep -q up /sys/class/net/eth0/operstate") != 0)
            usleep(1000);
        _exit(is_set ? 0 : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

const char *nodes_make(int count)
{
    if (system("ip -V >/dev/null 2>&1") != 0)
        return "there is no command ip";
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return "this user may make no network namespaces";
    if (!ip("link add switch type bridge 2>/dev/null"))
        return "this machine has no bridges";
    CHECK(ip("link set switch up"));
    for (int node = 0; node < count; node++)
        if (!node_make(node) || !node_configure(node))
            return "this machine has no virtual network cards";
    return NULL;
}

void nodes_enter(int node)
{
    static const char *const kinds[] = {"net", "mnt"};
    CHECK(unshare(CLONE_FS) == 0); /* with the thread that the thread sanitizer starts */
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)holders[node], kinds[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0, "%s: %s", path, strerror(errno));
        CHECK(setns(fd, 0) == 0, "%s: %s", path, strerror(errno));
        close(fd);
    }
}

void nodes_connect(int node, bool yes)
{
    CHECK(ip("link set port%d %s", node, yes ? "up" : "down"));
}
