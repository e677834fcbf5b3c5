/* Multicast addresses of symmetric buffers, between emulated GPUs. */
#include "cuda/gpu_multicast.h"
#include "memory/symmetric/symmetric.h"
#include "support/gpu/gpu_suspend.h"

/* Return the memory of the i-th device of the address's group. */
static char *member_of(const char *address, unsigned i)
{
    char *(*member)(const void *, unsigned) =
        (char *(*)(const void *, unsigned))gpu_driver_function("emulated_multicast_member");
    CHECK(member != NULL);
    return member(address, i);
}

static void use_pairs(banyan_world *world, void *context)
{
    begin(context);
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    int pair[] = {rank / 2 * 2, rank / 2 * 2 + 1}, count = rank < 4 ? 2 : 0;
    bool usable;
    size_t bytes, free_bytes = gpu_free_bytes(world);
    char *address, *again;
    banyan_memory *memory;
    CHECK_OK(memory_multicast_agree(world, gpu_device_for(rank), &usable, NULL, 0));
    CHECK(usable, "%s", logged);
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 5000, &memory));
    CHECK_OK(memory_multicast_make(memory, pair, count, &address, &bytes));
    CHECK(count == 0 ? address == NULL : bytes >= 5000, "%zu bytes", bytes);
    uint64_t before = calls();
    CHECK_OK(memory_multicast_make(memory, pair, count, &again, &bytes));
    CHECK(again == address && calls() == before, "it was made once more");
    if (count > 0 && rank % 2 == 0) {
        for (unsigned i = 0; i < 2; i++)
            memset(member_of(address + 4096, i), 'a' + rank + (int)i, 16);
        CHECK(member_of(address, 2) == NULL);
    }
    CHECK_OK(banyan_world_barrier(world));
    const char *own = banyan_memory_local(memory);
    for (int i = 0; i < 16 && count > 0; i++)
        CHECK(own[4096 + i] == 'a' + rank, "byte %d is %d", i, own[4096 + i]);
    /* One rank after another: those that still have the object use memory that others have
     * freed. */
    for (int turn = 0; turn < size; turn++) {
        if (count > 0 && turn <= rank)
            member_of(address, 0)[0] = member_of(address, 1)[0];
        CHECK_OK(banyan_world_barrier(world));
        if (turn == rank)
            banyan_memory_free(memory);
        CHECK_OK(banyan_world_barrier(world));
    }
    CHECK(gpu_free_bytes(world) == free_bytes, "memory is left bound");
}

static void groups_apart_have_addresses_of_their_own(void **state)
{
    (void)state;
    ranks_run(2, use_pairs, (void *)&all_have_it);
    if (gpu_count() >= 4)
        ranks_run(4, use_pairs, (void *)&all_have_it);
}

/* Write both ranks' parts through the address; then zero them again. */
static void use_address(banyan_world *world, const banyan_memory *memory, char *address)
{
    int rank = banyan_world_rank(world);
    const char *own = banyan_memory_local(memory);
    CHECK(own[256 + 16 * rank] == 0);
    CHECK_OK(banyan_world_barrier(world));
    for (unsigned i = 0; i < 2; i++)
        member_of(address + 256 + 16 * rank, i)[0] = (char)('a' + rank);
    CHECK_OK(banyan_world_barrier(world));
    CHECK(own[256] == 'a' && own[272] == 'b');
}

static void suspend_and_resume(banyan_world *world, void *context)
{
    begin(context);
    DLDevice device = gpu_device_for(banyan_world_rank(world));
    const int both[] = {0, 1};
    size_t bytes, free_bytes = gpu_free_bytes(world);
    char *address, *again;
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc_on(world, device, 4096, &memory));
    CHECK_OK(memory_multicast_make(memory, both, 2, &address, &bytes));
    use_address(world, memory, address);
    for (int round = 0; round < 2; round++) {
        gpu_suspend_all(world);
        CHECK(gpu_free_bytes(world) == free_bytes, "memory is left bound");
        setenv("BANYAN_EMULATED_MULTICAST", "unbound", 1);
        CHECK_FAILS(memory_resume_all(world), BANYAN_ERR_NO_MEMORY,
                    "cuMulticastBindMem on device 1");
        CHECK(gpu_free_bytes(world) == free_bytes, "memory is left bound");
        setenv("BANYAN_EMULATED_MULTICAST", "1", 1);
        CHECK_OK(memory_resume_all(world));
        use_address(world, memory, address);
        CHECK_OK(memory_multicast_make(memory, both, 2, &again, &bytes));
        CHECK(again == address);
    }
    gpu_suspend_all(world);
    banyan_memory_free(memory);
    CHECK(gpu_free_bytes(world) == free_bytes);
}

static void addresses_outlive_a_suspension(void **state)
{
    (void)state;
    ranks_run(2, suspend_and_resume, (void *)&all_have_it);
}

static void make_wrongly(banyan_world *world, void *context)
{
    begin(context);
    int rank = banyan_world_rank(world);
    DLDevice device = gpu_device_for(rank);
    const int both[] = {0, 1}, other[] = {1, 0}, alone[] = {1};
    size_t bytes;
    char *address;
    banyan_memory *memory, *adopted, *lopsided;
    void *plain = gpu_plain_alloc(device, 4096);
    CHECK_OK(banyan_memory_alloc_on(world, device, 4096, &memory));
    CHECK_FAILS(memory_multicast_make(memory, rank == 0 ? both : alone, rank == 0 ? 2 : 1, &address,
                                      &bytes),
                BANYAN_ERR_MISMATCH, "ranks 0 and 1 name different groups for multicast");
    CHECK_FAILS(memory_multicast_make(memory, other, 2, &address, &bytes), BANYAN_ERR_INVALID,
                "they are ascending");
    CHECK_FAILS(memory_multicast_make(memory, alone, 1, &address, &bytes), BANYAN_ERR_INVALID,
                "rank 0 is not in the group");
    CHECK_OK(banyan_memory_adopt(world, device, plain, 4096, &adopted));
    CHECK_FAILS(memory_multicast_make(adopted, both, 2, &address, &bytes), BANYAN_ERR_UNSUPPORTED,
                "only symmetric buffers that Banyan made");
    CHECK_OK(banyan_memory_alloc_on(world, device, rank == 0 ? 4096 : 0, &lopsided));
    CHECK_FAILS(memory_multicast_make(lopsided, both, 2, &address, &bytes), BANYAN_ERR_UNSUPPORTED,
                "has no part");
    CHECK_OK(memory_multicast_make(memory, both, 2, &address, &bytes));
    banyan_memory_free(lopsided);
    banyan_memory_free(adopted);
    banyan_memory_free(memory);
    gpu_plain_free(device, plain);
}

static void a_missing_address_is_reported_on_all_ranks(void **state)
{
    (void)state;
    ranks_run(2, make_wrongly, (void *)&all_have_it);
}

static void fail_to_bind(banyan_world *world, void *context)
{
    begin(context);
    int rank = banyan_world_rank(world);
    const int both[] = {0, 1};
    size_t bytes, free_bytes = gpu_free_bytes(world);
    char *address;
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc_on(world, gpu_device_for(rank), 4096, &memory));
    CHECK_FAILS(memory_multicast_make(memory, both, 2, &address, &bytes), BANYAN_ERR_NO_MEMORY,
                "cuda: cuMulticastBindMem on device 1: out of memory");
    banyan_memory_free(memory);
    CHECK(gpu_free_bytes(world) == free_bytes, "memory is left bound");
}

static void a_failed_bind_is_all_ranks_sentence(void **state)
{
    (void)state;
    ranks_run(2, fail_to_bind, &(struct setting){"1", "unbound"});
}

/* Direct calls of the module are refused as well. */
static void call_the_module(banyan_world *world, void *context)
{
    begin(context);
    int fd = -1;
    device_multicast made = {0};
    CHECK_FAILS(gpu_memory()->multicast_create(0, 2, 1 << 21, &fd, &made), BANYAN_ERR_UNSUPPORTED,
                "BANYAN_MULTICAST is not 1");
    CHECK_FAILS(gpu_memory()->multicast_join(0, fd, &made), BANYAN_ERR_UNSUPPORTED,
                "BANYAN_MULTICAST is not 1");
    CHECK(calls() == 0 && fd == -1 && made.object == 0);
    CHECK_OK(banyan_world_barrier(world));
}

static void the_module_itself_heeds_the_variable(void **state)
{
    (void)state;
    ranks_run(1, call_the_module, &(struct setting){"0", "1"});
}

int main(void)
{
    multicast_tests_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_apart_have_addresses_of_their_own),
        cmocka_unit_test(addresses_outlive_a_suspension),
        cmocka_unit_test(a_missing_address_is_reported_on_all_ranks),
        cmocka_unit_test(a_failed_bind_is_all_ranks_sentence),
        cmocka_unit_test(the_module_itself_heeds_the_variable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
