/* Peers that die, come late or abort end a mixed collective, with a message; no wait remains. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/deadline.h"
#include "mixed/mixed_check.h"

#define ELEMS_MOST 200000

/* A mode and a number of elements: packets, units, or communicators. */
typedef struct failing {
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    uint64_t row_elems;
    grid_sizes sizes;
} failing;

#define GATHER BANYAN_MIXED_ALLREDUCE_ALLGATHER
#define SCATTER BANYAN_MIXED_REDUCESCATTER_ALLREDUCE

static const failing cases[] = {
    {GATHER, BANYAN_MIXED_ONE_SHOT, 10, {1, 2, 2, 1, 1}},
    {SCATTER, BANYAN_MIXED_ONE_SHOT, ELEMS_MOST, {1, 2, 2, 1, 1}},
    {GATHER, BANYAN_MIXED_TWO_SHOT, ELEMS_MOST, {1, 2, 2, 1, 1}},
    {SCATTER, BANYAN_MIXED_TWO_SHOT_NODES, 10, {2, 1, 2, 2, 1}},
    {GATHER, BANYAN_MIXED_TWO_SHOT_NODES, ELEMS_MOST, {2, 1, 2, 2, 1}},
    {SCATTER, BANYAN_MIXED_SINGLE, 100, {1, 2, 2, 1, 1}},
    {GATHER, BANYAN_MIXED_SEPARATE, 100, {1, 2, 2, 1, 1}},
    {SCATTER, BANYAN_MIXED_SEPARATE, ELEMS_MOST, {1, 2, 2, 1, 1}},
};
#define CASES (sizeof cases / sizeof *cases)

static mixed_one one_of(const failing *of)
{
    return (mixed_one){of->op, of->mode, DATA_WHOLE, 1, of->row_elems, false};
}

static mixed_case open_case(int rank, int count, const banyan_unique_id *id, const failing *of,
                            uint64_t timeout_ns)
{
    banyan_mixed_options options = options_of(&of->sizes, BANYAN_F32);
    mixed_case c = {.world = ranks_open_world(rank, count, id, timeout_ns)};
    case_open(&c, &options, ELEMS_MOST);
    return c;
}

/* Run until a call fails: a rank that does not wait for the failed one gets the error later. */
static banyan_status run_until_failure(mixed_case *c, const mixed_one *call)
{
    banyan_status status = BANYAN_OK;
    case_fill(c, call);
    for (int i = 0; i < 4 && status == BANYAN_OK; i++)
        status = case_call(c, call);
    return status;
}

/* A failed context stays failed; closing succeeds, and at once. */
static void close_failed(mixed_case *c, const mixed_one *call, banyan_status failed)
{
    uint64_t began_ns = time_now_ns();
    CHECK(case_call(c, call) == failed);
    CHECK(banyan_mixed_status(c->mixed) == failed);
    banyan_mixed *closed = c->mixed;
    CHECK(banyan_mixed_close(c->mixed) != BANYAN_OK);
    CHECK_FAILS(banyan_mixed_close(closed), BANYAN_ERR_INVALID, "closed already");
    banyan_world_close(c->world);
    CHECK(time_now_ns() - began_ns < 2 * NS_PER_S, "closing took too long");
}

static void check_statuses(const int *statuses, int count, int victim, int expected)
{
    for (int rank = 0; rank < count; rank++)
        CHECK(statuses[rank] == (rank == victim ? expected : 0), "rank %d ended with %#x", rank,
              (unsigned)statuses[rank]);
}

/* A counter that all ranks share, even after the death of one: their progress in a case. */
static atomic_int *counted;

static void await_count(int count)
{
    for (int i = 0; i < 20000 && atomic_load(counted) < count; i++)
        usleep(1000);
}

static int share_count(void **state)
{
    (void)state;
    counted =
        mmap(NULL, sizeof *counted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return counted == MAP_FAILED;
}

static int unshare_count(void **state)
{
    (void)state;
    return munmap(counted, sizeof *counted);
}

static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    mixed_one call = one_of(context);
    mixed_case c = open_case(rank, count, id, context, 60 * NS_PER_S);
    for (int i = 0; i < 3; i++)
        case_run(&c, &call);
    atomic_fetch_add(counted, 1);
    if (rank == 3) {
        await_count(count);
        raise(SIGKILL);
    }
    CHECK_FAILS(run_until_failure(&c, &call), BANYAN_ERR_PEER_LOST, "rank 3 ");
    close_failed(&c, &call, BANYAN_ERR_PEER_LOST);
}

static void a_death_ends_the_calls_of_all(void **state)
{
    (void)state;
    int statuses[4];
    for (size_t i = 0; i < CASES; i++) {
        atomic_store(counted, 0);
        ranks_fork(4, die, (void *)&cases[i], statuses);
        check_statuses(statuses, 4, 3, SIGKILL);
    }
}

static banyan_status measure_once(mixed_case *c, const mixed_one *call)
{
    int64_t shape[2] = {(int64_t)call->rows, (int64_t)call->row_elems};
    int64_t gathered[2] = {shape[0] * c->grid.dp, shape[1]};
    DLTensor input = {
        .data = c->input, .device = BANYAN_HOST, .ndim = 2, .dtype = c->dtype, .shape = shape};
    DLTensor output = input;
    uint64_t ns;
    output.data = c->output;
    output.shape = gathered;
    return banyan_mixed_measure(c->mixed, call->op, &input, &output, call->mode, &ns);
}

/* Rank 3 waits in its tp group for rank 2, which does not come, since rank 0 has died. */
static void lose_one_of_another_group(int rank, int count, const banyan_unique_id *id,
                                      void *context)
{
    bool closes = *(const bool *)context;
    static const failing of = {GATHER, BANYAN_MIXED_SEPARATE, 100, {1, 2, 2, 1, 1}};
    mixed_one call = one_of(&of);
    mixed_case c = open_case(rank, count, id, &of, 60 * NS_PER_S);
    case_run(&c, &call);
    uint64_t began_ns = time_now_ns();
    atomic_fetch_add(counted, 1);
    if (rank == 0) {
        await_count(count);
        usleep(200000);
        raise(SIGKILL);
    }
    if (rank == 3) {
        banyan_status status = case_call(&c, &call);
        CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED, "%s",
              banyan_last_error());
        CHECK(strstr(banyan_last_error(), "rank 0 "), "%s", banyan_last_error());
        atomic_fetch_add(counted, 1);
    } else {
        while (banyan_world_check(c.world) == BANYAN_OK)
            usleep(1000);
        if (!closes)
            CHECK_FAILS(measure_once(&c, &call), BANYAN_ERR_PEER_LOST, "rank 0 ");
        if (!closes)
            await_count(count + 1);
    }
    CHECK(banyan_mixed_close(c.mixed) != BANYAN_OK);
    banyan_world_close(c.world);
    CHECK(time_now_ns() - began_ns < 5 * NS_PER_S, "rank %d waited", rank);
}

static void nobody_waits_in_a_group_for_one_that_a_death_elsewhere_ended(void **state)
{
    (void)state;
    int statuses[4];
    for (int i = 0; i < 2; i++) {
        bool closes = i == 1;
        atomic_store(counted, 0);
        ranks_fork(4, lose_one_of_another_group, &closes, statuses);
        check_statuses(statuses, 4, 0, SIGKILL);
    }
}

/* Long enough for opening and the first call on a busy machine. */
#define LATE_NS (3 * NS_PER_S / 2)

/* The ranks that wait time out and stay; then rank 1 comes. */
static void come_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    mixed_one call = one_of(context);
    mixed_case c = open_case(rank, count, id, context, LATE_NS);
    case_run(&c, &call);
    if (rank == 1)
        await_count(count - 1);
    for (int i = 0; rank == 1 && i < 1000 && banyan_mixed_status(c.mixed) == BANYAN_OK; i++)
        usleep(1000); /* the end is on its way */
    uint64_t began_ns = time_now_ns();
    banyan_status status = run_until_failure(&c, &call);
    atomic_fetch_add(counted, 1);
    /* Ranks of other groups get the error from one that waited. */
    CHECK(status == BANYAN_ERR_TIMEOUT, "%s: %s", banyan_status_name(status), banyan_last_error());
    CHECK(strstr(banyan_last_error(), " waited 1.") &&
              strstr(banyan_last_error(), "BANYAN_TIMEOUT"),
          "%s", banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1 (pid ") ||
              strstr(banyan_last_error(), "rank 1 of the job"),
          "%s", banyan_last_error());
    char name[64];
    snprintf(name, sizeof name, "%s (%s)", banyan_mixed_op_name(call.op),
             banyan_mixed_mode_name(call.mode));
    CHECK(rank == 1 || strstr(banyan_last_error(), name), "\"%s\" is not in: %s", name,
          banyan_last_error());
    /* One group may have ended before the others, in which rank 1 then begins a run. */
    CHECK(rank != 1 || call.mode == BANYAN_MIXED_SEPARATE ||
              strstr(banyan_last_error(), " s before this run of rank 1"),
          "%s", banyan_last_error());
    CHECK(time_now_ns() - began_ns < (rank == 1 ? LATE_NS / 2 : 3 * LATE_NS),
          "lateness was noticed too late");
    await_count(count);
    (void)banyan_mixed_close(c.mixed);
    banyan_world_close(c.world);
}

static void a_late_peer_ends_the_calls_of_all(void **state)
{
    (void)state;
    int statuses[4];
    for (size_t i = 0; i < CASES; i++) {
        atomic_store(counted, 0);
        ranks_fork(4, come_late, (void *)&cases[i], statuses);
        check_statuses(statuses, 4, -1, 0);
    }
}

/* Rank 3 makes a different call than rank 2, which waits for it in their group. Every rank's
 * message must count ranks 2 and 3. */
static void call_something_else(int rank, int count, const banyan_unique_id *id, void *context)
{
    mixed_one call = one_of(context);
    mixed_case c = open_case(rank, count, id, context, LATE_NS);
    if (rank == 3)
        call.mode = BANYAN_MIXED_ONE_SHOT;
    if (rank != 2)
        usleep(LATE_NS / 4000); /* so that rank 2 gives up first */
    case_fill(&c, &call);
    banyan_status status = case_call(&c, &call);
    const char *sentence = banyan_last_error();
    CHECK(status != BANYAN_OK);
    CHECK(!strstr(sentence, "banyan_comm_create") ||
              (strstr(sentence, "among the ranks 2, 3 of its tp group") &&
               !strstr(sentence, "among the ranks 0, 1")),
          "%s", sentence);
    CHECK(rank == 3 || strstr(sentence, "allreduce_allgather (separate)"), "%s", sentence);
    (void)banyan_mixed_close(c.mixed);
    banyan_world_close(c.world);
}

static void a_failure_in_a_group_counts_the_ranks_of_that_group(void **state)
{
    static const failing of = {GATHER, BANYAN_MIXED_SEPARATE, 100, {1, 2, 2, 1, 1}};
    (void)state;
    int statuses[4];
    ranks_fork(4, call_something_else, (void *)&of, statuses);
    check_statuses(statuses, 4, -1, 0);
}

static void call_it_off(int rank, int count, const banyan_unique_id *id, void *context)
{
    mixed_one call = one_of(context);
    mixed_case c = open_case(rank, count, id, context, 60 * NS_PER_S);
    case_run(&c, &call);
    atomic_fetch_add(counted, 1);
    if (rank == 2) {
        await_count(count);
        usleep(100000);
        CHECK_OK(banyan_world_abort(c.world, "a test says so"));
    }
    CHECK_FAILS(run_until_failure(&c, &call), BANYAN_ERR_ABORTED, "a test says so");
    close_failed(&c, &call, BANYAN_ERR_ABORTED);
}

static void an_abort_of_the_callers_world_ends_the_calls_of_all(void **state)
{
    (void)state;
    int statuses[4];
    for (size_t i = 0; i < CASES; i++) {
        atomic_store(counted, 0);
        ranks_fork(4, call_it_off, (void *)&cases[i], statuses);
        check_statuses(statuses, 4, -1, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_ends_the_calls_of_all),
        cmocka_unit_test(nobody_waits_in_a_group_for_one_that_a_death_elsewhere_ended),
        cmocka_unit_test(a_late_peer_ends_the_calls_of_all),
        cmocka_unit_test(a_failure_in_a_group_counts_the_ranks_of_that_group),
        cmocka_unit_test(an_abort_of_the_callers_world_ends_the_calls_of_all),
    };
    return cmocka_run_group_tests(tests, share_count, unshare_count);
}
