/* Symmetric buffers that peers map by fabric handles instead of descriptors, and the behaviour
 * without such handles. */
#include "support/gpu/gpu_stream.h"
#include "support/gpu/gpu_suspend.h"
#include "support/test.h"

#define BYTES ((size_t)5 << 20)

static uint8_t mark_of(int writer, int owner, int round)
{
    return (uint8_t)(1 + writer + 8 * owner + 64 * round);
}

/* Every rank writes its own quarter of a MiB to every part. */
static void write_and_check(banyan_world *world, const banyan_memory *memory, int round)
{
    enum { SHARE = 1 << 18 };
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    for (int owner = 0; owner < ranks; owner++) {
        void *part;
        size_t bytes;
        CHECK_OK(banyan_memory_peer(memory, owner, &part, &bytes));
        CHECK(bytes == BYTES, "%zu bytes", bytes);
        gpu_fill((char *)part + rank * SHARE, mark_of(rank, owner, round), SHARE);
    }
    CHECK_OK(banyan_world_barrier(world));
    uint8_t *here = gpu_read(banyan_memory_local(memory), BYTES);
    for (size_t i = 0; i < BYTES; i++) {
        int writer = (int)(i / SHARE);
        uint8_t expected = writer < ranks ? mark_of(writer, rank, round) : 0;
        CHECK(here[i] == expected, "byte %zu is %d, not %d", i, here[i], expected);
    }
    free(here);
    CHECK_OK(banyan_world_barrier(world));
}

/* False if the machine has no such handles. */
static bool has_fabric(banyan_world *world, DLDevice device)
{
    banyan_memory *memory;
    banyan_status status = banyan_memory_alloc_on(world, device, BYTES, &memory);
    if (status == BANYAN_OK) {
        CHECK_OK(banyan_world_barrier(world));
        banyan_memory_free(memory);
        return true;
    }
    CHECK(status == BANYAN_ERR_UNSUPPORTED && !gpu_is_emulated(), "%s", banyan_last_error());
    print_message("%s\n", banyan_last_error());
    return false;
}

static void use(banyan_world *world, void *context)
{
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    banyan_memory *memory;
    if (context && !has_fabric(world, device))
        return;
    CHECK_OK(banyan_memory_alloc_on(world, device, BYTES, &memory));
    write_and_check(world, memory, 0);
    gpu_suspend_all(world);
    CHECK_OK(memory_resume_all(world));
    write_and_check(world, memory, 1);
    banyan_memory_free(memory);
}

static void use_everywhere(const char *handles, const char *emulated, void *context)
{
    if (handles)
        setenv("BANYAN_GPU_HANDLES", handles, 1);
    if (emulated)
        setenv("BANYAN_EMULATED_FABRIC", emulated, 1);
    ranks_run(gpu_count() >= 3 ? 3 : 2, use, context);
    if (gpu_is_emulated())
        ranks_run_threads(2, use, context);
    unsetenv("BANYAN_GPU_HANDLES");
    unsetenv("BANYAN_EMULATED_FABRIC");
}

static void peers_map_by_fabric_handles_alone(void **state)
{
    (void)state;
    bool must_have = true;
    use_everywhere("fabric", NULL, &must_have);
}

static void descriptors_do_where_there_are_no_fabric_handles(void **state)
{
    (void)state;
    use_everywhere(NULL, NULL, NULL);
    use_everywhere("descriptors", NULL, NULL);
    if (!gpu_is_emulated())
        return;
    use_everywhere(NULL, "none", NULL);
    use_everywhere(NULL, "refused", NULL);
}

/* One rank's environment may differ. */
static void mix(banyan_world *world, void *context)
{
    (void)context;
    if (banyan_world_rank(world) == 1)
        setenv("BANYAN_GPU_HANDLES", "fabric", 1);
    use(world, NULL);
}

static void ask_in_vain(banyan_world *world, void *context)
{
    (void)context;
    banyan_memory *memory;
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    if (banyan_world_rank(world) == 1)
        setenv("BANYAN_GPU_HANDLES", "fabric", 1);
    CHECK_FAILS(banyan_memory_alloc_on(world, device, BYTES, &memory), BANYAN_ERR_UNSUPPORTED,
                "device 1 makes no memory with fabric handles, which BANYAN_GPU_HANDLES=fabric "
                "asks for");
    unsetenv("BANYAN_GPU_HANDLES");
    CHECK_OK(banyan_memory_alloc_on(world, device, BYTES, &memory));
    write_and_check(world, memory, 0);
    banyan_memory_free(memory);
}

static void ranks_may_differ(void **state)
{
    (void)state;
    if (!gpu_is_emulated()) {
        print_message("whether a machine has fabric handles is the emulation's choice\n");
        skip();
    }
    ranks_run(3, mix, NULL);
    setenv("BANYAN_EMULATED_FABRIC", "refused", 1);
    ranks_run(2, ask_in_vain, NULL);
    setenv("BANYAN_EMULATED_FABRIC", "none", 1);
    ranks_run(2, ask_in_vain, NULL);
    unsetenv("BANYAN_EMULATED_FABRIC");
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_map_by_fabric_handles_alone),
        cmocka_unit_test(descriptors_do_where_there_are_no_fabric_handles),
        cmocka_unit_test(ranks_may_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
