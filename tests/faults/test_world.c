/* Opening worlds, by each kind of rendezvous, and sub-worlds, with a fault at one rank. */
#include "faults/job.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/status.h"

#define SECRET "00112233445566778899aabbccddeeff"

static void close_world(job_rank *r)
{
    (void)banyan_world_close(r->world);
    r->world = NULL;
}

static banyan_status open_with(job_rank *r, banyan_world_options *options)
{
    options->rank = r->rank;
    options->world_size = r->count;
    options->timeout_ns = r->timeout_ns;
    banyan_status status = banyan_world_open(options, &r->world);
    CHECK(status != BANYAN_OK || (banyan_world_size(r->world) == r->count &&
                                  banyan_world_node_count(r->world) == (options->node ? 2 : 1)));
    return status;
}

/* The id is used up after all ranks were ready: a second call then says so. */
static banyan_status open_while_id_lasts(job_rank *r, banyan_world_options *options)
{
    static int calls;
    options->unique_id = r->id;
    banyan_status status = open_with(r, options);
    bool used_up = calls++ > 0 && status == BANYAN_ERR_SYSTEM &&
                   strstr(banyan_last_error(), "cannot connect to the rendezvous");
    return used_up ? BANYAN_OK : status;
}

static banyan_status open_by_id(job_rank *r)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    return open_while_id_lasts(r, &options);
}

/* Ranks of "nodes" other than that of the id meet over TCP. */
static banyan_status open_by_id_on_nodes(job_rank *r)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.node = r->rank < r->count / 2 ? "first" : "second";
    return open_while_id_lasts(r, &options);
}

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void be_launched(job_rank *r)
{
    char job[64];
    snprintf(job, sizeof job, "faults-%d-%.40s", (int)getppid(), strrchr(r->folder, '/') + 1);
    setenv("BANYAN_JOB", job, 1);
    set_number("BANYAN_RANK", r->rank);
    set_number("BANYAN_WORLD_SIZE", r->count);
    set_number("BANYAN_LOCAL_RANK", r->rank);
    set_number("BANYAN_LOCAL_SIZE", r->count);
}

static banyan_status open_launched(job_rank *r)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    return open_with(r, &options);
}

/* A port that was free when the program began. */
static int port;

static void find_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    close(fd);
    port = ntohs(address.sin_port);
}

static banyan_status open_at_port(job_rank *r)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.address = "127.0.0.1";
    options.port = port;
    options.secret = SECRET;
    options.node = r->rank < r->count / 2 ? "first" : "second";
    return open_with(r, &options);
}

static banyan_status split_halves(job_rank *r)
{
    int half = r->count / 2, first = r->rank < half ? 0 : half, ranks[2];
    for (int i = 0; i < half; i++)
        ranks[i] = first + i;
    banyan_world *sub;
    RETURN_IF_FAILED(banyan_world_split(r->world, ranks, half, &sub));
    banyan_status status = banyan_world_barrier(sub);
    error_kept kept = error_keep(status);
    (void)banyan_world_close(sub);
    return error_again(&kept);
}

static banyan_status close_sub(job_rank *r)
{
    banyan_world *sub = r->things;
    r->things = NULL;
    return banyan_world_close(sub);
}

static void have_sub(job_rank *r)
{
    static const int all[] = {3, 2, 1, 0};
    CHECK_OK(
        banyan_world_split(r->world, all + 4 - r->count, r->count, (banyan_world **)&r->things));
}

static const job_case cases[] = {
    {.name = "open", .call = open_by_id, .undo = close_world, .opens_world = true},
    {.name = "open_nodes", .call = open_by_id_on_nodes, .undo = close_world, .opens_world = true},
    {.name = "open_launched",
     .prepare = be_launched,
     .call = open_launched,
     .undo = close_world,
     .opens_world = true},
    {.name = "open_port", .call = open_at_port, .undo = close_world, .opens_world = true},
    /* The other half continues. */
    {.name = "split_halves",
     .call = split_halves,
     .ranks = 4,
     .may_differ = true,
     .only_once = true},
    {.name = "close_sub", .prepare = have_sub, .call = close_sub, .only_once = true},
};

int main(void)
{
    find_port();
    return job_main(cases, sizeof cases / sizeof *cases, 10);
}
