/* A connection's bytes: any division has one meaning; any change is refused. */
#include "support/test.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world/net/link.h"

enum { MESSAGES = 6 };

/* One end, and the messages it received. */
struct end {
    struct link *link;
    int socket; /* the test's side of its socket */
    pthread_mutex_t lock;
    unsigned char key[WIRE_KEY_BYTES];
    bool refuses;
    int ready, delivered;
    uint64_t seed;
};

static size_t message_bytes(uint64_t seed, int index)
{
    static const size_t sizes[MESSAGES] = {0, 1, 31, 200, 0, 50000};
    return sizes[index] + (sizes[index] > 1 ? seed % 17 : 0);
}

static void fill(uint64_t seed, int index, unsigned char *data, size_t bytes)
{
    random_state random = random_from(seed + (uint64_t)index);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)random_next(&random);
}

static banyan_status admit(void *owner, struct link *link)
{
    const struct end *end = owner;
    (void)link;
    return end->refuses ? banyan_error_set(BANYAN_ERR_MISMATCH, "there is one already") : BANYAN_OK;
}

static void ready(void *owner, struct link *link)
{
    struct end *end = owner;
    (void)link;
    end->ready++;
}

static banyan_status take(void *owner, struct link *link, const struct wire_frame *frame,
                          void *payload, int fd)
{
    struct end *end = owner;
    static unsigned char expected[1 << 16];
    (void)link;
    size_t bytes = message_bytes(end->seed, end->delivered);
    fill(end->seed, end->delivered, expected, bytes);
    CHECK(frame->kind == WIRE_MESSAGE && frame->tag == (uint64_t)end->delivered);
    CHECK(frame->bytes == bytes && (bytes == 0 || memcmp(payload, expected, bytes) == 0));
    CHECK(fd == -1);
    end->delivered++;
    free(payload);
    return BANYAN_OK;
}

static const struct link_ops ops = {.admit = admit, .ready = ready, .frame = take};

static void make_end(struct end *end, bool connects, bool authenticated, uint64_t seed)
{
    int sockets[2], room = 1 << 20;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets) == 0);
    setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    *end = (struct end){.link = calloc(1, sizeof *end->link), .socket = sockets[1], .seed = seed};
    pthread_mutex_init(&end->lock, NULL);
    memset(end->key, 0x42, sizeof end->key);
    link_init(end->link, sockets[0], connects, true, WIRE_PURPOSE_PEER, connects ? 1 : -1, 2);
    end->link->authenticated = authenticated;
    end->link->key = end->key;
    end->link->ops = &ops;
    end->link->owner = end;
    end->link->lock = &end->lock;
    snprintf(end->link->who, sizeof end->link->who, "the other end");
}

static void free_end(struct end *end)
{
    link_destroy(end->link);
    close(end->socket);
    pthread_mutex_destroy(&end->lock);
}

/* Return the end's output, up to `room` bytes. */
static size_t written(struct end *end, unsigned char *data, size_t room)
{
    size_t total = 0;
    for (;;) {
        link_flush(end->link);
        ssize_t got = recv(end->socket, data + total, room - total, MSG_DONTWAIT);
        if (got <= 0)
            return total;
        total += (size_t)got;
    }
}

/* Feed pieces of random lengths; sometimes a long payload goes directly to its place. */
static banyan_status feed(struct end *end, const unsigned char *data, size_t bytes,
                          random_state *random)
{
    banyan_status status = BANYAN_OK;
    while (bytes > 0 && status == BANYAN_OK) {
        size_t room = 0, piece = (size_t)random_between(random, 1, 3) == 1
                                     ? 1
                                     : (size_t)random_between(random, 1, 20000);
        unsigned char *payload = link_payload_room(end->link, &room);
        piece = piece < bytes ? piece : bytes;
        if (payload && random_between(random, 0, 1)) {
            piece = piece < room ? piece : room;
            memcpy(payload, data, piece);
            status = link_filled(end->link, piece);
        } else {
            status = link_feed(end->link, data, piece);
        }
        data += piece;
        bytes -= piece;
    }
    return status;
}

static banyan_status carry(struct end *from, struct end *to, random_state *random)
{
    unsigned char data[512];
    size_t bytes = written(from, data, sizeof data);
    return feed(to, data, bytes, random);
}

static void shake_hands(struct end *left, struct end *right, bool authenticated, uint64_t seed,
                        random_state *random)
{
    make_end(left, true, authenticated, seed);
    make_end(right, false, authenticated, seed);
    link_greet(left->link);
    CHECK_OK(carry(left, right, random));
    CHECK_OK(carry(right, left, random));
    CHECK_OK(carry(left, right, random));
    CHECK_OK(carry(right, left, random));
    CHECK(left->ready == 1 && right->ready == 1);
}

/* Record all messages as sent; offsets[i] is the begin of message i. */
static size_t record(struct end *left, unsigned char *stream, size_t room, size_t *offsets)
{
    static unsigned char data[1 << 16];
    size_t bytes = 0;
    for (int i = 0; i < MESSAGES; i++) {
        struct wire_frame frame = {
            .kind = WIRE_MESSAGE, .tag = (uint64_t)i, .bytes = message_bytes(left->seed, i)};
        fill(left->seed, i, data, (size_t)frame.bytes);
        CHECK_OK(link_send(left->link, &frame, data, -1));
        offsets[i] = bytes;
        bytes += written(left, stream + bytes, room - bytes);
    }
    offsets[MESSAGES] = bytes;
    return bytes;
}

static unsigned char stream[1 << 18], changed[1 << 18];

static void a_stream_means_the_same_wherever_it_is_cut(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    random_state random = random_from(seed);
    for (int round = 0; round < 60; round++) {
        struct end left, right;
        size_t offsets[MESSAGES + 1];
        shake_hands(&left, &right, round % 2, seed + (uint64_t)round, &random);
        size_t bytes = record(&left, stream, sizeof stream, offsets);
        CHECK_OK(feed(&right, stream, bytes, &random));
        assert_int_equal(right.delivered, MESSAGES);
        free_end(&left);
        free_end(&right);
    }
}

/* Neither a changed message nor any after it is delivered. */
static void a_sealed_stream_with_one_bit_changed_is_refused(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    random_state random = random_from(seed);
    for (int round = 0; round < 400; round++) {
        struct end left, right;
        size_t offsets[MESSAGES + 1];
        shake_hands(&left, &right, true, seed + (uint64_t)round, &random);
        size_t bytes = record(&left, stream, sizeof stream, offsets);
        int message = (int)random_between(&random, 0, MESSAGES - 1);
        size_t at = (size_t)random_between(&random, (int64_t)offsets[message],
                                           (int64_t)offsets[message + 1] - 1);
        stream[at] ^= (unsigned char)(1 << random_between(&random, 0, 7));
        CHECK_FAILS(feed(&right, stream, bytes, &random), BANYAN_ERR_FORMAT,
                    "was changed on the way");
        assert_int_equal(right.delivered, message);
        free_end(&left);
        free_end(&right);
    }
}

static void a_sealed_message_left_out_or_repeated_is_refused(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    random_state random = random_from(seed);
    for (int round = 0; round < 100; round++) {
        struct end left, right;
        size_t offsets[MESSAGES + 1];
        shake_hands(&left, &right, true, seed + (uint64_t)round, &random);
        size_t bytes = record(&left, stream, sizeof stream, offsets);
        int message = (int)random_between(&random, 0, MESSAGES - 2);
        size_t begin = offsets[message], end = offsets[message + 1];
        memcpy(changed, stream, end);
        size_t skip = round % 2 ? begin : end; /* repeat, or leave out */
        size_t keep = round % 2 ? end : begin;
        memcpy(changed + keep, stream + skip, bytes - skip);
        CHECK_FAILS(feed(&right, changed, keep + bytes - skip, &random), BANYAN_ERR_FORMAT,
                    "was changed on the way");
        assert_int_equal(right.delivered, round % 2 ? message + 1 : message);
        free_end(&left);
        free_end(&right);
    }
}

static void a_handshake_with_one_bit_changed_is_refused(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 300; round++) {
        struct end left, right;
        unsigned char data[512];
        make_end(&left, true, true, 0);
        make_end(&right, false, true, 0);
        link_greet(left.link);
        struct end *from = &left, *to = &right;
        banyan_status status = BANYAN_OK;
        int step = 0, victim = round % 4;
        for (; step < 4 && status == BANYAN_OK; step++) {
            size_t bytes = written(from, data, sizeof data);
            CHECK(bytes > 0);
            if (step == victim)
                data[random_between(&random, 0, (int64_t)bytes - 1)] ^=
                    (unsigned char)(1 << random_between(&random, 0, 7));
            status = feed(to, data, bytes, &random);
            struct end *other = from;
            from = to;
            to = other;
        }
        /* A false hello or challenge is noticed when the next proof is checked. */
        CHECK(status != BANYAN_OK && step <= victim + 2, "a bit of step %d: %d steps", victim,
              step);
        CHECK(right.ready == (victim == 3) && left.ready == 0);
        free_end(&left);
        free_end(&right);
    }
}

static void a_refused_connection_receives_the_reason(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    struct end left, right;
    make_end(&left, true, true, 0);
    make_end(&right, false, true, 0);
    right.refuses = true;
    link_greet(left.link);
    CHECK_OK(carry(&left, &right, &random));
    CHECK_OK(carry(&right, &left, &random));
    CHECK_FAILS(carry(&left, &right, &random), BANYAN_ERR_MISMATCH, "there is one already");
    banyan_error_set(BANYAN_OK, "nothing");
    CHECK_FAILS(carry(&right, &left, &random), BANYAN_ERR_MISMATCH, "there is one already");
    assert_int_equal(left.ready + right.ready, 0);
    free_end(&left);
    free_end(&right);
}

static void garbage_is_refused_at_every_stage(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 2000; round++) {
        struct end left, right;
        int steps = round % 5;
        make_end(&left, true, round & 8, 0);
        make_end(&right, false, round & 8, 0);
        link_greet(left.link);
        struct end *from = &left, *to = &right;
        for (int step = 0; step < steps; step++) {
            CHECK_OK(carry(from, to, &random));
            struct end *other = from;
            from = to;
            to = other;
        }
        unsigned char data[2048];
        size_t bytes = (size_t)random_between(&random, 200, sizeof data);
        for (size_t i = 0; i < bytes; i++)
            data[i] = (unsigned char)random_next(&random);
        CHECK(feed(to, data, bytes, &random) != BANYAN_OK, "garbage is taken at step %d", steps);
        CHECK(to->delivered == 0);
        free_end(&left);
        free_end(&right);
    }
}

/* A reason is any bytes of any length, also none. */
static void a_refusal_has_a_message_whatever_it_contains(void **state)
{
    (void)state;
    static unsigned char reason[1 << 16];
    const size_t lengths[] = {0, 1, 9, sizeof reason};
    random_state random = random_from(random_seed());
    memset(reason, 'x', sizeof reason);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct end left, right;
        shake_hands(&left, &right, false, 0, &random);
        struct wire_frame frame = {
            .kind = WIRE_REFUSED, .tag = BANYAN_ERR_MISMATCH, .bytes = lengths[i]};
        CHECK_OK(link_send(left.link, &frame, reason, -1));
        size_t bytes = written(&left, stream, sizeof stream);
        CHECK_FAILS(feed(&right, stream, bytes, &random), BANYAN_ERR_MISMATCH,
                    lengths[i] == 0 ? "the other end refuses" : "x");
        assert_true(strlen(banyan_last_error()) < 2000);
        free_end(&left);
        free_end(&right);
    }
}

/* More than the socket's capacity: queued data arrive complete and in order, with descriptors. */
static void pending_output_is_written_later(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    struct end left, right;
    int room = 4096;
    shake_hands(&left, &right, true, 5, &random);
    setsockopt(left.link->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    static unsigned char data[1 << 16];
    for (int i = 0; i < MESSAGES; i++) {
        struct wire_frame frame = {
            .kind = WIRE_MESSAGE, .tag = (uint64_t)i, .bytes = message_bytes(5, i)};
        fill(5, i, data, (size_t)frame.bytes);
        CHECK_OK(link_send(left.link, &frame, data, -1));
    }
    assert_true(link_has_output(left.link));
    size_t bytes = written(&left, stream, sizeof stream);
    assert_false(link_has_output(left.link));
    CHECK_OK(feed(&right, stream, bytes, &random));
    assert_int_equal(right.delivered, MESSAGES);
    free_end(&left);
    free_end(&right);
}

/* Return a payload's next byte. */
static unsigned char long_byte(size_t at)
{
    return (unsigned char)(at * 2654435761u >> 13);
}

static banyan_status take_long(void *owner, struct link *link, const struct wire_frame *frame,
                               void *payload, int fd)
{
    struct end *end = owner;
    const unsigned char *data = payload;
    (void)link;
    (void)fd;
    for (size_t i = 0; i < frame->bytes; i++)
        CHECK(data[i] == long_byte(i), "byte %zu of %zu", i, (size_t)frame->bytes);
    end->delivered++;
    free(payload);
    return BANYAN_OK;
}

static const struct link_ops long_ops = {.admit = admit, .ready = ready, .frame = take_long};

static void a_header_alone_takes_little_memory(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int i = 0; i < 20; i++) {
        struct end left, right;
        shake_hands(&left, &right, false, 0, &random);
        struct wire_frame frame = {.kind = WIRE_MESSAGE, .bytes = WIRE_PAYLOAD_MAX};
        CHECK_OK(link_feed(right.link, (const unsigned char *)&frame, sizeof frame));
        size_t sent = 0, most = (size_t)random_between(&random, 0, 3000000);
        while (sent < most) {
            CHECK_OK(link_feed(right.link, stream, 10000));
            sent += 10000;
        }
        size_t held = malloc_usable_size(right.link->payload);
        assert_true(held > sent);
        assert_true(held <= 2 * sent + (1 << 20));
        free_end(&left);
        free_end(&right);
    }
}

static void a_long_message_arrives_whole_wherever_it_is_cut(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    const size_t most = 5 << 20;
    unsigned char *data = malloc(most), *sent = malloc(most + 4096);
    for (size_t i = 0; i < most; i++)
        data[i] = long_byte(i);
    static const size_t exact[] = {256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 1 << 20, 5 << 20};
    for (size_t i = 0; i < 10; i++) {
        struct end left, right;
        shake_hands(&left, &right, i >= 5, 0, &random);
        right.link->ops = &long_ops;
        struct wire_frame frame = {.kind = WIRE_MESSAGE, .bytes = exact[i % 5]};
        CHECK_OK(link_send(left.link, &frame, data, -1));
        size_t bytes = written(&left, sent, most + 4096);
        CHECK_OK(feed(&right, sent, bytes, &random));
        assert_int_equal(right.delivered, 1);
        free_end(&left);
        free_end(&right);
    }
    free(sent);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_means_the_same_wherever_it_is_cut),
        cmocka_unit_test(a_sealed_stream_with_one_bit_changed_is_refused),
        cmocka_unit_test(a_sealed_message_left_out_or_repeated_is_refused),
        cmocka_unit_test(a_handshake_with_one_bit_changed_is_refused),
        cmocka_unit_test(a_refused_connection_receives_the_reason),
        cmocka_unit_test(garbage_is_refused_at_every_stage),
        cmocka_unit_test(a_refusal_has_a_message_whatever_it_contains),
        cmocka_unit_test(pending_output_is_written_later),
        cmocka_unit_test(a_header_alone_takes_little_memory),
        cmocka_unit_test(a_long_message_arrives_whole_wherever_it_is_cut),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
