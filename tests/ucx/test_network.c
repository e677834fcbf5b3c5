/* Tensors, by either copy backend, and sums cross between four nodes of two ranks, each node with a
 * network of its own. Every survivor names a node or rank that is lost, its destination is torn,
 * and it goes on in a new world. */
#include "support/nodes.h"
#include "support/test.h"
#include "support/ucx.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"

#define NODES 4
#define RANKS (2 * NODES)
#define ROWS 640
#define COLUMNS 1000
#define SUMMED 1500
#define SECRET "00112233445566778899aabbccddeeff"
/* As in docs/limits.md, plus slack for a busy machine. */
#define TIMEOUT_NS (4 * NS_PER_S)
#define LOST_NS (6 * NS_PER_S + 4 * NS_PER_S)

enum fault { NO_FAULT, CUT_OFF, KILLED, STOPPED };

/* In memory that all processes share. */
struct job {
    const char *backend; /* NULL: the default, direct */
    enum fault fault;
    _Atomic int moving; /* ranks whose weights move again and again */
    _Atomic bool is_hit;
    _Atomic uint64_t hit_ns;
};

/* Ranks 0 and 1 are on node 0, 2 and 3 on node 1, and so on. */
static void network_open(int rank, int size, uint16_t port, uint64_t timeout_ns,
                         banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    char address[NODES_ADDRESS_BYTES];
    nodes_address(0, address);
    options.rank = rank;
    options.world_size = size;
    options.address = address;
    options.port = port;
    options.secret = SECRET;
    options.timeout_ns = timeout_ns;
    CHECK_OK(banyan_world_open(&options, world));
    CHECK(banyan_world_node_count(*world) == size / 2, "%d nodes", banyan_world_node_count(*world));
}

static float element(int row, int column, int version)
{
    return (float)((row * COLUMNS + column) % 65536 * 16 + version);
}

typedef struct weights {
    banyan_layout *rows, *columns;
    banyan_tensors *source, *destination;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    banyan_comm *comm;
} weights;

static void weights_open(weights *w, banyan_world *world, const char *backend)
{
    int rank = banyan_world_rank(world);
    banyan_mesh mesh = {.ndim = 1, .extent = {banyan_world_size(world)}};
    banyan_placement by_row = {BANYAN_SHARD, 0}, by_column = {BANYAN_SHARD, 1};
    int64_t shape[] = {ROWS, COLUMNS};
    CHECK_OK(banyan_layout_create(&w->rows));
    CHECK_OK(banyan_layout_create(&w->columns));
    banyan_layout_add_sharded(w->rows, "w", BANYAN_F32, 2, shape, &mesh, &by_row, rank);
    banyan_layout_add_sharded(w->columns, "w", BANYAN_F32, 2, shape, &mesh, &by_column, rank);
    CHECK_OK(banyan_tensors_alloc(w->rows, world, &w->source));
    CHECK_OK(banyan_tensors_alloc(w->columns, world, &w->destination));
    CHECK_OK(banyan_reshard_plan_create(w->rows, w->columns, world, NULL, &w->plan));
    CHECK_OK(banyan_copy_service_open(world, backend, NULL, &w->service));
    CHECK(strcmp(banyan_copy_service_name(w->service), backend ? backend : "direct") == 0);
    CHECK_OK(banyan_comm_create(world, NULL, &w->comm));
}

static void weights_close(weights *w)
{
    (void)banyan_comm_destroy(w->comm);
    banyan_copy_service_close(w->service);
    banyan_reshard_plan_destroy(w->plan);
    banyan_tensors_destroy(w->source);
    banyan_tensors_destroy(w->destination);
    banyan_layout_destroy(w->rows);
    banyan_layout_destroy(w->columns);
}

/* Sum a vector of a version over all ranks, and compare every element. */
static banyan_status weights_sum(const weights *w, banyan_world *world, int version)
{
    int64_t input[SUMMED], output[SUMMED], size = banyan_world_size(world);
    for (int i = 0; i < SUMMED; i++)
        input[i] = (int64_t)version * SUMMED + i + ((int64_t)1 << (8 + banyan_world_rank(world)));
    memset(output, 0xff, sizeof output);
    banyan_status status =
        banyan_comm_allreduce(w->comm, input, output, SUMMED, BANYAN_I64, BANYAN_SUM, NULL);
    for (int i = 0; status == BANYAN_OK && i < SUMMED; i++)
        CHECK(output[i] == size * ((int64_t)version * SUMMED + i) + (((1 << size) - 1) << 8),
              "element %d of version %d", i, version);
    return status;
}

/* Move one version, and compare every element. */
static banyan_status weights_move(weights *w, banyan_world *world, int version)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    const DLTensor *from = banyan_tensors_get(w->source, 0);
    const DLTensor *to = banyan_tensors_get(w->destination, 0);
    float *source = from->data, *destination = to->data;
    int rows = (int)from->shape[0], columns = (int)to->shape[1];
    int first_row = (ROWS + size - 1) / size * rank;
    int first_column = (COLUMNS + size - 1) / size * rank;
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < COLUMNS; column++)
            source[row * COLUMNS + column] = element(first_row + row, column, version);
    memset(destination, 0xff, (size_t)ROWS * (size_t)columns * sizeof *destination);
    banyan_status status =
        banyan_reshard_execute(w->plan, w->source, w->destination, w->service, world, NULL, NULL);
    for (int row = 0; status == BANYAN_OK && row < ROWS; row++)
        for (int column = 0; column < columns; column++)
            CHECK(destination[row * columns + column] ==
                      element(row, first_column + column, version),
                  "row %d, column %d of version %d", row, first_column + column, version);
    return status;
}

/* After a failed run, the destination is torn, or nothing has changed: some rank did not enter. */
static void check_state(const weights *w, banyan_status status, bool in_move)
{
    const DLTensor *to = banyan_tensors_get(w->destination, 0);
    const unsigned char *bytes = to->data;
    size_t count = (size_t)(to->shape[0] * to->shape[1]) * sizeof(float);
    if (!in_move) {
        CHECK(banyan_tensors_get_state(w->destination) == BANYAN_TENSORS_WHOLE);
    } else if (banyan_tensors_get_state(w->destination) != BANYAN_TENSORS_TORN) {
        CHECK(status == BANYAN_ERR_TIMEOUT);
        for (size_t i = 0; i < count; i++)
            CHECK(bytes[i] == 0xff, "byte %zu has changed", i);
    }
}

/* All ranks of the job, with a fault or without. */
static void play(struct job *job, int rank)
{
    banyan_world *world;
    weights w;
    banyan_status status = BANYAN_OK;
    bool in_move = false;
    network_open(rank, RANKS, 29600, job->fault == STOPPED ? TIMEOUT_NS : 0, &world);
    weights_open(&w, world, job->backend);
    int versions = job->fault == NO_FAULT ? 5 : 1 << 14;
    for (int version = 1; version <= versions && status == BANYAN_OK; version++) {
        status = weights_move(&w, world, version);
        in_move = status != BANYAN_OK;
        if (status == BANYAN_OK)
            status = weights_sum(&w, world, version);
        if (version == 2)
            atomic_fetch_add(&job->moving, 1);
    }
    if (job->fault == NO_FAULT) {
        CHECK_OK(status);
        weights_close(&w);
        CHECK_OK(banyan_world_close(world));
        return;
    }
    double took = (double)(time_now_ns() - job->hit_ns) / 1e9;
    /* A stopped process may go on again: the deadline of the wait decides. */
    banyan_status expected = job->fault == STOPPED ? BANYAN_ERR_TIMEOUT : BANYAN_ERR_PEER_LOST;
    CHECK(job->is_hit && status == expected, "%s: %s", banyan_status_name(status),
          banyan_last_error());
    printf("rank %d after %.1f s: %s\n", rank, took, banyan_last_error());
    /* The cut-off ranks lose some other rank. */
    if (rank < RANKS - 2)
        CHECK(strstr(banyan_last_error(), "rank 6") || strstr(banyan_last_error(), "rank 7"), "%s",
              banyan_last_error());
    CHECK(took < LOST_NS / 1e9, "%.1f s", took);
    check_state(&w, status, in_move);
    weights_close(&w);
    (void)banyan_world_close(world);
    if (rank >= RANKS - 2)
        return;
    network_open(rank, RANKS - 2, 29601, 0, &world);
    weights_open(&w, world, job->backend);
    for (int version = 1; version <= 2; version++) {
        CHECK_OK(weights_move(&w, world, version));
        CHECK_OK(weights_sum(&w, world, version));
    }
    weights_close(&w);
    CHECK_OK(banyan_world_close(world));
}

static pid_t rank_start(struct job *job, int rank)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        nodes_enter(rank / 2);
        play(job, rank);
        fflush(NULL);
        _exit(0);
    }
    return pid;
}

static void hit(struct job *job, pid_t last_rank)
{
    uint64_t deadline_ns = deadline_after(60 * NS_PER_S);
    while (job->moving < RANKS) {
        CHECK(deadline_left_ns(deadline_ns) > 0, "%d ranks of %d move", job->moving, RANKS);
        usleep(1000);
    }
    job->hit_ns = time_now_ns();
    job->is_hit = true;
    if (job->fault == CUT_OFF)
        nodes_connect(NODES - 1, false);
    else
        kill(last_rank, job->fault == KILLED ? SIGKILL : SIGSTOP);
}

static void run_job(void *context)
{
    struct job *job = context;
    pid_t ranks[RANKS];
    int status, failures = 0;
    for (int rank = 0; rank < RANKS; rank++)
        ranks[rank] = rank_start(job, rank);
    if (job->fault != NO_FAULT)
        hit(job, ranks[RANKS - 1]);
    for (int rank = 0; rank < RANKS; rank++) {
        if (job->fault == STOPPED && rank == RANKS - 1)
            kill(ranks[rank], SIGKILL);
        CHECK(waitpid(ranks[rank], &status, 0) == ranks[rank]);
        bool was_killed = rank == RANKS - 1 && (job->fault == KILLED || job->fault == STOPPED);
        failures += was_killed ? !WIFSIGNALED(status) : status != 0;
    }
    CHECK(failures == 0, "%d ranks failed", failures);
}

static void run_with(enum fault fault)
{
    static const char *const backends[] = {NULL, "pipeline"};
    struct job *job =
        mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(job != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        *job = (struct job){.backend = backends[i], .fault = fault};
        ranks_in_networks(NODES, run_job, job);
    }
    munmap(job, sizeof *job);
}

static void weights_move_between_machines(void **state)
{
    (void)state;
    run_with(NO_FAULT);
}

static void a_machine_that_is_cut_off_is_named(void **state)
{
    (void)state;
    run_with(CUT_OFF);
}

static void a_killed_rank_is_named_on_all_machines(void **state)
{
    (void)state;
    run_with(KILLED);
}

static void a_stopped_rank_is_named_on_all_machines(void **state)
{
    (void)state;
    run_with(STOPPED);
}

int main(void)
{
    if (!ucx_is_there())
        return 77;
    /* Shared memory would reach across the namespaces. */
    setenv("UCX_TLS", "tcp", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_move_between_machines),
        cmocka_unit_test(a_machine_that_is_cut_off_is_named),
        cmocka_unit_test(a_killed_rank_is_named_on_all_machines),
        cmocka_unit_test(a_stopped_rank_is_named_on_all_machines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
