/* Two worlds that were started apart are joined: ranks, sides, repetition, several at once, and
 * what a wrong side gets. */
#include "world/connect/apart.h"

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
    int nodes = apart_networks() > 0 ? apart_networks() : 1;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_joined_world_has_the_listening_ranks_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
