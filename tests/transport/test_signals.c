/* Signals count, order the data before them, wake sleepers, and never hang. */
#include "support/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"

struct ping_pong {
    uint64_t for_ns;
    bool rest; /* sometimes long enough for the other to fall asleep */
};

/* Data written before a signal is visible with the signal; each side answers the other. */
static void play_ping_pong(banyan_world *world, void *context)
{
    const struct ping_pong *game = context;
    int rank = banyan_world_rank(world), peer = 1 - rank;
    banyan_transport *transport;
    banyan_memory *memory;
    uint32_t signal, stop;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, 1, &signal));
    CHECK_OK(banyan_transport_signals_alloc(transport, 1, &stop));
    CHECK_OK(banyan_memory_alloc(world, 4096, &memory));
    void *address;
    size_t bytes;
    CHECK_OK(banyan_memory_peer(memory, peer, &address, &bytes));
    uint64_t *theirs = address, *mine = banyan_memory_local(memory);
    uint64_t end_ns = deadline_after(game->for_ns), rounds = 0;
    bool go_on = true;
    while (go_on) {
        if (rank == 1) {
            CHECK_OK(banyan_transport_wait(transport, signal, rounds + 1, peer, "ping"));
            go_on = banyan_transport_read(transport, stop) == 0;
        }
        for (uint64_t i = 0; rank == 1 && i < 8; i++)
            CHECK(mine[i] == (rounds << 8) + i, "round %llu", (unsigned long long)rounds);
        if (game->rest && rounds % 50 == 49)
            usleep(1000);
        if (rank == 0 && rounds % 256 == 255 && time_now_ns() > end_ns) {
            go_on = false;
            CHECK_OK(banyan_transport_signal(transport, peer, stop, 1));
        }
        for (uint64_t i = 0; i < 8; i++)
            theirs[i] = (rounds << 8) + i + (rank == 1 ? 100 : 0);
        CHECK_OK(banyan_transport_signal(transport, peer, signal, 1));
        if (rank == 0)
            CHECK_OK(banyan_transport_wait(transport, signal, rounds + 1, peer, "pong"));
        for (uint64_t i = 0; rank == 0 && i < 8; i++)
            CHECK(mine[i] == (rounds << 8) + i + 100, "round %llu", (unsigned long long)rounds);
        rounds++;
    }
    if (rank == 0)
        printf("%llu round trips\n", (unsigned long long)rounds);
    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(memory);
    banyan_transport_close(transport);
}

static void data_written_before_a_signal_is_there_with_it(void **state)
{
    (void)state;
    struct ping_pong fast = {.for_ns = NS_PER_S}, sleepy = {.for_ns = NS_PER_S / 4, .rest = true};
    ranks_run(2, play_ping_pong, &fast);
    ranks_run(2, play_ping_pong, &sleepy);
    fast.for_ns = NS_PER_S / 2;
    ranks_run_threads(2, play_ping_pong, &fast);
    ranks_run_threads(2, play_ping_pong, &sleepy);
}

/* One writes slots of a ring, the other reads them: signals in both directions, without an answer
 * for each. */
#define RING 16

static void stream_words(banyan_world *world, void *context)
{
    uint64_t count = *(uint64_t *)context;
    int rank = banyan_world_rank(world), peer = 1 - rank;
    banyan_transport *transport;
    banyan_memory *memory;
    uint32_t filled, emptied;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, 2, &filled));
    emptied = filled + 1;
    CHECK_OK(banyan_memory_alloc(world, RING * 64, &memory));
    banyan_memory_handle mine, handles[2];
    CHECK_OK(banyan_memory_find(world, banyan_memory_local(memory), RING * 64, &mine));
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, handles));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t words[8], at = i % RING * 64;
        if (rank == 0) {
            for (uint64_t k = 0; k < 8; k++)
                words[k] = i * 8 + k;
            if (i >= RING)
                CHECK_OK(
                    banyan_transport_wait(transport, emptied, i - RING + 1, peer, "a free slot"));
            banyan_remote slot = {handles[peer], at};
            CHECK_OK(banyan_transport_put_with_signal(transport, &slot, words, 64, filled, 1));
        } else {
            CHECK_OK(banyan_transport_wait(transport, filled, i + 1, peer, "a full slot"));
            memcpy(words, (char *)banyan_memory_local(memory) + at, 64);
            CHECK_OK(banyan_transport_signal(transport, peer, emptied, 1));
            for (uint64_t k = 0; k < 8; k++)
                CHECK(words[k] == i * 8 + k, "slot %llu word %llu", (unsigned long long)i,
                      (unsigned long long)k);
        }
    }
    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(memory);
    banyan_transport_close(transport);
}

static void a_ring_of_slots_keeps_its_order(void **state)
{
    (void)state;
    /* A signal takes longer through a network. */
    uint64_t count = getenv("BANYAN_TRANSPORT") ? 100000 : 1000000;
    ranks_run(2, stream_words, &count);
    count = 100000;
    ranks_run_threads(2, stream_words, &count);
}

/* All ranks signal all others; a token goes around at the same time. */
static void signal_all(banyan_world *world, void *context)
{
    uint64_t rounds = *(uint64_t *)context;
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    banyan_transport *transport;
    uint32_t first;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, (uint32_t)size + 2, &first));
    uint32_t token = first + (uint32_t)size, total = token + 1;
    for (uint64_t i = 1; i <= rounds; i++) {
        if (rank == 0)
            CHECK_OK(banyan_transport_signal(transport, next, token, 1));
        CHECK_OK(banyan_transport_wait(transport, token, i, before, "the token"));
        if (rank != 0)
            CHECK_OK(banyan_transport_signal(transport, next, token, 1));
        for (int peer = 0; peer < size; peer++) {
            CHECK_OK(banyan_transport_signal(transport, peer, first + (uint32_t)rank, 1));
            CHECK_OK(banyan_transport_signal(transport, peer, total, 3));
        }
    }
    for (int peer = 0; peer < size; peer++)
        CHECK_OK(
            banyan_transport_wait(transport, first + (uint32_t)peer, rounds, peer, "its count"));
    CHECK_OK(banyan_transport_wait(transport, total, 3 * rounds * (uint64_t)size, next, "the sum"));
    CHECK_OK(banyan_world_barrier(world));
    CHECK(banyan_transport_read(transport, total) == 3 * rounds * (uint64_t)size);
    CHECK(banyan_transport_read(transport, first) == rounds);
    banyan_transport_close(transport);
}

static void no_signal_is_lost_between_many_ranks(void **state)
{
    (void)state;
    uint64_t rounds = 1000;
    ranks_run(12, signal_all, &rounds);
    rounds = 300;
    ranks_run_threads(6, signal_all, &rounds);
}

static void alloc_and_free(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), peer = (rank + 1) % banyan_world_size(world);
    banyan_transport *transport;
    uint32_t a, b, c, d, other;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_FAILS(banyan_transport_signals_alloc(transport, 0, &a), BANYAN_ERR_INVALID, "0 signals");
    CHECK_FAILS(banyan_transport_signals_alloc(transport, UINT32_MAX, &a), BANYAN_ERR_UNSUPPORTED,
                "limit");
    CHECK_OK(banyan_transport_signals_alloc(transport, 10, &a));
    CHECK_OK(banyan_transport_signals_alloc(transport, 5000, &b)); /* more than a segment holds */
    CHECK_OK(banyan_transport_signals_alloc(transport, 7, &c));
    CHECK(a + 10 <= b && b + 5000 <= c);
    for (uint32_t i = 0; i < 5000; i++)
        CHECK_OK(banyan_transport_signal(transport, peer, b + i, i + 1));
    for (uint32_t i = 0; i < 5000; i++)
        CHECK_OK(banyan_transport_wait(transport, b + i, i + 1, peer, "one of 5000"));
    CHECK_OK(banyan_world_barrier(world));
    /* Freed numbers are reused, at zero. */
    banyan_transport_signals_free(transport, b, 5000);
    CHECK_FAILS(banyan_transport_signal(transport, peer, b, 1), BANYAN_ERR_INVALID,
                "not allocated");
    CHECK(banyan_transport_read(transport, b) == 0);
    CHECK_OK(banyan_transport_signals_alloc(transport, 4000, &d));
    CHECK(d == b);
    for (uint32_t i = 0; i < 4000; i++)
        CHECK(banyan_transport_read(transport, d + i) == 0);
    /* Ranks that have freed different numbers still agree. */
    if (rank == 0)
        banyan_transport_signals_free(transport, a, 10);
    CHECK_OK(banyan_transport_signals_alloc(transport, 8, &other));
    uint32_t all[4];
    CHECK_OK(banyan_world_allgather(world, &other, sizeof other, all));
    for (int i = 0; i < banyan_world_size(world); i++)
        CHECK(all[i] == other);
    CHECK(other >= c + 7 || (other >= d + 4000 && other + 8 <= c));
    CHECK_OK(banyan_transport_signal(transport, peer, other, 1));
    CHECK_OK(banyan_transport_wait(transport, other, 1, peer, "the last"));
    CHECK_OK(banyan_world_barrier(world));
    banyan_transport_close(transport);
}

static void numbers_are_equal_everywhere_and_fresh_ones_are_zero(void **state)
{
    (void)state;
    ranks_run(3, alloc_and_free, NULL);
}

static void poll_many(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    banyan_transport *transport;
    uint32_t first;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, (uint32_t)size, &first));
    if (rank != 0) {
        usleep(20000 * (useconds_t)rank);
        CHECK_OK(banyan_transport_signal(transport, 0, first + (uint32_t)rank, 1));
    }
    int left = rank == 0 ? size - 1 : 0;
    uint64_t seen_of[8] = {0}, sleeps = 0;
    while (left > 0) {
        uint64_t epoch = banyan_transport_epoch(transport);
        for (int peer = 1; peer < size; peer++) {
            uint64_t now = banyan_transport_read(transport, first + (uint32_t)peer);
            left -= now > seen_of[peer];
            seen_of[peer] = now;
        }
        if (left > 0)
            CHECK_OK(banyan_transport_idle(transport, epoch));
        CHECK(++sleeps < 10000, "idle does not sleep");
    }
    uint64_t start_ns = time_now_ns();
    CHECK_OK(banyan_transport_idle(transport, banyan_transport_epoch(transport)));
    CHECK(time_now_ns() - start_ns < NS_PER_S, "idle slept for long with nothing to come");
    CHECK_OK(banyan_world_barrier(world));
    banyan_transport_close(transport);
}

static void a_poller_sleeps_until_something_changes(void **state)
{
    (void)state;
    ranks_run(4, poll_many, NULL);
}

static void wait_for_the_dying(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 0);
    banyan_transport *transport;
    uint32_t signal;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, 1, &signal));
    if (rank == 2) {
        usleep(100000);
        kill(getpid(), SIGKILL);
    }
    uint64_t start_ns = time_now_ns();
    if (rank == 0) {
        CHECK_FAILS(banyan_transport_wait(transport, signal, 1, 1, "what never comes"),
                    BANYAN_ERR_PEER_LOST, "rank 2");
    } else {
        banyan_status status = BANYAN_OK;
        while (status == BANYAN_OK)
            status = banyan_transport_idle(transport, banyan_transport_epoch(transport));
        CHECK(status == BANYAN_ERR_PEER_LOST);
    }
    uint64_t took_ns = time_now_ns() - start_ns;
    CHECK(took_ns < 1100 * NS_PER_MS, "%.3f s", (double)took_ns / 1e9);
    banyan_transport_close(transport);
    (void)banyan_world_close(world);
}

static void a_wait_for_a_killed_rank_ends_within_a_second(void **state)
{
    (void)state;
    int statuses[3];
    ranks_fork(3, wait_for_the_dying, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
    assert_true(WIFSIGNALED(statuses[2]));
}

static void wait_for_nothing(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 0);
    banyan_transport *transport;
    uint32_t signal;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, 3, &signal));
    CHECK_OK(banyan_transport_signal(transport, 1 - rank, signal + 2, 4));
    CHECK_OK(banyan_transport_wait(transport, signal + 2, 4, 1 - rank, "what comes"));
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_world_set_timeout(world, NS_PER_S / 2));
    char begin[32], expected[128];
    uint64_t soonest_ns = UINT64_MAX;
    snprintf(begin, sizeof begin, "rank %d waited 0.", rank);
    snprintf(expected, sizeof expected, " s for rank %d (a slot): signal %u is 4, not yet 5",
             1 - rank, signal + 2);
    for (int i = 0; i < 3; i++) { /* another program may delay one of them */
        uint64_t start_ns = time_now_ns();
        CHECK_FAILS(banyan_transport_wait(transport, signal + 2, 5, 1 - rank, "a slot"),
                    BANYAN_ERR_TIMEOUT, expected);
        uint64_t took_ns = time_now_ns() - start_ns;
        CHECK(took_ns >= NS_PER_S / 2, "%.3f s", (double)took_ns / 1e9);
        if (took_ns < NS_PER_S)
            CHECK(strncmp(banyan_last_error(), begin, strlen(begin)) == 0, "%s",
                  banyan_last_error());
        soonest_ns = took_ns < soonest_ns ? took_ns : soonest_ns;
    }
    CHECK(soonest_ns < NS_PER_S, "%.3f s", (double)soonest_ns / 1e9);
    CHECK_OK(banyan_world_set_timeout(world, 0));
    CHECK_OK(banyan_world_barrier(world));
    banyan_transport_close(transport);
}

static void a_timeout_names_both_ranks_and_the_wait(void **state)
{
    (void)state;
    int statuses[2];
    ranks_fork(2, wait_for_nothing, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* Rank 0 waits for rank 3, which waits in a barrier for rank 2. */
static void wait_for_a_rank_in_a_barrier(int rank, int count, const banyan_unique_id *id,
                                         void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 0);
    banyan_transport *transport;
    uint32_t signal;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, 1, &signal));
    if (rank == 0) {
        CHECK_OK(banyan_world_set_timeout(world, 2 * NS_PER_S));
        CHECK_FAILS(banyan_transport_wait(transport, signal, 1, 3, "a slot"), BANYAN_ERR_TIMEOUT,
                    "s for rank 3 (a slot)");
        CHECK(strstr(banyan_last_error(), "; rank 2 (pid "), "%s", banyan_last_error());
    } else if (rank == 2) {
        sleep(3);
    }
    CHECK_OK(banyan_world_barrier(world));
    banyan_transport_close(transport);
    CHECK_OK(banyan_world_close(world));
}

static void a_timeout_names_the_rank_that_another_waits_for_in_a_barrier(void **state)
{
    (void)state;
    int statuses[4];
    ranks_fork(4, wait_for_a_rank_in_a_barrier, NULL, statuses);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_written_before_a_signal_is_there_with_it),
        cmocka_unit_test(a_ring_of_slots_keeps_its_order),
        cmocka_unit_test(no_signal_is_lost_between_many_ranks),
        cmocka_unit_test(numbers_are_equal_everywhere_and_fresh_ones_are_zero),
        cmocka_unit_test(a_poller_sleeps_until_something_changes),
        cmocka_unit_test(a_wait_for_a_killed_rank_ends_within_a_second),
        cmocka_unit_test(a_timeout_names_both_ranks_and_the_wait),
        cmocka_unit_test(a_timeout_names_the_rank_that_another_waits_for_in_a_barrier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
