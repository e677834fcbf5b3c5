/* Sub-worlds: any list of ranks, several at once, inside one another, split off again and again. */
#include "support/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "world/control.h"

static void shuffle(random_state *random, int *list, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int j = (int)random_between(random, 0, i), held = list[i];
        list[i] = list[j];
        list[j] = held;
    }
}

static int find(const int *list, int count, int value)
{
    for (int i = 0; i < count; i++) {
        if (list[i] == value)
            return i;
    }
    return -1;
}

/* Every rank knows all ranks of the world that `names` describes: names[i] is its rank i. */
static void check_world(banyan_world *world, const int *names, int count)
{
    int rank = banyan_world_rank(world), *all = calloc((size_t)count, sizeof *all);
    CHECK(banyan_world_size(world) == count);
    CHECK_OK(banyan_world_allgather(world, &names[rank], sizeof *names, all));
    for (int i = 0; i < count; i++)
        CHECK(all[i] == names[i], "rank %d is %d, not %d", i, all[i], names[i]);
    int root = count / 2, value = names[rank];
    CHECK_OK(banyan_world_broadcast(world, &value, sizeof value, root));
    CHECK(value == names[root]);
    control_message message = {(rank + 1) % count, all, sizeof *all}, *received;
    size_t received_count;
    all[0] = names[rank];
    CHECK_OK(control_exchange(world, &message, 1, "a test", &received, &received_count));
    CHECK(received_count == 1 && received[0].rank == (rank + count - 1) % count);
    CHECK(memcmp(received[0].data, &names[received[0].rank], sizeof *names) == 0);
    control_messages_free(received, received_count);
    free(all);
}

static void split_at_random(banyan_world *world, void *context)
{
    random_state random = random_from(*(uint64_t *)context);
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    for (int round = 0; round < 20; round++) {
        banyan_world *subs[3] = {NULL}, *nested = NULL;
        int lists[3][16], counts[3], nested_list[16], nested_names[16];
        /* Overlapping lists, all open at once. */
        for (int i = 0; i < 3; i++) {
            int all[16];
            for (int j = 0; j < size; j++)
                all[j] = j;
            shuffle(&random, all, size);
            counts[i] = (int)random_between(&random, 1, size);
            memcpy(lists[i], all, sizeof all);
            if (find(lists[i], counts[i], rank) >= 0)
                CHECK_OK(banyan_world_split(world, lists[i], counts[i], &subs[i]));
        }
        for (int i = 2; i >= 0; i--) {
            if (subs[i])
                check_world(subs[i], lists[i], counts[i]);
        }
        /* The second half of the first, backwards. */
        int nested_count = (counts[0] + 1) / 2;
        for (int j = 0; j < nested_count; j++) {
            nested_list[j] = counts[0] - 1 - j;
            nested_names[j] = lists[0][nested_list[j]];
        }
        if (subs[0] && find(nested_list, nested_count, banyan_world_rank(subs[0])) >= 0) {
            CHECK_OK(banyan_world_split(subs[0], nested_list, nested_count, &nested));
            check_world(nested, nested_names, nested_count);
            CHECK_OK(banyan_world_close(nested));
        }
        for (int i = 0; i < 3; i++)
            CHECK_OK(banyan_world_close(subs[i]));
    }
}

static void random_splits_know_their_members(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(6, split_at_random, &seed);
    ranks_run(1, split_at_random, &seed);
    ranks_run_threads(4, split_at_random, &seed);
}

static void split_the_same_list(banyan_world *world, void *context)
{
    (void)context;
    static const int ranks[] = {2, 0};
    int rank = banyan_world_rank(world);
    if (rank == 1)
        return;
    banyan_world *first, *second, *third;
    CHECK_OK(banyan_world_split(world, ranks, 2, &first));
    CHECK_OK(banyan_world_split(world, ranks, 2, &second));
    /* Messages of one world do not arrive in another. */
    CHECK_OK(control_send(first, 1 - banyan_world_rank(first), 7, "first", 6));
    CHECK_OK(control_send(second, 1 - banyan_world_rank(second), 7, "second", 7));
    void *data;
    size_t bytes;
    CHECK_OK(control_receive(second, 1 - banyan_world_rank(second), 7, "x", &data, &bytes));
    CHECK(bytes == 7 && strcmp(data, "second") == 0);
    free(data);
    CHECK_OK(control_receive(first, 1 - banyan_world_rank(first), 7, "x", &data, &bytes));
    CHECK(bytes == 6 && strcmp(data, "first") == 0);
    free(data);
    CHECK_OK(banyan_world_close(first));
    CHECK_OK(banyan_world_close(second));
    CHECK_OK(banyan_world_split(world, ranks, 2, &third));
    CHECK_OK(banyan_world_barrier(third));
    CHECK_OK(banyan_world_close(third));
}

static void equal_lists_make_separate_worlds(void **state)
{
    (void)state;
    ranks_run(3, split_the_same_list, NULL);
}

/* Rank 0 sends in a world that rank 1 has not made yet. */
static void write_ahead(banyan_world *world, void *context)
{
    (void)context;
    static const int ranks[] = {0, 1};
    banyan_world *sub;
    int rank = banyan_world_rank(world);
    if (rank == 0) {
        CHECK_OK(banyan_world_split(world, ranks, 2, &sub));
        CHECK_OK(control_send(sub, 1, 3, "early", 6));
        CHECK_OK(control_send(world, 1, 4, "go", 3));
    } else {
        void *data;
        size_t bytes;
        CHECK_OK(control_receive(world, 0, 4, "the word", &data, &bytes));
        free(data);
        usleep(20000);
        CHECK_OK(banyan_world_split(world, ranks, 2, &sub));
        CHECK_OK(control_receive(sub, 0, 3, "the early message", &data, &bytes));
        CHECK(bytes == 6 && strcmp(data, "early") == 0);
        free(data);
    }
    CHECK_OK(banyan_world_close(sub));
}

static void messages_wait_for_a_world_that_is_still_to_come(void **state)
{
    (void)state;
    ranks_run(2, write_ahead, NULL);
}

static void give_wrong_lists(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_world *sub;
    const int others[] = {(rank + 1) % 3, (rank + 2) % 3}, twice[] = {rank, (rank + 1) % 3, rank};
    const int beyond[] = {rank, 3}, negative[] = {-1, rank};
    CHECK_FAILS(banyan_world_split(world, others, 2, &sub), BANYAN_ERR_INVALID,
                "without being one of them");
    CHECK_FAILS(banyan_world_split(world, twice, 3, &sub), BANYAN_ERR_INVALID, "twice");
    CHECK_FAILS(banyan_world_split(world, beyond, 2, &sub), BANYAN_ERR_INVALID, "rank 3");
    CHECK_FAILS(banyan_world_split(world, negative, 2, &sub), BANYAN_ERR_INVALID, "rank -1");
    CHECK_FAILS(banyan_world_split(world, others, 0, &sub), BANYAN_ERR_INVALID, "0 ranks");
    CHECK_FAILS(banyan_world_split(world, others, 4, &sub), BANYAN_ERR_INVALID, "4 ranks");
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    ranks_run(3, give_wrong_lists, NULL);
}

static void disagree(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    char data[64] = {0}, all[64 * 5];
    CHECK_FAILS(banyan_world_allgather(world, data, rank == 2 ? 12 : 8, all), BANYAN_ERR_MISMATCH,
                "rank 2 gives 12 bytes to an allgather, rank 0 gives 8");
    if (rank == 3)
        CHECK_FAILS(banyan_world_broadcast(world, data, 20, 1), BANYAN_ERR_MISMATCH,
                    "rank 1 broadcasts 16 bytes, but rank 3 expects 20");
    else
        CHECK_OK(banyan_world_broadcast(world, data, 16, 1));
    CHECK_FAILS(banyan_world_broadcast(world, data, 1, size), BANYAN_ERR_INVALID, "rank 5");
    CHECK_OK(banyan_world_barrier(world)); /* the world is unaffected */
}

static void unequal_sizes_are_a_mismatch_with_both_numbers(void **state)
{
    (void)state;
    ranks_run(5, disagree, NULL);
}

/* Rank 1 of the job fails in the sub-world, and all agree on that, around it. */
static void agree_twice(banyan_world *world, void *context)
{
    static const struct {
        int members[4];
        const char *message, *agreed; /* rank 1's own; and the final one on all ranks */
    } cases[] = {
        {{0, 1, 2, 3}, "no room", "rank 1: no room"},
        {{0, 1, 2, 3}, "rank 1: no room", "rank 1: no room"},
        {{3, 2, 1, 0}, "no room", "rank 2 (rank 1 of the job): no room"},
        {{3, 2, 1, 0}, "rank 2: no room", "rank 2 (rank 1 of the job): no room"},
        {{3, 2, 1, 0},
         "rank 2 (rank 1 of the job, pid 7 on node a) has no room",
         "rank 2 (rank 1 of the job, pid 7 on node a) has no room"},
    };
    (void)context;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        banyan_world *sub;
        banyan_status status = BANYAN_OK;
        CHECK_OK(banyan_world_split(world, cases[i].members, 4, &sub));
        if (banyan_world_rank(world) == 1)
            status = banyan_error_set(BANYAN_ERR_SYSTEM, "%s", cases[i].message);
        CHECK(control_agree(world, control_agree(sub, status)) == BANYAN_ERR_SYSTEM);
        CHECK(strcmp(banyan_last_error(), cases[i].agreed) == 0, "case %d, rank %d: %s", (int)i,
              banyan_world_rank(world), banyan_last_error());
        CHECK_OK(banyan_world_close(sub));
    }
}

static void an_agreement_on_an_agreement_names_the_rank_once(void **state)
{
    (void)state;
    ranks_run(4, agree_twice, NULL);
}

static void share_descriptors(banyan_world *world, void *context)
{
    (void)context;
    int local_size = banyan_world_local_size(world), rank = banyan_world_rank(world);
    for (int round = 0; round < 50; round++) {
        int fds[16], mine = -1;
        if ((rank + round) % 3 != 0) {
            mine = memfd_create("shared", MFD_CLOEXEC);
            int content[2] = {rank, round};
            CHECK(write(mine, content, sizeof content) == sizeof content);
        }
        CHECK_OK(control_share_fd(world, mine, fds));
        for (int i = 0; i < local_size; i++) {
            int peer = banyan_world_local_peer(world, i), content[2];
            if (peer == rank || (peer + round) % 3 == 0) {
                CHECK(fds[i] == -1);
                continue;
            }
            CHECK(pread(fds[i], content, sizeof content, 0) == sizeof content);
            CHECK(content[0] == peer && content[1] == round);
            CHECK((fcntl(fds[i], F_GETFD) & FD_CLOEXEC) != 0);
            close(fds[i]);
        }
        if (mine >= 0)
            close(mine);
    }
}

static void descriptors_reach_every_rank_of_the_node(void **state)
{
    (void)state;
    ranks_run(7, share_descriptors, NULL);
    ranks_run_threads(4, share_descriptors, NULL);
}

static int destroyed;

static void destroy(void *attachment)
{
    destroyed += *(int *)attachment;
    free(attachment);
}

static void attachments_end_with_their_world(void **state)
{
    (void)state;
    static const char first_key, second_key;
    banyan_world *world;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = 0;
    options.world_size = 1;
    CHECK_OK(banyan_world_open(&options, &world));
    assert_null(world_attachment(world, &first_key));
    int *value = malloc(sizeof *value);
    *value = 42;
    CHECK_OK(world_attach(world, &first_key, value, destroy));
    assert_ptr_equal(world_attachment(world, &first_key), value);
    assert_null(world_attachment(world, &second_key));
    CHECK_OK(banyan_world_close(world));
    assert_int_equal(destroyed, 42);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_splits_know_their_members),
        cmocka_unit_test(equal_lists_make_separate_worlds),
        cmocka_unit_test(messages_wait_for_a_world_that_is_still_to_come),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(unequal_sizes_are_a_mismatch_with_both_numbers),
        cmocka_unit_test(an_agreement_on_an_agreement_names_the_rank_once),
        cmocka_unit_test(descriptors_reach_every_rank_of_the_node),
        cmocka_unit_test(attachments_end_with_their_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
