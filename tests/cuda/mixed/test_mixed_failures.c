/* Peers that die or come late end mixed collectives between GPUs of a node, with a message that
 * names them. All waits end. */
#include <signal.h>
#include <unistd.h>

#include "core/deadline.h"
#include "cuda/gpu_mixed.h"

#define ELEMS_MOST 20000

typedef struct failing {
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    uint64_t row_elems;
} failing;

#define GATHER BANYAN_MIXED_ALLREDUCE_ALLGATHER
#define SCATTER BANYAN_MIXED_REDUCESCATTER_ALLREDUCE

static const failing cases[] = {
    {GATHER, BANYAN_MIXED_ONE_SHOT, 10},
    {SCATTER, BANYAN_MIXED_TWO_SHOT, 10},
    {GATHER, BANYAN_MIXED_SINGLE, ELEMS_MOST},
    {SCATTER, BANYAN_MIXED_SEPARATE, 10},
};
#define CASES (sizeof cases / sizeof *cases)

static mixed_one one_of(const failing *of)
{
    return (mixed_one){of->op, of->mode, DATA_WHOLE, 1, of->row_elems, false};
}

static mixed_case open_case(int rank, int count, const banyan_unique_id *id, uint64_t timeout_ns)
{
    static const grid_sizes sizes = {1, 2, 2, 1, 1};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    mixed_case c;
    options.max_bytes = 1 << 20;
    options.timeout_ns = timeout_ns;
    gpu_case_open(&c, ranks_open_world(rank, count, id, 60 * NS_PER_S), options, ELEMS_MOST);
    return c;
}

/* Make calls until one fails, or a queued one has failed. */
static banyan_status run_until_failure(mixed_case *c, const mixed_one *call)
{
    banyan_status status = BANYAN_OK;
    case_fill(c, call);
    for (int i = 0; i < 4 && status == BANYAN_OK; i++) {
        status = case_call(c, call);
        gpu_stream_wait(c->device, c->stream);
        if (status == BANYAN_OK)
            status = banyan_mixed_status(c->mixed);
    }
    return status;
}

/* Communicators report their runs' results later, possibly for runs of several operations. */
static void check_sentence(const mixed_one *call)
{
    char name[64];
    const char *mode = banyan_mixed_mode_name(call->mode);
    if (call->mode < BANYAN_MIXED_SINGLE)
        snprintf(name, sizeof name, "%s (%s)", banyan_mixed_op_name(call->op), mode);
    else
        snprintf(name, sizeof name, "the call was in mode %s", mode);
    CHECK(strstr(banyan_last_error(), name), "\"%s\" is not in: %s", name, banyan_last_error());
}

static void close_failed(mixed_case *c, const mixed_one *call)
{
    uint64_t began_ns = time_now_ns();
    CHECK(case_call(c, call) != BANYAN_OK);
    CHECK(banyan_mixed_status(c->mixed) != BANYAN_OK);
    CHECK(banyan_mixed_close(c->mixed) != BANYAN_OK);
    banyan_world_close(c->world);
    CHECK(time_now_ns() - began_ns < 4 * NS_PER_S, "closing took too long");
}

static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    mixed_one call = one_of(context);
    mixed_case c = open_case(rank, count, id, 60 * NS_PER_S);
    case_run(&c, &call);
    CHECK_OK(banyan_world_barrier(c.world));
    if (rank == 3) {
        usleep(200000); /* the others leave the barrier */
        raise(SIGKILL);
    }
    banyan_status status = run_until_failure(&c, &call);
    /* A peer that detects it first informs this rank. */
    CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED, "%s: %s",
          banyan_status_name(status), banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 3 (pid"), "%s", banyan_last_error());
    close_failed(&c, &call);
}

static void come_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    mixed_one call = one_of(context);
    uint64_t timeout_s = gpu_is_emulated() ? 4 : 12; /* real GPUs need this time to open */
    mixed_case c = open_case(rank, count, id, timeout_s * NS_PER_S);
    case_run(&c, &call);
    CHECK_OK(banyan_world_barrier(c.world));
    if (rank == 1) {
        sleep((unsigned)(2 * timeout_s + 1));
        _exit(0);
    }
    banyan_status status = run_until_failure(&c, &call);
    /* A rank that waits for one that has given up gets that error instead. */
    CHECK(status == BANYAN_ERR_TIMEOUT || status == BANYAN_ERR_PEER_LOST ||
              status == BANYAN_ERR_ABORTED,
          "%s", banyan_last_error());
    CHECK(strstr(banyan_last_error(), "waited"), "%s", banyan_last_error());
    CHECK(status != BANYAN_ERR_TIMEOUT ||
              strstr(banyan_last_error(), "; timeout_ns of banyan_mixed_options sets how long"),
          "%s", banyan_last_error());
    check_sentence(&call);
    (void)banyan_mixed_close(c.mixed);
    banyan_world_close(c.world);
}

static void fork_four(ranks_raw_fn fn, const failing *of, int victim, int ended)
{
    int statuses[4];
    ranks_fork(4, fn, (void *)of, statuses);
    for (int rank = 0; rank < 4; rank++)
        CHECK(statuses[rank] == (rank == victim ? ended : 0), "%s (%s): rank %d ended with %#x",
              banyan_mixed_op_name(of->op), banyan_mixed_mode_name(of->mode), rank,
              (unsigned)statuses[rank]);
}

static void a_death_is_told_in_every_mode(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        fork_four(die, &cases[i], 3, SIGKILL);
}

static void a_late_peer_of_communicators_is_told(void **state)
{
    (void)state;
    if (!gpu_worlds_are_cheap())
        skip();
    /* Fused modes: test_mixed_engine.c. */
    for (size_t i = CASES - 2; i < CASES; i++)
        fork_four(come_late, &cases[i], 1, 0);
}

int main(void)
{
    gpu_count();
    if (gpu_count() < 4)
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_told_in_every_mode),
        cmocka_unit_test(a_late_peer_of_communicators_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
