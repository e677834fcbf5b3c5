/* Joining two halves of a job as worlds that were started apart, with a fault at one rank. */
#include "faults/job.h"

#include <errno.h>

#include "core/deadline.h"
#include "core/status.h"

#define SECRET "0f1e2d3c4b5a69788796a5b4c3d2e1f0"

/* ---- one world ---- */

static banyan_status listen_here(job_rank *r)
{
    return banyan_world_listen(r->world, "127.0.0.1:0", SECRET, NULL,
                               (banyan_listener **)&r->things);
}

static void close_listener(job_rank *r)
{
    banyan_listener_close(r->things);
    r->things = NULL;
}

static void have_listener(job_rank *r)
{
    CHECK_OK(listen_here(r));
}

static banyan_status accept_nobody(job_rank *r)
{
    banyan_world *joined;
    RETURN_IF_FAILED(banyan_listener_accept(r->things, NS_PER_S / 50, &joined));
    CHECK(joined == NULL);
    return BANYAN_OK;
}

/* Port 1 of this machine: nobody listens there. */
static banyan_status connect_in_vain(job_rank *r)
{
    banyan_world *joined;
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    options.connect_timeout_ns = NS_PER_S / 10;
    banyan_status status = banyan_world_connect(r->world, "127.0.0.1:1", SECRET, &options, &joined);
    CHECK(status != BANYAN_OK);
    bool is_in_vain =
        status == BANYAN_ERR_TIMEOUT && strstr(banyan_last_error(), "listens at 127.0.0.1:1: ");
    return is_in_vain ? BANYAN_OK : status;
}

/* ---- two worlds ---- */

/* A rank's half of the job, and the listener's address. */
struct half {
    banyan_world *world;
    banyan_listener *listener; /* NULL: this half connects */
    char address[64];
};

static void have_halves(job_rank *r)
{
    struct half *half = calloc(1, sizeof *half);
    int first = r->rank < r->count / 2 ? 0 : r->count / 2, ranks[2];
    for (int i = 0; i < r->count / 2; i++)
        ranks[i] = first + i;
    CHECK_OK(banyan_world_split(r->world, ranks, r->count / 2, &half->world));
    if (first == 0) {
        CHECK_OK(banyan_world_listen(half->world, "127.0.0.1:0", SECRET, NULL, &half->listener));
        snprintf(half->address, sizeof half->address, "%s",
                 banyan_listener_address(half->listener));
    }
    CHECK_OK(banyan_world_broadcast(r->world, half->address, sizeof half->address, 0));
    r->things = half;
}

/* The half of the failing rank gets the cause. The other half may receive only that the failing one
 * is late or has gone. */
static banyan_status unless_other_half_failed(banyan_status status)
{
    const char *why = banyan_last_error();
    bool has_gone = strstr(why, strerror(ECONNRESET)) || strstr(why, strerror(ECONNREFUSED));
    bool is_lost = status == BANYAN_ERR_TIMEOUT || status == BANYAN_ERR_PEER_LOST ||
                   (status == BANYAN_ERR_SYSTEM && has_gone);
    return is_lost ? BANYAN_OK : status;
}

static banyan_status join_halves(job_rank *r)
{
    struct half *half = r->things;
    banyan_world *joined = NULL;
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    options.connect_timeout_ns = NS_PER_S / 2;
    if (half->listener)
        RETURN_IF_FAILED(banyan_listener_accept(half->listener, NS_PER_S / 2, &joined));
    else
        RETURN_IF_FAILED(unless_other_half_failed(
            banyan_world_connect(half->world, half->address, SECRET, &options, &joined)));
    if (!joined)
        return BANYAN_OK; /* the other half has failed */
    CHECK(banyan_world_size(joined) == r->count && banyan_world_rank(joined) == r->rank);
    banyan_status status = unless_other_half_failed(banyan_world_barrier(joined));
    error_kept kept = error_keep(status);
    (void)banyan_world_close(joined);
    return error_again(&kept);
}

static void close_halves(job_rank *r)
{
    struct half *half = r->things;
    banyan_listener_close(half->listener);
    (void)banyan_world_close(half->world);
    free(half);
    r->things = NULL;
}

static const job_case cases[] = {
    {.name = "listen", .call = listen_here, .undo = close_listener, .finish = close_listener},
    {.name = "accept_nobody",
     .prepare = have_listener,
     .call = accept_nobody,
     .finish = close_listener},
    {.name = "connect_in_vain", .call = connect_in_vain},
    /* The half of the failing rank goes on without the other one, or the other one without it. */
    {.name = "join_halves",
     .prepare = have_halves,
     .call = join_halves,
     .finish = close_halves,
     .may_differ = true},
};

int main(void)
{
    return job_main(cases, sizeof cases / sizeof *cases, 10);
}
