/* Either side dies, before, while and after the worlds are joined, and comes back: the other side
 * goes on. */
#include "world/connect/apart.h"

#include "support/flood.h"

/* Accept worlds until mark 0 is set. Count those that were whole in mark 1, and losses in mark 2.
 */
static void serve(banyan_world *world, struct apart *shared)
{
    apart_keep_log(shared);
    banyan_listener *listener = apart_listen(world, shared, NULL);
    for (bool is_last = false; !is_last;) {
        banyan_world *joined = NULL;
        is_last = atomic_load(&shared->marks[0]);
        CHECK_OK(banyan_world_broadcast(world, &is_last, sizeof is_last, 0));
        CHECK_OK(banyan_listener_accept(listener, NS_PER_S / 10, &joined));
        if (!joined)
            continue;
        /* A rank of the engine may die at any time, but never one of this world. */
        banyan_status status = banyan_world_barrier(joined);
        while (status == BANYAN_OK) {
            int word = 0;
            if (banyan_world_rank(world) == 0)
                atomic_fetch_add(&shared->marks[1], 1);
            status = banyan_world_broadcast(joined, &word, sizeof word,
                                            banyan_world_listening_size(joined));
            if (word == 1)
                break;
        }
        if (status != BANYAN_OK) {
            CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED, "%s: %s",
                  banyan_status_name(status), banyan_last_error());
            CHECK(strstr(banyan_last_error(), "rank "), "%s", banyan_last_error());
            if (banyan_world_rank(world) == 0)
                atomic_fetch_add(&shared->marks[2], 1);
        }
        (void)banyan_world_close(joined);
        CHECK_OK(banyan_world_check(world));
    }
    banyan_listener_close(listener);
}

/* Connect, exchange some words, and leave. */
static void visit(banyan_world *world, struct apart *shared)
{
    banyan_world *joined = apart_connect(world, shared);
    CHECK_OK(banyan_world_barrier(joined));
    for (int word = -3; word <= 1; word++) {
        int sent = word;
        CHECK_OK(banyan_world_broadcast(joined, &sent, sizeof sent,
                                        banyan_world_listening_size(joined)));
    }
    CHECK_OK(banyan_world_close(joined));
}

/* Connect, and exchange words for ever. */
static void stay(banyan_world *world, struct apart *shared)
{
    banyan_world *joined = NULL;
    apart_wait(&shared->listens, 1);
    if (banyan_world_rank(world) == 0)
        atomic_fetch_add(&shared->marks[3], 1);
    banyan_status status =
        banyan_world_connect(world, shared->address, APART_SECRET, NULL, &joined);
    if (status == BANYAN_OK)
        status = banyan_world_barrier(joined);
    while (status == BANYAN_OK) {
        int word = 0;
        status =
            banyan_world_broadcast(joined, &word, sizeof word, banyan_world_listening_size(joined));
    }
    CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED, "%s: %s",
          banyan_status_name(status), banyan_last_error());
    _exit(0);
}

/* Kill one rank, or all, of an engine at a random time of its visit. */
static void kill_one_visit(struct apart *shared, random_state *random, int number)
{
    int size = (int)random_between(random, 1, 3), before = atomic_load(&shared->marks[3]);
    int words = atomic_load(&shared->marks[1]);
    struct apart_job engine = apart_start(shared, size, 1, stay);
    int first = (int)random_between(random, 0, size - 1);
    int last = random_next(random) % 2 ? size - 1 : first;
    apart_wait(&shared->marks[3], before + 1);
    if (number % 4 == 3) /* some visits are under way */
        apart_wait(&shared->marks[1], words + 3);
    usleep((useconds_t)random_between(random, 0, number % 2 ? 3000 : 30000));
    apart_kill(&engine, first, last);
    apart_end_killed(&engine);
}

static void play_kills(struct apart *shared)
{
    random_state random = random_from(shared->seed);
    struct apart_job trainer = apart_start(shared, 3, 0, serve);
    apart_wait(&shared->listens, 1);
    for (int i = 0; i < 20; i++)
        kill_one_visit(shared, &random, i);
    struct apart_job engine = apart_start(shared, 2, 2, visit);
    apart_end_well(&engine);
    atomic_store(&shared->marks[0], 1);
    apart_end_well(&trainer);
    printf("%d words arrived, %d joined worlds were lost\n", atomic_load(&shared->marks[1]),
           atomic_load(&shared->marks[2]));
    CHECK(atomic_load(&shared->marks[2]) > 0);
}

static void an_engine_that_is_killed_does_not_end_the_trainer(void **state)
{
    (void)state;
    apart_test(play_kills);
}

/* ---- stopped processes ---- */

enum { MARK_STOPPED = 4, MARK_DROPPED };

static void accept_a_stopped_world(banyan_world *world, struct apart *shared)
{
    banyan_world *joined;
    banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
    options.connect_timeout_ns = NS_PER_S;
    apart_keep_log(shared);
    banyan_listener *listener = apart_listen(world, shared, &options);
    for (int i = 0; i < 2; i++) {
        apart_wait(&shared->marks[MARK_STOPPED], i + 1);
        uint64_t began_ns = time_now_ns();
        CHECK_OK(banyan_listener_accept(listener, 0, &joined));
        CHECK(joined == NULL);
        CHECK(time_now_ns() - began_ns < 3 * NS_PER_S * TEST_SLOWER, "a poll took %.1f s",
              (double)(time_now_ns() - began_ns) / 1e9);
        CHECK_OK(banyan_world_barrier(world));
        if (banyan_world_rank(world) == 0)
            atomic_fetch_add(&shared->marks[MARK_DROPPED], 1);
        CHECK_OK(banyan_world_close(apart_accept(listener)));
    }
    banyan_listener_close(listener);
}

static void connect_and_leave(banyan_world *world, struct apart *shared)
{
    CHECK_OK(banyan_world_close(apart_connect(world, shared)));
}

/* Stop a rank of an engine that waits; it goes on when it was dropped. */
static void play_stopped(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, 2, 0, accept_a_stopped_world);
    for (int rank = 0; rank < 2; rank++) {
        struct apart_job engine = apart_start(shared, 2, 1, connect_and_leave);
        sleep(1);
        kill(engine.ranks[rank], SIGSTOP);
        usleep(100000);
        atomic_fetch_add(&shared->marks[MARK_STOPPED], 1);
        apart_wait(&shared->marks[MARK_DROPPED], rank + 1);
        kill(engine.ranks[rank], SIGCONT);
        apart_end_well(&engine);
    }
    apart_end_well(&trainer);
    apart_expect_log(shared, "it did not answer for 1.0 s when it was accepted");
}

static void a_stopped_world_is_dropped_and_asks_again(void **state)
{
    (void)state;
    apart_test(play_stopped);
}

/* ---- strangers ---- */

static void serve_among_strangers(banyan_world *world, struct apart *shared)
{
    apart_keep_log(shared);
    banyan_listener *listener = apart_listen(world, shared, NULL);
    for (int i = 0; i < FLOOD_KINDS; i++) {
        CHECK_OK(banyan_world_close(apart_accept(listener)));
    }
    banyan_listener_close(listener);
}

static void play_strangers(struct apart *shared)
{
    struct flood *flood =
        mmap(NULL, sizeof *flood, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(flood != MAP_FAILED);
    if (!flood_enter_network()) {
        printf("skipped: this user may make no network namespaces\n");
        return;
    }
    struct apart_job trainer = apart_start(shared, 2, 0, serve_among_strangers);
    apart_wait(&shared->listens, 1);
    for (int kind = 0; kind < FLOOD_KINDS; kind++) {
        *flood = (struct flood){.kind = (enum flood_kind)kind, .held = 100};
        pid_t pid = flood_start(flood);
        apart_wait(&flood->full_ports, 1);
        uint64_t began_ns = time_now_ns();
        struct apart_job engine = apart_start(shared, 2, 0, connect_and_leave);
        apart_end_well(&engine);
        printf("%s: joined in %.2f s, among %ld connections\n", flood_name(flood->kind),
               (double)(time_now_ns() - began_ns) / 1e9, atomic_load(&flood->connects));
        flood_end(flood, pid);
    }
    apart_end_well(&trainer);
}

static void strangers_do_not_keep_worlds_apart(void **state)
{
    (void)state;
    if (ranks_networks() == 0) /* it makes one of its own */
        apart_test(play_strangers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_that_is_killed_does_not_end_the_trainer),
        cmocka_unit_test(a_stopped_world_is_dropped_and_asks_again),
        cmocka_unit_test(strangers_do_not_keep_worlds_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
