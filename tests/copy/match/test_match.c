#include "support/test.h"

#include "copy/match/match.h"
#include "copy/ops.h"
#include "core/containers.h"
#include "world/control.h"

#define OPS_MAX 256

typedef struct ops {
    banyan_copy_op sends[OPS_MAX], recvs[OPS_MAX];
    banyan_copy_batch batch;
} ops;

static void ops_send(ops *list, banyan_copy_op op)
{
    list->batch.sends = list->sends;
    list->sends[list->batch.send_count++] = op;
}

static void ops_recv(ops *list, banyan_copy_op op)
{
    list->batch.recvs = list->recvs;
    list->recvs[list->batch.recv_count++] = op;
}

/* All ranks derive all tasks of the world; each keeps its ends, in its own order. Ids repeat
 * between pairs; some tasks have none. */
static void random_world(random_state *random, int rank, int size, ops *list)
{
    random_state own = random_from((uint64_t)rank + 1);
    *list = (ops){0};
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++) {
            int count = (int)random_between(random, 0, 6);
            for (int i = 0; i < count; i++) {
                int elems = (int)random_between(random, 0, 9);
                banyan_copy_op op = op_of(0, (uint64_t)(i / 2), (uint32_t)i % 2, elems);
                if (i == 5)
                    op.task_id = BANYAN_TASK_ID_NONE;
                if (rank == from) {
                    op.peer = to;
                    ops_send(list, op);
                }
                if (rank == to) {
                    op.peer = from;
                    ops_recv(list, op);
                }
            }
        }
    for (size_t i = list->batch.recv_count; i-- > 1;) {
        size_t j = (size_t)random_between(&own, 0, (int64_t)i);
        banyan_copy_op swap = list->recvs[i];
        if (swap.task_id == BANYAN_TASK_ID_NONE || list->recvs[j].task_id == BANYAN_TASK_ID_NONE)
            continue;
        list->recvs[i] = list->recvs[j];
        list->recvs[j] = swap;
    }
}

/* The writer's rank, the direction and the id. */
static banyan_status write_note(void *context, const banyan_copy_op *op, bool is_send,
                                bytes_writer *note)
{
    bytes_write_u32(note, *(const uint32_t *)context * 2 + is_send);
    bytes_write_u64(note, op->task_id);
    bytes_write_u32(note, op->part);
    return BANYAN_OK;
}

static void check_matches(const copy_match *matches, size_t count, const banyan_copy_op *list,
                          bool is_send)
{
    for (size_t i = 0; i < count; i++) {
        const banyan_copy_op *op = &list[matches[i].op];
        CHECK(matches[i].peer == op->peer);
        CHECK(matches[i].bytes == (uint64_t)op->tensor.shape[0] * 4);
        bytes_reader reader = bytes_reader_of(matches[i].note, matches[i].note_bytes);
        CHECK(bytes_read_u32(&reader) == (uint32_t)op->peer * 2 + !is_send);
        CHECK(bytes_read_u64(&reader) == op->task_id);
        uint32_t part = bytes_read_u32(&reader);
        CHECK(op->task_id == BANYAN_TASK_ID_NONE || part == op->part);
        CHECK(!reader.failed && reader.left == 0);
        if (i == 0)
            continue;
        const banyan_copy_op *prior = &list[matches[i - 1].op];
        CHECK(prior->peer <= op->peer);
        if (prior->peer == op->peer)
            CHECK(prior->task_id < op->task_id ||
                  (prior->task_id == op->task_id &&
                   (prior->part < op->part || op->task_id == BANYAN_TASK_ID_NONE)));
    }
}

static void match_random_worlds(banyan_world *world, void *context)
{
    random_state random = random_from(*(uint64_t *)context);
    uint32_t rank = (uint32_t)banyan_world_rank(world);
    ops list;
    for (int trial = 0; trial < 20; trial++) {
        random_world(&random, (int)rank, banyan_world_size(world), &list);
        copy_matches matches;
        CHECK_OK(copy_match_batch(world, "mine", &list.batch, write_note, &rank, &matches));
        size_t sends = 0, recvs = 0;
        for (size_t i = 0; i < list.batch.send_count; i++)
            sends += list.sends[i].peer != (int)rank;
        for (size_t i = 0; i < list.batch.recv_count; i++)
            recvs += list.recvs[i].peer != (int)rank;
        CHECK(matches.send_count == sends && matches.recv_count == recvs);
        check_matches(matches.sends, sends, list.sends, true);
        check_matches(matches.recvs, recvs, list.recvs, false);
        copy_matches_free(&matches);
        CHECK_OK(banyan_copy_match_batch(world, "mine", &list.batch));
    }
}

static void both_ends_list_their_tasks_in_one_order(void **state)
{
    (void)state;
    for (int size = 1; size <= 6; size++) {
        uint64_t seed = random_seed() + (uint64_t)size;
        ranks_run(size, match_random_worlds, &seed);
        if (size == 4)
            ranks_run_threads(size, match_random_worlds, &seed);
    }
}

/* Each wrong batch is wrong on ranks 1 and 2 of four, or on rank 1 alone; all must get the
 * error. */
static void check_fails(banyan_world *world, ops *list, banyan_status status, const char *at_1,
                        const char *at_2)
{
    int rank = banyan_world_rank(world);
    copy_matches matches = {.send_count = 99};
    const char *wanted = rank == 1 ? at_1 : rank == 2 ? at_2 : "mine: rank 1";
    CHECK_FAILS(copy_match_batch(world, "mine", &list->batch, NULL, NULL, &matches), status,
                wanted);
    CHECK(matches.send_count == 99);
    ops good = {0};
    if (rank == 1)
        ops_send(&good, op_of(2, 1, 0, 3));
    if (rank == 2)
        ops_recv(&good, op_of(1, 1, 0, 3));
    CHECK_OK(banyan_copy_match_batch(world, "mine", &good.batch));
}

static void fail_in_every_way(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);

    ops one_side = {0};
    if (rank == 1)
        ops_send(&one_side, op_of(2, 7, 1, 3));
    check_fails(
        world, &one_side, BANYAN_ERR_MISMATCH,
        "mine: rank 1 sends 1 tensors to rank 2, which expects 0; only rank 1 has task ids "
        "7/1",
        "mine: rank 2 expects 0 tensors from rank 1, which sends it 1; only rank 1 has task "
        "ids 7/1");

    ops many = {0};
    for (uint64_t i = 0; i < 25; i++) {
        if (rank == 1)
            ops_recv(&many, op_of(2, 100 + i, 0, 3));
        if (rank == 2)
            ops_send(&many, op_of(1, 200 + i, 0, 3));
    }
    check_fails(world, &many, BANYAN_ERR_MISMATCH,
                "100, 101, 102, 103, 104, 105, 106, 107, 108, "
                "109 and 15 more; only rank 2 has task ids 200",
                "209 and 15 more; only rank 1 has task ids 100");

    ops sizes = {0};
    if (rank == 1)
        ops_send(&sizes, op_of(2, 7, 0, 3));
    if (rank == 2)
        ops_recv(&sizes, op_of(1, 7, 0, 4));
    check_fails(world, &sizes, BANYAN_ERR_MISMATCH,
                "mine: rank 1 sends to rank 2 tensors of another size than that rank has: task ids "
                "7 (3 elements of 4 bytes here, 4 of 4 there)",
                "mine: rank 2 expects from rank 1 tensors of another size");

    ops elements = {0};
    if (rank == 1)
        ops_send(&elements, op_of(2, 7, 0, 3));
    if (rank == 2) {
        ops_recv(&elements, op_of(1, 7, 0, 3));
        elements.recvs[0].tensor.dtype = BANYAN_BF16;
    }
    check_fails(world, &elements, BANYAN_ERR_MISMATCH, "3 elements of 4 bytes here, 3 of 2 there",
                "3 elements of 2 bytes here, 3 of 4 there");

    ops order = {0};
    for (int i = 0; i < 3; i++) {
        if (rank == 1)
            ops_send(&order, op_of(2, BANYAN_TASK_ID_NONE, 0, 3));
        if (rank == 2 && i < 2)
            ops_recv(&order, op_of(1, BANYAN_TASK_ID_NONE, 0, 3));
    }
    check_fails(world, &order, BANYAN_ERR_MISMATCH, "sends 3 tensors to rank 2, which expects 2",
                "expects 2 tensors from rank 1, which sends it 3");

    ops broken = {0};
    if (rank == 1) {
        ops_send(&broken, op_of(2, 7, 0, 3));
        broken.sends[0].tensor.ndim = 9;
    }
    if (rank == 2)
        ops_recv(&broken, op_of(1, 7, 0, 3));
    copy_matches matches;
    CHECK_FAILS(copy_match_batch(world, "mine", &broken.batch, NULL, NULL, &matches),
                BANYAN_ERR_INVALID, "9 dimensions");
    ops unknown = {0};
    CHECK_OK(banyan_copy_match_batch(world, "mine", &unknown.batch));
}

static void mismatches_are_named_on_every_rank(void **state)
{
    (void)state;
    ranks_run(4, fail_in_every_way, NULL);
}

/* Rank 1 is a peer that writes invalid data: parts of a good message, and good ones with a byte
 * changed. Rank 0 must refuse or accept it, and never read past the end. */
static void talk_nonsense(banyan_world *world, void *context)
{
    random_state random = random_from(*(uint64_t *)context);
    ops list = {0};
    for (uint64_t i = 0; i < 5; i++)
        ops_recv(&list, op_of(1, i, 0, 3));
    bytes_writer good = {0};
    bytes_write_u64(&good, 5);
    for (uint64_t i = 0; i < 5; i++) {
        bytes_write_u64(&good, i);
        bytes_write_u32(&good, 0);
        bytes_write_u64(&good, 3);
        bytes_write_u64(&good, 4);
        bytes_write_u32(&good, 0);
        bytes_write_blob(&good, "abc", 3);
    }
    bytes_write_u64(&good, 0);
    for (size_t trial = 0; trial <= good.count + 300; trial++) {
        bool is_short = trial < good.count, is_good = trial == good.count;
        size_t at = (size_t)random_between(&random, 0, (int64_t)good.count - 1);
        unsigned char flip = (unsigned char)random_between(&random, 1, 255);
        if (banyan_world_rank(world) == 0) {
            copy_matches matches;
            banyan_status status =
                copy_match_batch(world, "mine", &list.batch, NULL, NULL, &matches);
            CHECK(!is_good || status == BANYAN_OK, "%s", banyan_last_error());
            CHECK(!is_short || status == BANYAN_ERR_FORMAT, "%s", banyan_last_error());
            if (status == BANYAN_OK)
                copy_matches_free(&matches);
            continue;
        }
        if (!is_short && !is_good)
            good.data[at] ^= flip;
        control_message message = {0, good.data, is_short ? trial : good.count};
        control_message *received;
        size_t count;
        CHECK_OK(control_agree(world, BANYAN_OK));
        CHECK_OK(control_exchange(world, &message, 1, "mine", &received, &count));
        control_messages_free(received, count);
        control_agree(world, BANYAN_OK);
        if (!is_short && !is_good)
            good.data[at] ^= flip;
    }
    bytes_writer_free(&good);
}

static void a_malformed_description_is_refused(void **state)
{
    (void)state;
    uint64_t seed = random_seed() + 17;
    ranks_run(2, talk_nonsense, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_list_their_tasks_in_one_order),
        cmocka_unit_test(mismatches_are_named_on_every_rank),
        cmocka_unit_test(a_malformed_description_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
