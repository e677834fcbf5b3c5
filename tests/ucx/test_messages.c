/* Short puts and additions between nodes are messages: their order beside long puts, flushes,
 * refusals by the owner, and peers that are lost. The nodes are names here. */
#include "support/test.h"
#include "support/ucx.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "transport/tables.h"

#define BYTES ((size_t)4 << 20)

struct message_setting {
    banyan_world *world;
    banyan_transport *transport;
    banyan_memory *memory;
    unsigned char *mine, *block;
    banyan_memory_handle symmetric[2], user[2];
    uint32_t signal;
    int rank, peer;
};

static void messages_open(struct message_setting *s, int rank, const banyan_unique_id *id,
                          uint64_t timeout_ns)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    banyan_memory_handle mine;
    *s = (struct message_setting){.rank = rank, .peer = 1 - rank};
    options.rank = rank;
    options.world_size = 2;
    options.unique_id = id;
    options.node = rank ? "odd" : "even";
    options.timeout_ns = timeout_ns;
    CHECK_OK(banyan_world_open(&options, &s->world));
    CHECK_OK(banyan_transport_open(s->world, NULL, &s->transport));
    CHECK_OK(banyan_transport_signals_alloc(s->transport, 1, &s->signal));
    CHECK_OK(banyan_memory_alloc(s->world, BYTES, &s->memory));
    s->mine = banyan_memory_local(s->memory);
    s->block = calloc(1, BYTES);
    CHECK(s->block != NULL);
    CHECK_OK(banyan_memory_find(s->world, s->mine, BYTES, &mine));
    CHECK_OK(banyan_world_allgather(s->world, &mine, sizeof mine, s->symmetric));
    CHECK_OK(banyan_memory_register(s->world, s->block, BYTES, &mine));
    CHECK_OK(banyan_world_allgather(s->world, &mine, sizeof mine, s->user));
    CHECK(strcmp(banyan_transport_peer(s->transport, s->peer, NULL), "ucx") == 0);
}

static void messages_close(struct message_setting *s)
{
    CHECK_OK(banyan_world_barrier(s->world));
    CHECK_OK(banyan_memory_unregister(s->world, &s->user[s->rank]));
    banyan_memory_free(s->memory);
    banyan_transport_close(s->transport);
    CHECK_OK(banyan_world_close(s->world));
    free(s->block);
}

static void run_two(ranks_raw_fn body, void *context)
{
    int statuses[2];
    ranks_fork(2, body, context, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[1], 0);
}

/* Sizes around every limit: copied, one piece, several pieces, puts of UCX. */
static size_t random_size(random_state *random)
{
    static const size_t most[] = {16, 5000, 9000, 60000, 140000, 600000};
    size_t below = most[random_next(random) % (sizeof most / sizeof *most)];
    return 1 + (size_t)(random_next(random) % below);
}

static unsigned char byte_at(int round, int number, size_t at)
{
    return (unsigned char)((unsigned)round * 31 + (unsigned)number * 7 + at * 13 + (at >> 8) + 1);
}

#define ROUNDS 150
#define PUTS_MOST 5

struct put_made {
    size_t offset, bytes;
};

/* Both ranks know the puts of a round. Return their number. */
static int round_make(random_state *random, struct put_made puts[PUTS_MOST])
{
    int count = 1 + (int)(random_next(random) % PUTS_MOST);
    size_t offset = random_next(random) % 64;
    for (int i = 0; i < count; i++) {
        puts[i] = (struct put_made){offset, random_size(random)};
        offset += puts[i].bytes + random_next(random) % 8;
    }
    return count;
}

/* Rank 0 puts in every way; rank 1 sees all of a round with its signal. */
static void put_in_every_order(int rank, int size, const banyan_unique_id *id, void *context)
{
    (void)size;
    struct message_setting s;
    random_state random = random_from(*(uint64_t *)context);
    uint64_t total = 0;
    messages_open(&s, rank, id, 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct put_made puts[PUTS_MOST];
        int count = round_make(&random, puts);
        bool to_user = random_next(&random) % 2, with_signal = random_next(&random) % 2;
        bool begins = random_next(&random) % 2;
        const banyan_memory_handle *to = to_user ? &s.user[1] : &s.symmetric[1];
        uint64_t add = 1 + random_next(&random) % 3;
        for (int i = 0; i < count && rank == 0; i++) {
            banyan_remote remote = {*to, puts[i].offset};
            unsigned char *from = s.block + puts[i].offset;
            for (size_t at = 0; at < puts[i].bytes; at++)
                from[at] = byte_at(round, i, at);
            if (i == count - 1 && with_signal)
                CHECK_OK(banyan_transport_put_with_signal(s.transport, &remote, from, puts[i].bytes,
                                                          s.signal, add));
            else if (begins)
                CHECK_OK(banyan_transport_put_begin(s.transport, &remote, from, puts[i].bytes));
            else
                CHECK_OK(banyan_transport_put(s.transport, &remote, from, puts[i].bytes));
            if (!begins) /* its source may be overwritten */
                memset(from, 0xee, puts[i].bytes);
        }
        if (rank == 0 && !with_signal)
            CHECK_OK(banyan_transport_signal(s.transport, 1, s.signal, add));
        if (rank == 0 && begins)
            CHECK_OK(banyan_transport_settle(s.transport, 1));
        total += add;
        if (rank == 0) {
            CHECK(!begins || banyan_transport_pending(s.transport, 1) == 0);
            CHECK_OK(
                banyan_transport_wait(s.transport, s.signal, (uint64_t)round + 1, 1, "a look"));
            continue;
        }
        CHECK_OK(banyan_transport_wait(s.transport, s.signal, total, 0, "a round"));
        const unsigned char *there = to_user ? s.block : s.mine;
        for (int i = 0; i < count; i++)
            for (size_t at = 0; at < puts[i].bytes; at++)
                CHECK(there[puts[i].offset + at] == byte_at(round, i, at),
                      "round %d: byte %zu of put %d of %zu bytes", round, at, i, puts[i].bytes);
        CHECK_OK(banyan_transport_signal(s.transport, 0, s.signal, 1));
    }
    messages_close(&s);
}

static void a_signal_follows_short_and_long_puts(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    run_two(put_in_every_order, &seed);
}

/* More records and bytes than one message has, visible after a flush or a barrier, without a
 * signal. */
static void put_and_flush(int rank, int size, const banyan_unique_id *id, void *context)
{
    (void)size, (void)context;
    struct message_setting s;
    messages_open(&s, rank, id, 0);
    for (uint32_t round = 1; round <= 20; round++) {
        for (uint32_t i = 0; i < 1000 && rank == 0; i++) {
            uint32_t words[8] = {round, i, round ^ i, i * i, round * i, 7, 8, round + i};
            banyan_remote slot = {s.symmetric[1], (size_t)i * 40};
            CHECK_OK(banyan_transport_put(s.transport, &slot, words, sizeof words));
        }
        if (rank == 0 && round % 2) {
            banyan_remote last = {s.symmetric[1], (size_t)999 * 40};
            uint32_t back[8] = {0};
            CHECK_OK(banyan_transport_flush(s.transport, 1));
            CHECK_OK(banyan_transport_get(s.transport, back, &last, sizeof back));
            CHECK(back[0] == round && back[7] == round + 999, "round %u reads %u", round, back[0]);
        }
        CHECK_OK(banyan_world_barrier(s.world));
        for (uint32_t i = 0; i < 1000 && rank == 1; i++) {
            const uint32_t *words = (const uint32_t *)(const void *)(s.mine + (size_t)i * 40);
            CHECK(words[0] == round && words[2] == (round ^ i) && words[7] == round + i,
                  "round %u, slot %u: %u", round, i, words[0]);
        }
        CHECK_OK(banyan_world_barrier(s.world));
    }
    messages_close(&s);
}

static void flushed_puts_are_there(void **state)
{
    (void)state;
    run_two(put_and_flush, NULL);
}

/* Rank 1 takes its memory away; rank 0 puts there all the same. */
#define PLACES (BANYAN_REDIRECTION_SPANS + 8)
#define PLACE_BYTES ((size_t)70000)

/* Every second place of rank 1 receives a put, so spans do not join. */
static void put_places(const struct message_setting *s, unsigned char value)
{
    unsigned char *sent = malloc(PLACE_BYTES / 2);
    memset(sent, value, PLACE_BYTES / 2);
    for (size_t i = 0; i < PLACES; i++) {
        banyan_remote to = {s->symmetric[1], i * PLACE_BYTES};
        CHECK_OK(banyan_transport_put(s->transport, &to, sent, PLACE_BYTES / 2));
    }
    free(sent);
    CHECK_OK(banyan_transport_flush(s->transport, 1));
}

/* Return the number of places that lie in `at`, which is the part or where it is redirected to. */
static size_t count_places(const unsigned char *at, unsigned char value)
{
    size_t found = 0;
    for (size_t i = 0; i < PLACES; i++) {
        const unsigned char *place = at + i * PLACE_BYTES;
        size_t same = 0;
        while (same < PLACE_BYTES / 2 && place[same] == value)
            same++;
        CHECK(same == 0 || same == PLACE_BYTES / 2, "%zu bytes of place %zu", same, i);
        found += same > 0;
    }
    return found;
}

static void redirect_puts(int rank, int size, const banyan_unique_id *id, void *context)
{
    (void)size, (void)context;
    struct message_setting s;
    transport_world *tables;
    messages_open(&s, rank, id, 0);
    CHECK_OK(transport_world_of(s.world, &tables));
    banyan_redirection part = {
        .address = (char *)s.mine, .bytes = PLACES * PLACE_BYTES, .to = (char *)s.block};
    transport_redirect(tables, &part);
    CHECK_OK(banyan_world_barrier(s.world));
    if (rank == 0)
        put_places(&s, 7);
    CHECK_OK(banyan_world_barrier(s.world));
    transport_redirect(tables, NULL);
    if (rank == 1) {
        size_t listed = 0;
        for (size_t i = 0; i < part.span_count; i++)
            listed += part.spans[i].bytes;
        CHECK(count_places(s.block, 7) == BANYAN_REDIRECTION_SPANS);
        CHECK(count_places(s.mine, 7) == PLACES - BANYAN_REDIRECTION_SPANS);
        CHECK(listed == BANYAN_REDIRECTION_SPANS * (PLACE_BYTES / 2), "%zu bytes listed", listed);
    }
    CHECK_OK(banyan_world_barrier(s.world));
    if (rank == 0)
        put_places(&s, 9);
    CHECK_OK(banyan_world_barrier(s.world));
    CHECK(rank == 0 || (count_places(s.mine, 9) == PLACES && count_places(s.block, 9) == 0));
    messages_close(&s);
}

static void redirected_puts_are_listed_and_the_others_arrive_at_their_address(void **state)
{
    (void)state;
    const char *transports = getenv("UCX_TLS");
    if (!transports || strcmp(transports, "tcp") != 0) {
        printf("left out: with UCX_TLS=tcp only, where all puts are messages\n");
        return;
    }
    run_two(redirect_puts, NULL);
}

static void put_after_the_end(int rank, int size, const banyan_unique_id *id, void *context)
{
    (void)size, (void)context;
    struct message_setting s;
    messages_open(&s, rank, id, 0);
    banyan_remote there = {s.user[1], 64};
    uint64_t word = 77;
    if (rank == 0) {
        CHECK_OK(
            banyan_transport_put_with_signal(s.transport, &there, &word, sizeof word, s.signal, 1));
        CHECK_OK(banyan_transport_wait(s.transport, s.signal, 1, 1, "the end"));
        word = 78;
        CHECK_OK(
            banyan_transport_put_with_signal(s.transport, &there, &word, sizeof word, s.signal, 1));
        CHECK_FAILS(banyan_transport_wait(s.transport, s.signal, 2, 1, "nothing"),
                    BANYAN_ERR_ABORTED, "a message of rank 0 writes 8 bytes at ");
    } else {
        CHECK_OK(banyan_transport_wait(s.transport, s.signal, 1, 0, "a word"));
        CHECK_OK(banyan_memory_unregister(s.world, &s.user[1]));
        CHECK_OK(banyan_transport_signal(s.transport, 0, s.signal, 1));
        CHECK_FAILS(banyan_transport_wait(s.transport, s.signal, 2, 0, "nothing"),
                    BANYAN_ERR_ABORTED, "of which rank 1 has 0 bytes");
        CHECK(s.block[64] == 77, "the word is %d", s.block[64]);
    }
    banyan_transport_close(s.transport);
    banyan_memory_free(s.memory);
    (void)banyan_world_close(s.world);
    free(s.block);
}

static void a_put_to_memory_that_has_ended_ends_the_world(void **state)
{
    (void)state;
    run_two(put_after_the_end, NULL);
}

struct loss {
    int signal_number;
    size_t bytes;
};

/* Rank 1 is killed, or stopped, while messages go to it. */
static void lose_a_receiver(int rank, int size, const banyan_unique_id *id, void *context)
{
    (void)size;
    const struct loss *loss = context;
    struct message_setting s;
    messages_open(&s, rank, id, 2 * NS_PER_S);
    CHECK_OK(banyan_world_barrier(s.world));
    if (rank == 1) {
        pid_t own = getpid();
        if (loss->signal_number == SIGSTOP && fork() == 0) {
            sleep(8);
            kill(own, SIGKILL);
            _exit(0);
        }
        usleep(100000);
        kill(own, loss->signal_number);
        sleep(20);
    }
    uint64_t start_ns = time_now_ns();
    banyan_status status = BANYAN_OK;
    banyan_remote there = {s.symmetric[1], 8};
    while (status == BANYAN_OK)
        status = banyan_transport_put_with_signal(s.transport, &there, s.block, loss->bytes,
                                                  s.signal, 1);
    double took = (double)(time_now_ns() - start_ns) / 1e9;
    CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_TIMEOUT, "%s",
          banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    CHECK(took < 7, "%.1f s", took);
    CHECK(banyan_transport_pending(s.transport, 1) == 0);
    banyan_transport_close(s.transport);
    (void)banyan_world_close(s.world);
}

static void a_receiver_that_is_lost_is_named(void **state)
{
    (void)state;
    static const struct loss losses[] = {
        {SIGKILL, 16}, {SIGKILL, 40000}, {SIGSTOP, 16}, {SIGSTOP, 120000}};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        ranks_fork_and_lose_one(lose_a_receiver, (void *)(uintptr_t)&losses[i]);
}

int main(void)
{
    if (!ucx_is_there())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_follows_short_and_long_puts),
        cmocka_unit_test(flushed_puts_are_there),
        cmocka_unit_test(redirected_puts_are_listed_and_the_others_arrive_at_their_address),
        cmocka_unit_test(a_put_to_memory_that_has_ended_ends_the_world),
        cmocka_unit_test(a_receiver_that_is_lost_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
