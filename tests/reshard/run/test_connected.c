/* Reshards between two worlds that were started apart, both ways, while either side dies and comes
 * back: every element arrives at its place, from name and global index. */
#include "world/connect/apart.h"

#include "reshard/sides.h"

/* A reshard over a joined world. */
struct moving {
    banyan_world *joined;
    random_case *of;
    sides mine;
    banyan_copy_service *service;
    banyan_reshard_plan *plan;
};

/* From the listening ranks to the connecting ones, from and to any ranks, or backwards. */
enum direction { FORTH, AMONG_ALL, BACK, DIRECTIONS };

/* Number of this rank in the case, whose sources have the lowest numbers. */
static int case_rank(banyan_world *joined, enum direction direction)
{
    int size = banyan_world_size(joined), listening = banyan_world_listening_size(joined);
    int rank = banyan_world_rank(joined);
    return direction == BACK ? (rank + size - listening) % size : rank;
}

static banyan_status moving_open(banyan_world *joined, uint64_t seed, enum direction direction,
                                 struct moving *moving)
{
    int size = banyan_world_size(joined), listening = banyan_world_listening_size(joined);
    case_options options = {.world_size = size, .max_elems = 4000};
    options.first_destination_rank = direction == FORTH  ? listening
                                     : direction == BACK ? size - listening
                                                         : 0;
    *moving = (struct moving){.joined = joined, .of = case_make(seed, &options)};
    /* The case's numbers are not those of the world. */
    for (int i = 0; i < moving->of->holding_count && direction == BACK; i++)
        moving->of->holdings[i].replicas_known = false;
    int rank = case_rank(joined, direction);
    moving->mine.source_layout = case_layout(moving->of, rank, false);
    moving->mine.destination_layout = case_layout(moving->of, rank, true);
    CHECK_OK(banyan_tensors_alloc(moving->mine.source_layout, NULL, &moving->mine.source));
    CHECK_OK(
        banyan_tensors_alloc(moving->mine.destination_layout, NULL, &moving->mine.destination));
    filled_poison(moving->mine.destination);
    RETURN_IF_FAILED(banyan_reshard_plan_create(
        moving->mine.source_layout, moving->mine.destination_layout, joined, NULL, &moving->plan));
    return banyan_copy_service_open(joined, NULL, NULL, &moving->service);
}

static banyan_status moving_pass(struct moving *moving, int pass)
{
    filled_make(moving->mine.source_layout, moving->mine.source, pass);
    RETURN_IF_FAILED(banyan_world_barrier(moving->joined));
    RETURN_IF_FAILED(banyan_reshard_execute(moving->plan, moving->mine.source,
                                            moving->mine.destination, moving->service,
                                            moving->joined, NULL, NULL));
    CHECK(banyan_tensors_get_state(moving->mine.destination) == BANYAN_TENSORS_WHOLE);
    CHECK(banyan_tensors_version(moving->mine.destination) == (uint64_t)pass);
    filled_check(moving->mine.destination_layout, moving->mine.destination, pass, false);
    return BANYAN_OK;
}

static void moving_close(struct moving *moving)
{
    banyan_copy_service_close(moving->service);
    banyan_reshard_plan_destroy(moving->plan);
    sides_free(&moving->mine);
    free(moving->of);
}

/* ---- both ways ---- */

#define CASES 6

static void move_both_ways(banyan_world *joined, struct apart *shared)
{
    random_state random = random_from(shared->seed);
    for (int i = 0; i < CASES * DIRECTIONS; i++) {
        struct moving moving;
        CHECK_OK(
            moving_open(joined, random_next(&random), (enum direction)(i % DIRECTIONS), &moving));
        for (int pass = 1; pass <= 2; pass++)
            CHECK_OK(moving_pass(&moving, pass));
        moving_close(&moving);
    }
    CHECK_OK(banyan_world_close(joined));
}

static void listen_and_move(banyan_world *world, struct apart *shared)
{
    banyan_listener *listener = apart_listen(world, shared, NULL);
    banyan_world *joined = apart_accept(listener);
    banyan_listener_close(listener);
    move_both_ways(joined, shared);
}

static void connect_and_move(banyan_world *world, struct apart *shared)
{
    move_both_ways(apart_connect(world, shared), shared);
}

static void play_both_ways(struct apart *shared)
{
    /* Ranks of both sides, and of a node: the last are four nodes of two. */
    static const int sizes[][3] = {{3, 2, 1}, {1, 4, 1}, {4, 4, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        atomic_store(&shared->listens, 0);
        shared->ranks_each = sizes[i][2];
        int node = sizes[i][2] == 1 ? 1 : sizes[i][0] / sizes[i][2];
        struct apart_job trainer = apart_start(shared, sizes[i][0], 0, listen_and_move);
        struct apart_job engine = apart_start(shared, sizes[i][1], node, connect_and_move);
        apart_end_well(&engine);
        apart_end_well(&trainer);
    }
    shared->ranks_each = 0;
}

static void every_element_lands_in_a_world_that_was_started_apart(void **state)
{
    (void)state;
    apart_test(play_both_ways);
}

/* ---- deaths ---- */

enum { MARK_STOP, MARK_PASSES, MARK_WHOLE, MARK_LOST };

/* Move until the other side ends. The first rank of the connecting world ends the work after
 * `passes` (0: never). True when it ended well. */
static bool move_until_the_end(banyan_world *joined, struct apart *shared, int passes)
{
    struct moving moving;
    int root = banyan_world_listening_size(joined), word = 0;
    banyan_status status = moving_open(joined, shared->seed, FORTH, &moving);
    for (int pass = 1; status == BANYAN_OK && !word; pass++) {
        word = passes > 0 && pass > passes;
        status = banyan_world_broadcast(joined, &word, sizeof word, root);
        if (status == BANYAN_OK && !word)
            status = moving_pass(&moving, pass);
        atomic_fetch_add(&shared->marks[MARK_PASSES], 1);
    }
    if (status != BANYAN_OK) {
        CHECK(status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED, "%s: %s",
              banyan_status_name(status), banyan_last_error());
        CHECK(strstr(banyan_last_error(), "rank "), "%s", banyan_last_error());
    }
    moving_close(&moving);
    status = banyan_world_close(joined);
    return word && status == BANYAN_OK;
}

static bool is_stopped(banyan_world *world, struct apart *shared)
{
    bool stop = atomic_load(&shared->marks[MARK_STOP]);
    CHECK_OK(banyan_world_broadcast(world, &stop, sizeof stop, 0));
    return stop;
}

static void train(banyan_world *world, struct apart *shared)
{
    apart_keep_log(shared);
    banyan_listener *listener = apart_listen(world, shared, NULL);
    while (!is_stopped(world, shared)) {
        banyan_world *joined;
        CHECK_OK(banyan_listener_accept(listener, NS_PER_S / 10, &joined));
        if (!joined)
            continue;
        bool is_whole = move_until_the_end(joined, shared, 0);
        if (banyan_world_rank(world) == 0)
            atomic_fetch_add(&shared->marks[is_whole ? MARK_WHOLE : MARK_LOST], 1);
        CHECK_OK(banyan_world_check(world));
    }
    banyan_listener_close(listener);
}

static void serve_until_killed(banyan_world *world, struct apart *shared)
{
    (void)move_until_the_end(apart_connect(world, shared), shared, 0);
    _exit(0); /* the other rank was killed */
}

static void serve_for_a_while(banyan_world *world, struct apart *shared)
{
    CHECK(move_until_the_end(apart_connect(world, shared), shared, 5));
}

/* Kill a rank, or all, of an engine while it moves, and start another one. */
static void play_engine_killed(struct apart *shared)
{
    random_state random = random_from(shared->seed);
    struct apart_job trainer = apart_start(shared, 2, 0, train);
    for (int i = 0; i < 6; i++) {
        int before = atomic_load(&shared->marks[MARK_PASSES]);
        struct apart_job engine = apart_start(shared, 2, 1, serve_until_killed);
        apart_wait(&shared->marks[MARK_PASSES], before + 8);
        usleep((useconds_t)random_between(&random, 0, 5000));
        apart_kill(&engine, i % 3 == 0, i % 3 == 2 ? 0 : 1);
        apart_end_killed(&engine);
    }
    struct apart_job engine = apart_start(shared, 2, 1, serve_for_a_while);
    apart_end_well(&engine);
    atomic_store(&shared->marks[MARK_STOP], 1);
    apart_end_well(&trainer);
    CHECK(atomic_load(&shared->marks[MARK_LOST]) == 6 &&
              atomic_load(&shared->marks[MARK_WHOLE]) == 1,
          "%d lost, %d whole", atomic_load(&shared->marks[MARK_LOST]),
          atomic_load(&shared->marks[MARK_WHOLE]));
}

static void an_engine_that_is_killed_may_come_back(void **state)
{
    (void)state;
    apart_test(play_engine_killed);
}

/* Serve one trainer after the other. */
static void serve_all_trainers(banyan_world *world, struct apart *shared)
{
    while (!is_stopped(world, shared)) {
        bool is_whole = move_until_the_end(apart_connect(world, shared), shared, 0);
        if (banyan_world_rank(world) == 0)
            atomic_fetch_add(&shared->marks[is_whole ? MARK_WHOLE : MARK_LOST], 1);
        CHECK_OK(banyan_world_check(world));
    }
}

static void train_until_killed(banyan_world *world, struct apart *shared)
{
    banyan_listener *listener = apart_listen(world, shared, NULL);
    (void)move_until_the_end(apart_accept(listener), shared, 0);
    banyan_listener_close(listener);
    _exit(0);
}

static void play_trainer_killed(struct apart *shared)
{
    random_state random = random_from(shared->seed);
    struct apart_job engine = apart_start(shared, 3, 1, serve_all_trainers);
    for (int i = 0; i < 4; i++) {
        int before = atomic_load(&shared->marks[MARK_PASSES]);
        struct apart_job trainer = apart_start(shared, 2, 0, train_until_killed);
        apart_wait(&shared->marks[MARK_PASSES], before + 10);
        usleep((useconds_t)random_between(&random, 0, 5000));
        if (i == 3)
            atomic_store(&shared->marks[MARK_STOP], 1);
        apart_kill(&trainer, i % 2, 1);
        apart_end_killed(&trainer);
    }
    apart_end_well(&engine);
    CHECK(atomic_load(&shared->marks[MARK_LOST]) == 4, "%d",
          atomic_load(&shared->marks[MARK_LOST]));
}

static void a_trainer_that_is_killed_may_come_back(void **state)
{
    (void)state;
    apart_test(play_trainer_killed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_lands_in_a_world_that_was_started_apart),
        cmocka_unit_test(an_engine_that_is_killed_may_come_back),
        cmocka_unit_test(a_trainer_that_is_killed_may_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
