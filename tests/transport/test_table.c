/* Transports are found by name, opened by table, and checked: missing features are refused. */
#include "support/test.h"

#include "transport/shm.h"

static void find_by_name(void **state)
{
    (void)state;
    const banyan_transport_ops *ops;
    assert_int_equal(banyan_transport_find("shm", &ops), BANYAN_OK);
    assert_string_equal(ops->name, "shm");
    CHECK_FAILS(banyan_transport_find("smoke signals", &ops), BANYAN_ERR_NOT_FOUND, "shm");
    assert_non_null(strstr(banyan_last_error(), "smoke signals"));
}

static void open_by_name(banyan_world *world, void *context)
{
    (void)context;
    banyan_transport *transport;
    CHECK_FAILS(banyan_transport_open(world, "smoke", &transport), BANYAN_ERR_NOT_FOUND, "smoke");
    setenv("BANYAN_TRANSPORT", "mirrors", 1);
    CHECK_FAILS(banyan_transport_open(world, NULL, &transport), BANYAN_ERR_NOT_FOUND, "mirrors");
    CHECK_OK(banyan_transport_open(world, "shm", &transport));
    CHECK(strcmp(banyan_transport_name(transport), "shm") == 0);
    banyan_transport_close(transport);
    unsetenv("BANYAN_TRANSPORT");
    const char *name = banyan_world_rank(world) == 1 ? "smoke" : "shm";
    CHECK_FAILS(banyan_transport_open(world, name, &transport), BANYAN_ERR_NOT_FOUND, "smoke");
    banyan_transport_close(NULL);
}

static void a_name_that_one_rank_lacks_fails_everywhere(void **state)
{
    (void)state;
    unsetenv("BANYAN_TRANSPORT");
    ranks_run(3, open_by_name, NULL);
}

static void open_by_table(banyan_world *world, void *context)
{
    (void)context;
    banyan_transport *transport;
    banyan_transport_ops table = shm_transport;
    table.name = "mine";
    CHECK_OK(banyan_transport_open_ops(world, &table, &transport));
    CHECK(strcmp(banyan_transport_name(transport), "mine") == 0);
    banyan_transport_close(transport);
    table.name = banyan_world_rank(world) == 0 ? "yours" : "mine";
    CHECK_FAILS(banyan_transport_open_ops(world, &table, &transport), BANYAN_ERR_MISMATCH,
                "different transports");
    table = shm_transport;
    table.fetch_add = NULL;
    CHECK_FAILS(banyan_transport_open_ops(world, &table, &transport), BANYAN_ERR_INVALID, "lacks");
    table = shm_transport;
    table.size -= sizeof(void *);
    CHECK_FAILS(banyan_transport_open_ops(world, &table, &transport), BANYAN_ERR_INVALID, "older");
}

static void a_table_of_ones_own_is_checked_and_used(void **state)
{
    (void)state;
    ranks_run(2, open_by_table, NULL);
}

static void misuse(banyan_world *world, void *context)
{
    (void)context;
    banyan_transport *transport;
    banyan_memory *memory;
    banyan_memory_handle handle;
    uint32_t signal;
    char bytes[16] = {0};
    void *address;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, 2, &signal));
    CHECK_OK(banyan_memory_alloc(world, 100, &memory));
    CHECK_OK(banyan_memory_find(world, banyan_memory_local(memory), 100, &handle));
    banyan_remote good = {handle, 90}, bad = good;
    banyan_iovec pieces[] = {{0, bytes, 10}, {1, bytes, 10}};

    CHECK_OK(banyan_transport_put(transport, &good, bytes, 10));
    CHECK_FAILS(banyan_transport_put(transport, &good, bytes, 11), BANYAN_ERR_INVALID,
                "100 bytes of rank");
    CHECK_FAILS(banyan_transport_get(transport, bytes, &good, 11), BANYAN_ERR_INVALID, "11 bytes");
    CHECK_FAILS(banyan_transport_put(transport, &good, NULL, 1), BANYAN_ERR_INVALID, "address 0");
    CHECK_FAILS(banyan_transport_put_many(transport, &good, pieces, 2), BANYAN_ERR_INVALID,
                "offset 90 + 1");
    CHECK_FAILS(banyan_transport_get_many(transport, &good, pieces, 2), BANYAN_ERR_INVALID,
                "offset 90 + 1");
    pieces[1].offset = UINT64_MAX;
    CHECK_FAILS(banyan_transport_get_many(transport, &good, pieces, 2), BANYAN_ERR_INVALID,
                "extend beyond");
    CHECK_OK(banyan_transport_put_many(transport, &good, NULL, 0));
    bad.handle.rank = 2;
    CHECK_FAILS(banyan_transport_put(transport, &bad, bytes, 1), BANYAN_ERR_INVALID, "no rank 2");
    bad.handle.rank = -1;
    CHECK_FAILS(banyan_transport_get(transport, bytes, &bad, 1), BANYAN_ERR_INVALID, "no rank -1");
    bad = good;
    bad.handle.kind = 0;
    CHECK_FAILS(banyan_transport_get(transport, bytes, &bad, 1), BANYAN_ERR_INVALID, "kind 0");
    bad = good;
    bad.handle.id += 100;
    CHECK_FAILS(banyan_transport_put(transport, &bad, bytes, 1), BANYAN_ERR_NOT_FOUND,
                "symmetric buffer");

    CHECK_OK(banyan_transport_address(transport, &good, &address));
    CHECK(address == (char *)banyan_memory_local(memory) + 90);
    bad = good;
    bad.offset = 101;
    CHECK_FAILS(banyan_transport_address(transport, &bad, &address), BANYAN_ERR_INVALID, "101");

    CHECK_FAILS(banyan_transport_signal(transport, 2, signal, 1), BANYAN_ERR_INVALID, "no rank 2");
    CHECK_FAILS(banyan_transport_signal(transport, 0, signal + 2, 1), BANYAN_ERR_INVALID,
                "not allocated");
    CHECK_FAILS(banyan_transport_wait(transport, signal + 2, 0, 0, "x"), BANYAN_ERR_INVALID,
                "not allocated");
    CHECK_FAILS(banyan_transport_wait(transport, UINT32_MAX, 0, 0, "x"), BANYAN_ERR_INVALID,
                "not allocated");
    CHECK_FAILS(banyan_transport_put_with_signal(transport, &good, bytes, 1, signal + 2, 1),
                BANYAN_ERR_INVALID, "not allocated");
    CHECK_OK(banyan_transport_put_with_signal(transport, &good, bytes, 1, signal, 1));
    CHECK(banyan_transport_read(transport, signal) == 1);
    CHECK_FAILS(banyan_transport_flush(transport, 5), BANYAN_ERR_INVALID, "no rank 5");
    CHECK(banyan_transport_capabilities(transport, 5) == 0);
    banyan_transport_signals_free(transport, signal + 1, 2); /* not all of them exist: ignored */
    CHECK_OK(banyan_transport_signal(transport, 0, signal + 1, 1));
    banyan_transport_close(transport);
}

static void missing_ranks_signals_and_memory_are_refused(void **state)
{
    (void)state;
    ranks_run(2, misuse, NULL);
}

/* Two nodes on one machine: shm reports the ranks it can reach, and refuses the others. */
static void across_nodes(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    banyan_world *world;
    banyan_transport *transport;
    banyan_memory *memory;
    banyan_memory_handle handle, handles[4];
    uint32_t signal;
    char byte = (char)rank;
    void *address;
    size_t bytes;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.node = rank % 2 ? "odd" : "even";
    CHECK_OK(banyan_world_open(&options, &world));
    CHECK(banyan_world_node_count(world) == 2);
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    CHECK_OK(banyan_transport_signals_alloc(transport, 1, &signal));
    CHECK_OK(banyan_memory_alloc(world, 100, &memory));
    CHECK_OK(banyan_memory_find(world, banyan_memory_local(memory), 100, &handle));
    CHECK_OK(banyan_world_allgather(world, &handle, sizeof handle, handles));
    int near = (rank + 2) % 4, far = (rank + 1) % 4;
    banyan_remote here = {handles[near], 0}, there = {handles[far], 0};
    CHECK(banyan_transport_capabilities(transport, near) & BANYAN_TRANSPORT_ADDRESS);
    CHECK(banyan_transport_capabilities(transport, far) == 0);
    CHECK_FAILS(banyan_transport_put(transport, &there, &byte, 1), BANYAN_ERR_UNSUPPORTED,
                "cannot reach");
    CHECK_FAILS(banyan_transport_signal(transport, far, signal, 1), BANYAN_ERR_UNSUPPORTED,
                "not on its");
    CHECK_FAILS(banyan_transport_flush(transport, far), BANYAN_ERR_UNSUPPORTED, "not on its node");
    CHECK_FAILS(banyan_memory_peer(memory, far, &address, &bytes), BANYAN_ERR_UNSUPPORTED,
                "another node");
    CHECK_OK(banyan_transport_put_with_signal(transport, &here, &byte, 1, signal, 1));
    CHECK_OK(banyan_transport_wait(transport, signal, 1, near, "a byte"));
    CHECK(*(char *)banyan_memory_local(memory) == near);
    CHECK_OK(banyan_world_barrier(world));
    banyan_transport_close(transport);
    CHECK_OK(banyan_world_close(world));
}

static void ranks_of_another_node_are_out_of_reach(void **state)
{
    (void)state;
    int statuses[4];
    ranks_fork(4, across_nodes, NULL, statuses);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(statuses[rank], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(find_by_name),
        cmocka_unit_test(a_name_that_one_rank_lacks_fails_everywhere),
        cmocka_unit_test(a_table_of_ones_own_is_checked_and_used),
        cmocka_unit_test(missing_ranks_signals_and_memory_are_refused),
        cmocka_unit_test(ranks_of_another_node_are_out_of_reach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
