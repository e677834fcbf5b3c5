/* Registered ordinary memory: accessed by the working path, refused if not registered. */
#include "support/test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "memory/user/user.h"

#define BLOCK 100000

/* From here on the kernel denies this process the calls that Yama or a container would. */
static void deny_cross_memory_attach(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

/* Every rank reads the next rank's block, and all use one path. */
static void exchange_blocks(banyan_world *world, banyan_user_memory_path *used)
{
    int rank = banyan_world_rank(world), size = banyan_world_size(world), next = (rank + 1) % size;
    banyan_transport *transport;
    banyan_user_memory_path all[8];
    CHECK_OK(banyan_transport_open(world, "shm", &transport));
    CHECK_OK(banyan_memory_user_path(world, used));
    CHECK_OK(banyan_world_allgather(world, used, sizeof *used, all));
    for (int i = 0; i < size; i++)
        CHECK(all[i] == *used, "rank %d has another way", i);
    bool one_sided = *used == BANYAN_USER_MEMORY_CMA;
    uint64_t can = banyan_transport_capabilities(transport, next);
    CHECK(((can & BANYAN_TRANSPORT_ONE_SIDED) != 0) == (one_sided || next == rank));

    unsigned char *block = malloc(BLOCK), *copy = malloc(BLOCK);
    banyan_memory_handle mine, handles[8];
    memset(block, rank + 100, BLOCK);
    CHECK_OK(banyan_memory_register(world, block, BLOCK, &mine));
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, handles));
    banyan_remote source = {handles[next], 0};
    CHECK_OK(banyan_transport_get(transport, copy, &source, BLOCK));
    for (size_t i = 0; i < BLOCK; i++)
        CHECK(copy[i] == next + 100);
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_memory_unregister(world, &mine));
    free(block);
    free(copy);
    banyan_transport_close(transport);
}

static void use_expected_way(banyan_world *world, void *context)
{
    banyan_user_memory_path used;
    exchange_blocks(world, &used);
    CHECK(!context || used == *(banyan_user_memory_path *)context);
}

static void any_way_works_and_can_be_forced(void **state)
{
    (void)state;
    banyan_user_memory_path cma = BANYAN_USER_MEMORY_CMA, staging = BANYAN_USER_MEMORY_STAGING;
    ranks_force_user_memory(NULL);
    ranks_run(3, use_expected_way, NULL);
    ranks_run_threads(3, use_expected_way, NULL);
    ranks_force_user_memory("cma");
    ranks_run(3, use_expected_way, &cma);
    ranks_run_threads(3, use_expected_way, &cma);
    ranks_force_user_memory("staging");
    ranks_run(3, use_expected_way, &staging);
    ranks_run(1, use_expected_way, &staging);
    ranks_run_threads(3, use_expected_way, &staging);
    ranks_force_user_memory(NULL);
}

/* On one rank only: the others must choose the same path. */
static void be_denied(banyan_world *world, void *context)
{
    banyan_user_memory_path used;
    if (banyan_world_rank(world) == *(int *)context)
        deny_cross_memory_attach();
    exchange_blocks(world, &used);
    CHECK(used == BANYAN_USER_MEMORY_STAGING);
}

static void a_kernel_that_denies_it_to_one_rank_makes_all_stage(void **state)
{
    (void)state;
    for (int denied = 0; denied < 3; denied++)
        ranks_run(3, be_denied, &denied);
}

/* Long pieces go through the kernel, which denies it, and rows through the owner's thread. */
static void read_two_shapes(banyan_world *world, void *context)
{
    (void)context;
    enum { ROWS = 64, ROW_BYTES = 2048, BYTES = 2 * ROWS * ROW_BYTES };
    int rank = banyan_world_rank(world), next = (rank + 1) % banyan_world_size(world);
    memory_space *space;
    user_memory *user;
    banyan_memory_handle mine, handles[8];
    CHECK_OK(memory_space_of(world, &space));
    CHECK_OK(user_memory_open(space, &user));
    user_memory_use(user, USER_MEMORY_WHOLE, USER_MEMORY_CMA);
    CHECK(user_memory_path(user) == BANYAN_USER_MEMORY_STAGING);
    unsigned char *block = malloc(BYTES), *copy = calloc(1, BYTES);
    memset(block, rank + 100, BYTES);
    CHECK_OK(banyan_memory_register(world, block, BYTES, &mine));
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, handles));
    deny_cross_memory_attach();
    banyan_iovec rows[ROWS], whole = {0, copy, BYTES};
    for (size_t i = 0; i < ROWS; i++)
        rows[i] = (banyan_iovec){2 * i * ROW_BYTES, copy + 2 * i * ROW_BYTES, ROW_BYTES};
    CHECK_FAILS(user_memory_read(user, &handles[next], &whole, 1, BYTES), BANYAN_ERR_SYSTEM,
                "Operation not permitted");
    CHECK_OK(user_memory_read(user, &handles[next], rows, ROWS, ROWS * ROW_BYTES));
    for (size_t i = 0; i < BYTES; i++)
        CHECK(copy[i] == (i / ROW_BYTES % 2 == 0 ? next + 100 : 0));
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_memory_unregister(world, &mine));
    free(block);
    free(copy);
}

static void rows_may_go_another_way_than_long_pieces(void **state)
{
    (void)state;
    ranks_force_user_memory("staging");
    ranks_run(3, read_two_shapes, NULL);
    ranks_force_user_memory(NULL);
}

static void be_denied_what_is_forced(banyan_world *world, void *context)
{
    (void)context;
    banyan_transport *transport;
    deny_cross_memory_attach();
    CHECK_FAILS(banyan_transport_open(world, "shm", &transport), BANYAN_ERR_UNSUPPORTED,
                "Operation not permitted");
    CHECK(strstr(banyan_last_error(), "BANYAN_USER_MEMORY=cma") != NULL);
    /* The world itself is healthy. */
    ranks_force_user_memory("staging");
    banyan_user_memory_path used;
    exchange_blocks(world, &used);
}

static void forcing_a_way_that_fails_reports_the_kernels_error(void **state)
{
    (void)state;
    ranks_force_user_memory("cma");
    ranks_run(2, be_denied_what_is_forced, NULL);
    ranks_force_user_memory(NULL);
}

static void ask_for_nonsense(banyan_world *world, void *context)
{
    (void)context;
    banyan_user_memory_path used;
    if (banyan_world_rank(world) == 1)
        ranks_force_user_memory("carrier pigeon");
    CHECK_FAILS(banyan_memory_user_path(world, &used), BANYAN_ERR_INVALID, "carrier pigeon");
    ranks_force_user_memory(banyan_world_rank(world) == 1 ? "cma" : "staging");
    CHECK_FAILS(banyan_memory_user_path(world, &used), BANYAN_ERR_MISMATCH, "BANYAN_USER_MEMORY");
    ranks_force_user_memory(NULL);
    CHECK_OK(banyan_memory_user_path(world, &used));
}

static void ranks_that_ask_for_different_ways_are_told(void **state)
{
    (void)state;
    ranks_run(2, ask_for_nonsense, NULL);
}

static void look_up(banyan_world *world, void *context)
{
    (void)context;
    static char area[10000];
    banyan_memory_handle whole, inner, found;
    CHECK_FAILS(banyan_memory_find(world, area, 10, &found), BANYAN_ERR_NOT_FOUND, "10 bytes");
    CHECK_OK(banyan_memory_register(world, area, sizeof area, &whole));
    CHECK_OK(banyan_memory_register(world, area + 1000, 500, &inner));
    CHECK_OK(banyan_memory_find(world, area + 1200, 100, &found));
    CHECK(found.id == whole.id || found.id == inner.id);
    CHECK(found.address == (uintptr_t)area + 1200 && found.bytes == 100);
    CHECK_OK(banyan_memory_find(world, area + 1200, 1000, &found));
    CHECK(found.id == whole.id && found.kind == BANYAN_MEMORY_USER);
    CHECK_FAILS(banyan_memory_unregister(world, &found), BANYAN_ERR_INVALID, "not registered");
    CHECK_FAILS(banyan_memory_find(world, area + 1, sizeof area, &found), BANYAN_ERR_NOT_FOUND,
                "lie in no");
    CHECK_OK(banyan_memory_unregister(world, &whole));
    CHECK_FAILS(banyan_memory_unregister(world, &whole), BANYAN_ERR_INVALID, "not registered");
    CHECK_OK(banyan_memory_find(world, area + 1000, 500, &found));
    CHECK(found.id == inner.id);
    CHECK_FAILS(banyan_memory_find(world, area + 999, 2, &found), BANYAN_ERR_NOT_FOUND, "lie in");
    banyan_memory_handle again;
    CHECK_OK(banyan_memory_register(world, area, sizeof area, &again));
    CHECK(again.id != whole.id);
    CHECK_FAILS(banyan_memory_unregister(world, &whole), BANYAN_ERR_INVALID, "not registered");
    CHECK_FAILS(banyan_memory_register(world, NULL, 1, &found), BANYAN_ERR_INVALID, "no memory");
    CHECK_FAILS(banyan_memory_register(world, area, SIZE_MAX, &found), BANYAN_ERR_INVALID,
                "no memory");
    void *address;
    CHECK_FAILS(banyan_memory_map(world, &inner, &address), BANYAN_ERR_UNSUPPORTED, "no address");
}

static void registrations_are_found_until_they_end(void **state)
{
    (void)state;
    ranks_run(1, look_up, NULL);
}

struct pair {
    banyan_world *world;
    banyan_transport *transport;
    unsigned char *block; /* BLOCK bytes, of which the middle is registered */
    banyan_memory_handle mine, theirs;
};

static struct pair pair_open(banyan_world *world)
{
    struct pair p = {.world = world, .block = malloc(BLOCK)};
    banyan_memory_handle both[2];
    memset(p.block, 0x55, BLOCK);
    CHECK_OK(banyan_transport_open(world, "shm", &p.transport));
    CHECK_OK(banyan_memory_register(world, p.block + 1000, BLOCK - 2000, &p.mine));
    CHECK_OK(banyan_world_allgather(world, &p.mine, sizeof p.mine, both));
    p.theirs = both[1 - banyan_world_rank(world)];
    return p;
}

static void expect_refusal(struct pair *p, banyan_memory_handle handle, uint64_t offset,
                           size_t bytes)
{
    unsigned char local[256];
    memset(local, 0x77, sizeof local);
    banyan_remote remote = {handle, offset};
    banyan_iovec piece = {.local = local, .bytes = bytes};
    CHECK_FAILS(banyan_transport_get(p->transport, local, &remote, bytes), BANYAN_ERR_INVALID, "");
    CHECK_FAILS(banyan_transport_put(p->transport, &remote, local, bytes), BANYAN_ERR_INVALID, "");
    CHECK_FAILS(banyan_transport_get_many(p->transport, &remote, &piece, 1), BANYAN_ERR_INVALID,
                "");
    CHECK_FAILS(banyan_transport_put_many(p->transport, &remote, &piece, 1), BANYAN_ERR_INVALID,
                "");
    for (size_t i = 0; i < sizeof local; i++)
        CHECK(local[i] == 0x77);
}

static void try_to_reach_beyond(banyan_world *world, void *context)
{
    (void)context;
    struct pair p = pair_open(world);
    banyan_memory_handle forged = p.theirs;
    expect_refusal(&p, p.theirs, p.theirs.bytes - 10, 11);
    expect_refusal(&p, p.theirs, p.theirs.bytes + 1, 1);
    expect_refusal(&p, p.theirs, UINT64_MAX - 5, 10);
    forged.address -= 1;
    expect_refusal(&p, forged, 0, 10);
    forged = p.theirs;
    forged.bytes += 1;
    expect_refusal(&p, forged, forged.bytes - 10, 10);
    forged.bytes = UINT64_MAX;
    expect_refusal(&p, forged, 10, 10);
    forged = p.theirs;
    forged.id += 1;
    expect_refusal(&p, forged, 0, 10);
    forged.id = UINT64_MAX;
    expect_refusal(&p, forged, 0, 10);
    forged.id = 0;
    expect_refusal(&p, forged, 0, 10);
    forged = p.theirs;
    forged.kind = 9;
    expect_refusal(&p, forged, 0, 10);

    CHECK_OK(banyan_world_barrier(world));
    banyan_memory_handle stale = p.mine;
    CHECK_OK(banyan_memory_unregister(world, &p.mine));
    CHECK_OK(banyan_memory_register(world, p.block + 1000, BLOCK - 2000, &p.mine));
    CHECK(stale.id != p.mine.id && stale.address == p.mine.address);
    CHECK_OK(banyan_world_barrier(world));
    expect_refusal(&p, p.theirs, 0, 10);
    CHECK(strstr(banyan_last_error(), "not registered") != NULL);
    CHECK_OK(banyan_world_barrier(world));
    for (size_t i = 0; i < BLOCK; i++)
        CHECK(p.block[i] == 0x55, "byte %zu was written", i);
    /* The path still works. */
    banyan_memory_handle both[2];
    CHECK_OK(banyan_world_allgather(world, &p.mine, sizeof p.mine, both));
    banyan_remote good = {both[1 - banyan_world_rank(world)], BLOCK - 2010};
    unsigned char tail[10] = {0};
    CHECK_OK(banyan_transport_get(p.transport, tail, &good, 10));
    CHECK(tail[9] == 0x55);
    CHECK_OK(banyan_world_barrier(world));
    free(p.block);
    banyan_transport_close(p.transport);
}

static void nothing_outside_a_registration_is_reached(void **state)
{
    ranks_force_user_memory(*state);
    ranks_run(2, try_to_reach_beyond, NULL);
    ranks_run_threads(2, try_to_reach_beyond, NULL);
    ranks_force_user_memory(NULL);
}

/* Offsets beyond 32 bits, in memory of which few pages are ever touched. */
static void reach_far(banyan_world *world, void *context)
{
    (void)context;
    const size_t far = (size_t)6 << 30;
    int rank = banyan_world_rank(world);
    char *area =
        mmap(NULL, far, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(area != MAP_FAILED);
    banyan_transport *transport;
    banyan_memory_handle mine, both[2];
    CHECK_OK(banyan_transport_open(world, "shm", &transport));
    CHECK_OK(banyan_memory_register(world, area, far, &mine));
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, both));
    char text[3][8] = {"first", "middle", "last"};
    banyan_remote remote = {both[1 - rank], (uint64_t)1 << 30};
    banyan_iovec pieces[] = {{0, text[0], 8},
                             {((uint64_t)3 << 30) + 5, text[1], 8},
                             {((uint64_t)5 << 30) - 8, text[2], 8}};
    CHECK_OK(banyan_transport_put_many(transport, &remote, pieces, 3));
    CHECK_OK(banyan_world_barrier(world));
    CHECK(strcmp(area + ((size_t)1 << 30), "first") == 0);
    CHECK(strcmp(area + ((size_t)4 << 30) + 5, "middle") == 0);
    CHECK(strcmp(area + far - 8, "last") == 0);
    char back[3][8];
    for (size_t i = 0; i < 3; i++)
        pieces[i].local = back[i];
    CHECK_OK(banyan_transport_get_many(transport, &remote, pieces, 3));
    CHECK(memcmp(back, text, sizeof back) == 0);
    CHECK_OK(banyan_world_barrier(world));
    banyan_transport_close(transport);
    munmap(area, far);
}

static void offsets_of_gibibytes_are_exact(void **state)
{
    ranks_force_user_memory(*state);
    ranks_run(2, reach_far, NULL);
    ranks_force_user_memory(NULL);
}

/* Only the kernel can detect it: memory that its owner freed without unregistering it. */
static void read_what_is_gone(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    char *area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    banyan_transport *transport;
    banyan_memory_handle mine, both[2];
    CHECK_OK(banyan_transport_open(world, "shm", &transport));
    CHECK_OK(banyan_memory_register(world, area, 1 << 20, &mine));
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, both));
    munmap(area + (1 << 19), 1 << 19);
    CHECK_OK(banyan_world_barrier(world));
    char *local = malloc(1 << 20);
    banyan_remote remote = {both[1 - rank], 0};
    char range[64];
    CHECK_OK(banyan_transport_get(transport, local, &remote, 1 << 19));
    CHECK_FAILS(banyan_transport_get(transport, local, &remote, 1 << 20), BANYAN_ERR_SYSTEM,
                "missing");
    snprintf(range, sizeof range, "of rank %d", 1 - rank);
    CHECK(strstr(banyan_last_error(), range) != NULL, "%s", banyan_last_error());
    CHECK_FAILS(banyan_transport_put(transport, &remote, local, 1 << 20), BANYAN_ERR_SYSTEM,
                "missing");
    CHECK_OK(banyan_world_barrier(world));
    free(local);
    banyan_transport_close(transport);
}

static void memory_that_is_gone_is_an_error_with_its_address(void **state)
{
    (void)state;
    ranks_force_user_memory("cma");
    ranks_run(2, read_what_is_gone, NULL);
    ranks_force_user_memory(NULL);
}

/* Peers read one registration while its owner makes and ends others. */
static void churn(banyan_world *world, void *context)
{
    (void)context;
    struct pair p = pair_open(world);
    static char others[2][64];
    banyan_memory_handle other;
    unsigned char *copy = malloc(BLOCK);
    banyan_remote source = {p.theirs, 0};
    for (int round = 0; round < 300; round++) {
        char *mine = others[banyan_world_rank(world)];
        CHECK_OK(banyan_memory_register(world, mine, 64, &other));
        CHECK_OK(banyan_transport_get(p.transport, copy, &source, BLOCK - 2000));
        CHECK(copy[round] == 0x55);
        CHECK_OK(banyan_memory_unregister(world, &other));
    }
    CHECK_OK(banyan_world_barrier(world));
    free(copy);
    free(p.block);
    banyan_transport_close(p.transport);
}

static void registrations_may_change_while_peers_read_others(void **state)
{
    ranks_force_user_memory(*state);
    ranks_run(2, churn, NULL);
    ranks_run_threads(2, churn, NULL);
    ranks_force_user_memory(NULL);
}

struct victims {
    _Atomic int ready;
    pid_t pids[2];
};

/* Rank 1 dies while rank 0 reads from it repeatedly. */
static void read_from_the_dying(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world = ranks_open_world(rank, count, id, 0);
    struct pair p = pair_open(world);
    if (rank == 1) {
        usleep(50000);
        kill(getpid(), SIGKILL);
    }
    unsigned char *copy = malloc(BLOCK);
    banyan_remote source = {p.theirs, 0};
    uint64_t start_ns = time_now_ns();
    banyan_status status = BANYAN_OK;
    while (status == BANYAN_OK) {
        status = banyan_transport_get(p.transport, copy, &source, BLOCK - 2000);
        CHECK(time_now_ns() - start_ns < 3 * NS_PER_S);
    }
    CHECK(status == BANYAN_ERR_PEER_LOST, "%s: %s", banyan_status_name(status),
          banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1") != NULL, "%s", banyan_last_error());
    CHECK(time_now_ns() - start_ns < 1050 * NS_PER_MS);
}

static void reading_from_a_killed_owner_ends_within_a_second(void **state)
{
    int statuses[2];
    ranks_force_user_memory(*state);
    ranks_fork(2, read_from_the_dying, NULL, statuses);
    ranks_force_user_memory(NULL);
    assert_int_equal(statuses[0], 0);
    assert_true(WIFSIGNALED(statuses[1]));
}

static void read_from_the_stopped(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct victims *victims = context;
    banyan_world *world = ranks_open_world(rank, count, id, NS_PER_S / 2);
    struct pair p = pair_open(world);
    victims->pids[rank] = getpid();
    CHECK_OK(banyan_world_barrier(world));
    if (rank == 1) {
        kill(getpid(), SIGSTOP);
        _exit(0);
    }
    usleep(20000);
    unsigned char copy[100];
    banyan_remote source = {p.theirs, 0};
    CHECK_FAILS(banyan_transport_get(p.transport, copy, &source, 100), BANYAN_ERR_TIMEOUT,
                "rank 0 waited 0.5 s for rank 1");
    CHECK_FAILS(banyan_transport_get(p.transport, copy, &source, 100), BANYAN_ERR_TIMEOUT,
                "gave up");
    kill(victims->pids[1], SIGKILL);
}

static void an_owner_that_does_not_answer_is_named_at_the_deadline(void **state)
{
    (void)state;
    int statuses[2];
    struct victims *victims =
        mmap(NULL, sizeof *victims, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ranks_force_user_memory("staging");
    ranks_fork(2, read_from_the_stopped, victims, statuses);
    ranks_force_user_memory(NULL);
    assert_int_equal(statuses[0], 0);
    munmap(victims, sizeof *victims);
}

/* Staging needs the owner's process, but not the thread that drives its world. */
static void read_from_the_busy(banyan_world *world, void *context)
{
    (void)context;
    struct pair p = pair_open(world);
    unsigned char *copy = malloc(BLOCK);
    banyan_remote source = {p.theirs, 0};
    if (banyan_world_rank(world) == 0) {
        CHECK_OK(banyan_transport_get(p.transport, copy, &source, BLOCK - 2000));
        CHECK_OK(banyan_transport_put(p.transport, &source, copy, BLOCK - 2000));
    } else {
        usleep(300000);
    }
    uint64_t done_ns = time_now_ns(), all[2];
    CHECK_OK(banyan_world_allgather(world, &done_ns, sizeof done_ns, all));
    CHECK(all[0] < all[1], "the reader was done after the sleeper");
    free(copy);
    free(p.block);
    banyan_transport_close(p.transport);
}

static void an_owner_that_does_something_else_is_read_all_the_same(void **state)
{
    ranks_force_user_memory(*state);
    ranks_run(2, read_from_the_busy, NULL);
    ranks_force_user_memory(NULL);
}

int main(void)
{
    static char cma[] = "cma", staging[] = "staging";
#define BOTH_WAYS(test)                                                                            \
    cmocka_unit_test_prestate(test, cma), cmocka_unit_test_prestate(test, staging)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_way_works_and_can_be_forced),
        cmocka_unit_test(a_kernel_that_denies_it_to_one_rank_makes_all_stage),
        cmocka_unit_test(rows_may_go_another_way_than_long_pieces),
        cmocka_unit_test(forcing_a_way_that_fails_reports_the_kernels_error),
        cmocka_unit_test(ranks_that_ask_for_different_ways_are_told),
        cmocka_unit_test(registrations_are_found_until_they_end),
        BOTH_WAYS(nothing_outside_a_registration_is_reached),
        BOTH_WAYS(offsets_of_gibibytes_are_exact),
        cmocka_unit_test(memory_that_is_gone_is_an_error_with_its_address),
        BOTH_WAYS(registrations_may_change_while_peers_read_others),
        BOTH_WAYS(reading_from_a_killed_owner_ends_within_a_second),
        cmocka_unit_test(an_owner_that_does_not_answer_is_named_at_the_deadline),
        BOTH_WAYS(an_owner_that_does_something_else_is_read_all_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
