#include "support/test.h"

#include "copy/match/match.h"
#include "copy/ops.h"

static void shuffle(random_state *random, banyan_copy_op *ops, size_t count)
{
    for (size_t i = count; i-- > 1;) {
        size_t j = (size_t)random_between(random, 0, (int64_t)i);
        banyan_copy_op swap = ops[i];
        ops[i] = ops[j];
        ops[j] = swap;
    }
}

static void sends_and_receives_of_one_rank_pair_by_id(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int trial = 0; trial < 300; trial++) {
        banyan_copy_op sends[64], recvs[64];
        size_t send_count = 0, recv_count = 0, own = (size_t)random_between(&random, 0, 40);
        for (size_t i = 0; i < own; i++) {
            int elems = (int)random_between(&random, 0, 8);
            uint64_t id = i / 2 + (i % 3 == 0 ? UINT64_C(1) << 63 : 0);
            sends[send_count++] = op_of(3, id, (uint32_t)i % 2, elems);
            recvs[recv_count++] = op_of(3, id, (uint32_t)i % 2, elems);
        }
        for (int i = 0; i < 10; i++) {
            sends[send_count++] = op_of(i % 3, (uint64_t)i, 0, 1);
            recvs[recv_count++] = op_of(4, BANYAN_TASK_ID_NONE, 0, 2);
        }
        shuffle(&random, sends, send_count);
        shuffle(&random, recvs, recv_count);
        banyan_copy_pair pairs[64];
        size_t count = 99;
        CHECK_OK(banyan_copy_match_local("direct", 3, sends, send_count, recvs, recv_count, pairs,
                                         &count));
        assert_int_equal(count, own);
        for (size_t i = 0; i < count; i++) {
            const banyan_copy_op *send = &sends[pairs[i].send], *recv = &recvs[pairs[i].recv];
            assert_true(send->peer == 3 && recv->peer == 3);
            assert_true(send->task_id == recv->task_id && send->part == recv->part);
            assert_true(i == 0 || pairs[i - 1].send < pairs[i].send);
        }
    }
}

static void unpaired_operations_are_named(void **state)
{
    (void)state;
    banyan_copy_pair pairs[32];
    size_t count = 99;
    banyan_copy_op sends[32], recvs[32];

    sends[0] = op_of(1, 7, 0, 2);
    recvs[0] = op_of(1, 7, 1, 2);
    CHECK_FAILS(banyan_copy_match_local("mine", 1, sends, 1, recvs, 1, pairs, &count),
                BANYAN_ERR_MISMATCH,
                "mine: rank 1 sends 1 tensors to itself and receives 1 from itself; only sent are "
                "task ids 7; only received are task ids 7/1");
    CHECK_FAILS(banyan_copy_match_local("mine", 1, sends, 1, recvs, 0, pairs, &count),
                BANYAN_ERR_MISMATCH, "sends 1 tensors to itself and receives 0");

    recvs[0] = op_of(1, 7, 0, 3);
    CHECK_FAILS(banyan_copy_match_local("mine", 1, sends, 1, recvs, 1, pairs, &count),
                BANYAN_ERR_MISMATCH, "task ids 7 (2 elements of 4 bytes sent, 3 of 4 received)");
    recvs[0] = op_of(1, 7, 0, 2);
    recvs[0].tensor.dtype = BANYAN_BF16;
    CHECK_FAILS(banyan_copy_match_local("mine", 1, sends, 1, recvs, 1, pairs, &count),
                BANYAN_ERR_MISMATCH, "2 of 2 received");

    sends[1] = op_of(1, 7, 0, 2);
    CHECK_FAILS(banyan_copy_match_local("mine", 1, sends, 2, recvs, 1, pairs, &count),
                BANYAN_ERR_MISMATCH, "rank 1 sends tasks more than once");
    recvs[1] = recvs[0];
    CHECK_FAILS(banyan_copy_match_local("mine", 1, sends, 1, recvs, 2, pairs, &count),
                BANYAN_ERR_MISMATCH, "rank 1 receives tasks more than once");

    sends[1] = op_of(1, BANYAN_TASK_ID_NONE, 0, 2);
    CHECK_FAILS(banyan_copy_match_local("mine", 1, sends, 2, recvs, 1, pairs, &count),
                BANYAN_ERR_MISMATCH, "rank 1 sends to itself 1 tensors without a task id");

    for (int i = 0; i < 25; i++)
        sends[i] = op_of(1, (uint64_t)i + 100, 0, 1);
    CHECK_FAILS(banyan_copy_match_local("mine", 1, sends, 25, recvs, 0, pairs, &count),
                BANYAN_ERR_MISMATCH,
                "100, 101, 102, 103, 104, 105, 106, 107, 108, 109 and 15 more");
    assert_int_equal(count, 99);
}

static void ids_are_checked_for_each_peer_and_direction(void **state)
{
    (void)state;
    banyan_copy_op ops[] = {op_of(1, 7, 0, 1), op_of(2, 7, 0, 1), op_of(1, 7, 1, 1),
                            op_of(1, BANYAN_TASK_ID_NONE, 0, 1),
                            op_of(1, BANYAN_TASK_ID_NONE, 0, 1)};
    CHECK_OK(copy_check_ids("mine", 0, ops, 0, true, false));
    CHECK_OK(copy_check_ids("mine", 0, ops, 3, true, false));
    CHECK_OK(copy_check_ids("mine", 0, ops, 5, true, true));
    CHECK_FAILS(copy_check_ids("mine", 0, ops, 5, true, false), BANYAN_ERR_MISMATCH,
                "mine: rank 0 sends 2 tensors without a task id");
    ops[2].part = 0;
    CHECK_FAILS(
        copy_check_ids("mine", 0, ops, 5, false, true), BANYAN_ERR_MISMATCH,
        "mine: rank 0 receives tasks more than once with the same rank: task ids 7 (rank 1)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sends_and_receives_of_one_rank_pair_by_id),
        cmocka_unit_test(unpaired_operations_are_named),
        cmocka_unit_test(ids_are_checked_for_each_peer_and_direction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
