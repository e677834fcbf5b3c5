/* Requests posted to a port are executed in order, and the signal after them makes them visible. */
#include "support/test.h"

#include <pthread.h>
#include <time.h>

#include "channel/packet.h"
#include "channel/port.h"
#include "core/deadline.h"

/* Wait as a rank does. */
static void wait_for_counter(wake_up *own, const counter *c, uint64_t least)
{
    uint64_t deadline_ns = deadline_after(60 * NS_PER_S);
    for (int i = 0; counter_read(c) < least; i++) {
        CHECK(deadline_left_ns(deadline_ns) > 0, "%llu of %llu signals",
              (unsigned long long)counter_read(c), (unsigned long long)least);
        uint32_t seen = wake_up_announce(own);
        if (i > 50 && counter_read(c) < least)
            wake_up_sleep_announced(own, seen, WAKE_UP_NAP_NS);
        wake_up_withdraw(own);
    }
}

static void wait_for_done(wake_up *own, const port_queue *queue, uint64_t least)
{
    uint64_t deadline_ns = deadline_after(60 * NS_PER_S);
    while (port_done(queue) < least) {
        CHECK(deadline_left_ns(deadline_ns) > 0, "%llu of %llu requests",
              (unsigned long long)port_done(queue), (unsigned long long)least);
        uint32_t seen = wake_up_announce(own);
        if (port_done(queue) < least)
            wake_up_sleep_announced(own, seen, WAKE_UP_NAP_NS);
        wake_up_withdraw(own);
    }
}

static void post(wake_up *own, port_queue *queue, const port_request *request)
{
    while (!port_post(queue, request)) {
        uint64_t done = port_done(queue);
        wait_for_done(own, queue, done < port_posted(queue) ? done + 1 : done);
    }
}

static void fill(char *bytes, size_t count, uint64_t seed)
{
    random_state random = random_from(seed);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (char)random_next(&random);
}

#define ROUNDS 3000
#define LARGEST 3000

struct lane {
    wake_up sender, receiver;
    counter filled, emptied;
    char to[LARGEST];
    _Alignas(8) char packets[2 * LARGEST], forwarded[2 * LARGEST];
};

static size_t round_bytes(uint64_t round)
{
    return (round * 2654435761U >> 5) % LARGEST;
}

/* Each round's bytes arrive as they are, as packets, and as forwarded packets; the receiver
 * signals after reading them. */
static void *receive_rounds(void *argument)
{
    struct lane *lane = argument;
    static char expected[LARGEST], unpacked[LARGEST];
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        size_t bytes = round_bytes(round);
        fill(expected, bytes, round);
        wait_for_counter(&lane->receiver, &lane->filled, round);
        CHECK(memcmp(lane->to, expected, bytes) == 0, "round %llu", (unsigned long long)round);
        const char *packets[] = {lane->packets, lane->forwarded};
        for (int i = 0; i < 2; i++) {
            size_t come = packets_read(unpacked, packets[i], bytes, (uint32_t)round);
            CHECK(come == bytes && memcmp(unpacked, expected, bytes) == 0, "round %llu",
                  (unsigned long long)round);
        }
        counter_add(&lane->emptied, 1);
        wake_up_doorbell(&lane->sender);
    }
    return NULL;
}

static void puts_are_seen_with_the_signal_behind_them(void **state)
{
    (void)state;
    static struct lane lane;
    static char from[2][LARGEST];
    port_proxy *proxy;
    port_queue *queue;
    pthread_t thread;
    CHECK_OK(port_proxy_create(&lane.sender, false, &proxy));
    CHECK_OK(port_queue_create(proxy, &queue));
    CHECK(pthread_create(&thread, NULL, receive_rounds, &lane) == 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        size_t bytes = round_bytes(round);
        port_request put = {
            .kind = PORT_PUT, .destination = lane.to, .source = from[round % 2], .bytes = bytes};
        port_request put_packets = {.kind = PORT_PUT_PACKETS,
                                    .destination = lane.packets,
                                    .source = from[round % 2],
                                    .bytes = bytes,
                                    .flag = (uint32_t)round,
                                    .peer = &lane.receiver};
        port_request forward = {.kind = PORT_FORWARD_PACKETS,
                                .destination = lane.forwarded,
                                .source = lane.packets,
                                .bytes = bytes,
                                .flag = (uint32_t)round,
                                .peer = &lane.receiver};
        port_request signal = {.kind = PORT_SIGNAL, .signal = &lane.filled, .peer = &lane.receiver};
        fill(from[round % 2], bytes, round);
        wait_for_counter(&lane.sender, &lane.emptied, round - 1);
        post(&lane.sender, queue, &put);
        post(&lane.sender, queue, &put_packets);
        post(&lane.sender, queue, &forward);
        post(&lane.sender, queue, &signal);
        /* The source of a completed request may be overwritten, here that of the previous round. */
        wait_for_done(&lane.sender, queue, port_posted(queue) - 4);
    }
    pthread_join(thread, NULL);
    /* A request counts as done only after the receiver may have seen it. */
    wait_for_done(&lane.sender, queue, port_posted(queue));
    CHECK(port_done(queue) == 4 * ROUNDS && port_posted(queue) == 4 * ROUNDS);
    port_queue_destroy(queue);
    port_proxy_destroy(proxy);
}

/* The put is so long that the signals behind it pile up. */
static void a_full_queue_says_so_and_loses_nothing(void **state)
{
    (void)state;
    const size_t bytes = (size_t)64 << 20;
    static wake_up own;
    static counter counted;
    char *from = malloc(bytes), *to = calloc(1, bytes);
    fill(from, 4096, 1);
    port_proxy *proxy;
    port_queue *queue;
    CHECK_OK(port_proxy_create(&own, true, &proxy));
    CHECK_OK(port_queue_create(proxy, &queue));
    port_request put = {.kind = PORT_PUT, .destination = to, .source = from, .bytes = bytes};
    port_request signal = {.kind = PORT_SIGNAL, .signal = &counted, .peer = &own};
    uint64_t posted = 0;
    for (int run = 0; run < 3; run++) {
        post(&own, queue, &put);
        while (port_post(queue, &signal))
            posted++;
        post(&own, queue, &signal);
        posted++;
    }
    wait_for_done(&own, queue, port_posted(queue));
    CHECK(counter_read(&counted) == posted && port_posted(queue) == posted + 3);
    CHECK(memcmp(from, to, bytes) == 0);
    port_queue_destroy(queue);
    port_proxy_destroy(proxy);
    free(from);
    free(to);
}

/* A put after a short one is divided at any point where the short one leaves space. */
static void packets_are_whole_wherever_a_long_put_is_cut(void **state)
{
    (void)state;
    static wake_up own;
    const size_t bytes = ((size_t)5 << 20) / 2 + 3;
    char *from = malloc(bytes), *to = malloc(bytes), *packets = malloc(packets_room(bytes));
    char *forwarded = malloc(packets_room(bytes));
    fill(from, bytes, 4);
    port_proxy *proxy;
    port_queue *queue;
    CHECK_OK(port_proxy_create(&own, true, &proxy));
    CHECK_OK(port_queue_create(proxy, &queue));
    for (uint32_t odd = 1; odd < 8; odd++) {
        port_request requests[] = {
            {.kind = PORT_PUT, .destination = to, .source = from, .bytes = (size_t)odd * 10007},
            {.kind = PORT_PUT_PACKETS,
             .destination = packets,
             .source = from,
             .bytes = bytes,
             .flag = odd,
             .peer = &own},
            {.kind = PORT_PUT, .destination = to, .source = from, .bytes = odd},
            {.kind = PORT_FORWARD_PACKETS,
             .destination = forwarded,
             .source = packets,
             .bytes = bytes,
             .flag = odd,
             .peer = &own},
        };
        for (int i = 0; i < 4; i++)
            CHECK(port_post(queue, &requests[i]));
        wait_for_done(&own, queue, port_posted(queue));
        CHECK(packets_read(to, packets, bytes, odd) == bytes && memcmp(to, from, bytes) == 0);
        CHECK(packets_read(to, forwarded, bytes, odd) == bytes && memcmp(to, from, bytes) == 0);
    }
    port_queue_destroy(queue);
    port_proxy_destroy(proxy);
    free(from);
    free(to);
    free(packets);
    free(forwarded);
}

static void a_queue_does_its_work_before_it_is_destroyed(void **state)
{
    (void)state;
    const size_t bytes = (size_t)5 << 20;
    char *from = malloc(bytes), *to = malloc(bytes);
    fill(from, bytes, 2);
    for (int run = 0; run < 20; run++) {
        static wake_up own;
        counter counted = {0};
        port_proxy *proxy;
        port_queue *queues[3];
        memset(to, 0, bytes);
        CHECK_OK(port_proxy_create(&own, run % 2 == 0, &proxy));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(port_queue_create(proxy, &queues[i]));
            size_t part = bytes / 3, at = part * (size_t)i;
            port_request put = {
                .kind = PORT_PUT, .destination = to + at, .source = from + at, .bytes = part};
            port_request signal = {.kind = PORT_SIGNAL, .signal = &counted, .peer = &own};
            CHECK(port_post(queues[i], &put) && port_post(queues[i], &signal));
        }
        for (int i = 0; i < 3; i++)
            port_queue_destroy(queues[(run + i) % 3]);
        CHECK(counter_read(&counted) == 3);
        CHECK(memcmp(from, to, bytes / 3 * 3) == 0, "run %d", run);
        port_proxy_destroy(proxy);
    }
    free(from);
    free(to);
}

static void nothing_need_be_posted(void **state)
{
    (void)state;
    static wake_up own;
    port_proxy *proxy;
    port_queue *queue;
    CHECK_OK(port_proxy_create(&own, false, &proxy));
    port_proxy_destroy(proxy);
    CHECK_OK(port_proxy_create(&own, false, &proxy));
    CHECK_OK(port_queue_create(proxy, &queue));
    CHECK(port_posted(queue) == 0 && port_done(queue) == 0);
    port_queue_destroy(queue);
    port_queue_destroy(NULL);
    port_proxy_destroy(proxy);
    port_proxy_destroy(NULL);
}

#define QUEUES 40
#define POSTS 300

struct poster {
    pthread_t thread;
    wake_up *own;
    port_queue *queue;
    counter counted;
    uint64_t from[16], to[16];
};

/* Puts overwrite each other in order: the last one's bytes stay. */
static void *post_many(void *argument)
{
    struct poster *poster = argument;
    for (uint64_t i = 1; i <= POSTS; i++) {
        poster->from[i % 16] = i;
        port_request put = {.kind = PORT_PUT,
                            .destination = &poster->to[i % 2],
                            .source = &poster->from[i % 16],
                            .bytes = 8};
        port_request signal = {
            .kind = PORT_SIGNAL, .signal = &poster->counted, .peer = poster->own};
        post(poster->own, poster->queue, &put);
        post(poster->own, poster->queue, &signal);
        if (i % 8 == 0) {
            wait_for_counter(poster->own, &poster->counted, i);
            CHECK(poster->to[0] == i && poster->to[1] == i - 1);
        }
    }
    return NULL;
}

static void many_queues_are_served_side_by_side(void **state)
{
    (void)state;
    static wake_up own;
    static struct poster posters[QUEUES];
    static counter whole;
    const size_t bytes = (size_t)32 << 20;
    char *from = malloc(bytes), *to = calloc(1, bytes);
    fill(from, bytes, 3);
    port_proxy *proxy;
    port_queue *busy;
    CHECK_OK(port_proxy_create(&own, true, &proxy));
    CHECK_OK(port_queue_create(proxy, &busy));
    port_request put = {.kind = PORT_PUT, .destination = to, .source = from, .bytes = bytes};
    port_request signal = {.kind = PORT_SIGNAL, .signal = &whole, .peer = &own};
    CHECK(port_post(busy, &put) && port_post(busy, &signal));
    for (int i = 0; i < QUEUES; i++) {
        posters[i].own = &own;
        CHECK_OK(port_queue_create(proxy, &posters[i].queue));
    }
    for (int first = 0; first < QUEUES; first += 4) {
        for (int i = first; i < first + 4; i++)
            CHECK(pthread_create(&posters[i].thread, NULL, post_many, &posters[i]) == 0);
        for (int i = first; i < first + 4; i++) {
            pthread_join(posters[i].thread, NULL);
            port_queue_destroy(posters[i].queue);
            CHECK(counter_read(&posters[i].counted) == POSTS);
        }
    }
    wait_for_counter(&own, &whole, 1);
    CHECK(memcmp(from, to, bytes) == 0);
    port_queue_destroy(busy);
    port_proxy_destroy(proxy);
    free(from);
    free(to);
}

static uint64_t process_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * NS_PER_S + (uint64_t)used.tv_nsec;
}

static void a_proxy_without_work_sleeps_and_wakes(void **state)
{
    (void)state;
    static wake_up own;
    static counter counted;
    port_proxy *proxy;
    port_queue *queue;
    CHECK_OK(port_proxy_create(&own, false, &proxy));
    CHECK_OK(port_queue_create(proxy, &queue));
    port_request signal = {.kind = PORT_SIGNAL, .signal = &counted, .peer = &own};
    for (uint64_t i = 1; i <= 3; i++) {
        uint64_t before_ns = process_cpu_ns();
        nanosleep(&(struct timespec){0, 100000000}, NULL);
        CHECK(process_cpu_ns() - before_ns < 50000000, "busy while there is nothing to do");
        post(&own, queue, &signal);
        wait_for_counter(&own, &counted, i);
    }
    port_queue_destroy(queue);
    port_proxy_destroy(proxy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_are_seen_with_the_signal_behind_them),
        cmocka_unit_test(a_full_queue_says_so_and_loses_nothing),
        cmocka_unit_test(packets_are_whole_wherever_a_long_put_is_cut),
        cmocka_unit_test(a_queue_does_its_work_before_it_is_destroyed),
        cmocka_unit_test(nothing_need_be_posted),
        cmocka_unit_test(many_queues_are_served_side_by_side),
        cmocka_unit_test(a_proxy_without_work_sleeps_and_wakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
