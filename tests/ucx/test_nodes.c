/* Ranks of different nodes reach each other through UCX: every kind of memory, signals, and errors
 * that name the rank. The nodes are names here; tests/nodes has real ones. */
#include "support/test.h"
#include "support/ucx.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"

#define RANKS 4
#define BYTES ((size_t)3 << 20)
#define STEPS 1500
#define GROWTH_MOST ((size_t)100 << 10)

struct node_setting {
    banyan_world *world;
    banyan_transport *transport;
    banyan_memory *memory;
    unsigned char *block;
    banyan_memory_handle symmetric[RANKS], user[RANKS];
    uint32_t signal;
    int rank;
};

/* Ranks 0 and 2 are one node, 1 and 3 another. */
static void nodes_open(struct node_setting *s, int rank, int count, const banyan_unique_id *id,
                       uint64_t timeout_ns)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    *s = (struct node_setting){.rank = rank};
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.node = rank % 2 ? "odd" : "even";
    options.timeout_ns = timeout_ns;
    CHECK_OK(banyan_world_open(&options, &s->world));
    CHECK_OK(banyan_transport_open(s->world, NULL, &s->transport));
    CHECK_OK(banyan_transport_signals_alloc(s->transport, 3, &s->signal));
    CHECK_OK(banyan_memory_alloc(s->world, BYTES, &s->memory));
    s->block = calloc(1, BYTES);
    CHECK(s->block != NULL);
    banyan_memory_handle mine;
    CHECK_OK(banyan_memory_find(s->world, banyan_memory_local(s->memory), BYTES, &mine));
    CHECK_OK(banyan_world_allgather(s->world, &mine, sizeof mine, s->symmetric));
    CHECK_OK(banyan_memory_register(s->world, s->block, BYTES, &mine));
    CHECK_OK(banyan_world_allgather(s->world, &mine, sizeof mine, s->user));
}

static void nodes_close(struct node_setting *s)
{
    CHECK_OK(banyan_world_barrier(s->world));
    CHECK_OK(banyan_memory_unregister(s->world, &s->user[s->rank]));
    banyan_memory_free(s->memory);
    banyan_transport_close(s->transport);
    CHECK_OK(banyan_world_close(s->world));
    free(s->block);
}

static unsigned char byte_of(int from, int to, size_t at)
{
    return (unsigned char)(at * 7 + (at >> 10) * 3 + (size_t)(from * RANKS + to) * 29 + 1);
}

/* Every rank writes a quarter of every rank's memory in pieces, and reads it back. */
static void put_to_all(struct node_setting *s, const banyan_memory_handle *handles)
{
    size_t part = BYTES / RANKS, piece = 1000;
    unsigned char *bytes = malloc(part), *back = malloc(part);
    banyan_iovec pieces[(BYTES / RANKS) / 1000 + 1];
    CHECK(bytes != NULL && back != NULL);
    for (int to = 0; to < RANKS; to++) {
        banyan_remote remote = {handles[to], (uint64_t)s->rank * part};
        size_t count = 0;
        for (size_t at = 0; at < part; at++)
            bytes[at] = byte_of(s->rank, to, at);
        for (size_t at = 0; at < part; at += piece, count++)
            pieces[count] = (banyan_iovec){at, bytes + at, part - at < piece ? part - at : piece};
        CHECK_OK(banyan_transport_put_many(s->transport, &remote, pieces, count));
        CHECK_OK(banyan_transport_flush(s->transport, to));
        CHECK_OK(banyan_transport_get(s->transport, back, &remote, part));
        CHECK(memcmp(back, bytes, part) == 0, "rank %d reads other bytes of rank %d", s->rank, to);
        CHECK_OK(banyan_transport_signal(s->transport, to, s->signal, 1));
    }
    CHECK_OK(banyan_transport_wait(s->transport, s->signal, RANKS, (s->rank + 1) % RANKS, "puts"));
    free(bytes);
    free(back);
}

static void move_between_nodes(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    struct node_setting s;
    nodes_open(&s, rank, count, id, 0);
    int near = (rank + 2) % RANKS, far = (rank + 1) % RANKS;
    CHECK(strcmp(banyan_transport_name(s.transport), "shm,ucx") == 0);
    CHECK(strcmp(banyan_transport_peer(s.transport, near, NULL), "shm") == 0);
    CHECK(strcmp(banyan_transport_peer(s.transport, far, NULL), "ucx") == 0);
    put_to_all(&s, s.symmetric);
    const unsigned char *mine = banyan_memory_local(s.memory);
    for (size_t at = 0; at < BYTES / RANKS * RANKS; at++)
        CHECK(mine[at] == byte_of((int)(at / (BYTES / RANKS)), rank, at % (BYTES / RANKS)),
              "byte %zu", at);
    CHECK_OK(banyan_world_barrier(s.world));
    CHECK_OK(banyan_transport_signals_alloc(s.transport, 1, &s.signal));
    put_to_all(&s, s.user);
    for (size_t at = 0; at < BYTES / RANKS * RANKS; at++)
        CHECK(s.block[at] == byte_of((int)(at / (BYTES / RANKS)), rank, at % (BYTES / RANKS)),
              "byte %zu of ordinary memory", at);
    nodes_close(&s);
}

static void every_kind_of_memory_is_reached(void **state)
{
    (void)state;
    int statuses[RANKS];
    ranks_fork(RANKS, move_between_nodes, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

/* A counter that all ranks add to gives every number once; a put is seen with the signal after it.
 */
#define TICKETS 200

static void draw_tickets(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    struct node_setting s;
    nodes_open(&s, rank, count, id, 0);
    unsigned char drawn[TICKETS * RANKS] = {0}, all[TICKETS * RANKS * RANKS];
    for (int i = 0; i < TICKETS; i++) {
        uint64_t ticket;
        CHECK_OK(banyan_transport_fetch_add(s.transport, 3, s.signal + 2, 1, &ticket));
        CHECK(ticket < TICKETS * RANKS, "ticket %llu", (unsigned long long)ticket);
        drawn[ticket]++;
        int to = (rank + 1 + i) % RANKS;
        uint64_t value = (uint64_t)i * 1000 + (uint64_t)rank;
        banyan_remote slot = {s.symmetric[to], ((size_t)i * RANKS + (size_t)rank) * sizeof value};
        CHECK_OK(banyan_transport_put_with_signal(s.transport, &slot, &value, sizeof value,
                                                  s.signal + 1, 1));
    }
    CHECK_OK(banyan_world_allgather(s.world, drawn, sizeof drawn, all));
    for (size_t ticket = 0; ticket < TICKETS * RANKS; ticket++) {
        int times = 0;
        for (int of = 0; of < RANKS; of++)
            times += all[(size_t)of * sizeof drawn + ticket];
        CHECK(times == 1, "ticket %zu was drawn %d times", ticket, times);
    }
    CHECK_OK(banyan_transport_wait(s.transport, s.signal + 1, TICKETS, (rank + 1) % RANKS, "all"));
    const uint64_t *slots = banyan_memory_local(s.memory);
    for (int i = 0; i < TICKETS; i++) {
        int from = (rank + 3 * RANKS * TICKETS - 1 - i) % RANKS;
        CHECK(slots[i * RANKS + from] == (uint64_t)i * 1000 + (uint64_t)from, "slot %d of %d", i,
              from);
    }
    nodes_close(&s);
}

static void additions_are_atomic_and_follow_puts(void **state)
{
    (void)state;
    int statuses[RANKS];
    ranks_fork(RANKS, draw_tickets, NULL, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

/* While the owner computes, its memory is read and written. */
static void serve_a_busy_owner(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    struct node_setting s;
    nodes_open(&s, rank, count, id, 0);
    CHECK_OK(banyan_world_barrier(s.world));
    if (rank == 1) {
        sleep(1);
    } else if (rank == 0) {
        uint64_t start_ns = time_now_ns(), number = 42;
        banyan_remote there = {s.user[1], 512};
        CHECK_OK(banyan_transport_put(s.transport, &there, &number, sizeof number));
        CHECK_OK(banyan_transport_flush(s.transport, 1));
        number = 0;
        CHECK_OK(banyan_transport_get(s.transport, &number, &there, sizeof number));
        CHECK(number == 42);
        double took = (double)(time_now_ns() - start_ns) / 1e9;
        CHECK(took < 0.8, "%.3f s: the owner's thread was needed", took);
    }
    nodes_close(&s);
}

static void memory_of_a_busy_owner_is_reached(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, serve_a_busy_owner, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

static void ask_for_what_is_not_there(int rank, int count, const banyan_unique_id *id,
                                      void *context)
{
    (void)context;
    struct node_setting s;
    nodes_open(&s, rank, count, id, 0);
    int far = 1 - rank;
    char bytes[16] = {0};
    banyan_remote bad = {s.user[far], 0};
    bad.handle.id += 5;
    CHECK_FAILS(banyan_transport_put(s.transport, &bad, bytes, 1), BANYAN_ERR_NOT_FOUND,
                "has no memory");
    bad = (banyan_remote){s.user[far], 0};
    bad.handle.bytes += 1;
    CHECK_FAILS(banyan_transport_get(s.transport, bytes, &bad, 1), BANYAN_ERR_INVALID,
                "extend beyond 3145728 bytes of rank");
    void *address;
    bad = (banyan_remote){s.symmetric[far], 0};
    CHECK_FAILS(banyan_transport_address(s.transport, &bad, &address), BANYAN_ERR_UNSUPPORTED,
                "does not map");
    /* A registration ends, and another begins: ids are not reused. */
    banyan_memory_handle again, handles[2];
    CHECK_OK(banyan_world_barrier(s.world));
    CHECK_OK(banyan_memory_unregister(s.world, &s.user[rank]));
    CHECK_OK(banyan_memory_register(s.world, s.block, BYTES, &again));
    CHECK_OK(banyan_world_allgather(s.world, &again, sizeof again, handles));
    s.user[rank] = again;
    banyan_remote good = {handles[far], 7};
    bytes[0] = (char)(rank + 60);
    CHECK_OK(banyan_transport_put_with_signal(s.transport, &good, bytes, 1, s.signal, 1));
    CHECK_OK(banyan_transport_wait(s.transport, s.signal, 1, far, "a byte"));
    CHECK(s.block[7] == far + 60);
    nodes_close(&s);
}

static void missing_memory_is_refused_by_its_owner(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, ask_for_what_is_not_there, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* Every step registers memory of its own, which ends with it. Nothing of it may stay. */
static void register_in_every_step(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    struct node_setting s;
    nodes_open(&s, rank, count, id, 0);
    int far = 1 - rank;
    size_t before = 0;
    for (uint64_t step = 1; step <= STEPS; step++) {
        banyan_memory_handle mine, handles[2];
        uint64_t value = step * 2 + (uint64_t)rank;
        CHECK_OK(banyan_memory_register(s.world, s.block, BYTES, &mine));
        CHECK_OK(banyan_world_allgather(s.world, &mine, sizeof mine, handles));
        banyan_remote there = {handles[far], step % 1000 * sizeof value};
        CHECK_OK(banyan_transport_put(s.transport, &there, &value, sizeof value));
        there = (banyan_remote){s.symmetric[far], 64};
        CHECK_OK(banyan_transport_put_with_signal(s.transport, &there, &value, sizeof value,
                                                  s.signal, 1));
        CHECK_OK(banyan_transport_wait(s.transport, s.signal, step, far, "a step"));
        uint64_t expected = step * 2 + (uint64_t)far, *got = (uint64_t *)(void *)s.block;
        CHECK(got[step % 1000] == expected, "step %llu", (unsigned long long)step);
        CHECK(((uint64_t *)banyan_memory_local(s.memory))[8] == expected);
        CHECK_OK(banyan_world_barrier(s.world));
        CHECK_OK(banyan_memory_unregister(s.world, &mine));
        if (step == STEPS / 5)
            before = mallinfo2().uordblks;
    }
    size_t after = mallinfo2().uordblks;
    CHECK(after < before + GROWTH_MOST, "%zu bytes more", after - before);
    nodes_close(&s);
}

static void memory_may_be_registered_in_every_step(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, register_in_every_step, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* Rank 1 is killed or stopped while rank 0 puts to it. */
static void lose_a_receiver(int rank, int count, const banyan_unique_id *id, void *context)
{
    int signal_number = *(int *)context;
    struct node_setting s;
    nodes_open(&s, rank, count, id, 2 * NS_PER_S);
    CHECK_OK(banyan_world_barrier(s.world));
    if (rank == 1) {
        usleep(200000);
        kill(getpid(), signal_number);
        sleep(1);
    }
    uint64_t start_ns = time_now_ns();
    banyan_status status = BANYAN_OK;
    banyan_remote there = {s.symmetric[1], 0};
    while (status == BANYAN_OK) {
        status = banyan_transport_put(s.transport, &there, s.block, BYTES);
        if (status == BANYAN_OK)
            status = banyan_transport_flush(s.transport, 1);
    }
    double took = (double)(time_now_ns() - start_ns) / 1e9;
    CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_TIMEOUT, "%s",
          banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    CHECK(took < 6, "%.1f s", took);
    banyan_transport_close(s.transport);
    (void)banyan_world_close(s.world);
}

static void a_killed_receiver_is_named(void **state)
{
    (void)state;
    int number = SIGKILL;
    int statuses[2];
    ranks_fork(2, lose_a_receiver, &number, statuses);
    assert_int_equal(statuses[0], 0);
    assert_true(WIFSIGNALED(statuses[1]));
}

/* UCX's shared memory does not notice lost peers. */
static void leave_no_network(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct node_setting s;
    (void)context;
    setenv("UCX_TLS", "shm,self", 1);
    setenv("UCX_LOG_LEVEL", "fatal", 1);
    nodes_open(&s, rank, count, id, 0);
    banyan_remote there = {s.user[1 - rank], 0};
    CHECK_FAILS(banyan_transport_put(s.transport, &there, s.block, 8), BANYAN_ERR_SYSTEM,
                "UCX_TLS is shm,self");
    nodes_close(&s);
}

static void a_missing_network_is_named(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, leave_no_network, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* Every rank sends a part of its ordinary memory to every rank's symmetric memory. */
static void copy_between_nodes(int rank, int count, const banyan_unique_id *id, void *context)
{
    const char *backend = context;
    struct node_setting s;
    nodes_open(&s, rank, count, id, 0);
    banyan_copy_service *service;
    CHECK_OK(banyan_copy_service_open(s.world, backend, NULL, &service));
    CHECK(strcmp(banyan_copy_service_name(service), backend ? backend : "direct") == 0);
    int64_t elems = BYTES / 4 / RANKS;
    for (size_t i = 0; i < BYTES / 4; i++)
        ((uint32_t *)(void *)s.block)[i] = (uint32_t)(i * 2654435761u + (uint32_t)rank);
    for (int peer = 0; peer < RANKS; peer++) {
        DLTensor tensor = {.device = BANYAN_HOST,
                           .ndim = 1,
                           .dtype = BANYAN_U32,
                           .shape = &elems,
                           .byte_offset = 0};
        tensor.data = s.block + (size_t)peer * (size_t)elems * 4;
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, peer,
                                                 (uint64_t)(rank * RANKS + peer)));
        tensor.data = (char *)banyan_memory_local(s.memory) + (size_t)peer * (size_t)elems * 4;
        CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, peer,
                                                 (uint64_t)(peer * RANKS + rank)));
    }
    CHECK_OK(banyan_copy_service_run(service, NULL));
    const uint32_t *got = banyan_memory_local(s.memory);
    for (int peer = 0; peer < RANKS; peer++)
        for (size_t i = 0; i < (size_t)elems; i++) {
            uint32_t index = (uint32_t)((size_t)rank * (size_t)elems + i);
            CHECK(got[(size_t)peer * (size_t)elems + i] == index * 2654435761u + (uint32_t)peer,
                  "element %zu from rank %d", i, peer);
        }
    banyan_copy_service_close(service);
    nodes_close(&s);
}

static void copy_by(const char *backend)
{
    int statuses[RANKS];
    ranks_fork(RANKS, copy_between_nodes, (void *)(uintptr_t)backend, statuses);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

static void tensors_cross_nodes_by_default(void **state)
{
    (void)state;
    copy_by(NULL);
}

static void tensors_cross_nodes_by_name(void **state)
{
    (void)state;
    copy_by("pipeline");
}

int main(void)
{
    if (!ucx_is_there())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_memory_is_reached),
        cmocka_unit_test(additions_are_atomic_and_follow_puts),
        cmocka_unit_test(memory_of_a_busy_owner_is_reached),
        cmocka_unit_test(missing_memory_is_refused_by_its_owner),
        cmocka_unit_test(memory_may_be_registered_in_every_step),
        cmocka_unit_test(a_killed_receiver_is_named),
        cmocka_unit_test(a_missing_network_is_named),
        cmocka_unit_test(tensors_cross_nodes_by_default),
        cmocka_unit_test(tensors_cross_nodes_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
