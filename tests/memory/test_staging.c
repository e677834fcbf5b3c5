/* Staging moves equal bytes however its slots are set up, and its owner validates every slot. */
#include "support/test.h"

#include <unistd.h>

#include "core/deadline.h"
#include "memory/staging/staging.h"

#define BYTES ((size_t)1500000)

struct stage {
    memory_space *space;
    banyan_memory *mailboxes;
    staging_service *service;
    unsigned char *block;
    banyan_memory_handle mine, theirs;
};

static unsigned char pattern_byte(int rank, size_t i)
{
    return (unsigned char)(i * 5 + (i >> 9) * 3 + (size_t)rank * 77);
}

static struct stage stage_open(banyan_world *world)
{
    struct stage s = {.block = malloc(BYTES)};
    int rank = banyan_world_rank(world);
    banyan_memory_handle both[2];
    for (size_t i = 0; i < BYTES; i++)
        s.block[i] = pattern_byte(rank, i);
    CHECK_OK(memory_space_of(world, &s.space));
    CHECK_OK(memory_alloc(world, sizeof(mailbox), true, &s.mailboxes));
    CHECK_OK(staging_service_start(s.space, s.mailboxes, &s.service));
    CHECK_OK(banyan_memory_register(world, s.block, BYTES, &s.mine));
    CHECK_OK(banyan_world_allgather(world, &s.mine, sizeof s.mine, both));
    s.theirs = both[1 - rank];
    return s;
}

static void stage_close(struct stage *s, banyan_world *world)
{
    CHECK_OK(banyan_world_barrier(world));
    staging_service_stop(s->service);
    banyan_memory_free(s->mailboxes);
    free(s->block);
}

/* Pieces that cover the whole in a shuffled order. */
static size_t cut(random_state *random, unsigned char *local, banyan_iovec *pieces, size_t most)
{
    size_t count = 0;
    for (size_t at = 0; at < BYTES && count < most; count++) {
        size_t bytes = (size_t)random_between(random, 0, count % 50 == 0 ? 400000 : 3000);
        if (bytes > BYTES - at || count == most - 1)
            bytes = BYTES - at;
        pieces[count] = (banyan_iovec){at, local + at, bytes};
        at += bytes;
    }
    for (size_t i = count; i > 1; i--) {
        size_t k = (size_t)random_between(random, 0, (int64_t)i - 1);
        banyan_iovec swap = pieces[i - 1];
        pieces[i - 1] = pieces[k];
        pieces[k] = swap;
    }
    return count;
}

/* Rows of one size at equal distances, from either end of the block on. */
static size_t cut_rows(random_state *random, unsigned char *local, banyan_iovec *pieces)
{
    size_t bytes = (size_t)random_between(random, 500, 5000), rows = BYTES / bytes;
    bool backwards = random_next(random) % 2 == 0;
    for (size_t i = 0; i < rows; i++) {
        size_t at = (backwards ? rows - 1 - i : i) * bytes;
        pieces[i] = (banyan_iovec){at, local + at, bytes};
    }
    pieces[rows] = (banyan_iovec){rows * bytes, local + rows * bytes, BYTES - rows * bytes};
    return rows + 1;
}

static void read_back(struct stage *s, staging_requester *requester, random_state *random)
{
    static banyan_iovec pieces[3001];
    int peer = s->theirs.rank;
    unsigned char *local = malloc(BYTES);
    memset(local, 0xee, BYTES);
    size_t count = random_next(random) % 2 == 0 ? cut(random, local, pieces, 3000)
                                                : cut_rows(random, local, pieces);
    staging_transfer transfer = {&s->theirs, pieces, count, false, random_next(random) % 2 == 0};
    CHECK_OK(staging_run(requester, &transfer));
    for (size_t i = 0; i < BYTES; i++)
        CHECK(local[i] == pattern_byte(peer, i), "byte %zu: slots of %zu, %zu at once", i,
              requester->slot_bytes, requester->refill);
    /* Write the bytes back: concurrent readers see no other values. */
    transfer.write = true;
    CHECK_OK(staging_run(requester, &transfer));
    free(local);
}

static void try_all_set_ups(banyan_world *world, void *context)
{
    random_state random = random_from(*(uint64_t *)context + (uint64_t)banyan_world_rank(world));
    struct stage s = stage_open(world);
    const size_t slot_bytes[] = {4096, 16 << 10, 100000, MAILBOX_SLOT_BYTES};
    for (size_t i = 0; i < 16; i++) {
        staging_requester requester = staging_requester_of(s.space, s.mailboxes);
        requester.slot_bytes = slot_bytes[i % 4];
        requester.refill = 1 + i / 4;
        requester.share_a_core = i % 2 == 0;
        requester.spins = i % 3 == 0 ? 0 : 100;
        read_back(&s, &requester, &random);
    }
    stage_close(&s, world);
}

static void every_set_up_of_slots_moves_the_same(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(2, try_all_set_ups, &seed);
}

/* Post a slot unlike our requester's, and return the owner's verdict. */
static slot_verdict ask(struct stage *s, const banyan_memory_handle *handle, bool write,
                        uint32_t count, const slot_piece *pieces, uint32_t given)
{
    mailbox *own = (mailbox *)memory_part_of(s->mailboxes, s->space->local_rank);
    mailbox *owner = (mailbox *)memory_part_of(s->mailboxes, 1 - s->space->local_rank);
    mailbox_slot *slot = &own->slots[2];
    slot->owner = 1 - (uint32_t)s->space->local_rank;
    slot->write = write;
    slot->handle = *handle;
    slot->piece_count = count;
    slot->processor = -1;
    memcpy(slot->pieces, pieces, given * sizeof *pieces);
    memset(slot->data, 0x99, sizeof slot->data);
    atomic_store(&slot->state, SLOT_POSTED);
    mailbox_queue *queue = mailbox_queue_for(owner, s->space->local_rank);
    atomic_fetch_or(&queue->requesters[0], UINT64_C(1) << s->space->local_rank);
    wake_up_notify(&queue->requested);
    uint64_t deadline_ns = deadline_after(10 * NS_PER_S);
    while (atomic_load(&slot->state) != SLOT_DONE) {
        CHECK(deadline_left_ns(deadline_ns) > 0, "the owner does not answer");
        usleep(100);
    }
    return (slot_verdict)slot->verdict;
}

static void lie_to_the_owner(banyan_world *world, void *context)
{
    (void)context;
    struct stage s = stage_open(world);
    if (banyan_world_rank(world) == 0) {
        banyan_memory_handle wrong = s.theirs;
        slot_piece none = {0, 0}, behind = {BYTES - 4, 5}, far = {UINT64_MAX, 2};
        slot_piece large = {0, MAILBOX_SLOT_BYTES + 1};
        slot_piece two[2] = {{BYTES - MAILBOX_SLOT_BYTES, MAILBOX_SLOT_BYTES}, {0, 1}};
        slot_piece rows[3] = {{BYTES - 20, 8}, {BYTES - 12, 8}, {BYTES - 4, 8}};
        slot_piece backwards[3] = {{8, 8}, {0, 8}, {(uint64_t)-8, 8}};
        CHECK(ask(&s, &s.theirs, true, 1, &none, 1) == SLOT_GRANTED);
        CHECK(ask(&s, &s.theirs, true, 1, &behind, 1) == SLOT_OUT_OF_RANGE);
        CHECK(ask(&s, &s.theirs, true, 1, &far, 1) == SLOT_OUT_OF_RANGE);
        CHECK(ask(&s, &s.theirs, true, 1, &large, 1) == SLOT_MALFORMED);
        CHECK(ask(&s, &s.theirs, false, 2, two, 2) == SLOT_MALFORMED);
        CHECK(ask(&s, &s.theirs, true, 3, rows, 3) == SLOT_OUT_OF_RANGE);
        CHECK(ask(&s, &s.theirs, true, 3, backwards, 3) == SLOT_OUT_OF_RANGE);
        CHECK(ask(&s, &s.theirs, true, MAILBOX_SLOT_PIECES + 1, &none, 1) == SLOT_MALFORMED);
        CHECK(ask(&s, &s.theirs, true, UINT32_MAX, &none, 1) == SLOT_MALFORMED);
        wrong.rank = 0;
        CHECK(ask(&s, &wrong, true, 1, &none, 1) == SLOT_NOT_REGISTERED);
        wrong = s.theirs;
        wrong.address += 1;
        CHECK(ask(&s, &wrong, true, 1, &none, 1) == SLOT_NOT_REGISTERED);
        wrong.address = UINT64_MAX - 1;
        CHECK(ask(&s, &wrong, true, 1, &none, 1) == SLOT_NOT_REGISTERED);
        wrong = s.theirs;
        wrong.id ^= UINT64_C(1) << 40;
        CHECK(ask(&s, &wrong, true, 1, &none, 1) == SLOT_NOT_REGISTERED);
        wrong = s.theirs;
        wrong.kind = BANYAN_MEMORY_SYMMETRIC;
        CHECK(ask(&s, &wrong, true, 1, &none, 1) == SLOT_NOT_REGISTERED);
    }
    CHECK_OK(banyan_world_barrier(world));
    for (size_t i = 0; i < BYTES; i++)
        CHECK(s.block[i] == pattern_byte(banyan_world_rank(world), i), "byte %zu was written", i);
    stage_close(&s, world);
}

static void an_owner_believes_no_number_in_a_slot(void **state)
{
    (void)state;
    ranks_run(2, lie_to_the_owner, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_set_up_of_slots_moves_the_same),
        cmocka_unit_test(an_owner_believes_no_number_in_a_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
