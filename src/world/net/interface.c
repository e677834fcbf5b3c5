#include "world/net/interface.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define NAMES_BYTES 512

static const char *wanted_names(void)
{
    const char *text = getenv("BANYAN_IFNAME");
    return text && text[0] ? text : NULL;
}

/* True if a pattern of the list matches. */
static bool is_listed(const char *list, const char *name)
{
    while (*list) {
        size_t length = strcspn(list, ",");
        bool whole = list[0] == '=';
        const char *pattern = list + whole;
        size_t bytes = length - whole;
        if (bytes > 0 && strncmp(name, pattern, bytes) == 0 && (!whole || name[bytes] == '\0'))
            return true;
        list += length + (list[length] == ',');
    }
    return false;
}

bool interface_is_selected(const char *name)
{
    const char *wanted = wanted_names();
    if (!wanted)
        return true;
    return wanted[0] == '^' ? !is_listed(wanted + 1, name) : is_listed(wanted, name);
}

/* True for an address by which other machines can reach this one. */
static bool has_address(const struct ifaddrs *entry)
{
    struct sockaddr_in6 v6;
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP))
        return false;
    if (entry->ifa_addr->sa_family != AF_INET6)
        return entry->ifa_addr->sa_family == AF_INET;
    memcpy(&v6, entry->ifa_addr, sizeof v6);
    return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

/* Loopback is used only if it is named. */
static bool is_usable(const struct ifaddrs *entry)
{
    const char *wanted = wanted_names();
    bool excludes = wanted && wanted[0] == '^';
    return has_address(entry) && interface_is_selected(entry->ifa_name) &&
           !(excludes && entry->ifa_flags & IFF_LOOPBACK);
}

/* Append a name, unless it is there: an interface comes once for each of its addresses. */
static void add_name(char names[NAMES_BYTES], const char *name)
{
    size_t length = strlen(names), name_length = strlen(name);
    for (const char *at = names; *at; at += strcspn(at, ","), at += *at == ',') {
        if (strcspn(at, ",") == name_length && strncmp(at, name, name_length) == 0)
            return;
    }
    snprintf(names + length, NAMES_BYTES - length, "%s%s", length > 0 ? "," : "", name);
}

/* Append the RDMA devices of an interface, as UCX names them. */
static void add_rdma(char names[NAMES_BYTES], const char *interface)
{
    char path[128], device[64];
    snprintf(path, sizeof path, "/sys/class/net/%s/device/infiniband", interface);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(device, sizeof device, "%.40s:1", entry->d_name);
        add_name(names, device);
    }
    if (folder)
        closedir(folder);
}

banyan_status interface_check(void)
{
    struct ifaddrs *list = NULL;
    char used[NAMES_BYTES] = "", all[NAMES_BYTES] = "";
    const char *wanted = wanted_names();
    if (!wanted)
        return BANYAN_OK;
    if (getifaddrs(&list) != 0)
        return error_set_errno("cannot list the network interfaces, of which BANYAN_IFNAME selects "
                               "\"%.200s\"",
                               wanted);
    for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
        if (has_address(entry))
            add_name(all, entry->ifa_name);
        if (!is_usable(entry))
            continue;
        add_rdma(used, entry->ifa_name);
        add_name(used, entry->ifa_name);
    }
    freeifaddrs(list);
    if (!used[0])
        return error_set(BANYAN_ERR_INVALID,
                         "BANYAN_IFNAME is \"%.200s\", and no network interface with an address "
                         "matches; there are: %s",
                         wanted, all[0] ? all : "none");
    setenv("UCX_NET_DEVICES", used, false);
    return BANYAN_OK;
}

struct address interface_address(int port)
{
    struct address found = {0};
    struct ifaddrs *list = NULL;
    if (!wanted_names() || getifaddrs(&list) != 0)
        return found;
    for (const struct ifaddrs *entry = list; entry && found.bytes == 0; entry = entry->ifa_next) {
        if (!is_usable(entry))
            continue;
        found.bytes = entry->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                            : sizeof(struct sockaddr_in6);
        memcpy(&found.socket, entry->ifa_addr, found.bytes);
    }
    freeifaddrs(list);
    return found.bytes > 0 ? address_with_port(&found, port) : found;
}
