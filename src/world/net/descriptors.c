#include "world/net/descriptors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "core/error.h"

/* A rank's own: epoll, a wake-up, a Unix listener and a TCP listener. */
#define OWN 4
/* A rendezvous's own. */
#define HOST 4
/* To join: epoll, a wake-up, a connection. */
#define JOIN 3
/* To let others join through this rank, if there are so many: three listeners. */
#define RELAY 3
/* Left free for other purposes while others join through a rank. */
#define SPARE 8

/* For a rank without a limit. */
#define UNLIMITED INT32_MAX

static int log2_ceiling(int value)
{
    int log = 0;
    while ((int64_t)1 << log < value)
        log++;
    return log;
}

static int descriptors_lesser(int a, int b)
{
    return a < b ? a : b;
}

static int taken_by_rendezvous(int world_size, bool hosts)
{
    return OWN + JOIN + (hosts ? HOST + descriptors_lesser(world_size, RELAY_CHILDREN) : 0);
}

/* Return the descriptors that a rank needs. For each rank of its node: two connections and a pidfd.
 * For ranks of other nodes: one connection each way, for each step of a collective, in either
 * direction; the first rank of a node also has its neighbours in the tree. */
static int taken_by_world(int world_size, int near, bool hosts)
{
    int far = world_size - near, steps = 3 * log2_ceiling(world_size);
    int joining = taken_by_rendezvous(world_size, hosts);
    int64_t taken = OWN + (hosts ? HOST : 0) + 3 * ((int64_t)near - 1) +
                    2 * (int64_t)descriptors_lesser(far, steps);
    return taken > UNLIMITED ? UNLIMITED : taken > joining ? (int)taken : joining;
}

struct descriptors descriptors_count(int world_size)
{
    struct rlimit limit;
    struct descriptors found = {UNLIMITED, UNLIMITED, 0};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return found;
    if (limit.rlim_cur < UNLIMITED)
        found.limit = (int)limit.rlim_cur;
    int enough = taken_by_world(world_size, world_size, true);
    int relays = OWN + JOIN + RELAY + SPARE + descriptors_lesser(world_size, RELAY_CHILDREN);
    enough = enough > relays ? enough : relays;
    found.free = 0;
    for (int fd = 0; fd < found.limit && found.free < enough; fd++)
        found.free += fcntl(fd, F_GETFD) < 0;
    for (int i = 0; i < enough && found.free < enough; i++)
        found.above += fcntl(found.limit + i, F_GETFD) >= 0;
    return found;
}

/* The limit that suffices, beside those that are open. */
static int sufficient_limit(const struct descriptors *of, int taken)
{
    return of->limit - of->free + of->above + taken;
}

/* `near` 0: the ranks of its node are not known yet, and `taken` is a bound. `limit` suffices on
 * every rank. */
static banyan_status say_too_few(const struct descriptors *of, int rank, int world_size, int near,
                                 int taken, int limit)
{
    char place[64] = "";
    if (near > 0)
        snprintf(place, sizeof place, ", %d of them on its node,", near);
    return error_set(BANYAN_ERR_SYSTEM,
                     "rank %d has a limit of %d open files and %d of them open, and a world of %d "
                     "ranks%s takes %s%d more: raise the limit, for example by \"ulimit -n %d\"",
                     rank, of->limit, of->limit - of->free, world_size, place,
                     near > 0 ? "" : "up to ", taken, limit);
}

banyan_status descriptors_check_rendezvous(const struct descriptors *mine, int rank, int world_size,
                                           bool rank_0_hosts)
{
    if (mine->free >= taken_by_rendezvous(world_size, rank_0_hosts && rank == 0))
        return BANYAN_OK;
    /* No rank takes more than one with all others on its node. */
    int most = taken_by_world(world_size, world_size, rank_0_hosts);
    return say_too_few(mine, rank, world_size, 0, most, sufficient_limit(mine, most));
}

/* Check that the process of the rendezvous has enough descriptors. */
static banyan_status check_host(int taken, int world_size, const char *doing)
{
    struct descriptors mine = descriptors_count(world_size);
    int open = mine.limit - mine.free;
    if (mine.free >= taken)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_SYSTEM,
                     "the process of the rendezvous has a limit of %d open files and %d of them "
                     "open, and %s takes %d more: raise the limit, for example by \"ulimit -n %d\"",
                     mine.limit, open, doing, taken, sufficient_limit(&mine, taken));
}

int descriptors_for_relay(const struct descriptors *mine)
{
    return mine->free - OWN - JOIN - RELAY - SPARE;
}

banyan_status descriptors_check_id(void)
{
    return check_host(HOST + 1, 1, "making a unique id, besides one for each rank,");
}

banyan_status descriptors_check_hosting(int world_size, int missing)
{
    char doing[64];
    snprintf(doing, sizeof doing, "answering %d ranks", world_size);
    return check_host(missing, world_size, doing);
}

bool descriptors_raise_limit(int count, struct rlimit *before)
{
    if (getrlimit(RLIMIT_NOFILE, before) != 0 || before->rlim_cur >= before->rlim_max)
        return false;
    struct rlimit more = *before;
    more.rlim_cur = before->rlim_max - before->rlim_cur < (rlim_t)count
                        ? before->rlim_max
                        : before->rlim_cur + (rlim_t)count;
    return setrlimit(RLIMIT_NOFILE, &more) == 0;
}

banyan_status descriptors_check_members(const struct member *members, const int *nodes,
                                        int world_size, bool rank_0_hosts)
{
    int *near = calloc((size_t)world_size, sizeof *near);
    if (!near)
        return error_no_memory((size_t)world_size * sizeof *near, "the ranks of nodes");
    for (int rank = 0; rank < world_size; rank++)
        near[nodes[rank]]++;
    int lacking = -1, lacks = 0, limit = 0;
    for (int rank = world_size - 1; rank >= 0; rank--) {
        const struct descriptors *its = &members[rank].descriptors;
        int taken = taken_by_world(world_size, near[nodes[rank]], rank == 0 && rank_0_hosts);
        if (its->free >= taken)
            continue;
        lacking = rank;
        lacks = taken;
        int sufficient = sufficient_limit(its, taken);
        limit = sufficient > limit ? sufficient : limit;
    }
    banyan_status status = BANYAN_OK;
    if (lacking >= 0)
        status = say_too_few(&members[lacking].descriptors, lacking, world_size,
                             near[nodes[lacking]], lacks, limit);
    free(near);
    return status;
}
