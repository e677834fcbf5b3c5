/* Schedules of every form complete between any number of ranks, and each slot is accessed only by
 * its owner. */
#include "copy/pipeline_play.h"

enum { SLOT_BYTES = 600 };

typedef struct player {
    play *play;
    board_end end;
    int repeats;
    banyan_status status;
    char message[256];
    pthread_t thread;
} player;

static void player_open(play *p, int rank, player *out)
{
    *out = (player){.play = p, .repeats = 1};
    board_end_open(p->board, rank, &out->end);
}

/* Run the rank's list; the last failure and its message stay in the player. */
static void *player_run(void *context)
{
    player *me = context;
    play_list *list = &me->play->lists[me->end.rank];
    banyan_pipeline *pipeline;
    CHECK_OK(banyan_pipeline_create(banyan_pipeline_host_launcher(), &me->end.buffers, me->end.rank,
                                    &pipeline));
    for (int i = 0; i < me->repeats && me->status == BANYAN_OK; i++)
        me->status = banyan_pipeline_execute(pipeline, list->iterations, list->count);
    if (me->status != BANYAN_OK)
        snprintf(me->message, sizeof me->message, "%s", banyan_last_error());
    banyan_pipeline_destroy(pipeline);
    return NULL;
}

static void player_start(player *me)
{
    CHECK(pthread_create(&me->thread, NULL, player_run, me) == 0);
}

/* Run all ranks, each in a thread, and check what arrived. */
static void play_run(play *p, int repeats)
{
    player players[BOARD_RANKS];
    int sends = 0;
    for (int rank = 0; rank < p->board->ranks; rank++) {
        player_open(p, rank, &players[rank]);
        players[rank].repeats = repeats;
    }
    for (int rank = 0; rank < p->board->ranks; rank++)
        player_start(&players[rank]);
    for (int rank = 0; rank < p->board->ranks; rank++) {
        player *me = &players[rank];
        pthread_join(me->thread, NULL);
        CHECK(me->status == BANYAN_OK, "rank %d: %s", rank, me->message);
        sends += me->end.sends;
        board_end_close(&me->end);
    }
    assert_int_equal(sends, (int)p->batch_count * repeats);
    play_check(p);
}

/* `batches` iterations of one sender and one receiver. */
static void play_line(play *p, int sender, int receiver, int batches)
{
    for (int i = 0; i < batches; i++) {
        banyan_iteration *sending = play_iteration(p, sender);
        banyan_iteration *receiving = play_iteration(p, receiver);
        play_batch(p, sender, sending, receiver, receiving);
    }
}

/* With all, none and some of the ranks able to access their peers' slots. */
static void for_each_reach(void (*test)(bool direct))
{
    test(false);
    test(true);
}

static void set_direct(board *b, bool direct)
{
    for (int i = 0; i < b->ranks; i++) {
        for (int k = 0; k < b->ranks; k++)
            b->direct[i][k] = direct;
    }
}

static void run_lines(bool direct)
{
    const int batches[] = {0, 1, 2, 3, 500};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        board *b = board_create(2, SLOT_BYTES);
        set_direct(b, direct);
        play p = play_create(b, random_seed());
        play_line(&p, 0, 1, batches[i]);
        play_run(&p, 3);
        play_destroy(&p);
        board_destroy(b);
    }
}

static void a_rank_that_only_sends_reaches_ranks_that_only_receive(void **state)
{
    (void)state;
    for_each_reach(run_lines);
}

static void run_ring(bool direct)
{
    const int rounds[] = {1, 2, 300};
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        for (int ranks = 2; ranks <= 5; ranks++) {
            board *b = board_create(ranks, SLOT_BYTES);
            set_direct(b, direct);
            play p = play_create(b, random_seed());
            for (int round = 0; round < rounds[i]; round++) {
                banyan_iteration *all[BOARD_RANKS];
                for (int rank = 0; rank < ranks; rank++)
                    all[rank] = play_iteration(&p, rank);
                for (int rank = 0; rank < ranks; rank++) {
                    int next = (rank + 1) % ranks;
                    play_batch(&p, rank, all[rank], next, all[next]);
                }
            }
            play_run(&p, 2);
            play_destroy(&p);
            board_destroy(b);
        }
    }
}

static void a_ring_sends_and_receives_at_once(void **state)
{
    (void)state;
    for_each_reach(run_ring);
}

static void empty_iterations_are_passed_over(void **state)
{
    (void)state;
    board *b = board_create(2, SLOT_BYTES);
    play p = play_create(b, random_seed());
    for (int i = 0; i < 100; i++)
        play_iteration(&p, 0);
    play_run(&p, 1);
    /* Also around batches, at different places of the two ends. */
    for (int i = 0; i < 20; i++) {
        play_iteration(&p, i % 2);
        play_line(&p, 0, 1, 1);
        play_iteration(&p, 1);
    }
    play_run(&p, 1);
    play_destroy(&p);
    board_destroy(b);
}

static void batches_without_bytes_are_handed_over_too(void **state)
{
    (void)state;
    board *b = board_create(2, SLOT_BYTES);
    play p = play_create(b, random_seed());
    play_line(&p, 0, 1, 10);
    for (int rank = 0; rank < 2; rank++) {
        for (size_t i = 2; i < 5; i++) {
            banyan_iteration *iteration = &p.lists[rank].iterations[i];
            banyan_slot_batch *batch = rank == 0 ? &iteration->send : &iteration->recv;
            batch->segment_count = 0;
            batch->bytes = 0;
        }
    }
    player players[2];
    for (int rank = 0; rank < 2; rank++)
        player_open(&p, rank, &players[rank]);
    for (int rank = 0; rank < 2; rank++)
        player_start(&players[rank]);
    for (int rank = 0; rank < 2; rank++) {
        pthread_join(players[rank].thread, NULL);
        assert_int_equal(players[rank].status, BANYAN_OK);
    }
    assert_int_equal(players[0].end.sends, 10);
    assert_int_equal(players[1].end.grants, 10);
    for (int rank = 0; rank < 2; rank++)
        board_end_close(&players[rank].end);
    play_destroy(&p);
    board_destroy(b);
}

static void random_schedules_run_between_two_and_eight_ranks(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int i = 0; i < 60; i++) {
        int ranks = (int)random_between(&random, 2, BOARD_RANKS);
        board *b = board_create(ranks, (size_t)random_between(&random, 8, 1000));
        for (int from = 0; from < ranks; from++) {
            for (int to = 0; to < ranks; to++)
                b->direct[from][to] = random_next(&random) % 2;
        }
        play p = play_create(b, random_next(&random));
        play_random_rounds(&p, (int)random_between(&random, 0, 40));
        play_run(&p, (int)random_between(&random, 1, 3));
        play_destroy(&p);
        board_destroy(b);
    }
}

/* Rotation with random counts: rank i to i + 1, then i + 2, …, each pair its own number of batches.
 */
static void rotation_with_any_counts_runs_to_its_end(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int i = 0; i < 40; i++) {
        int ranks = (int)random_between(&random, 2, BOARD_RANKS);
        board *b = board_create(ranks, 100);
        set_direct(b, i % 2);
        play p = play_create(b, random_next(&random));
        for (int shift = 1; shift < ranks; shift++) {
            size_t starts[BOARD_RANKS];
            for (int rank = 0; rank < ranks; rank++)
                starts[rank] = p.lists[rank].count;
            for (int rank = 0; rank < ranks; rank++) {
                int to = (rank + shift) % ranks;
                int64_t batches = random_between(&random, 0, 9);
                for (int64_t k = 0; k < batches; k++) {
                    while (p.lists[rank].count <= starts[rank] + (size_t)k)
                        play_iteration(&p, rank);
                    while (p.lists[to].count <= starts[to] + (size_t)k)
                        play_iteration(&p, to);
                    play_batch(&p, rank, &p.lists[rank].iterations[starts[rank] + (size_t)k], to,
                               &p.lists[to].iterations[starts[to] + (size_t)k]);
                }
            }
        }
        play_run(&p, 2);
        play_destroy(&p);
        board_destroy(b);
    }
}

/* Rank 0's first send is to rank 1, which starts only after rank 0 has received everything from
 * rank 2. */
static void receiving_goes_on_while_sending_waits(void **state)
{
    (void)state;
    board *b = board_create(3, SLOT_BYTES);
    play p = play_create(b, random_seed());
    play_line(&p, 0, 1, 3);
    play_line(&p, 2, 0, 50);
    player players[3];
    for (int rank = 0; rank < 3; rank++)
        player_open(&p, rank, &players[rank]);
    player_start(&players[0]);
    player_start(&players[2]);
    pthread_join(players[2].thread, NULL);
    assert_int_equal(players[2].status, BANYAN_OK);
    assert_int_equal(players[2].end.sends, 50);
    player_start(&players[1]);
    pthread_join(players[0].thread, NULL);
    pthread_join(players[1].thread, NULL);
    assert_int_equal(players[0].status, BANYAN_OK);
    assert_int_equal(players[1].status, BANYAN_OK);
    play_check(&p);
    for (int rank = 0; rank < 3; rank++)
        board_end_close(&players[rank].end);
    play_destroy(&p);
    board_destroy(b);
}

/* The reverse: rank 2, from which rank 0 receives first, starts after rank 0 has sent. */
static void sending_goes_on_while_receiving_waits(void **state)
{
    (void)state;
    board *b = board_create(3, SLOT_BYTES);
    play p = play_create(b, random_seed());
    play_line(&p, 2, 0, 3);
    play_line(&p, 0, 1, 50);
    player players[3];
    for (int rank = 0; rank < 3; rank++)
        player_open(&p, rank, &players[rank]);
    player_start(&players[0]);
    player_start(&players[1]);
    pthread_join(players[1].thread, NULL);
    assert_int_equal(players[1].status, BANYAN_OK);
    player_start(&players[2]);
    pthread_join(players[0].thread, NULL);
    pthread_join(players[2].thread, NULL);
    assert_int_equal(players[0].status, BANYAN_OK);
    play_check(&p);
    for (int rank = 0; rank < 3; rank++)
        board_end_close(&players[rank].end);
    play_destroy(&p);
    board_destroy(b);
}

static void a_partner_that_never_comes_ends_the_wait_with_its_rank(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        board *b = board_create(2, SLOT_BYTES);
        b->deadline_ns = deadline_after(50 * NS_PER_MS);
        play p = play_create(b, random_seed());
        play_line(&p, 0, 1, 4);
        player me;
        player_open(&p, rank, &me);
        player_run(&me);
        assert_int_equal(me.status, BANYAN_ERR_TIMEOUT);
        assert_string_equal(me.message, rank == 0 ? "rank 0 waited for rank 1's slot, -1's batch"
                                                  : "rank 1 waited for rank -1's slot, 0's batch");
        assert_int_equal(me.end.grants, rank == 0 ? 0 : 2);
        board_end_close(&me.end);
        play_destroy(&p);
        memset(b->links, 0, sizeof b->links);
        board_destroy(b);
    }
}

static void expect_refusal(player *me, banyan_pipeline *pipeline, size_t count, const char *part)
{
    CHECK_FAILS(banyan_pipeline_execute(pipeline, me->play->lists[0].iterations, count),
                BANYAN_ERR_INVALID, part);
    CHECK(strstr(banyan_last_error(), "rank 0, iteration 2"), "%s", banyan_last_error());
    assert_int_equal(me->end.grants + me->end.sends + me->end.idles, 0);
}

static void a_wrong_schedule_is_refused_before_anything_moves(void **state)
{
    (void)state;
    int64_t shape[] = {10, 10};
    banyan_segment segment = {.tensor = {.data = shape,
                                         .device = {kDLCPU, 0},
                                         .ndim = 2,
                                         .dtype = {kDLUInt, 8, 1},
                                         .shape = shape},
                              .first_elem = 90,
                              .elem_count = 10,
                              .slot_offset = 22};
    board *b = board_create(2, 32);
    play p = play_create(b, 1);
    play_line(&p, 1, 0, 3);
    banyan_slot_batch *batch = &p.lists[0].iterations[2].recv;
    player me;
    player_open(&p, 0, &me);
    banyan_pipeline *pipeline;
    CHECK_OK(
        banyan_pipeline_create(banyan_pipeline_host_launcher(), &me.end.buffers, 0, &pipeline));

    *batch = (banyan_slot_batch){1, &segment, 1, 31};
    expect_refusal(&me, pipeline, 3,
                   "segment 0: 10 elements of 1 bytes from byte 22 on of a batch");
    segment.slot_offset = UINT64_MAX;
    expect_refusal(&me, pipeline, 3, "from byte 18446744073709551615");
    batch->bytes = 33;
    segment.slot_offset = 0;
    expect_refusal(&me, pipeline, 3, "33 bytes in a slot of 32");
    batch->bytes = 32;
    segment.first_elem = 91;
    expect_refusal(&me, pipeline, 3, "10 elements from element 91 on of a tensor of 100");
    segment.elem_count = UINT64_MAX;
    expect_refusal(&me, pipeline, 3, "elements from element 91");
    segment.tensor.ndim = BANYAN_MAX_DIMS + 1;
    expect_refusal(&me, pipeline, 3, "9 dimensions");
    shape[1] = -1;
    segment.tensor.ndim = 2;
    expect_refusal(&me, pipeline, 3, "extent -1");
    segment.tensor.dtype.bits = 4;
    expect_refusal(&me, pipeline, 3, "whole bytes");
    batch->peer = 0;
    expect_refusal(&me, pipeline, 3, "rank 0 of 2 has no batch with rank 0");
    batch->peer = -2;
    expect_refusal(&me, pipeline, 3, "rank 0 of 2 has no batch with rank -2");
    batch->peer = 2;
    expect_refusal(&me, pipeline, 3, "rank 0 of 2 has no batch with rank 2");

    banyan_pipeline_destroy(pipeline);
    board_end_close(&me.end);
    play_destroy(&p);
    board_destroy(b);
}

static void tables_that_lack_an_operation_are_refused(void **state)
{
    (void)state;
    board *b = board_create(2, 32);
    board_end end;
    board_end_open(b, 0, &end);
    banyan_pipeline *pipeline;
    banyan_pipeline_launcher launcher = *banyan_pipeline_host_launcher();
    launcher.unpack = NULL;
    CHECK_FAILS(banyan_pipeline_create(&launcher, &end.buffers, 0, &pipeline), BANYAN_ERR_INVALID,
                "launcher");
    launcher = *banyan_pipeline_host_launcher();
    end.buffers.take_grant = NULL;
    CHECK_FAILS(banyan_pipeline_create(&launcher, &end.buffers, 0, &pipeline), BANYAN_ERR_INVALID,
                "buffers");
    end.buffers.take_grant = board_take_grant;
    CHECK_OK(banyan_pipeline_create(&launcher, &end.buffers, 0, &pipeline));
    CHECK_FAILS(banyan_pipeline_set_streams(pipeline, &end, &end, &end, NULL), BANYAN_ERR_INVALID,
                "no operations on them");
    CHECK_FAILS(banyan_pipeline_set_streams(pipeline, &end, NULL, &end, NULL), BANYAN_ERR_INVALID,
                "2 of the pack, unpack and send streams");
    CHECK_OK(banyan_pipeline_set_streams(pipeline, NULL, NULL, NULL, NULL));
    banyan_pipeline_destroy(pipeline);
    banyan_pipeline_destroy(NULL);
    board_end_close(&end);
    board_destroy(b);
}

static void a_rank_copies_to_itself_by_id(void **state)
{
    (void)state;
    int64_t row[] = {6}, matrix[] = {2, 3}, strides[] = {1, 2};
    uint32_t data[6] = {1, 2, 3, 4, 5, 6}, out[2][6] = {0};
    DLTensor from = {.data = data,
                     .device = {kDLCPU, 0},
                     .ndim = 2,
                     .dtype = {kDLUInt, 32, 1},
                     .shape = matrix,
                     .strides = strides};
    DLTensor to[2];
    for (int i = 0; i < 2; i++)
        to[i] = (DLTensor){.data = out[i],
                           .device = {kDLCPU, 0},
                           .ndim = 1,
                           .dtype = {kDLUInt, 32, 1},
                           .shape = row};
    /* Task 8 is with other ranks; (3, 0) and (3, 1) are two. */
    banyan_send_op sends[] = {{from, 1, 8, 0, 0}, {from, 4, 3, 1, 0}};
    banyan_recv_op recvs[] = {{to[0], 2, 8, 0, 0}, {to[1], 4, 3, 1, 0}};
    board *b = board_create(5, 32);
    board_end end;
    board_end_open(b, 4, &end);
    banyan_pipeline *pipeline;
    CHECK_OK(banyan_pipeline_create(banyan_pipeline_host_launcher(), &end.buffers, 4, &pipeline));
    CHECK_OK(banyan_pipeline_self_moves(pipeline, sends, 2, recvs, 2));
    static const uint32_t transposed[] = {1, 3, 5, 2, 4, 6}, zeros[6];
    assert_memory_equal(out[1], transposed, sizeof transposed);
    assert_memory_equal(out[0], zeros, sizeof zeros);
    CHECK_OK(banyan_pipeline_self_moves(pipeline, NULL, 0, NULL, 0));

    memset(out, 0, sizeof out);
    recvs[1].part = 0;
    CHECK_FAILS(banyan_pipeline_self_moves(pipeline, sends, 2, recvs, 2), BANYAN_ERR_MISMATCH,
                "rank 4");
    assert_memory_equal(out[1], zeros, sizeof zeros);
    banyan_pipeline_destroy(pipeline);
    board_end_close(&end);
    board_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_only_sends_reaches_ranks_that_only_receive),
        cmocka_unit_test(a_ring_sends_and_receives_at_once),
        cmocka_unit_test(empty_iterations_are_passed_over),
        cmocka_unit_test(batches_without_bytes_are_handed_over_too),
        cmocka_unit_test(random_schedules_run_between_two_and_eight_ranks),
        cmocka_unit_test(rotation_with_any_counts_runs_to_its_end),
        cmocka_unit_test(receiving_goes_on_while_sending_waits),
        cmocka_unit_test(sending_goes_on_while_receiving_waits),
        cmocka_unit_test(a_partner_that_never_comes_ends_the_wait_with_its_rank),
        cmocka_unit_test(a_wrong_schedule_is_refused_before_anything_moves),
        cmocka_unit_test(tables_that_lack_an_operation_are_refused),
        cmocka_unit_test(a_rank_copies_to_itself_by_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
