/* Two worlds that were started apart are joined: ranks, sides, repetition, several at once, and
 * what a wrong side gets. */
#include "world/connect/apart.h"

#include <netinet/in.h>

#include "support/descriptors.h"
#include "world/bootstrap/rendezvous.h"
#include "world/connect/message.h"

/* Every rank of a joined world passes its side, its own world's rank and its number. */
struct place {
    int is_listening, own_rank, rank;
};

static void check_joined(banyan_world *world, banyan_world *joined, bool listens, int listening,
                         int connecting)
{
    struct place mine = {listens, banyan_world_rank(world), banyan_world_rank(joined)};
    struct place *all = calloc((size_t)(listening + connecting), sizeof *all);
    CHECK(banyan_world_size(joined) == listening + connecting);
    CHECK(banyan_world_listening_size(joined) == listening);
    CHECK(banyan_world_listening_size(world) == banyan_world_size(world));
    CHECK_OK(banyan_world_allgather(joined, &mine, sizeof mine, all));
    for (int i = 0; i < listening + connecting; i++) {
        CHECK(all[i].is_listening == (i < listening) && all[i].rank == i, "rank %d", i);
        CHECK(all[i].own_rank == (i < listening ? i : i - listening), "rank %d", i);
    }
    int nodes = ranks_networks() > 0 ? ranks_networks() : 1;
    CHECK(banyan_world_node_count(joined) ==
          (nodes < listening + connecting ? nodes : listening + connecting));
    free(all);
}

#define LISTENING 3
#define CONNECTING 2
#define REPEATS 3

static void listen_and_check(banyan_world *world, struct apart *shared)
{
    banyan_listener *listener = apart_listen(world, shared, NULL);
    for (int i = 0; i < REPEATS; i++) {
        banyan_world *joined = apart_accept(listener);
        check_joined(world, joined, true, LISTENING, CONNECTING);
        CHECK_OK(banyan_world_close(joined));
    }
    banyan_listener_close(listener);
}

static void connect_and_check(banyan_world *world, struct apart *shared)
{
    for (int i = 0; i < REPEATS; i++) {
        banyan_world *joined = apart_connect(world, shared);
        check_joined(world, joined, false, LISTENING, CONNECTING);
        CHECK_OK(banyan_world_close(joined));
    }
}

static void play_join(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, LISTENING, 0, listen_and_check);
    struct apart_job engine = apart_start(shared, CONNECTING, 2, connect_and_check);
    apart_end_well(&engine);
    apart_end_well(&trainer);
}

static void a_joined_world_has_the_listening_ranks_first(void **state)
{
    (void)state;
    apart_test(play_join);
}

/* ---- several worlds at once ---- */

#define ENGINES 3

/* Engine e has e + 1 ranks. All ask before the first is accepted; the joined worlds are open at
 * once. */
static void listen_for_three(banyan_world *world, struct apart *shared)
{
    banyan_world *joined[ENGINES], *none;
    int sizes = 0;
    banyan_listener *listener = apart_listen(world, shared, NULL);
    apart_wait(&shared->marks[0], ENGINES);
    for (int i = 0; i < ENGINES; i++) {
        joined[i] = apart_accept(listener);
        int size = banyan_world_size(joined[i]) - banyan_world_size(world);
        check_joined(world, joined[i], true, LISTENING, size);
        sizes |= 1 << size;
    }
    CHECK(sizes == (1 << 1 | 1 << 2 | 1 << 3), "sizes %x", (unsigned)sizes);
    CHECK_OK(banyan_listener_accept(listener, 0, &none));
    CHECK(none == NULL);
    banyan_listener_close(listener);
    for (int i = 0; i < ENGINES; i++)
        CHECK_OK(banyan_world_barrier(joined[i]));
    for (int i = ENGINES - 1; i >= 0; i--)
        CHECK_OK(banyan_world_close(joined[i]));
}

static void connect_with_others(banyan_world *world, struct apart *shared)
{
    apart_wait(&shared->listens, 1);
    if (banyan_world_rank(world) == 0)
        atomic_fetch_add(&shared->marks[0], 1);
    banyan_world *joined = apart_connect(world, shared);
    check_joined(world, joined, false, LISTENING, banyan_world_size(world));
    CHECK_OK(banyan_world_barrier(joined));
    CHECK_OK(banyan_world_close(joined));
}

static void play_three(struct apart *shared)
{
    struct apart_job engines[ENGINES];
    for (int e = 0; e < ENGINES; e++)
        engines[e] = apart_start(shared, e + 1, e, connect_with_others);
    struct apart_job trainer = apart_start(shared, LISTENING, 0, listen_for_three);
    for (int e = 0; e < ENGINES; e++)
        apart_end_well(&engines[e]);
    apart_end_well(&trainer);
}

static void several_worlds_are_accepted_one_by_one(void **state)
{
    (void)state;
    apart_test(play_three);
}

/* ---- sub-worlds ---- */

/* Ranks 2 and 1 of three listen as a world of two; rank 0 of it is rank 2. */
static void listen_as_part(banyan_world *world, struct apart *shared)
{
    banyan_world *part;
    int ranks[2] = {2, 1};
    if (banyan_world_rank(world) == 0)
        return;
    CHECK_OK(banyan_world_split(world, ranks, 2, &part));
    banyan_listener *listener = apart_listen(part, shared, NULL);
    banyan_world *joined = apart_accept(listener);
    check_joined(part, joined, true, 2, CONNECTING);
    CHECK_OK(banyan_world_close(joined));
    banyan_listener_close(listener);
    CHECK_OK(banyan_world_close(part));
}

static void connect_to_part(banyan_world *world, struct apart *shared)
{
    banyan_world *joined = apart_connect(world, shared);
    check_joined(world, joined, false, 2, CONNECTING);
    CHECK_OK(banyan_world_close(joined));
}

static void play_part(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, LISTENING, 0, listen_as_part);
    struct apart_job engine = apart_start(shared, CONNECTING, 0, connect_to_part);
    apart_end_well(&engine);
    apart_end_well(&trainer);
}

static void a_sub_world_can_be_joined(void **state)
{
    (void)state;
    apart_test(play_part);
}

/* ---- nothing is left ---- */

#define CONNECTS 50

static size_t count_threads(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder != NULL);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Wait until all four ranks of both worlds are here. */
static void meet(struct apart *shared, int number)
{
    atomic_fetch_add(&shared->marks[number], 1);
    apart_wait(&shared->marks[number], 4);
}

/* Compare descriptors and threads after the first and after the last connection, while no rank does
 * anything. Threads of the library end a connection soon after its world is closed. */
static void check_left(struct apart *shared, int connect, size_t *descriptors, size_t *threads)
{
    if (connect != 0 && connect != CONNECTS - 1)
        return;
    meet(shared, connect == 0 ? 0 : 2);
    if (connect == 0) {
        usleep(300000 * TEST_SLOWER);
        *descriptors = open_descriptors();
        *threads = count_threads();
    }
    uint64_t until_ns = deadline_after(10 * NS_PER_S);
    while (open_descriptors() != *descriptors && deadline_left_ns(until_ns) > 0)
        usleep(1000);
    CHECK(open_descriptors() == *descriptors, "%zu descriptors, %zu before", open_descriptors(),
          *descriptors);
    CHECK(count_threads() == *threads, "%zu threads, %zu before", count_threads(), *threads);
    meet(shared, connect == 0 ? 1 : 3);
}

static void listen_often(banyan_world *world, struct apart *shared)
{
    size_t descriptors = 0, threads = 0;
    banyan_listener *listener = apart_listen(world, shared, NULL);
    for (int i = 0; i < CONNECTS; i++) {
        CHECK_OK(banyan_world_close(apart_accept(listener)));
        check_left(shared, i, &descriptors, &threads);
    }
    banyan_listener_close(listener);
}

static void connect_often(banyan_world *world, struct apart *shared)
{
    size_t descriptors = 0, threads = 0;
    for (int i = 0; i < CONNECTS; i++) {
        CHECK_OK(banyan_world_close(apart_connect(world, shared)));
        check_left(shared, i, &descriptors, &threads);
    }
}

static void play_often(struct apart *shared)
{
    struct apart_job trainer = apart_start(shared, 2, 0, listen_often);
    struct apart_job engine = apart_start(shared, 2, 0, connect_often);
    apart_end_well(&engine);
    apart_end_well(&trainer);
}

static void connections_leave_nothing_behind(void **state)
{
    (void)state;
    apart_test(play_often);
}

/* ---- addresses ---- */

/* A world of this process alone, with a node's name of its own. */
static banyan_world *open_alone(const char *node)
{
    banyan_world *world;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = 0;
    options.world_size = 1;
    options.node = node;
    options.timeout_ns = 60 * NS_PER_S;
    CHECK_OK(banyan_world_open(&options, &world));
    return world;
}

/* Where a test listens, and the names of nodes of both sides. */
static const struct address_case {
    const char *address, *begins, *listening_node, *connecting_node;
    int nodes;
} address_cases[] = {
    {"127.0.0.1:0", "127.0.0.1:", "left", "right", 2},
    {"localhost:0", "127.0.0.1:", "one", "one", 1},
    {"[::1]:0", "[::1]:", "left", "right", 2},
    {"[::]:0", "", "one", "one", 1},
    {"0.0.0.0:0", "", NULL, "right", 2},
    {":0", "", NULL, NULL, 1},
};
#define ADDRESS_CASES (sizeof address_cases / sizeof address_cases[0])

static void listen_at_addresses(banyan_world *world, struct apart *shared)
{
    (void)world;
    for (size_t i = 0; i < ADDRESS_CASES; i++) {
        const struct address_case *of = &address_cases[i];
        banyan_world *own = open_alone(of->listening_node), *joined;
        banyan_listener *listener = NULL;
        banyan_connect_options options = BANYAN_CONNECT_OPTIONS_INIT;
        options.timeout_ns = 7 * NS_PER_S;
        if (banyan_world_listen(own, of->address, APART_SECRET, &options, &listener) == BANYAN_OK) {
            const char *text = banyan_listener_address(listener);
            CHECK(strncmp(text, of->begins, strlen(of->begins)) == 0 ||
                      strcmp(of->address, "localhost:0") == 0,
                  "%s", text);
            CHECK(!strstr(text, "0.0.0.0") && !strstr(text, "[::]"), "%s", text);
            snprintf(shared->address, sizeof shared->address, "%s", text);
        } else { /* a machine without IPv6 */
            CHECK(of->address[0] == '[', "%s: %s", of->address, banyan_last_error());
            printf("not tested: %s\n", banyan_last_error());
            shared->address[0] = '\0';
        }
        atomic_store(&shared->listens, (int)i + 1);
        if (listener) {
            joined = apart_accept(listener);
            CHECK(banyan_world_node_count(joined) == of->nodes, "case %zu", i);
            CHECK(banyan_world_timeout_ns(joined) == 7 * NS_PER_S);
            CHECK(banyan_world_timeout_ns(own) == 60 * NS_PER_S);
            CHECK_OK(banyan_world_close(joined));
        }
        banyan_listener_close(listener);
        CHECK_OK(banyan_world_close(own));
        apart_wait(&shared->marks[0], (int)i + 1);
    }
}

static void connect_to_addresses(banyan_world *world, struct apart *shared)
{
    (void)world;
    for (size_t i = 0; i < ADDRESS_CASES; i++) {
        apart_wait(&shared->listens, (int)i + 1);
        banyan_world *own = open_alone(address_cases[i].connecting_node), *joined;
        if (shared->address[0]) {
            CHECK_OK(banyan_world_connect(own, shared->address, APART_SECRET, NULL, &joined));
            CHECK(banyan_world_node_count(joined) == address_cases[i].nodes);
            CHECK(banyan_world_timeout_ns(joined) == 60 * NS_PER_S);
            CHECK_OK(banyan_world_close(joined));
        }
        CHECK_OK(banyan_world_close(own));
        atomic_store(&shared->marks[0], (int)i + 1);
    }
}

static void play_addresses(struct apart *shared)
{
    struct apart_job listening = apart_start(shared, 1, 0, listen_at_addresses);
    struct apart_job connecting = apart_start(shared, 1, 0, connect_to_addresses);
    apart_end_well(&connecting);
    apart_end_well(&listening);
}

static void a_listener_may_be_at_any_address(void **state)
{
    (void)state;
    apart_test(play_addresses);
}

static struct address address_of(const char *host)
{
    struct address address;
    CHECK(connect_resolve(host, 1, &address, 1) == 1, "%s", banyan_last_error());
    return address;
}

static void an_id_has_the_address_by_which_a_world_came_first(void **state)
{
    (void)state;
    static const char *const hosts[] = {"10.9.8.7", "2001:db8::5", "10.9.8.7", "10.1.1.1"};
    static const char *const firsts[] = {"10.9.8.7:", "[2001:db8::5]:", "10.9.8.7:", "10.1.1.1:"};
    banyan_unique_id id;
    struct rendezvous_place place;
    char text[ADDRESS_TEXT_BYTES];
    assert_int_equal(banyan_unique_id_create(&id), BANYAN_OK);
    assert_int_equal(rendezvous_place_of_id(&id, "elsewhere", &place), BANYAN_OK);
    int count = place.address_count;
    for (int i = 0; i < 4; i++) {
        struct address address = address_of(hosts[i]);
        rendezvous_id_prefer(&id, &address);
        struct address loopback = address_loopback(1);
        rendezvous_id_prefer(&id, &loopback);
        assert_int_equal(rendezvous_place_of_id(&id, "elsewhere", &place), BANYAN_OK);
        assert_ptr_equal(strstr(address_text(&place.addresses[0], text), firsts[i]), text);
        assert_true(place.address_count <= RENDEZVOUS_ADDRESSES);
    }
    /* Each is there once. */
    assert_true(place.address_count == count + 3 || place.address_count == RENDEZVOUS_ADDRESSES);
    for (int i = 0; i < place.address_count; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&place.addresses[i].socket, &place.addresses[j].socket,
                                    sizeof(struct sockaddr_in6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_joined_world_has_the_listening_ranks_first),
        cmocka_unit_test(several_worlds_are_accepted_one_by_one),
        cmocka_unit_test(a_sub_world_can_be_joined),
        cmocka_unit_test(connections_leave_nothing_behind),
        cmocka_unit_test(a_listener_may_be_at_any_address),
        cmocka_unit_test(an_id_has_the_address_by_which_a_world_came_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
