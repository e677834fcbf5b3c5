/* No thread misses a change while it falls asleep: between threads and processes, by either kind
 * of wake-up. */
#include "support/test.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "memory/staging/wake_up.h"

#define WAITERS 3
#define LONG_NS (20 * NS_PER_S)

struct place {
    wake_up there, back;
    _Alignas(64) _Atomic uint64_t asked;
    _Alignas(64) _Atomic uint64_t answered[WAITERS];
    uint64_t rounds;
    int waiters;
    bool ring; /* instead of the conditional wake-up */
};

static void notify(wake_up *b, bool ring)
{
    if (ring)
        wake_up_notify(b);
    else
        wake_up_doorbell(b);
}

/* Polls only once before it sleeps; a lost wake-up takes LONG_NS. */
static void await(wake_up *b, _Atomic uint64_t *value, uint64_t least)
{
    while (atomic_load_explicit(value, memory_order_acquire) < least) {
        uint64_t start_ns = time_now_ns();
        uint32_t seen = wake_up_announce(b);
        if (atomic_load_explicit(value, memory_order_acquire) < least)
            wake_up_sleep_announced(b, seen, LONG_NS);
        wake_up_withdraw(b);
        CHECK(time_now_ns() - start_ns < LONG_NS / 2, "slept through change %llu",
              (unsigned long long)least);
    }
}

static void answer(struct place *place, int waiter)
{
    for (uint64_t round = 1; round <= place->rounds; round++) {
        await(&place->there, &place->asked, round);
        atomic_store_explicit(&place->answered[waiter], round, memory_order_release);
        notify(&place->back, place->ring);
    }
}

static void ask(struct place *place)
{
    random_state random = random_from(7);
    for (uint64_t round = 1; round <= place->rounds; round++) {
        for (volatile int64_t pause = random_between(&random, 0, 1000); pause > 0; pause--)
            ;
        atomic_store_explicit(&place->asked, round, memory_order_release);
        notify(&place->there, place->ring);
        for (int i = 0; i < place->waiters; i++)
            await(&place->back, &place->answered[i], round);
    }
    CHECK(atomic_load(&place->there.sleepers) == 0 && atomic_load(&place->back.sleepers) == 0);
}

struct waiter {
    pthread_t thread;
    struct place *place;
    int number;
};

static void *answer_as_thread(void *argument)
{
    struct waiter *waiter = argument;
    answer(waiter->place, waiter->number);
    return NULL;
}

static void play_with_threads(int waiters, uint64_t rounds, bool ring)
{
    static struct place place;
    struct waiter all[WAITERS];
    memset(&place, 0, sizeof place);
    place.rounds = rounds;
    place.waiters = waiters;
    place.ring = ring;
    for (int i = 0; i < waiters; i++) {
        all[i] = (struct waiter){.place = &place, .number = i};
        CHECK(pthread_create(&all[i].thread, NULL, answer_as_thread, &all[i]) == 0);
    }
    ask(&place);
    for (int i = 0; i < waiters; i++)
        pthread_join(all[i].thread, NULL);
}

static void play_with_processes(int waiters, uint64_t rounds, bool ring)
{
    struct place *place =
        mmap(NULL, sizeof *place, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    place->rounds = rounds;
    place->waiters = waiters;
    place->ring = ring;
    for (int i = 0; i < waiters; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            ranks_become_child();
            answer(place, i);
            _exit(0);
        }
    }
    ask(place);
    for (int i = 0, status; i < waiters; i++)
        CHECK(wait(&status) > 0 && status == 0);
    munmap(place, sizeof *place);
}

#define LOOKS 100000

/* One changes the value and wakes, the other announces itself and polls, as nearly at once as
 * possible; none sleeps, so there are many such moments. */
struct exchange {
    wake_up door;
    _Alignas(64) _Atomic uint64_t change;
    _Alignas(64) _Atomic uint64_t ready;
    _Alignas(64) _Atomic uint64_t seen;
};

static void wait_until(_Atomic uint64_t *value, uint64_t least)
{
    for (uint32_t i = 1; atomic_load_explicit(value, memory_order_acquire) < least; i++) {
        if (i % 1024 == 0)
            sched_yield();
    }
}

static void *announce_and_look(void *argument)
{
    struct exchange *exchange = argument;
    for (uint64_t round = 1; round <= LOOKS; round++) {
        atomic_store_explicit(&exchange->ready, round, memory_order_release);
        for (volatile uint64_t pause = round % 256; pause > 0; pause--)
            ;
        uint32_t seen = wake_up_announce(&exchange->door);
        bool changed = atomic_load_explicit(&exchange->change, memory_order_relaxed) == round;
        for (uint64_t i = 1; !changed && wake_up_read(&exchange->door) == seen; i++) {
            CHECK(i < UINT64_C(100000000), "round %llu: would sleep through the change",
                  (unsigned long long)round);
            if (i % 1024 == 0)
                sched_yield();
        }
        wake_up_withdraw(&exchange->door);
        atomic_store_explicit(&exchange->seen, round, memory_order_release);
    }
    return NULL;
}

static void an_early_sleeper_is_woken(void **state)
{
    (void)state;
    static struct exchange exchange;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, announce_and_look, &exchange) == 0);
    for (uint64_t round = 1; round <= LOOKS; round++) {
        wait_until(&exchange.ready, round);
        atomic_store_explicit(&exchange.change, round, memory_order_relaxed);
        wake_up_doorbell(&exchange.door);
        wait_until(&exchange.seen, round);
    }
    pthread_join(thread, NULL);
}

static void a_knock_wakes_a_thread(void **state)
{
    (void)state;
    play_with_threads(1, 15000, false);
    play_with_threads(WAITERS, 5000, false);
}

static void a_knock_wakes_a_process(void **state)
{
    (void)state;
    play_with_processes(1, 15000, false);
    play_with_processes(WAITERS, 5000, false);
}

static void a_ring_wakes_a_rank_that_listens_at_the_doorbell(void **state)
{
    (void)state;
    play_with_threads(1, 3000, true);
    play_with_processes(WAITERS, 3000, true);
}

static void a_knock_leaves_the_wake_up_alone_while_nobody_sleeps(void **state)
{
    (void)state;
    wake_up quiet = {0};
    wake_up_doorbell(&quiet);
    CHECK(wake_up_read(&quiet) == 0);
    uint32_t seen = wake_up_announce(&quiet);
    wake_up_doorbell(&quiet);
    CHECK(wake_up_read(&quiet) == seen + 1);
    uint64_t start_ns = time_now_ns();
    wake_up_sleep_announced(&quiet, seen, LONG_NS);
    CHECK(time_now_ns() - start_ns < LONG_NS / 2, "slept after the knock");
    wake_up_withdraw(&quiet);
    wake_up_doorbell(&quiet);
    CHECK(wake_up_read(&quiet) == seen + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_knock_leaves_the_wake_up_alone_while_nobody_sleeps),
        cmocka_unit_test(an_early_sleeper_is_woken),
        cmocka_unit_test(a_knock_wakes_a_thread),
        cmocka_unit_test(a_knock_wakes_a_process),
        cmocka_unit_test(a_ring_wakes_a_rank_that_listens_at_the_doorbell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
