/* Barrier, broadcast, gathers, exchange, agreement, largest value: over processes and threads. */
#include "support/test.h"

#include "world/control.h"

static uint64_t element(int rank, uint64_t round, uint64_t index)
{
    uint64_t value;
    pattern_element("collectives", ((uint64_t)rank << 40) + (round << 20) + index, sizeof value,
                    &value);
    return value;
}

static void fill(int rank, uint64_t round, uint64_t *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = element(rank, round, i);
}

static void check(int rank, uint64_t round, const uint64_t *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        CHECK(data[i] == element(rank, round, i), "rank %d, round %d, element %zu", rank,
              (int)round, i);
}

static uint64_t *poisoned(size_t count)
{
    uint64_t *data = malloc(count * sizeof *data + 1);
    memset(data, 0xa5, count * sizeof *data + 1);
    return data;
}

static void broadcast_rounds(banyan_world *world, uint64_t seed)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    random_state random = random_from(seed);
    for (uint64_t round = 0; round < 10; round++) {
        int root = (int)random_between(&random, 0, size - 1);
        size_t count = (size_t)random_between(&random, 0, round == 9 ? 200000 : 300);
        uint64_t *data = poisoned(count);
        if (rank == root)
            fill(root, round, data, count);
        CHECK_OK(banyan_world_broadcast(world, data, count * sizeof *data, root));
        check(root, round, data, count);
        free(data);
    }
}

static void allgather_rounds(banyan_world *world, uint64_t seed)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    random_state random = random_from(seed);
    for (uint64_t round = 0; round < 10; round++) {
        size_t count = (size_t)random_between(&random, 0, 100);
        uint64_t *mine = poisoned(count), *all = poisoned(count * (size_t)size);
        fill(rank, round, mine, count);
        CHECK_OK(banyan_world_allgather(world, mine, count * sizeof *mine, all));
        for (int from = 0; from < size; from++)
            check(from, round, all + (size_t)from * count, count);
        free(mine);
        free(all);
    }
}

static size_t gatherv_count(int rank, uint64_t round)
{
    return element(rank, round, 7) % 5 == 0 ? 0 : element(rank, round, 7) % 1000;
}

static void allgatherv_rounds(banyan_world *world)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    for (uint64_t round = 0; round < 10; round++) {
        size_t count = gatherv_count(rank, round);
        uint64_t *mine = poisoned(count);
        fill(rank, round, mine, count);
        void *all;
        size_t *bytes = calloc((size_t)size, sizeof *bytes);
        CHECK_OK(banyan_world_allgatherv(world, mine, count * sizeof *mine, &all, bytes));
        const uint64_t *at = all;
        for (int from = 0; from < size; from++) {
            CHECK(bytes[from] == gatherv_count(from, round) * sizeof *mine);
            check(from, round, at, bytes[from] / sizeof *at);
            at += bytes[from] / sizeof *at;
        }
        free(mine);
        free(all);
        free(bytes);
    }
}

/* Only the test knows the writers of a round. */
static bool writes_to(int from, int to, uint64_t round)
{
    return element(from, round, (uint64_t)to) % 3 == 0;
}

static void exchange_rounds(banyan_world *world)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    for (uint64_t round = 0; round < 20; round++) {
        control_message *messages = calloc((size_t)size, sizeof *messages);
        size_t count = 0;
        for (int to = 0; to < size; to++) {
            if (!writes_to(rank, to, round))
                continue;
            size_t elems = element(rank, round, (uint64_t)to) % 500;
            uint64_t *data = poisoned(elems);
            fill(rank, round, data, elems);
            messages[count++] = (control_message){to, data, elems * sizeof *data};
        }
        control_message *received;
        size_t received_count, at = 0;
        CHECK_OK(control_exchange(world, messages, count, "a test", &received, &received_count));
        for (int from = 0; from < size; from++) {
            if (!writes_to(from, rank, round))
                continue;
            CHECK(at < received_count && received[at].rank == from, "nothing from rank %d", from);
            CHECK(received[at].bytes == element(from, round, (uint64_t)rank) % 500 * 8);
            check(from, round, received[at].data, received[at].bytes / 8);
            at++;
        }
        CHECK(at == received_count);
        control_messages_free(received, received_count);
        control_messages_free(messages, count);
    }
}

static void agree_and_max(banyan_world *world)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    for (uint64_t round = 0; round < 10; round++) {
        uint64_t largest = 0, got = 0;
        for (int other = 0; other < size; other++) {
            uint64_t value = element(other, round, 3);
            largest = value > largest ? value : largest;
        }
        CHECK_OK(control_max(world, element(rank, round, 3), &got));
        CHECK(got == largest);
        /* The largest value of each place comes from another rank. */
        uint64_t *each = calloc((size_t)size + 1, sizeof *each);
        for (int i = 0; i < size; i++)
            each[i] = i == rank ? largest + (uint64_t)i : round;
        CHECK_OK(control_max_each(world, each, (size_t)size));
        for (int i = 0; i < size; i++)
            CHECK(each[i] == (largest + (uint64_t)i > round ? largest + (uint64_t)i : round));
        CHECK(each[size] == 0);
        free(each);
    }
    CHECK_OK(control_agree(world, BANYAN_OK));
    banyan_status mine = BANYAN_OK;
    if (rank >= size / 2)
        mine = banyan_error_set(BANYAN_ERR_FORMAT, "tensor %d is bad", rank);
    char expected[64];
    snprintf(expected, sizeof expected, rank == size / 2 ? "tensor %d is bad" : "rank %d: tensor",
             size / 2);
    CHECK_FAILS(control_agree(world, mine), BANYAN_ERR_FORMAT, expected);
    /* A message that names its rank does not get the name again; another rank's name does not
     * count. */
    static const char *const named[] = {"rank 0: a bad name", "rank 0 waited", "rank 01: bad"};
    for (size_t i = 0; i < 3; i++) {
        mine = rank == 0 ? banyan_error_set(BANYAN_ERR_FORMAT, "%s", named[i]) : BANYAN_OK;
        CHECK_FAILS(control_agree(world, mine), BANYAN_ERR_FORMAT, named[i]);
        bool twice = strncmp(banyan_last_error(), "rank 0: rank 0", 14) == 0;
        CHECK(twice == (i == 2 && rank != 0), "%s", banyan_last_error());
    }
    CHECK_OK(control_agree(world, BANYAN_OK));
}

/* Gather; the result is common to all, unless one has failed. */
static void gather(banyan_world *world)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    uint64_t mine = element(rank, 1, 4);
    void *all;
    CHECK_OK(control_gather(world, BANYAN_OK, &mine, sizeof mine, "elements", &all));
    for (int other = 0; other < size; other++)
        CHECK(((const uint64_t *)all)[other] == element(other, 1, 4), "rank %d's", other);
    free(all);
    banyan_status status = BANYAN_OK;
    if (rank == size - 1)
        status = banyan_error_set(BANYAN_ERR_FORMAT, "the last tensor is bad");
    CHECK_FAILS(control_gather(world, status, &mine, sizeof mine, "elements", &all),
                BANYAN_ERR_FORMAT, "the last tensor is bad");
    CHECK(!all);
}

static void point_to_point(banyan_world *world)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    for (uint64_t tag = 0; tag < 3; tag++) {
        for (uint64_t i = 0; i < 20; i++) {
            for (int to = 0; to < size; to++) {
                uint64_t value = element(rank, tag, i + (uint64_t)to * 100);
                CHECK_OK(control_send(world, to, tag, &value, sizeof value));
            }
        }
    }
    for (int from = size - 1; from >= 0; from--) {
        for (int tag = 2; tag >= 0; tag--) {
            for (uint64_t i = 0; i < 20; i++) {
                void *data;
                size_t bytes;
                CHECK_OK(control_receive(world, from, (uint64_t)tag, "a test", &data, &bytes));
                uint64_t expected = element(from, (uint64_t)tag, i + (uint64_t)rank * 100);
                CHECK(bytes == sizeof expected && memcmp(data, &expected, bytes) == 0);
                free(data);
            }
        }
    }
    CHECK_FAILS(control_send(world, size, 0, NULL, 0), BANYAN_ERR_INVALID, "a message to rank");
}

static void everything(banyan_world *world, void *context)
{
    uint64_t seed = *(uint64_t *)context;
    for (int i = 0; i < 10; i++)
        CHECK_OK(banyan_world_barrier(world));
    broadcast_rounds(world, seed);
    allgather_rounds(world, seed + 1);
    allgatherv_rounds(world);
    exchange_rounds(world);
    agree_and_max(world);
    gather(world);
    point_to_point(world);
}

static void processes_get_everything_right(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    static const int counts[] = {1, 2, 3, 4, 5, 8, 13, 16};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        ranks_run(counts[i], everything, &seed);
}

static void threads_get_everything_right(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int count = 1; count <= 7; count += 2)
        ranks_run_threads(count, everything, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_get_everything_right),
        cmocka_unit_test(threads_get_everything_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
