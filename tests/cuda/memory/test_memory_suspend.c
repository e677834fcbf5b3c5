/* Suspended buffers on GPUs: their memory is free and their addresses stay. Resumed memory is
 * zeroed, and all ranks access it as before. */
#include "support/gpu/gpu_stream.h"
#include "support/gpu/gpu_suspend.h"
#include "support/test.h"

#define BUFFERS 3

/* A size that all ranks can compute. */
static size_t part_bytes(uint64_t seed, int buffer, int rank)
{
    random_state random = random_from(seed + (uint64_t)buffer * 1000 + (uint64_t)rank);
    switch (random_between(&random, 0, 2)) {
    case 0:
        return buffer == 0 ? 4096 : 0;
    case 1:
        return (size_t)random_between(&random, 1, 20000);
    default:
        return (size_t)random_between(&random, 1 << 20, 5 << 20);
    }
}

static uint8_t mark_of(int writer, int owner, int round)
{
    return (uint8_t)(1 + writer + 8 * owner + 64 * round);
}

/* Every writer has one byte in 8 of every part. */
static void write_to_all(const banyan_memory *memory, int rank, int ranks, int round)
{
    for (int owner = 0; owner < ranks; owner++) {
        void *part;
        size_t bytes;
        CHECK_OK(banyan_memory_peer(memory, owner, &part, &bytes));
        for (size_t i = (size_t)rank; i < bytes; i += bytes / 3 / 8 * 8 + 8)
            gpu_fill((char *)part + i, mark_of(rank, owner, round), 1);
    }
}

static void check_part(const banyan_memory *memory, int rank, int ranks, int round)
{
    size_t bytes = banyan_memory_bytes(memory), step = bytes / 3 / 8 * 8 + 8;
    uint8_t *here = gpu_read(banyan_memory_local(memory), bytes);
    for (size_t i = 0; i < bytes; i++) {
        int writer = (int)(i % step);
        uint8_t expected = writer < ranks && round >= 0 ? mark_of(writer, rank, round) : 0;
        CHECK(here[i] == expected, "byte %zu of %zu is %d, not %d", i, bytes, here[i], expected);
    }
    free(here);
}

static void go_round(banyan_world *world, banyan_memory *const *buffers, int round)
{
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    for (int i = 0; i < BUFFERS; i++)
        check_part(buffers[i], rank, ranks, -1);
    CHECK_OK(banyan_world_barrier(world));
    for (int i = 0; i < BUFFERS; i++)
        write_to_all(buffers[i], rank, ranks, round);
    CHECK_OK(banyan_world_barrier(world));
    for (int i = 0; i < BUFFERS; i++)
        check_part(buffers[i], rank, ranks, round);
    CHECK_OK(banyan_world_barrier(world));
}

static void note_addresses(banyan_memory *const *buffers, int ranks, void *addresses[BUFFERS][8])
{
    size_t bytes;
    for (int i = 0; i < BUFFERS; i++) {
        for (int r = 0; r < ranks; r++)
            CHECK_OK(banyan_memory_peer(buffers[i], r, &addresses[i][r], &bytes));
    }
}

static void check_addresses(banyan_memory *const *buffers, int ranks, void *addresses[BUFFERS][8])
{
    void *now[BUFFERS][8];
    note_addresses(buffers, ranks, now);
    for (int i = 0; i < BUFFERS; i++) {
        for (int r = 0; r < ranks; r++)
            CHECK(now[i][r] == addresses[i][r], "rank %d's part of buffer %d moved", r, i);
    }
}

static void suspend_and_resume(banyan_world *world, void *context)
{
    uint64_t seed = *(uint64_t *)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    banyan_memory *buffers[BUFFERS], *on_host;
    void *addresses[BUFFERS][8];
    size_t own = 0;
    CHECK_OK(banyan_memory_alloc(world, 5000, &on_host));
    memset(banyan_memory_local(on_host), 7, 5000);
    gpu_memory();
    CHECK_OK(gpu_memory()->open(gpu_device_for(rank).device_id));
    size_t mapped_before = gpu_mapped_here(), free_before = gpu_free_bytes(world);
    for (int i = 0; i < BUFFERS; i++) {
        CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), part_bytes(seed, i, rank),
                                        &buffers[i]));
        own += part_bytes(seed, i, rank);
    }
    note_addresses(buffers, ranks, addresses);
    for (int round = 0; round < 3; round++) {
        go_round(world, buffers, round);
        size_t free_there = gpu_free_bytes(world);
        gpu_suspend_all(world);
        size_t free_suspended = gpu_free_bytes(world);
        CHECK(free_suspended >= free_there + own, "%zu bytes were freed of %zu",
              free_suspended - free_there, own);
        if (gpu_is_emulated()) {
            CHECK(free_suspended == free_before);
            CHECK(gpu_mapped_here() == mapped_before, "%zu bytes are still mapped",
                  gpu_mapped_here() - mapped_before);
        }
        CHECK_OK(banyan_world_barrier(world));
        CHECK_OK(memory_resume_all(world));
        CHECK(gpu_free_bytes(world) == free_there);
        check_addresses(buffers, ranks, addresses);
    }
    CHECK(((uint8_t *)banyan_memory_local(on_host))[4999] == 7);
    gpu_suspend_all(world);
    banyan_memory_free(buffers[1]);
    gpu_suspend_all(world);
    CHECK_OK(memory_resume_all(world));
    check_part(buffers[2], rank, ranks, -1);
}

static void memory_is_freed_and_comes_back_at_its_address(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    for (int ranks = gpu_worlds_are_cheap() ? 1 : 4; ranks <= 4; ranks++)
        ranks_run(ranks, suspend_and_resume, &seed);
}

/* The emulated driver counts mappings by process. */
static void suspend_as_threads(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    banyan_memory *buffers[BUFFERS];
    for (int i = 0; i < BUFFERS; i++)
        CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 10000, &buffers[i]));
    for (int round = 0; round < 3; round++) {
        go_round(world, buffers, round);
        gpu_suspend_all(world);
        CHECK_OK(memory_resume_all(world));
    }
    for (int i = 0; i < BUFFERS; i++)
        check_part(buffers[i], rank, ranks, -1);
}

static void ranks_may_be_threads(void **state)
{
    (void)state;
    ranks_run_threads(gpu_worlds_are_cheap() ? 3 : 2, suspend_as_threads, NULL);
}

static void replay_after_resume(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    DLDevice device = gpu_device_for(rank);
    banyan_memory *memory;
    void *next;
    size_t bytes;
    CHECK_OK(banyan_memory_alloc_on(world, device, 1 << 20, &memory));
    CHECK_OK(banyan_memory_peer(memory, (rank + 1) % ranks, &next, &bytes));
    char *source = gpu_plain_alloc(device, 1 << 20);
    gpu_fill(source, (uint8_t)(rank + 1), 1 << 20);
    void *stream = gpu_stream_create(device);
    gpu_capture_begin(device, stream);
    gpu_stream_copy(device, stream, next, source, 1 << 20);
    void *graph = gpu_capture_end(device, stream);
    for (int round = 0; round < 3; round++) {
        gpu_graph_launch(device, graph, stream);
        gpu_stream_wait(device, stream);
        CHECK_OK(banyan_world_barrier(world));
        uint8_t *here = gpu_read(banyan_memory_local(memory), 1 << 20);
        for (size_t i = 0; i < 1 << 20; i++)
            CHECK(here[i] == (rank + ranks - 1) % ranks + 1, "byte %zu is %d", i, here[i]);
        free(here);
        gpu_suspend_all(world);
        CHECK_OK(memory_resume_all(world));
    }
    gpu_graph_destroy(device, graph);
    gpu_stream_destroy(device, stream);
    gpu_plain_free(device, source);
}

static void graphs_lead_to_the_memory_that_came_back(void **state)
{
    (void)state;
    ranks_run(gpu_count() < 3 ? gpu_count() : 3, replay_after_resume, NULL);
}

static void resume_without_room(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    DLDevice device = gpu_device_for(rank);
    size_t bytes = (size_t)512 << 20;
    banyan_memory *small, *memory;
    void *taken = NULL;
    CHECK_OK(banyan_memory_alloc_on(world, device, 10000, &small));
    CHECK_OK(banyan_memory_alloc_on(world, device, bytes, &memory));
    gpu_suspend_all(world);
    size_t free_bytes = gpu_free_bytes(world);
    if (rank == 1)
        taken = gpu_plain_alloc(device, free_bytes - bytes / 2);
    CHECK_FAILS(memory_resume_all(world), BANYAN_ERR_NO_MEMORY,
                "rank 1 could not allocate 536870912");
    if (rank != 1)
        CHECK(gpu_free_bytes(world) == free_bytes, "memory is kept of what failed");
    else
        gpu_free_bytes(world);
    CHECK_FAILS(memory_resume_all(world), BANYAN_ERR_NO_MEMORY, "bytes are free");
    if (rank == 1)
        gpu_plain_free(device, taken);
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(memory_resume_all(world));
    check_part(small, rank, ranks, -1);
    CHECK_OK(banyan_world_barrier(world));
    write_to_all(small, rank, ranks, 0);
    CHECK_OK(banyan_world_barrier(world));
    check_part(small, rank, ranks, 0);
}

static void all_hear_of_a_rank_without_room_and_may_try_again(void **state)
{
    (void)state;
    if (gpu_count() < 2)
        skip();
    ranks_run(gpu_count() < 3 ? gpu_count() : 3, resume_without_room, NULL);
}

static void move_to_another_world(banyan_world *world, void *context)
{
    uint64_t seed = *(uint64_t *)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world), all[8];
    for (int i = 0; i < ranks; i++)
        all[i] = i;
    banyan_world *first, *second;
    banyan_memory *buffers[BUFFERS], *other;
    void *addresses[BUFFERS][8];
    CHECK_OK(banyan_world_split(world, all, ranks, &first));
    CHECK_OK(banyan_world_split(world, all, ranks, &second));
    CHECK_OK(banyan_memory_alloc_on(second, gpu_device_for(rank), 100, &other));
    for (int i = 0; i < BUFFERS; i++)
        CHECK_OK(banyan_memory_alloc_on(first, gpu_device_for(rank), part_bytes(seed, i, rank),
                                        &buffers[i]));
    note_addresses(buffers, ranks, addresses);
    go_round(first, buffers, 0);
    CHECK_FAILS(memory_join(second, buffers[0]), BANYAN_ERR_INVALID, "while it is suspended");
    gpu_suspend_all(first);
    CHECK_FAILS(memory_join(second, buffers[0]), BANYAN_ERR_INVALID, "in no other");
    for (int i = 0; i < BUFFERS; i++)
        memory_leave(buffers[i]);
    CHECK_OK(banyan_world_close(first));
    banyan_world *alone;
    CHECK_OK(banyan_world_split(world, &rank, 1, &alone));
    if (ranks > 1)
        CHECK_FAILS(memory_join(alone, buffers[0]), BANYAN_ERR_INVALID, "cannot join");
    CHECK_OK(banyan_world_close(alone));
    for (int i = 0; i < BUFFERS; i++)
        CHECK_OK(memory_join(second, buffers[i]));
    CHECK_OK(memory_resume_all(second));
    check_addresses(buffers, ranks, addresses);
    go_round(second, buffers, 1);
    gpu_suspend_all(second);
    memory_leave(buffers[1]);
    banyan_memory_free(buffers[1]);
    CHECK_OK(memory_resume_all(second));
    check_part(buffers[2], rank, ranks, -1);
    CHECK_OK(banyan_world_close(second));
}

static void buffers_outlive_their_world_while_suspended(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(gpu_count() < 3 ? gpu_count() : 3, move_to_another_world, &seed);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_freed_and_comes_back_at_its_address),
        cmocka_unit_test(ranks_may_be_threads),
        cmocka_unit_test(graphs_lead_to_the_memory_that_came_back),
        cmocka_unit_test(all_hear_of_a_rank_without_room_and_may_try_again),
        cmocka_unit_test(buffers_outlive_their_world_while_suspended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
