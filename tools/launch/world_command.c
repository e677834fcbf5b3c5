/* `banyan world`: what a world of ranks consists of. Every rank of a job runs it. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <banyan/transport.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/text.h"

#define TEXT_BYTES 512

/* One rank, as it describes itself. */
typedef struct rank_facts {
    int node, pid;
    char host[64];
    char cards[TEXT_BYTES]; /* "eth0 10.0.0.1, eth1 10.0.1.1" */
    char peers[TEXT_BYTES]; /* "shm 0-3 (8.3 us), ucx 4-7 (75.5 us)" */
} rank_facts;

static void text_add(char text[TEXT_BYTES], const char *separator, const char *more)
{
    size_t length = strlen(text);
    snprintf(text + length, TEXT_BYTES - length, "%s%s", length > 0 ? separator : "", more);
}

/* List the network cards that are up, with their addresses; loopback devices are left out. */
static void facts_cards(char cards[TEXT_BYTES])
{
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *at = list; at; at = at->ifa_next) {
        int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
        if (!(at->ifa_flags & IFF_UP) || (at->ifa_flags & IFF_LOOPBACK) ||
            (family != AF_INET && family != AF_INET6))
            continue;
        char address[INET6_ADDRSTRLEN + IFNAMSIZ + 2], card[sizeof address + IFNAMSIZ + 2];
        socklen_t bytes =
            family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if (getnameinfo(at->ifa_addr, bytes, address, sizeof address, NULL, 0, NI_NUMERICHOST) != 0)
            continue;
        snprintf(card, sizeof card, "%s %s", at->ifa_name, address);
        text_add(cards, ", ", card);
    }
    freeifaddrs(list);
}

/* List runs of peers that one transport reaches at one cost. */
static void facts_peers(banyan_transport *transport, int rank, int size, char peers[TEXT_BYTES])
{
    for (int first = 0, last; first < size; first = last + 1) {
        uint64_t cost_ns = 0, next_ns;
        const char *name = banyan_transport_peer(transport, first, &cost_ns);
        last = first;
        while (last + 1 < size) {
            const char *next = banyan_transport_peer(transport, last + 1, &next_ns);
            if (next != name || (name && next_ns != cost_ns))
                break;
            last++;
        }
        if (first == last && first == rank)
            continue; /* not a peer */
        char run[100];
        int length = snprintf(run, sizeof run, "%s %d", name ? name : "unreachable", first);
        if (last > first)
            length += snprintf(run + length, sizeof run - (size_t)length, "-%d", last);
        if (name)
            snprintf(run + length, sizeof run - (size_t)length, " (%.1f us)",
                     (double)cost_ns / 1e3);
        text_add(peers, ", ", run);
    }
}

static void facts_print(const rank_facts *all, int size, int nodes, const char *name)
{
    printf("%d rank%s on %d node%s, transports %s\n\n", size, size == 1 ? "" : "s", nodes,
           nodes == 1 ? "" : "s", name);
    printf("%6s%6s%9s  %-20s%s\n", "rank", "node", "pid", "host", "network cards");
    for (int rank = 0; rank < size; rank++)
        printf("%6d%6d%9d  %-20s%s\n", rank, all[rank].node, all[rank].pid, all[rank].host,
               all[rank].cards[0] ? all[rank].cards : "none but loopback");
    printf("\n%6s  peers, by transport, with the estimated time to put 64 KiB\n", "rank");
    for (int rank = 0; rank < size; rank++)
        printf("%6d  %s\n", rank, all[rank].peers[0] ? all[rank].peers : "none");
}

static banyan_status world_describe(banyan_world *world, const char *transports)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    banyan_transport *transport;
    rank_facts mine = {.node = banyan_world_node_of(world, rank), .pid = (int)getpid()};
    banyan_status status = banyan_transport_open(world, transports, &transport);
    if (status != BANYAN_OK)
        return status;
    gethostname(mine.host, sizeof mine.host - 1);
    facts_cards(mine.cards);
    facts_peers(transport, rank, size, mine.peers);
    rank_facts *all = calloc((size_t)size, sizeof *all);
    if (!all)
        status = banyan_error_set(BANYAN_ERR_NO_MEMORY, "no memory for %d ranks", size);
    else
        status = banyan_world_allgather(world, &mine, sizeof mine, all);
    if (status == BANYAN_OK && rank == 0)
        facts_print(all, size, banyan_world_node_count(world), banyan_transport_name(transport));
    free(all);
    banyan_transport_close(transport);
    return status;
}

static int world_info_command(int argc, char **argv)
{
    const char *transports = NULL;
    const option_entry entries[] = {
        {"transport", '\0', OPTION_TEXT, &transports, "NAME,...",
         "transports to choose from (BANYAN_TRANSPORT, else those of the world)", 0, 0},
    };
    const option_table table = {
        "banyan world info", "[options]",
        "Print the ranks of a job: their nodes, processes and network cards, and which peer each\n"
        "rank reaches by which transport. Every rank of the job runs it, and rank 0 prints:\n"
        "\n"
        "  banyan launch -n 4 banyan world info\n"
        "  mpirun -n 4 banyan world info\n"
        "\n"
        "docs/internals/transports.md.\n",
        entries, sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(options_parse_only(&table, argc, argv));
    banyan_world *world;
    if (banyan_world_open(NULL, &world) != BANYAN_OK)
        return text_fail(table.command);
    int code = world_describe(world, transports) == BANYAN_OK ? 0 : text_fail(table.command);
    if (banyan_world_close(world) != BANYAN_OK && code == 0)
        code = text_fail(table.command);
    return code;
}

static const command_entry subcommands[] = {
    {"info", "", "print the ranks of a job, and how they reach each other", world_info_command},
};

int world_command(int argc, char **argv)
{
    static const command_set set = {
        .command = "banyan world",
        .usage = "info ...",
        .about = "",
        .more = "",
        .entries = subcommands,
        .count = sizeof subcommands / sizeof subcommands[0],
    };
    return command_set_run(&set, argc, argv);
}
