/* Puts and gets between memory of GPUs, and between it and the host's: every byte arrives at its
 * place, before its signal. */
#include "support/test.h"

#include "core/module.h"
#include "support/gpu/gpu.h"

#define BYTES ((size_t)300000)
#define PIECES 7

static void fill_pattern(unsigned char *bytes, size_t count, int rank, int round)
{
    for (size_t i = 0; i < count; i++) {
        unsigned char value;
        pattern_element("put", ((uint64_t)rank * 16 + (uint64_t)round) * BYTES + i, 1, &value);
        bytes[i] = value;
    }
}

static void check_bytes(const void *address, const unsigned char *expected, size_t bytes)
{
    unsigned char *here = gpu_read(address, bytes);
    for (size_t i = 0; i < bytes; i++)
        CHECK(here[i] == expected[i], "byte %zu is %#x, not %#x", i, here[i], expected[i]);
    free(here);
}

typedef struct exchange {
    banyan_world *world;
    banyan_transport *transport;
    char *mine; /* symmetric, on the GPU: peers write the first part, then read the second */
    banyan_memory_handle all[8];
    int rank, next, before;
    uint32_t signal;
} exchange;

/* Put to the next rank's memory; the previous rank writes here. */
static void put_and_check(exchange *x, const void *source, int round)
{
    unsigned char *expected = malloc(BYTES);
    banyan_remote there = {x->all[x->next], 1000};
    gpu_poison(x->mine, 2 * BYTES);
    CHECK_OK(banyan_world_barrier(x->world));
    CHECK_OK(banyan_transport_put_with_signal(x->transport, &there, source, BYTES, x->signal, 1));
    CHECK_OK(
        banyan_transport_wait(x->transport, x->signal, (uint64_t)round + 1, x->before, "a put"));
    fill_pattern(expected, BYTES, x->before, round);
    check_bytes(x->mine + 1000, expected, BYTES);
    memset(expected, 0xC9, 1000);
    check_bytes(x->mine, expected, 1000);
    check_bytes(x->mine + 1000 + BYTES, expected, 1000);
    free(expected);
    CHECK_OK(banyan_world_barrier(x->world));
}

/* Get pieces of the next rank's memory, in reverse. */
static void get_and_check(exchange *x, char *destination, bool on_device)
{
    unsigned char *expected = malloc(BYTES), *pattern = malloc(BYTES);
    banyan_iovec pieces[PIECES];
    size_t each = BYTES / PIECES / 2;
    fill_pattern(pattern, BYTES, x->rank, 9);
    gpu_copy(x->mine, pattern, BYTES);
    memset(expected, 0xC9, BYTES);
    fill_pattern(pattern, BYTES, x->next, 9);
    for (size_t i = 0; i < PIECES; i++) {
        pieces[i] = (banyan_iovec){i * 2 * each, destination + (PIECES - 1 - i) * each, each};
        memcpy(expected + (PIECES - 1 - i) * each, pattern + i * 2 * each, each);
    }
    gpu_fill(destination, 0xC9, BYTES);
    CHECK_OK(banyan_world_barrier(x->world));
    banyan_remote there = {x->all[x->next], 0};
    CHECK_OK(banyan_transport_get_many(x->transport, &there, pieces, PIECES));
    if (on_device)
        check_bytes(destination, expected, BYTES);
    else
        CHECK(memcmp(destination, expected, BYTES) == 0);
    CHECK_OK(banyan_world_barrier(x->world));
    free(expected);
    free(pattern);
}

static void move_both_ways(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    exchange x = {.world = world,
                  .rank = rank,
                  .next = (rank + 1) % ranks,
                  .before = (rank + ranks - 1) % ranks};
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 2 * BYTES, &memory));
    x.mine = banyan_memory_local(memory);
    banyan_memory_handle handle;
    CHECK_OK(banyan_memory_find(world, x.mine, 2 * BYTES, &handle));
    CHECK_OK(banyan_world_allgather(world, &handle, sizeof handle, x.all));
    CHECK_OK(banyan_transport_open(world, NULL, &x.transport));
    CHECK_OK(banyan_transport_signals_alloc(x.transport, 1, &x.signal));

    char *host = malloc(BYTES);
    void *device;
    CHECK_OK(gpu_memory()->alloc(gpu_device_for(rank).device_id, BYTES, &device));
    fill_pattern((unsigned char *)host, BYTES, rank, 0);
    put_and_check(&x, host, 0);
    fill_pattern((unsigned char *)host, BYTES, rank, 1);
    gpu_copy(device, host, BYTES);
    put_and_check(&x, device, 1);
    get_and_check(&x, host, false);
    get_and_check(&x, device, true);

    /* Puts do not accept registered memory of a GPU. */
    CHECK_OK(banyan_memory_register(world, device, BYTES, &handle));
    banyan_remote registered = {handle, 0};
    CHECK_FAILS(banyan_transport_put(x.transport, &registered, host, 10), BANYAN_ERR_UNSUPPORTED,
                "copies that are prepared");
    CHECK_OK(banyan_memory_unregister(world, &handle));
    gpu_memory()->free(gpu_device_for(rank).device_id, device);
    free(host);
    banyan_transport_signals_free(x.transport, x.signal, 1);
    banyan_transport_close(x.transport);
    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(memory);
}

static void puts_and_gets_reach_memory_of_gpus(void **state)
{
    (void)state;
    ranks_run(4, move_both_ways, NULL);
    if (gpu_worlds_are_cheap()) {
        ranks_run(1, move_both_ways, NULL);
        ranks_run(2, move_both_ways, NULL);
    }
    ranks_run_threads(3, move_both_ways, NULL);
}

/* Ordinary memory at the other end: refused, and nothing is touched. */
static void meet_ordinary(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    char bytes[64];
    void *device;
    memset(bytes, rank, sizeof bytes);
    CHECK_OK(gpu_memory()->alloc(gpu_device_for(rank).device_id, 64, &device));
    banyan_memory_handle handle, all[2];
    CHECK_OK(banyan_memory_register(world, bytes, sizeof bytes, &handle));
    CHECK_OK(banyan_world_allgather(world, &handle, sizeof handle, all));
    banyan_transport *transport;
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    banyan_remote there = {all[1 - rank], 0};
    CHECK_FAILS(banyan_transport_put(transport, &there, device, 64), BANYAN_ERR_UNSUPPORTED,
                "use symmetric memory");
    CHECK_OK(banyan_world_barrier(world));
    for (size_t i = 0; i < sizeof bytes; i++)
        CHECK(bytes[i] == rank);
    CHECK_OK(banyan_memory_unregister(world, &handle));
    banyan_transport_close(transport);
    gpu_memory()->free(gpu_device_for(rank).device_id, device);
}

static void ordinary_memory_and_a_gpu_do_not_meet(void **state)
{
    (void)state;
    ranks_run(2, meet_ordinary, NULL);
}

/* Between nodes: UCX reaches emulated GPUs' memory, which is the host's for it. */
static void puts_and_gets_reach_gpus_of_other_nodes(void **state)
{
    (void)state;
    if (!module_is_there("ucx") || !gpu_is_emulated()) {
        printf("left out: on emulated GPUs, with the UCX module only\n");
        skip();
    }
    setenv("BANYAN_TEST_NODES", "2", 1);
    setenv("BANYAN_GPU_NETWORK", "direct", 1);
    ranks_run(4, move_both_ways, NULL);
    unsetenv("BANYAN_GPU_NETWORK");
    unsetenv("BANYAN_TEST_NODES");
}

/* UCX that does not reach memory of GPUs: neither end accepts it, and the error names the rank. */
static void miss_a_gpu(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    char bytes[64] = {0};
    banyan_memory *memory, *on_host;
    banyan_transport *transport;
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 4096, &memory));
    CHECK_OK(banyan_memory_alloc(world, 4096, &on_host));
    CHECK_OK(banyan_transport_open(world, NULL, &transport));
    banyan_memory_handle handles[2];
    CHECK_OK(banyan_memory_find(world, banyan_memory_local(memory), 4096, &handles[0]));
    CHECK_OK(banyan_memory_find(world, banyan_memory_local(on_host), 4096, &handles[1]));
    for (int i = 0; i < 2; i++) {
        handles[i].rank = 1 - rank;
        handles[i].address = 0;
    }
    CHECK((banyan_transport_capabilities(transport, rank) & BANYAN_TRANSPORT_CUDA) != 0);
    CHECK((banyan_transport_capabilities(transport, 1 - rank) & BANYAN_TRANSPORT_CUDA) == 0);
    CHECK_FAILS(banyan_transport_put(transport, &(banyan_remote){handles[0], 0}, bytes, 64),
                BANYAN_ERR_UNSUPPORTED,
                rank == 0 ? "UCX of rank 1 does not reach memory of GPUs"
                          : "UCX of rank 0 does not reach memory of GPUs");
    CHECK_FAILS(banyan_transport_put(transport, &(banyan_remote){handles[1], 0},
                                     banyan_memory_local(memory), 64),
                BANYAN_ERR_UNSUPPORTED, "does not reach memory of GPUs: copy it to the host");
    CHECK_OK(banyan_world_barrier(world));
    banyan_transport_close(transport);
    banyan_memory_free(memory);
    banyan_memory_free(on_host);
}

static void gpus_that_ucx_does_not_reach_are_refused(void **state)
{
    (void)state;
    if (!module_is_there("ucx"))
        skip();
    setenv("BANYAN_TEST_NODES", "2", 1);
    setenv("BANYAN_GPU_NETWORK", "pinned", 1);
    ranks_run(2, miss_a_gpu, NULL);
    unsetenv("BANYAN_GPU_NETWORK");
    unsetenv("BANYAN_TEST_NODES");
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_and_gets_reach_memory_of_gpus),
        cmocka_unit_test(ordinary_memory_and_a_gpu_do_not_meet),
        cmocka_unit_test(puts_and_gets_reach_gpus_of_other_nodes),
        cmocka_unit_test(gpus_that_ucx_does_not_reach_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
