/* Symmetric buffers: every peer reads a rank's writes, at any size, and no memory is leaked. */
#include "support/test.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/symmetric/pages.h"
#include "support/descriptors.h"

/* A size for a rank and a round, equal on all ranks; some are 0, some large. */
static size_t part_bytes(uint64_t seed, int round, int rank)
{
    random_state random = random_from(seed + (uint64_t)round * 1000 + (uint64_t)rank);
    switch (random_between(&random, 0, 4)) {
    case 0:
        return 0;
    case 1:
        return (size_t)random_between(&random, 1, 100);
    case 2:
        return (size_t)random_between(&random, 4000, 20000);
    case 3:
        return (size_t)random_between(&random, 2 << 20, 5 << 20);
    default:
        return (size_t)2 << 20;
    }
}

static unsigned char pattern_byte(int round, int rank, size_t i)
{
    return (unsigned char)(i * 7 + i / 4096 * 13 + (size_t)rank * 31 + (size_t)round * 17 + 1);
}

static void check_zero_then_fill(banyan_memory *memory, int round, int rank)
{
    unsigned char *mine = banyan_memory_local(memory);
    for (size_t i = 0; i < banyan_memory_bytes(memory); i++) {
        CHECK(mine[i] == 0, "byte %zu of a fresh buffer is %d", i, mine[i]);
        mine[i] = pattern_byte(round, rank, i);
    }
}

static void check_peer(banyan_memory *memory, int round, int rank, size_t expected)
{
    void *address;
    size_t bytes;
    CHECK_OK(banyan_memory_peer(memory, rank, &address, &bytes));
    CHECK(bytes == expected, "%zu bytes of rank %d, not %zu", bytes, rank, expected);
    const unsigned char *theirs = address;
    for (size_t i = 0; i < bytes; i++)
        CHECK(theirs[i] == pattern_byte(round, rank, i), "round %d rank %d byte %zu", round, rank,
              i);
}

static void check_alignment(const banyan_memory *memory)
{
    size_t bytes = banyan_memory_bytes(memory);
    size_t unit = bytes >= PAGES_HUGE_BYTES ? PAGES_HUGE_BYTES : 4096;
    CHECK((uintptr_t)banyan_memory_local(memory) % unit == 0);
}

static void write_and_read_all(banyan_world *world, void *context)
{
    uint64_t seed = *(uint64_t *)context;
    int rank = banyan_world_rank(world), size = banyan_world_size(world);
    for (int round = 0; round < 6; round++) {
        banyan_memory *memory;
        CHECK_OK(banyan_memory_alloc(world, part_bytes(seed, round, rank), &memory));
        CHECK(banyan_memory_bytes(memory) == part_bytes(seed, round, rank));
        check_alignment(memory);
        check_zero_then_fill(memory, round, rank);
        CHECK_OK(banyan_world_barrier(world));
        for (int peer = 0; peer < size; peer++)
            check_peer(memory, round, peer, part_bytes(seed, round, peer));
        CHECK_OK(banyan_world_barrier(world));
        banyan_memory_free(memory);
    }
}

static void peers_read_the_data_of_a_rank(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(4, write_and_read_all, &seed);
    ranks_run(1, write_and_read_all, &seed);
}

static void ranks_that_are_threads_share_mappings(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run_threads(3, write_and_read_all, &seed);
}

/* A rank that frees early takes no memory from the others. */
static void free_early(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc(world, 100000, &memory));
    memset(banyan_memory_local(memory), rank + 1, 100000);
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 0)
        banyan_memory_free(memory);
    CHECK_OK(banyan_world_barrier(world));
    if (rank != 0) {
        void *address;
        size_t bytes;
        CHECK_OK(banyan_memory_peer(memory, 0, &address, &bytes));
        CHECK(((char *)address)[99999] == 1);
        banyan_memory_free(memory);
    }
}

static void a_freed_part_stays_at_ranks_that_map_it(void **state)
{
    (void)state;
    ranks_run(2, free_early, NULL);
    ranks_run_threads(2, free_early, NULL);
}

static void handles(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world), next = (rank + 1) % banyan_world_size(world);
    banyan_memory *memory, *other;
    CHECK_OK(banyan_memory_alloc(world, 10000 + (size_t)rank, &memory));
    CHECK_OK(banyan_memory_alloc(world, 500, &other));
    char *mine = banyan_memory_local(memory);
    banyan_memory_handle handle, all[8];
    CHECK_OK(banyan_memory_find(world, mine + 100, 50, &handle));
    CHECK(handle.kind == BANYAN_MEMORY_SYMMETRIC && handle.rank == rank && handle.bytes == 50);
    CHECK_FAILS(banyan_memory_find(world, mine + 100, 10000, &handle), BANYAN_ERR_NOT_FOUND,
                "10000 bytes");
    CHECK_FAILS(banyan_memory_find(world, &handle, 1, &handle), BANYAN_ERR_NOT_FOUND, "1 bytes");
    mine[100] = (char)(rank + 50);
    CHECK_OK(banyan_world_allgather(world, &handle, sizeof handle, all));

    void *there, *base;
    size_t bytes;
    CHECK_OK(banyan_memory_map(world, &all[next], &there));
    CHECK_OK(banyan_memory_peer(memory, next, &base, &bytes));
    CHECK(there == (char *)base + 100);
    CHECK(*(char *)there == next + 50);

    banyan_memory_handle bad = all[next];
    bad.bytes = 10000;
    CHECK_FAILS(banyan_memory_map(world, &bad, &there), BANYAN_ERR_INVALID, "extend beyond");
    bad = all[next];
    bad.address -= 101;
    CHECK_FAILS(banyan_memory_map(world, &bad, &there), BANYAN_ERR_INVALID, "extend beyond");
    bad = all[next];
    bad.address = UINT64_MAX - 10;
    CHECK_FAILS(banyan_memory_map(world, &bad, &there), BANYAN_ERR_INVALID, "extend beyond");
    bad = all[next];
    bad.id = 99;
    CHECK_FAILS(banyan_memory_map(world, &bad, &there), BANYAN_ERR_NOT_FOUND, "99");
    bad = all[next];
    bad.rank = 7;
    CHECK_FAILS(banyan_memory_map(world, &bad, &there), BANYAN_ERR_INVALID, "rank 7");
    CHECK_FAILS(banyan_memory_peer(memory, -1, &base, &bytes), BANYAN_ERR_INVALID, "rank -1");

    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_free(memory);
    CHECK_FAILS(banyan_memory_map(world, &all[next], &there), BANYAN_ERR_NOT_FOUND, "freed");
    CHECK_FAILS(banyan_memory_find(world, mine + 100, 50, &handle), BANYAN_ERR_NOT_FOUND, "lie in");
    /* `other` is freed with the world. */
}

static void a_handle_leads_to_the_peer_and_not_beyond(void **state)
{
    (void)state;
    ranks_run(3, handles, NULL);
}

/* The last rank requests more memory than any machine has. */
static void ask_too_much(banyan_world *world, void *context)
{
    (void)context;
    int last = banyan_world_size(world) - 1;
    banyan_memory *memory = NULL;
    for (int round = 0; round < 3; round++) {
        size_t bytes =
            banyan_world_rank(world) == last ? (size_t)1 << (round == 0 ? 62 : 46) : 4096;
        CHECK_FAILS(banyan_memory_alloc(world, bytes, &memory), BANYAN_ERR_NO_MEMORY, "memory");
        CHECK(memory == NULL);
    }
    CHECK_OK(banyan_memory_alloc(world, 4096, &memory));
    memset(banyan_memory_local(memory), 1, 4096);
    banyan_memory_free(memory);
}

static void one_rank_without_memory_fails_all_of_them(void **state)
{
    (void)state;
    ranks_run(3, ask_too_much, NULL);
}

static void keep_no_descriptor(banyan_world *world, void *context)
{
    (void)context;
    CHECK_OK(banyan_world_barrier(world));
    size_t before = open_descriptors();
    banyan_memory *memory[5];
    for (size_t i = 0; i < 5; i++)
        CHECK_OK(banyan_memory_alloc(world, i * 1000000, &memory[i]));
    CHECK(open_descriptors() == before, "%zu descriptors, %zu before", open_descriptors(), before);
    CHECK_OK(banyan_world_barrier(world));
    for (size_t i = 0; i < 5; i++)
        banyan_memory_free(memory[i]);
}

static void descriptors_are_closed_once_mapped(void **state)
{
    (void)state;
    ranks_run(3, keep_no_descriptor, NULL);
}

static size_t names_in_dev_shm(void)
{
    size_t count = 0;
    DIR *folder = opendir("/dev/shm");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        count += strstr(entry->d_name, "banyan") != NULL;
    closedir(folder);
    return count;
}

/* True if any process still has one of our memory files mapped or open. */
static bool memory_is_mapped_by(pid_t pid)
{
    char path[64], line[512];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        found = found || strstr(line, "memfd:banyan");
    if (file)
        fclose(file);
    return found;
}

static void die_with_buffers(int rank, int count, const banyan_unique_id *id, void *context)
{
    pid_t *pids = context;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    banyan_world *world;
    banyan_memory *memory;
    CHECK_OK(banyan_world_open(&options, &world));
    CHECK_OK(banyan_memory_alloc(world, 3 << 20, &memory));
    memset(banyan_memory_local(memory), 1, 3 << 20);
    pids[rank] = getpid();
    CHECK(memory_is_mapped_by(getpid()));
    (void)banyan_world_barrier(world); /* another may be dead already */
    kill(getpid(), SIGKILL);
}

static void killed_ranks_leave_nothing_behind(void **state)
{
    (void)state;
    size_t before = names_in_dev_shm();
    pid_t *pids = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int statuses[3];
    ranks_fork(3, die_with_buffers, pids, statuses);
    for (int rank = 0; rank < 3; rank++) {
        assert_true(WIFSIGNALED(statuses[rank]));
        assert_int_equal(WTERMSIG(statuses[rank]), SIGKILL);
        assert_int_not_equal(pids[rank], 0);
        assert_false(memory_is_mapped_by(pids[rank]));
    }
    assert_false(memory_is_mapped_by(getpid()));
    assert_int_equal(names_in_dev_shm(), before);
    munmap(pids, 4096);
}

static size_t resident_bytes(const void *address, size_t bytes)
{
    unsigned char flags[1024];
    size_t count = bytes / 4096, resident = 0;
    CHECK(count <= sizeof flags && mincore((void *)(uintptr_t)address, bytes, flags) == 0);
    for (size_t i = 0; i < count; i++)
        resident += flags[i] & 1;
    return resident * 4096;
}

static void prefault_all(banyan_world *world, void *context)
{
    (void)context;
    banyan_memory *memory;
    CHECK_OK(banyan_memory_alloc(world, 1 << 20, &memory));
    char *mine = banyan_memory_local(memory);
    CHECK(resident_bytes(mine, 1 << 20) == 0);
    memory_prefault(mine + 5000, 100000, true);
    size_t resident = resident_bytes(mine, 1 << 20);
    CHECK(resident >= 100000 && resident < 1 << 20, "%zu bytes are there", resident);
    memory_prefault(mine, 0, true);
    memory_prefault(mine, 1 << 20, false);
    CHECK(resident_bytes(mine, 1 << 20) == 1 << 20);
    for (size_t i = 0; i < 1 << 20; i++)
        CHECK(mine[i] == 0);
}

static void prefault_fills_pages_and_changes_nothing(void **state)
{
    (void)state;
    ranks_run(1, prefault_all, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_read_the_data_of_a_rank),
        cmocka_unit_test(ranks_that_are_threads_share_mappings),
        cmocka_unit_test(a_freed_part_stays_at_ranks_that_map_it),
        cmocka_unit_test(a_handle_leads_to_the_peer_and_not_beyond),
        cmocka_unit_test(one_rank_without_memory_fails_all_of_them),
        cmocka_unit_test(descriptors_are_closed_once_mapped),
        cmocka_unit_test(killed_ranks_leave_nothing_behind),
        cmocka_unit_test(prefault_fills_pages_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
