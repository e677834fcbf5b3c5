/* Worlds that are started apart, each by processes of its own: to join, kill and start again. */
#ifndef TESTS_WORLD_CONNECT_APART_H
#define TESTS_WORLD_CONNECT_APART_H

#include "support/test.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "support/nodes.h"

#define APART_SECRET "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
#define APART_JOBS 1100
#define APART_RANKS 8
#define APART_LOG_BYTES 65536

/* In memory that all processes of a test share. */
struct apart {
    uint64_t seed;
    int ranks_each;     /* of a world, in each node; 0: 1 */
    char address[64];   /* of the listener, once `listens` is not 0 */
    char listen_at[16]; /* where later listeners listen: at the port of the first */
    char passes_on[64]; /* of a world that passes on what it gets */
    _Atomic int listens;
    _Atomic int marks[16]; /* of any meaning to a test */
    _Atomic int jobs;
    struct {
        banyan_unique_id id;
        _Atomic bool has_id;
    } ids[APART_JOBS];
    _Atomic size_t log_bytes;
    char log[APART_LOG_BYTES]; /* of the processes that called apart_keep_log */
};

typedef void (*apart_rank)(banyan_world *world, struct apart *shared);

/* A world's processes. */
struct apart_job {
    pid_t ranks[APART_RANKS];
    int size;
};

static inline void apart_wait(_Atomic int *mark, int wanted)
{
    uint64_t until_ns = deadline_after(60 * NS_PER_S);
    while (atomic_load(mark) < wanted) {
        CHECK(deadline_left_ns(until_ns) > 0, "a mark stays %d, below %d", atomic_load(mark),
              wanted);
        usleep(1000);
    }
}

static inline void apart_log_line(banyan_log_level level, const char *message, void *context)
{
    struct apart *shared = context;
    size_t bytes = strlen(message) + 1;
    (void)level;
    fprintf(stderr, "%s\n", message);
    size_t at = atomic_fetch_add(&shared->log_bytes, bytes);
    if (at + bytes < sizeof shared->log) {
        memcpy(shared->log + at, message, bytes - 1);
        shared->log[at + bytes - 1] = '\n';
    }
}

static inline void apart_keep_log(struct apart *shared)
{
    banyan_log_set(apart_log_line, shared);
}

/* Wait for a line of the log with this text. */
static inline void apart_expect_log(struct apart *shared, const char *text)
{
    uint64_t until_ns = deadline_after(20 * NS_PER_S);
    while (!strstr(shared->log, text)) {
        CHECK(deadline_left_ns(until_ns) > 0, "\"%s\" is not in the log: %s", text, shared->log);
        usleep(1000);
    }
}

static inline void apart_run_rank(struct apart *shared, int job, int rank, int size, int node,
                                  apart_rank run)
{
    banyan_world *world;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    ranks_become_child();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ranks_networks() > 0)
        nodes_enter((node + rank / (shared->ranks_each > 0 ? shared->ranks_each : 1)) %
                    ranks_networks());
    if (rank == 0) {
        CHECK_OK(banyan_unique_id_create(&shared->ids[job].id));
        atomic_store(&shared->ids[job].has_id, true);
    }
    while (!atomic_load(&shared->ids[job].has_id))
        usleep(500);
    options.rank = rank;
    options.world_size = size;
    options.unique_id = &shared->ids[job].id;
    options.timeout_ns = 120 * NS_PER_S;
    CHECK_OK(banyan_world_open(&options, &world));
    run(world, shared);
    CHECK_OK(banyan_world_close(world));
    fflush(NULL);
    _exit(0);
}

/* Start a world. In namespaces, its ranks fill consecutive nodes from `node` on. */
static inline struct apart_job apart_start(struct apart *shared, int size, int node, apart_rank run)
{
    struct apart_job started = {.size = size};
    int job = atomic_fetch_add(&shared->jobs, 1);
    CHECK(job < APART_JOBS && size <= APART_RANKS);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        started.ranks[rank] = fork();
        CHECK(started.ranks[rank] >= 0);
        if (started.ranks[rank] == 0)
            apart_run_rank(shared, job, rank, size, node, run);
    }
    return started;
}

static inline void apart_kill(const struct apart_job *job, int first, int last)
{
    for (int rank = first; rank <= last; rank++)
        kill(job->ranks[rank], SIGKILL);
}

/* Wait for a world's end: every rank from `first` to `last` must succeed, and others, which were
 * killed or lost a peer, may not. */
static inline void apart_end(const struct apart_job *job, int first, int last)
{
    for (int rank = 0; rank < job->size; rank++) {
        int status;
        CHECK(waitpid(job->ranks[rank], &status, 0) == job->ranks[rank]);
        CHECK(status == 0 || rank < first || rank > last, "rank %d ends with %#x", rank,
              (unsigned)status);
    }
}

static inline void apart_end_well(const struct apart_job *job)
{
    apart_end(job, 0, job->size - 1);
}

static inline void apart_end_killed(const struct apart_job *job)
{
    apart_end(job, job->size, job->size);
}

/* Open a listener, and tell the other worlds its address. A trainer that comes back listens at the
 * port of the first one. */
static inline banyan_listener *apart_listen(banyan_world *world, struct apart *shared,
                                            const banyan_connect_options *options)
{
    banyan_listener *listener;
    CHECK_OK(banyan_world_listen(world, shared->listen_at[0] ? shared->listen_at : NULL,
                                 APART_SECRET, options, &listener));
    if (banyan_world_rank(world) == 0) {
        const char *port = strrchr(banyan_listener_address(listener), ':');
        snprintf(shared->listen_at, sizeof shared->listen_at, "%s", port);
        snprintf(shared->address, sizeof shared->address, "%s", banyan_listener_address(listener));
        atomic_fetch_add(&shared->listens, 1);
    }
    return listener;
}

static inline banyan_world *apart_accept(banyan_listener *listener)
{
    banyan_world *joined = NULL;
    CHECK_OK(banyan_listener_accept(listener, 60 * NS_PER_S, &joined));
    CHECK(joined != NULL, "nobody has connected");
    return joined;
}

static inline banyan_world *apart_connect(banyan_world *world, struct apart *shared)
{
    banyan_world *joined = NULL;
    apart_wait(&shared->listens, 1);
    CHECK_OK(banyan_world_connect(world, shared->address, APART_SECRET, NULL, &joined));
    return joined;
}

struct apart_play {
    void (*play)(struct apart *shared);
    struct apart *shared;
};

static inline void apart_run(void *context)
{
    const struct apart_play *run = context;
    run->play(run->shared);
}

/* Run a test in a process of its own, in which networks are made if that is wanted. */
static inline void apart_test(void (*play)(struct apart *shared))
{
    struct apart *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    shared->seed = random_seed();
    struct apart_play run = {play, shared};
    ranks_in_networks(ranks_networks(), apart_run, &run);
    munmap(shared, sizeof *shared);
}

#endif
