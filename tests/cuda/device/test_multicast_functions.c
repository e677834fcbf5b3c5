/* Kernels' operations on multicast memory give the host's results for each member. */
#include <sys/mman.h>

#include "support/test.h"

#include "channel/reduce.h"
#include "multicast.h"

enum { MEMBERS = 3, BYTES = 1 << 14, GUARD = 64, TYPES = 3 };

static const DLDataType dtypes[TYPES] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};

/* The multicast address. No memory backs it. */
static char *address;
static _Alignas(64) unsigned char members[MEMBERS][GUARD + BYTES + GUARD];

char *emulated_multicast_member(const void *at, unsigned i);
char *emulated_multicast_member(const void *at, unsigned i)
{
    ptrdiff_t offset = (const char *)at - address;
    if (offset < 0 || offset >= BYTES || offset % 16 != 0)
        abort();
    return i < MEMBERS ? (char *)members[i] + GUARD + offset : NULL;
}

static _Alignas(64) unsigned char data[GUARD + BYTES + GUARD];
static unsigned char expected[MEMBERS + 1][GUARD + BYTES + GUARD];

static void fill(random_state *random)
{
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)random_next(random);
        for (int m = 0; m < MEMBERS; m++)
            members[m][i] = (unsigned char)random_next(random);
    }
    memcpy(expected, members, sizeof members);
    memcpy(expected[MEMBERS], data, sizeof data);
}

static void compare(const char *what)
{
    for (int m = 0; m <= MEMBERS; m++) {
        const unsigned char *got = m < MEMBERS ? members[m] : data;
        for (size_t i = 0; i < sizeof data; i++) {
            if (got[i] != expected[m][i])
                fail_msg("%s: byte %zu of %d is 0x%02x, and should be 0x%02x", what, i, m, got[i],
                         expected[m][i]);
        }
    }
}

static void add_up(const multicast_call *call, const unsigned char *const *from, uint32_t count,
                   unsigned char *to)
{
    size_t elem_bytes = banyan_dtype_bytes(dtypes[call->type]);
    const void *sources[MEMBERS];
    unsigned char sum[BYTES];
    for (uint32_t i = 0; i < count; i++)
        sources[i] = from[i];
    reduce_find(dtypes[call->type], BANYAN_SUM)(sum, sources, count, call->bytes / elem_bytes);
    memcpy(to, sum, call->bytes);
}

static void expect_sum(const multicast_call *call, unsigned char *to)
{
    const unsigned char *from[MEMBERS];
    for (int m = 0; m < MEMBERS; m++)
        from[m] = members[m] + GUARD + (call->from - address);
    add_up(call, from, MEMBERS, to);
}

static void expect(const multicast_call *call)
{
    uint64_t to = (uint64_t)(call->to - address);
    if (call->kind == MULTICAST_LOAD)
        return expect_sum(call, expected[MEMBERS] + (call->to - (char *)data));
    for (int m = 0; m < MEMBERS; m++) {
        unsigned char *at = expected[m] + GUARD + to;
        const unsigned char *own[] = {at, (const unsigned char *)call->from};
        if (call->kind == MULTICAST_STORE)
            memcpy(at, call->from, call->bytes);
        else if (call->kind == MULTICAST_LOAD_STORE)
            expect_sum(call, at);
        for (int i = 0; i < 2 && call->kind == MULTICAST_ADD; i++)
            add_up(call, own, 2, at); /* one for each block */
    }
}

static char *some_place(random_state *random, char *from, uint64_t bytes)
{
    return from + 16 * random_between(random, 0, (int64_t)(BYTES - bytes) / 16);
}

static void run_kind(multicast_kind kind, const char *what)
{
    random_state random = random_from(random_seed());
    for (int turn = 0; turn < 60; turn++) {
        uint64_t bytes = 16 * (uint64_t)random_between(&random, 0, turn < 40 ? 40 : BYTES / 16);
        char *all = some_place(&random, address, bytes);
        char *own = some_place(&random, (char *)data + GUARD, bytes);
        multicast_call call = {.kind = kind, .type = (uint32_t)turn % TYPES, .bytes = bytes};
        call.to = kind == MULTICAST_LOAD ? own : all;
        call.from = kind == MULTICAST_STORE || kind == MULTICAST_ADD ? own : all;
        fill(&random);
        expect(&call);
        multicast_run(&call, (uint32_t)random_between(&random, 1, 32));
        compare(what);
    }
}

static void stores_go_to_all(void **state)
{
    (void)state;
    run_kind(MULTICAST_STORE, "store");
}

static void words_go_to_all(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int turn = 0; turn < 60; turn++) {
        size_t at = 8 * (size_t)random_between(&random, 0, BYTES / 8 - 1);
        multicast_call call = {
            .kind = MULTICAST_STORE_RELEASE, .to = address + at, .word = random_next(&random)};
        fill(&random);
        for (int m = 0; m < MEMBERS; m++)
            memcpy(expected[m] + GUARD + at, &call.word, sizeof call.word);
        multicast_run(&call, 32);
        compare("store with release");
    }
}

static void loads_add_up(void **state)
{
    (void)state;
    run_kind(MULTICAST_LOAD, "load");
}

static void sums_go_to_all(void **state)
{
    (void)state;
    run_kind(MULTICAST_LOAD_STORE, "load and store");
}

static void additions_reach_all(void **state)
{
    (void)state;
    run_kind(MULTICAST_ADD, "add");
}

int main(void)
{
    address = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_go_to_all),    cmocka_unit_test(words_go_to_all),
        cmocka_unit_test(loads_add_up),        cmocka_unit_test(sums_go_to_all),
        cmocka_unit_test(additions_reach_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
