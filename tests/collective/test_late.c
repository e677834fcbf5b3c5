/* A rank that comes to a run after the others' timeout gets an error at once: loaded plans run
 * without a gate, and the world has ended by then. */
#include "support/test.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/deadline.h"

enum { RANKS = 4, ELEMS = 1000 };
/* The others' timeout, and the late rank's own, which it must not wait out. */
#define TIMEOUT_NS (NS_PER_S / 2)
#define OWN_TIMEOUT_NS (60 * NS_PER_S)

/* In shared memory: number of ranks whose run has failed, and which stay. */
static _Atomic int *failed;

/* The job, or a sub-world with other rank numbers; a run by a communicator, or by a plan. */
struct play {
    bool in_sub, by_plan;
    int late;         /* rank of the job */
    const char *name; /* the late rank's name in messages */
};

static const struct play plays[] = {
    {false, false, 2, "; rank 2 (pid "},
    {false, true, 0, "; rank 0 (pid "},
    {true, false, 3, "; rank 0 (rank 3 of the job, pid "},
    {true, true, 1, "; rank 2 (rank 1 of the job, pid "},
};
#define PLAYS (sizeof plays / sizeof *plays)

static const int members[] = {3, 2, 1};

struct player {
    banyan_world *world;
    banyan_comm *comm;
    banyan_executor *executor;
    banyan_loaded_plan *loaded;
    float input[ELEMS], output[ELEMS];
};

static void load_plan(struct player *p)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_plan *plan;
    params.ranks = banyan_world_size(p->world);
    CHECK_OK(banyan_algorithm_compile("allreduce_ring", &params, &plan));
    options.max_message_bytes = sizeof p->input;
    CHECK_OK(banyan_executor_open(p->world, NULL, &p->executor));
    CHECK_OK(banyan_loaded_plan_open(p->executor, plan, &options, &p->loaded));
    banyan_plan_destroy(plan);
}

static banyan_status run(struct player *p)
{
    if (p->loaded)
        return banyan_loaded_plan_run(p->loaded, p->input, p->output, sizeof p->input, BANYAN_F32,
                                      NULL);
    return banyan_comm_allreduce(p->comm, p->input, p->output, ELEMS, BANYAN_F32, BANYAN_SUM, NULL);
}

static void check_message(const struct play *play)
{
    const char *message = banyan_last_error();
    CHECK(strstr(message, play->name), "\"%s\" is not in: %s", play->name, message);
    CHECK(strstr(message, " waited 0.") && strstr(message, "BANYAN_TIMEOUT") &&
              strstr(message, "ended its world"),
          "%s", message);
}

/* Ranks that waited stay in the job, so only their report can inform the late one. */
static void run_late(struct player *p, const struct play *play, bool late)
{
    int others = banyan_world_size(p->world) - 1;
    CHECK_OK(run(p));
    CHECK_OK(banyan_world_barrier(p->world));
    CHECK_OK(banyan_world_set_timeout(p->world, late ? OWN_TIMEOUT_NS : TIMEOUT_NS));
    while (late && atomic_load(failed) < others)
        usleep(1000);
    usleep(late ? 300000 : 0);
    uint64_t began_ns = time_now_ns();
    CHECK_FAILS(run(p), BANYAN_ERR_TIMEOUT, "waited");
    uint64_t took_ns = time_now_ns() - began_ns;
    check_message(play);
    CHECK(took_ns < (late ? NS_PER_S / 4 : 2 * NS_PER_S), "%.2f s", (double)took_ns / 1e9);
    CHECK(!late || strstr(banyan_last_error(), " s before this run of rank "), "%s",
          banyan_last_error());
    CHECK_FAILS(banyan_world_check(p->world), BANYAN_ERR_TIMEOUT, play->name);
    atomic_fetch_add(failed, 1);
    while (atomic_load(failed) <= others)
        usleep(1000);
}

static void play_rank(int rank, int count, const banyan_unique_id *id, void *context)
{
    const struct play *play = context;
    static struct player p;
    banyan_world *job = ranks_open_world(rank, count, id, OWN_TIMEOUT_NS);
    p.world = job;
    if (play->in_sub && rank > 0)
        CHECK_OK(banyan_world_split(job, members, 3, &p.world));
    if (!play->in_sub || rank > 0) {
        if (play->by_plan)
            load_plan(&p);
        else
            CHECK_OK(banyan_comm_create(p.world, NULL, &p.comm));
        run_late(&p, play, rank == play->late);
        banyan_loaded_plan_close(p.loaded);
        banyan_executor_close(p.executor);
        (void)banyan_comm_destroy(p.comm);
    }
    if (!play->in_sub) {
        CHECK_FAILS(banyan_world_close(job), BANYAN_ERR_TIMEOUT, play->name);
        return;
    }
    /* The job continues. */
    if (rank > 0)
        CHECK_FAILS(banyan_world_close(p.world), BANYAN_ERR_TIMEOUT, play->name);
    CHECK_OK(banyan_world_barrier(job));
    CHECK_OK(banyan_world_close(job));
}

static void a_rank_that_comes_late_to_a_run_is_told_at_once(void **state)
{
    (void)state;
    failed = mmap(NULL, sizeof *failed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(failed != MAP_FAILED);
    for (size_t i = 0; i < PLAYS; i++) {
        int statuses[RANKS];
        atomic_store(failed, 0);
        ranks_fork(RANKS, play_rank, (void *)&plays[i], statuses);
        for (int rank = 0; rank < RANKS; rank++)
            assert_int_equal(statuses[rank], 0);
    }
    munmap(failed, sizeof *failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_comes_late_to_a_run_is_told_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
