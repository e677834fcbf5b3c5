/* The backend direct between nodes: each way that a task may go, every kind of memory, kept
 * schedules without new registrations, and memory that stays as it is after a failure. The nodes
 * are names here. */
#include "support/test.h"
#include "support/ucx.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "memory/space.h"

#define POISON 0xa5
#define RUNS 6

/* A matrix at one end: `pitch` elements from row to row, or from column to column if it is
 * transposed. */
typedef struct matrix_end {
    int64_t pitch;
    bool is_transposed;
} matrix_end;

typedef struct matrix_case {
    int64_t rows, columns;
    matrix_end from, to;
} matrix_case;

static const matrix_case cases[] = {
    {40, 20000, {20100, false}, {20050, false}},      /* long rows: straight */
    {1, 3000000, {3000000, false}, {3000000, false}}, /* one run of several puts: straight */
    {2500, 300, {310, false}, {300, false}},          /* short rows to a dense place: gathered */
    {900, 800, {900, true}, {800, false}},            /* transposed to a dense place: gathered */
    {2500, 300, {300, false}, {320, false}},          /* short rows to short rows: packed */
    {900, 800, {800, false}, {900, true}},            /* packed */
    {1, 1, {1, false}, {1, false}},                   /* packed, with others in one slot */
    {3, 5, {5, false}, {5, false}},
};

#define CASES (sizeof cases / sizeof *cases)

typedef struct matrix {
    int64_t shape[2], strides[2];
    uint32_t *data;
    size_t elems; /* of its memory */
    DLTensor tensor;
} matrix;

static size_t memory_elems(const matrix_case *of, const matrix_end *end)
{
    return (size_t)((end->is_transposed ? of->columns : of->rows) * end->pitch);
}

static void matrix_make(matrix *made, const matrix_case *of, const matrix_end *end, uint32_t *data)
{
    *made = (matrix){.shape = {of->rows, of->columns}, .data = data};
    made->strides[end->is_transposed] = end->pitch;
    made->strides[!end->is_transposed] = 1;
    made->elems = memory_elems(of, end);
    made->tensor = (DLTensor){.data = data,
                              .device = BANYAN_HOST,
                              .ndim = 2,
                              .dtype = BANYAN_U32,
                              .shape = made->shape,
                              .strides = made->strides};
}

static uint32_t value_of(int from, int to, size_t number, int64_t index, int run)
{
    uint32_t mixed = (uint32_t)((from * 8 + to) * 64 + (int)number) * 97u + (uint32_t)run;
    return (uint32_t)index * 2654435761u + mixed * 40503u + 1;
}

static uint32_t *matrix_at(const matrix *of, int64_t index)
{
    int64_t row = index / of->shape[1], column = index % of->shape[1];
    return &of->data[row * of->strides[0] + column * of->strides[1]];
}

/* One rank's ends of all cases with all other ranks, in symmetric or ordinary memory in turn. */
typedef struct ends {
    banyan_memory *memory;
    uint32_t *ordinary;
    matrix *sends, *recvs; /* [peer][case] */
    int ranks, rank;
} ends;

static void ends_make(ends *made, banyan_world *world)
{
    int ranks = banyan_world_size(world);
    size_t elems = 0, used[2] = {0};
    *made = (ends){.ranks = ranks, .rank = banyan_world_rank(world)};
    for (size_t c = 0; c < CASES; c++)
        elems += memory_elems(&cases[c], &cases[c].from) + memory_elems(&cases[c], &cases[c].to);
    elems *= (size_t)ranks;
    CHECK_OK(banyan_memory_alloc(world, elems * sizeof(uint32_t), &made->memory));
    made->ordinary = malloc(elems * sizeof(uint32_t));
    made->sends = calloc((size_t)ranks * CASES, sizeof *made->sends);
    made->recvs = calloc((size_t)ranks * CASES, sizeof *made->recvs);
    CHECK(made->ordinary && made->sends && made->recvs);
    uint32_t *memory[] = {banyan_memory_local(made->memory), made->ordinary};
    for (int peer = 0; peer < ranks; peer++)
        for (size_t c = 0; c < CASES; c++) {
            size_t at = (size_t)peer * CASES + c;
            int send_in = (int)(c + (size_t)made->rank) % 2, recv_in = (int)(c / 2) % 2;
            matrix_make(&made->sends[at], &cases[c], &cases[c].from,
                        memory[send_in] + used[send_in]);
            used[send_in] += made->sends[at].elems;
            matrix_make(&made->recvs[at], &cases[c], &cases[c].to, memory[recv_in] + used[recv_in]);
            used[recv_in] += made->recvs[at].elems;
        }
}

static void ends_free(ends *of)
{
    banyan_memory_free(of->memory);
    free(of->ordinary);
    free(of->sends);
    free(of->recvs);
}

static void ends_submit(ends *of, banyan_copy_service *service)
{
    for (int peer = 0; peer < of->ranks; peer++)
        for (size_t c = 0; c < CASES; c++) {
            size_t at = (size_t)peer * CASES + c;
            CHECK_OK(banyan_copy_service_submit_send(service, &of->sends[at].tensor, peer, c));
            CHECK_OK(banyan_copy_service_submit_recv(service, &of->recvs[at].tensor, peer, c));
        }
}

static void ends_fill(const ends *of, int run)
{
    for (int peer = 0; peer < of->ranks; peer++)
        for (size_t c = 0; c < CASES; c++) {
            size_t at = (size_t)peer * CASES + c;
            const matrix *send = &of->sends[at], *recv = &of->recvs[at];
            for (int64_t i = 0; i < cases[c].rows * cases[c].columns; i++)
                *matrix_at(send, i) = value_of(of->rank, peer, c, i, run);
            memset(recv->data, POISON, recv->elems * sizeof *recv->data);
        }
}

/* Every element has arrived, and the gaps between rows have not changed. */
static void ends_check(const ends *of, int run)
{
    uint32_t poison;
    memset(&poison, POISON, sizeof poison);
    for (int peer = 0; peer < of->ranks; peer++)
        for (size_t c = 0; c < CASES; c++) {
            const matrix *recv = &of->recvs[(size_t)peer * CASES + c];
            int64_t elems = cases[c].rows * cases[c].columns;
            size_t gaps = 0;
            for (int64_t i = 0; i < elems; i++)
                CHECK(*matrix_at(recv, i) == value_of(peer, of->rank, c, i, run),
                      "element %d of case %zu from rank %d in run %d", (int)i, c, peer, run);
            for (size_t i = 0; i < recv->elems; i++)
                gaps += recv->data[i] == poison;
            CHECK(gaps >= recv->elems - (size_t)elems, "case %zu from rank %d: %zu gaps", c, peer,
                  gaps);
        }
}

static size_t registrations_of(banyan_world *world)
{
    memory_space *space = memory_space_find(world);
    size_t live = 0;
    for (size_t i = 0; i < space->registrations.count; i++)
        live += space->registrations.data[i].live;
    return live;
}

static void move_every_way(banyan_world *world, void *context)
{
    (void)context;
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    ends mine;
    ends_make(&mine, world);
    CHECK_OK(banyan_copy_service_open(world, NULL, NULL, &service));
    CHECK(strcmp(banyan_copy_service_name(service), "direct") == 0);
    size_t before = registrations_of(world);
    ends_submit(&mine, service);
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    size_t during = registrations_of(world);
    CHECK(during > before, "%zu registrations", during);
    for (int run = 0; run < RUNS; run++) {
        ends_fill(&mine, run);
        CHECK_OK(banyan_copy_schedule_run(schedule, NULL));
        ends_check(&mine, run);
        CHECK(registrations_of(world) == during);
    }
    banyan_copy_schedule_destroy(schedule);
    CHECK(registrations_of(world) == before);
    banyan_copy_service_close(service);
    ends_free(&mine);
}

static void every_way_of_a_task_is_right(void **state)
{
    (void)state;
    setenv("BANYAN_TEST_NODES", "2", 1);
    ranks_run(3, move_every_way, NULL);
    unsetenv("BANYAN_TEST_NODES");
}

static void *signal_soon(void *context)
{
    usleep(150000);
    raise(*(const int *)context);
    return NULL;
}

static banyan_status run_until_failure(banyan_copy_schedule *schedule)
{
    banyan_status status = BANYAN_OK;
    while (status == BANYAN_OK)
        status = banyan_copy_schedule_run(schedule, NULL);
    return status;
}

/* Rank 1 is stopped while it sends a long tensor, and goes on after the receiver's run has failed:
 * then it changes nothing more. */
#define LONG_BYTES ((size_t)32 << 20)

static void play_late(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    int pids[2], pid = getpid(), number = SIGSTOP;
    int64_t bytes = LONG_BYTES;
    pthread_t stopper;
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    setenv("BANYAN_TEST_NODES", "2", 1);
    banyan_world *world = ranks_open_world(rank, count, id, NS_PER_S);
    unsigned char *memory = calloc(1, LONG_BYTES);
    CHECK(memory);
    DLTensor tensor = {
        .data = memory, .device = BANYAN_HOST, .ndim = 1, .dtype = BANYAN_U8, .shape = &bytes};
    CHECK_OK(banyan_world_allgather(world, &pid, sizeof pid, pids));
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &service));
    CHECK_OK((rank == 1 ? banyan_copy_service_submit_send
                        : banyan_copy_service_submit_recv)(service, &tensor, 1 - rank, 1));
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    if (rank == 1)
        CHECK(pthread_create(&stopper, NULL, signal_soon, &number) == 0);
    banyan_status status = run_until_failure(schedule);
    if (rank == 1) {
        pthread_join(stopper, NULL);
    } else {
        CHECK(status == BANYAN_ERR_TIMEOUT && strstr(banyan_last_error(), "rank 1"), "%s",
              banyan_last_error());
        memset(memory, POISON, LONG_BYTES);
        kill(pids[1], SIGCONT);
        usleep(500000);
        for (size_t i = 0; i < LONG_BYTES; i++)
            CHECK(memory[i] == POISON, "byte %zu was put late", i);
    }
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    (void)banyan_world_close(world);
    free(memory);
}

static void memory_stays_as_it_is_after_a_failed_run(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, play_late, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* The other rank dies while this one has many puts and signals under way, long and short. */
static void play_death(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    int number = SIGKILL;
    pthread_t killer;
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    ends mine;
    setenv("BANYAN_TEST_NODES", "2", 1);
    banyan_world *world = ranks_open_world(rank, count, id, 0);
    ends_make(&mine, world);
    CHECK_OK(banyan_copy_service_open(world, "direct", NULL, &service));
    ends_submit(&mine, service);
    CHECK_OK(banyan_copy_service_prepare(service, &schedule));
    if (rank == 1)
        CHECK(pthread_create(&killer, NULL, signal_soon, &number) == 0);
    banyan_status status = run_until_failure(schedule);
    CHECK(status == BANYAN_ERR_PEER_LOST && strstr(banyan_last_error(), "rank 1"), "%s",
          banyan_last_error());
    banyan_copy_schedule_destroy(schedule);
    banyan_copy_service_close(service);
    ends_free(&mine);
    (void)banyan_world_close(world);
}

static void a_rank_that_dies_in_a_run_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        ranks_fork_and_lose_one(play_death, NULL);
}

int main(void)
{
    if (!ucx_is_there())
        return 77;
    unsetenv("BANYAN_COPY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_of_a_task_is_right),
        cmocka_unit_test(a_rank_that_dies_in_a_run_is_named),
        cmocka_unit_test(memory_stays_as_it_is_after_a_failed_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
