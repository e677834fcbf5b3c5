/* A communicator on GPUs after a failed call. If the peer was late, all ranks reset, with their
 * plans and graphs; if it is dead, they get an error. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "support/gpu/gpu_stream.h"
#include "support/test.h"

#define COUNT 900
#define SHORT_NS NS_PER_S

struct caller {
    banyan_world *world;
    banyan_comm *comm;
    int rank, ranks;
    DLDevice device;
    void *stream;
    int32_t *input, *output; /* on the device; the output is an all-gather's */
};

static void enter(struct caller *c, int rank, int count, const banyan_unique_id *id,
                  uint64_t timeout_ns)
{
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    void *taken;
    *c = (struct caller){.rank = rank, .ranks = count, .device = gpu_device_for(rank)};
    c->world = ranks_open_world(rank, count, id, 60 * NS_PER_S);
    options.device = c->device;
    options.timeout_ns = timeout_ns;
    CHECK_OK(banyan_comm_create(c->world, &options, &c->comm));
    c->stream = gpu_stream_create(c->device);
    CHECK_OK(gpu_memory()->alloc(c->device.device_id, (size_t)(1 + count) * COUNT * 4, &taken));
    c->input = taken;
    c->output = c->input + COUNT;
}

static void leave(struct caller *c)
{
    banyan_comm_destroy(c->comm);
    gpu_stream_destroy(c->device, c->stream);
    gpu_memory()->free(c->device.device_id, c->input);
    banyan_world_close(c->world);
}

static int32_t value_of(int rank, int round, int i)
{
    return 1000000 * rank + 1000 * round + i;
}

static void fill(struct caller *c, int round)
{
    int32_t values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = value_of(c->rank, round, i);
    gpu_copy(c->input, values, sizeof values);
    gpu_poison(c->output, (size_t)c->ranks * COUNT * 4);
}

static banyan_status reduce(struct caller *c)
{
    return banyan_comm_allreduce(c->comm, c->input, c->output, COUNT, BANYAN_I32, BANYAN_SUM,
                                 c->stream);
}

static void check_reduced(struct caller *c, int round)
{
    gpu_stream_wait(c->device, c->stream);
    CHECK_OK(banyan_comm_status(c->comm));
    int32_t *got = gpu_read(c->output, COUNT * 4);
    for (int i = 0; i < COUNT; i++) {
        int32_t sum = 0;
        for (int r = 0; r < c->ranks; r++)
            sum += value_of(r, round, i);
        CHECK(got[i] == sum, "round %d: sum %d is %d, not %d", round, i, got[i], sum);
    }
    free(got);
}

static void check_gathered(struct caller *c, int round)
{
    gpu_stream_wait(c->device, c->stream);
    CHECK_OK(banyan_comm_status(c->comm));
    int32_t *got = gpu_read(c->output, (size_t)c->ranks * COUNT * 4);
    for (int i = 0; i < c->ranks * COUNT; i++)
        CHECK(got[i] == value_of(i / COUNT, round, i % COUNT), "round %d: gathered %d is %d", round,
              i, got[i]);
    free(got);
}

static void *capture_gathering(struct caller *c)
{
    gpu_capture_begin(c->device, c->stream);
    CHECK_OK(banyan_comm_allgather(c->comm, c->input, c->output, COUNT, BANYAN_I32, c->stream));
    return gpu_capture_end(c->device, c->stream);
}

static void play_rounds(struct caller *c, void *graph, int first)
{
    for (int round = first; round < first + 4; round++) {
        fill(c, round);
        CHECK_OK(reduce(c));
        check_reduced(c, round);
        fill(c, round);
        gpu_graph_launch(c->device, graph, c->stream);
        check_gathered(c, round);
    }
}

/* Rank 0 alone runs one plan, and then the other, until their deadlines. */
static void wait_in_vain(struct caller *c, void *graph)
{
    CHECK_OK(reduce(c));
    CHECK_OK(reduce(c));
    gpu_graph_launch(c->device, graph, c->stream);
    gpu_stream_wait(c->device, c->stream);
    CHECK_FAILS(banyan_comm_status(c->comm), BANYAN_ERR_TIMEOUT, "rank 0 waited 1.");
    CHECK(strstr(banyan_last_error(), "; timeout_ns of banyan_comm_options sets how long"), "%s",
          banyan_last_error());
    CHECK_FAILS(reduce(c), BANYAN_ERR_TIMEOUT, "rank 0 waited 1.");
}

static void be_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct caller c;
    (void)context;
    enter(&c, rank, count, id, SHORT_NS);
    void *graph = capture_gathering(&c);
    play_rounds(&c, graph, 0);
    for (int time = 1; time < 3; time++) {
        if (rank == 0)
            wait_in_vain(&c, graph);
        else /* its own waits are as short */
            usleep((useconds_t)(2 * SHORT_NS / 1000 - 200000));
        CHECK_OK(banyan_comm_reset(c.comm));
        play_rounds(&c, graph, 10 * time);
    }
    gpu_graph_destroy(c.device, graph);
    leave(&c);
}

static void a_reset_after_a_late_peer_makes_all_calls_right_again(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, be_late, NULL, statuses);
    for (int r = 0; r < 2; r++)
        assert_int_equal(statuses[r], 0);
}

static void die(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct caller c;
    (void)context;
    enter(&c, rank, count, id, 30 * NS_PER_S);
    fill(&c, 0);
    CHECK_OK(reduce(&c));
    check_reduced(&c, 0);
    CHECK_OK(banyan_world_barrier(c.world));
    if (rank == 1)
        raise(SIGKILL);
    /* Queued, unless the death is known already. */
    banyan_status queued = reduce(&c);
    CHECK(queued == BANYAN_OK || queued == BANYAN_ERR_PEER_LOST, "%s", banyan_last_error());
    gpu_stream_wait(c.device, c.stream);
    CHECK_FAILS(banyan_comm_status(c.comm), BANYAN_ERR_PEER_LOST, "rank 1");
    CHECK_FAILS(banyan_comm_reset(c.comm), BANYAN_ERR_PEER_LOST, "rank 1");
    CHECK_FAILS(reduce(&c), BANYAN_ERR_PEER_LOST, "rank 1");
    leave(&c);
}

static void a_reset_without_a_peer_names_the_lost_rank(void **state)
{
    (void)state;
    ranks_fork_and_lose_one(die, NULL);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reset_after_a_late_peer_makes_all_calls_right_again),
        cmocka_unit_test(a_reset_without_a_peer_names_the_lost_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
