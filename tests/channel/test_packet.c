/* Packets contain exactly the written data, show exactly the arrived ones, and are never torn. */
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "channel/packet.h"
#include "core/deadline.h"
#include "support/levels.h"

#define MOST 6000
#define MARGIN 64

static char data[MOST + 2 * MARGIN], back[MOST + 2 * MARGIN];
static _Alignas(64) char packets[2 * MOST + 4 * MARGIN], others[2 * MOST + 4 * MARGIN];

static uint64_t packet_at(const char *first, size_t index)
{
    uint64_t packet;
    memcpy(&packet, first + index * PACKET_BYTES, sizeof packet);
    return packet;
}

static void fill(char *bytes, size_t count, random_state *random)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (char)random_next(random);
}

static bool untouched(const char *bytes, const char *end)
{
    while (bytes < end && *bytes == 0x5a)
        bytes++;
    return bytes == end;
}

/* The packets equal the data, and their neighbours are unchanged. */
static void check_packets(const char *room, size_t room_bytes, const char *first, const char *from,
                          size_t bytes, uint32_t flag)
{
    for (size_t done = 0; done < bytes; done += 4) {
        uint32_t word;
        uint64_t packet = packet_at(first, done / 4);
        memcpy(&word, (const char *)&packet, sizeof word);
        CHECK(memcmp(&word, from + done, bytes - done < 4 ? bytes - done : 4) == 0,
              "%zu bytes, packet %zu", bytes, done / 4);
        CHECK(packet >> 32 == flag, "%zu bytes, packet %zu", bytes, done / 4);
    }
    CHECK(untouched(room, first), "%zu bytes: packets before the first one", bytes);
    CHECK(untouched(first + packets_room(bytes), room + room_bytes), "%zu bytes: after", bytes);
}

static void check_read(size_t to_offset, const char *first, const char *from, size_t bytes,
                       size_t come, uint32_t flag)
{
    memset(back, 0x5a, sizeof back);
    char *to = back + MARGIN + to_offset;
    size_t got = packets_read(to, first, bytes, flag);
    CHECK(got == come, "%zu of %zu bytes, not %zu", got, bytes, come);
    CHECK(memcmp(to, from, got) == 0, "%zu of %zu bytes", got, bytes);
    CHECK(untouched(back, to) && untouched(to + got, back + sizeof back), "%zu of %zu bytes", got,
          bytes);
}

static void check_forward(size_t to_offset, const char *first, const char *from, size_t bytes,
                          size_t come, uint32_t flag, uint32_t to_flag)
{
    memset(others, 0x5a, sizeof others);
    char *to = others + 2 * MARGIN + 8 * to_offset;
    size_t got = packets_forward(to, to_flag, first, bytes, flag);
    CHECK(got == come, "%zu of %zu bytes, not %zu", got, bytes, come);
    check_packets(others, sizeof others, to, from, got, to_flag);
}

/* One run there, back and on; then without the packet at `missing`. */
static void check_run(size_t bytes, random_state *random)
{
    uint32_t flag = (uint32_t)random_next(random) | 1;
    const char *from = data + random_between(random, 0, MARGIN);
    char *first = packets + 2 * MARGIN + 8 * random_between(random, 0, 7);
    size_t offset = (size_t)random_between(random, 0, 7);
    fill(data, sizeof data, random);
    memset(packets, 0x5a, sizeof packets);
    packets_write(first, from, bytes, flag);
    check_packets(packets, sizeof packets, first, from, bytes, flag);
    check_read(offset, first, from, bytes, bytes, flag);
    check_forward(offset, first, from, bytes, bytes, flag, ~flag);
    if (bytes == 0)
        return;
    size_t missing = (size_t)random_between(random, 0, (int64_t)(bytes - 1) / 4);
    uint32_t wrong = flag ^ UINT32_C(1) << random_between(random, 0, 31);
    memcpy(first + missing * PACKET_BYTES + 4, &wrong, sizeof wrong);
    check_read(offset, first, from, bytes, 4 * missing, flag);
    check_forward(offset, first, from, bytes, 4 * missing, flag, flag + 1);
}

static void every_size_goes_there_and_back(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (size_t bytes = 0; bytes <= 70; bytes++) {
        for (int i = 0; i < 64; i++)
            check_run(bytes, &random);
    }
    for (int i = 0; i < 3000; i++)
        check_run((size_t)random_between(&random, 71, i % 8 == 0 ? MOST : 700), &random);
}

static void every_missing_packet_is_noticed(void **state)
{
    (void)state;
    enum { BYTES = 1021 };
    random_state random = random_from(random_seed());
    fill(data, sizeof data, &random);
    for (size_t offset = 0; offset < 8; offset++) {
        char *first = packets + 8 * offset;
        for (size_t missing = 0; missing < (BYTES + 3) / 4; missing++) {
            packets_write(first, data, BYTES, 7);
            memset(first + missing * PACKET_BYTES + 4, 0, 4);
            check_read(0, first, data, BYTES, 4 * missing, 7);
            check_forward(0, first, data, BYTES, 4 * missing, 7, 9);
        }
    }
}

static void packets_may_be_forwarded_where_they_lie(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    fill(data, sizeof data, &random);
    for (size_t bytes = 1; bytes <= 1000; bytes += 37) {
        packets_write(packets, data, bytes, 3);
        CHECK(packets_forward(packets, 4, packets, bytes, 3) == bytes);
        check_read(0, packets, data, bytes, bytes, 4);
    }
}

#define SHARED 1200

struct mail {
    _Alignas(64) char packets[2 * SHARED];
    _Alignas(64) char answers[2 * SHARED];
    uint64_t rounds;
    _Atomic bool over;
    size_t offset;
};

static void words_of_round(uint32_t *words, uint32_t round, size_t count)
{
    for (size_t i = 0; i < count; i++)
        words[i] = (uint32_t)((round * UINT64_C(0x9e3779b97f4a7c15) + i) * UINT64_C(2654435761));
}

static size_t size_of_round(uint32_t round)
{
    return 1 + (round * 2654435761U >> 7) % (SHARED - 64);
}

static void receive(char *to, const char *from, size_t bytes, uint32_t flag)
{
    uint64_t deadline_ns = deadline_after(30 * NS_PER_S);
    for (size_t done = 0; done < bytes;) {
        size_t some = packets_read(to + done, from + 2 * done, bytes - done, flag);
        if (some == 0) {
            CHECK(deadline_left_ns(deadline_ns) > 0, "packet %zu of round %u", done / 4, flag);
            sched_yield();
        }
        done += some;
    }
}

/* Forward each round's packets as they arrive. */
static void *echo(void *context)
{
    struct mail *mail = context;
    for (uint32_t round = 1; round <= mail->rounds; round++) {
        size_t bytes = size_of_round(round), at = 8 * (round % 8);
        for (size_t done = 0; done < bytes;) {
            size_t some = packets_forward(mail->answers + at + 2 * done, ~round,
                                          mail->packets + at + 2 * done, bytes - done, round);
            if (some == 0)
                sched_yield();
            done += some;
        }
    }
    return NULL;
}

static void flags_distinguish_rounds(void **state)
{
    (void)state;
    static struct mail mail = {.rounds = 20000};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, echo, &mail) == 0);
    for (uint32_t round = 1; round <= mail.rounds; round++) {
        uint32_t words[SHARED / 4], answer[SHARED / 4];
        size_t bytes = size_of_round(round), at = 8 * (round % 8);
        words_of_round(words, round, SHARED / 4);
        packets_write(mail.packets + at, words, bytes, round);
        receive((char *)answer, mail.answers + at, bytes, ~round);
        CHECK(memcmp(words, answer, bytes) == 0, "round %u", round);
    }
    pthread_join(thread, NULL);
}

static void *rewrite(void *context)
{
    struct mail *mail = context;
    uint32_t words[SHARED / 4];
    for (uint32_t round = 1; !atomic_load(&mail->over); round = round % 3 + 1) {
        words_of_round(words, round, SHARED / 4);
        packets_write(mail->packets + mail->offset, words, SHARED - 64, round);
    }
    return NULL;
}

/* No thread waits for another: data read under a flag was written with that flag. */
static void data_and_flag_are_of_one_writing(void **state)
{
    (void)state;
    static struct mail mail;
    for (mail.offset = 0; mail.offset < 64; mail.offset += 8) {
        pthread_t thread;
        uint64_t end_ns = deadline_after(NS_PER_S / 16), read = 0;
        atomic_store(&mail.over, false);
        memset(mail.packets, 0, sizeof mail.packets);
        CHECK(pthread_create(&thread, NULL, rewrite, &mail) == 0);
        for (uint32_t round = 1; time_now_ns() < end_ns || read == 0; round = round % 3 + 1) {
            uint32_t expected[SHARED / 4], words[SHARED / 4];
            words_of_round(expected, round, SHARED / 4);
            for (size_t at = 0; at < SHARED - 64; at += 4) {
                size_t some = packets_read(words, mail.packets + mail.offset + 2 * at,
                                           SHARED - 64 - at, round);
                CHECK(memcmp(words, (char *)expected + at, some) == 0, "round %u at %zu", round,
                      at);
                at += some;
                read += some;
            }
        }
        atomic_store(&mail.over, true);
        pthread_join(thread, NULL);
    }
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_goes_there_and_back),
        cmocka_unit_test(every_missing_packet_is_noticed),
        cmocka_unit_test(packets_may_be_forwarded_where_they_lie),
        cmocka_unit_test(flags_distinguish_rounds),
        cmocka_unit_test(data_and_flag_are_of_one_writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return levels_run(run_all);
}
