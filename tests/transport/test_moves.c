/* A transport moves exactly the requested bytes, into and out of every kind of memory. */
#include "support/test.h"

#include <stdlib.h>
#include <unistd.h>

/* Large enough for a transfer that bypasses the caches. */
#define BYTES ((size_t)5 << 20)

/* A rank's memory for its peers: one symmetric buffer and one ordinary block. */
struct offer {
    banyan_memory_handle symmetric, user;
};

struct setting {
    banyan_world *world;
    banyan_transport *transport;
    banyan_memory *memory;
    unsigned char *block;
    size_t bytes;
    unsigned char *patterns[8]; /* of every rank */
    struct offer offers[8];
    int rank, size;
};

/* Return the contents of a rank's memory, at every offset. */
static unsigned char *pattern_of(int rank, size_t bytes)
{
    unsigned char *pattern = malloc(bytes);
    CHECK(pattern != NULL);
    for (size_t i = 0; i < bytes; i++)
        pattern[i] = (unsigned char)(i * 11 + (i >> 12) * 5 + (size_t)rank * 41 + 3);
    return pattern;
}

static void check_same(const unsigned char *got, const unsigned char *expected, size_t bytes,
                       const char *what)
{
    if (bytes == 0 || memcmp(got, expected, bytes) == 0)
        return;
    size_t i = 0;
    while (got[i] == expected[i])
        i++;
    CHECK(false, "%s: byte %zu of %zu is %d, not %d", what, i, bytes, got[i], expected[i]);
}

static unsigned char *offered(const struct setting *s, bool user)
{
    return user ? s->block : banyan_memory_local(s->memory);
}

static const banyan_memory_handle *handle_of(const struct setting *s, int rank, bool user)
{
    return user ? &s->offers[rank].user : &s->offers[rank].symmetric;
}

static void fill_offers(struct setting *s)
{
    for (int user = 0; user < 2; user++)
        memcpy(offered(s, user), s->patterns[s->rank], s->bytes);
}

static void setting_open(struct setting *s, banyan_world *world, size_t bytes)
{
    *s = (struct setting){.world = world, .bytes = bytes};
    s->rank = banyan_world_rank(world);
    s->size = banyan_world_size(world);
    CHECK_OK(banyan_transport_open(world, NULL, &s->transport));
    CHECK_OK(banyan_memory_alloc(world, bytes, &s->memory));
    s->block = malloc(bytes);
    CHECK(s->block != NULL);
    struct offer mine;
    CHECK_OK(banyan_memory_find(world, offered(s, false), bytes, &mine.symmetric));
    CHECK_OK(banyan_memory_register(world, s->block, bytes, &mine.user));
    CHECK_OK(banyan_world_allgather(world, &mine, sizeof mine, s->offers));
    for (int rank = 0; rank < s->size; rank++)
        s->patterns[rank] = pattern_of(rank, bytes);
    fill_offers(s);
    CHECK_OK(banyan_world_barrier(world));
}

static void setting_close(struct setting *s)
{
    CHECK_OK(banyan_world_barrier(s->world));
    CHECK_OK(banyan_memory_unregister(s->world, &s->offers[s->rank].user));
    for (int rank = 0; rank < s->size; rank++)
        free(s->patterns[rank]);
    free(s->block);
    banyan_memory_free(s->memory);
    banyan_transport_close(s->transport);
}

/* Separate pieces in various places, some without bytes. */
struct pieces {
    banyan_iovec *list;
    size_t count, local_bytes;
    unsigned char *local;
    uint64_t base; /* into the remote memory */
};

static struct pieces random_pieces(random_state *random, size_t remote_bytes)
{
    struct pieces p = {.base = (uint64_t)random_between(random, 0, 5000)};
    size_t most = (size_t)random_between(random, 0, 3) == 0 ? 300000 : 2000;
    size_t limit = (size_t)random_between(random, 1, 1500);
    p.list = calloc(limit, sizeof *p.list);
    p.local = malloc(remote_bytes + limit * 16);
    uint64_t at = 0;
    while (p.count < limit) {
        at += (uint64_t)random_between(random, 0, 300);
        size_t bytes =
            random_next(random) % 8 == 0 ? 0 : (size_t)random_between(random, 1, (int64_t)most);
        if (p.base + at + bytes > remote_bytes)
            break;
        p.local_bytes += (size_t)random_between(random, 0, 15);
        p.list[p.count++] = (banyan_iovec){at, p.local + p.local_bytes, bytes};
        at += bytes;
        p.local_bytes += bytes;
    }
    return p;
}

static void pieces_free(struct pieces *p)
{
    free(p->list);
    free(p->local);
}

static banyan_remote remote_at(const banyan_memory_handle *handle, uint64_t offset)
{
    return (banyan_remote){*handle, offset};
}

static void get_some(struct setting *s, random_state *random, int peer, bool user)
{
    struct pieces p = random_pieces(random, s->bytes);
    banyan_remote source = remote_at(handle_of(s, peer, user), p.base);
    memset(p.local, 0xee, p.local_bytes + 1);
    CHECK_OK(banyan_transport_get_many(s->transport, &source, p.list, p.count));
    unsigned char *expected = malloc(p.local_bytes + 1);
    memset(expected, 0xee, p.local_bytes + 1);
    for (size_t i = 0; i < p.count; i++)
        memcpy(expected + ((unsigned char *)p.list[i].local - p.local),
               s->patterns[peer] + p.base + p.list[i].offset, p.list[i].bytes);
    check_same(p.local, expected, p.local_bytes + 1, "what was got");
    free(expected);
    pieces_free(&p);
}

static void get_from_everybody(banyan_world *world, void *context)
{
    random_state random = random_from(*(uint64_t *)context + (uint64_t)banyan_world_rank(world));
    struct setting s;
    setting_open(&s, world, BYTES);
    for (int round = 0; round < 8; round++) {
        for (int peer = 0; peer < s.size; peer++)
            get_some(&s, &random, peer, round % 2);
    }
    for (int user = 0; user < 2; user++) {
        int peer = (s.rank + 1) % s.size;
        unsigned char *all = malloc(s.bytes);
        banyan_remote source = remote_at(handle_of(&s, peer, user), 1);
        CHECK_OK(banyan_transport_get(s.transport, all, &source, s.bytes - 1));
        check_same(all, s.patterns[peer] + 1, s.bytes - 1, "the whole");
        CHECK_OK(banyan_transport_get(s.transport, NULL, &source, 0));
        free(all);
    }
    setting_close(&s);
}

/* Only the previous rank writes here, so that every byte has one author. */
static void put_some(struct setting *s, uint64_t seed, bool user)
{
    int peer = (s->rank + 1) % s->size, before = (s->rank + s->size - 1) % s->size;
    random_state random = random_from(seed + (uint64_t)s->rank);
    struct pieces p = random_pieces(&random, s->bytes);
    banyan_remote destination = remote_at(handle_of(s, peer, user), p.base);
    for (size_t i = 0; i < p.count; i++)
        memset(p.list[i].local, (int)(i * 7 + 1) & 0xff, p.list[i].bytes);
    CHECK_OK(banyan_transport_put_many(s->transport, &destination, p.list, p.count));
    CHECK_OK(banyan_transport_flush(s->transport, peer));
    pieces_free(&p);
    CHECK_OK(banyan_world_barrier(s->world));

    random = random_from(seed + (uint64_t)before);
    p = random_pieces(&random, s->bytes);
    unsigned char *expected = malloc(s->bytes);
    memcpy(expected, s->patterns[s->rank], s->bytes);
    for (size_t i = 0; i < p.count; i++)
        memset(expected + p.base + p.list[i].offset, (int)(i * 7 + 1) & 0xff, p.list[i].bytes);
    check_same(offered(s, user), expected, s->bytes, "what was put");
    free(expected);
    pieces_free(&p);
    fill_offers(s);
    CHECK_OK(banyan_world_barrier(s->world));
}

/* All of it at once, which bypasses the caches. */
static void put_whole(struct setting *s, bool user)
{
    int peer = (s->rank + 1) % s->size, before = (s->rank + s->size - 1) % s->size;
    banyan_remote destination = remote_at(handle_of(s, peer, user), 3);
    CHECK_OK(
        banyan_transport_put(s->transport, &destination, s->patterns[s->rank] + 5, s->bytes - 5));
    CHECK_OK(banyan_world_barrier(s->world));
    check_same(offered(s, user), s->patterns[s->rank], 3, "before what was put");
    check_same(offered(s, user) + 3, s->patterns[before] + 5, s->bytes - 5, "all that was put");
    CHECK_OK(banyan_world_barrier(s->world));
    fill_offers(s);
    CHECK_OK(banyan_world_barrier(s->world));
}

static void put_to_the_next(banyan_world *world, void *context)
{
    struct setting s;
    setting_open(&s, world, BYTES);
    for (uint64_t round = 0; round < 8; round++)
        put_some(&s, *(uint64_t *)context + round * 100, round % 2);
    put_whole(&s, false);
    put_whole(&s, true);
    setting_close(&s);
}

static void pieces_come_whole_out_of_any_memory(void **state)
{
    uint64_t seed = random_seed();
    ranks_force_user_memory(*state);
    ranks_run(3, get_from_everybody, &seed);
    ranks_run_threads(2, get_from_everybody, &seed);
    ranks_run(1, get_from_everybody, &seed);
    ranks_force_user_memory(NULL);
}

static void pieces_go_whole_into_any_memory(void **state)
{
    uint64_t seed = random_seed();
    ranks_force_user_memory(*state);
    ranks_run(3, put_to_the_next, &seed);
    ranks_run_threads(2, put_to_the_next, &seed);
    ranks_run(1, put_to_the_next, &seed);
    ranks_force_user_memory(NULL);
}

int main(void)
{
    static char cma[] = "cma", staging[] = "staging";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(pieces_come_whole_out_of_any_memory, NULL),
        cmocka_unit_test_prestate(pieces_come_whole_out_of_any_memory, cma),
        cmocka_unit_test_prestate(pieces_come_whole_out_of_any_memory, staging),
        cmocka_unit_test_prestate(pieces_go_whole_into_any_memory, NULL),
        cmocka_unit_test_prestate(pieces_go_whole_into_any_memory, cma),
        cmocka_unit_test_prestate(pieces_go_whole_into_any_memory, staging),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
