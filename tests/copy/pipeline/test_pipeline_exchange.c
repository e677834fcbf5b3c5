/* A receiver learns exactly the sender's batches, and refuses every false message. */
#include "support/test.h"

#include "copy/schedule/exchange.h"
#include "world/control.h"

typedef struct task_list {
    pipeline_task *tasks;
    size_t count;
} task_list;

/* Both ends make equal tasks from equal numbers. */
static task_list random_tasks(uint64_t seed, int64_t most)
{
    random_state random = random_from(seed);
    task_list list = {NULL, (size_t)random_between(&random, 1, most)};
    list.tasks = calloc(list.count, sizeof *list.tasks);
    for (size_t i = 0; i < list.count; i++) {
        list.tasks[i].elem_bytes = (uint64_t)1 << random_between(&random, 0, 3);
        list.tasks[i].elems = (uint64_t)random_between(&random, 0, 300);
    }
    return list;
}

static pipeline_flow planned_flow(int peer, task_list list, uint64_t slot_bytes)
{
    pipeline_flow flow = {.peer = peer, .tasks = list.tasks, .task_count = list.count};
    CHECK_OK(pipeline_batch_pack(flow.tasks, flow.task_count, slot_bytes, &flow.batches));
    return flow;
}

static void check_equal(const pipeline_batches *a, const pipeline_batches *b)
{
    CHECK(a->list.count == b->list.count && a->segments.count == b->segments.count);
    for (size_t i = 0; i < a->list.count; i++) {
        const pipeline_batch *x = &a->list.data[i], *y = &b->list.data[i];
        CHECK(x->first_segment == y->first_segment && x->segment_count == y->segment_count);
        CHECK(x->bytes == y->bytes);
    }
    for (size_t i = 0; i < a->segments.count; i++) {
        const pipeline_segment *x = &a->segments.data[i], *y = &b->segments.data[i];
        CHECK(x->task == y->task && x->first_elem == y->first_elem);
        CHECK(x->elem_count == y->elem_count && x->slot_offset == y->slot_offset);
    }
}

static void a_flow_reads_back_as_it_was_written(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int i = 0; i < 100; i++) {
        uint64_t slot_bytes = (uint64_t)random_between(&random, 8, 2000);
        task_list list = random_tasks(random_next(&random), 60);
        pipeline_flow sent = planned_flow(3, list, slot_bytes), read = sent;
        bytes_writer message = {0};
        pipeline_flow_write(&sent, &message);
        read.batches = (pipeline_batches){0};
        CHECK_OK(pipeline_flow_read(1, message.data, message.count, slot_bytes, &read));
        check_equal(&sent.batches, &read.batches);
        pipeline_flow_free(&sent);
        pipeline_flow_free(&read);
        bytes_writer_free(&message);
        free(list.tasks);
    }
}

/* A message of one batch of `segments` (task, elements), for a reader that expects `tasks`. */
static banyan_status read_lie(uint64_t batches, uint32_t count, const uint64_t (*segments)[2],
                              size_t written, size_t cut, const task_list *tasks)
{
    bytes_writer message = {0};
    bytes_write_u32(&message, 1);
    bytes_write_u64(&message, batches);
    bytes_write_u32(&message, count);
    for (size_t i = 0; i < written; i++) {
        bytes_write_u64(&message, segments[i][0]);
        bytes_write_u64(&message, segments[i][1]);
    }
    pipeline_flow flow = {.peer = 3, .tasks = tasks->tasks, .task_count = tasks->count};
    banyan_status status = pipeline_flow_read(1, message.data, message.count - cut, 64, &flow);
    bytes_writer_free(&message);
    CHECK(!flow.batches.list.data && !flow.batches.segments.data);
    return status;
}

#define EXPECT_LIE(part, ...)                                                                      \
    do {                                                                                           \
        CHECK_FAILS(read_lie(__VA_ARGS__, &list), BANYAN_ERR_FORMAT, part);                        \
        CHECK(strstr(banyan_last_error(), "rank 1: the plan from rank 3"), "%s",                   \
              banyan_last_error());                                                                \
    } while (0)

static void messages_that_lie_are_refused_with_the_place(void **state)
{
    (void)state;
    pipeline_task tasks[] = {{4, 4}, {5, 8}, {0, 2}};
    task_list list = {tasks, 3};
    const uint64_t whole[][2] = {{1, 5}, {0, 4}};
    const uint64_t unknown[][2] = {{1, 5}, {3, 4}}, empty[][2] = {{2, 0}, {0, 4}};
    const uint64_t more[][2] = {{1, 5}, {0, 5}}, huge[][2] = {{1, UINT64_MAX}, {0, 4}};
    const uint64_t fewer[][2] = {{1, 5}, {0, 3}}, twice[][2] = {{1, 5}, {1, 1}};
    EXPECT_LIE("batch 0: it names task 3 of 3", 1, 2, unknown, 2, 0);
    EXPECT_LIE("has 0 elements of task 2", 1, 2, empty, 2, 0);
    EXPECT_LIE("has 5 elements of task 0, of which 4", 1, 2, more, 2, 0);
    EXPECT_LIE("has 18446744073709551615 elements of task 1", 1, 2, huge, 2, 0);
    EXPECT_LIE("batch 1: it has 3 of 4 elements of task 0", 1, 2, fewer, 2, 0);
    EXPECT_LIE("has 1 elements of task 1, of which 0", 1, 2, twice, 2, 0);
    EXPECT_LIE("has 3 segments in 32 bytes", 1, 3, whole, 2, 0);
    EXPECT_LIE("has 0 segments", 1, 0, whole, 2, 0);
    EXPECT_LIE("has 10001 segments", 1, 10001, whole, 2, 0);
    EXPECT_LIE("has 2 segments in 31 bytes", 1, 2, whole, 2, 1);
    EXPECT_LIE("batch 1: it has 0 segments in 0 bytes", 2, 2, whole, 2, 0);
    EXPECT_LIE("batch 1: it has 0 segments in 0 bytes", UINT64_MAX, 2, whole, 2, 0);
    EXPECT_LIE("has 16 bytes behind its end", 1, 2, (const uint64_t[][2]){{1, 5}, {0, 4}, {0, 0}},
               3, 0);

    /* 40 + 8 + 20 bytes, aligned, are more than 64. */
    pipeline_task wide[] = {{5, 8}, {5, 4}};
    list = (task_list){wide, 2};
    EXPECT_LIE("puts 5 elements of 4 bytes behind byte 48 of a slot of 64", 1, 2,
               (const uint64_t[][2]){{0, 5}, {1, 5}}, 2, 0);

    pipeline_flow flow = {.peer = 3, .tasks = tasks, .task_count = 3};
    CHECK_FAILS(pipeline_flow_read(1, "\7\0\0\0", 4, 64, &flow), BANYAN_ERR_FORMAT, "of kind 7");
    CHECK_FAILS(pipeline_flow_read(1, NULL, 0, 64, &flow), BANYAN_ERR_FORMAT, "0 bytes");
}

static void garbled_messages_never_give_other_batches(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    task_list list = random_tasks(random_next(&random), 20);
    pipeline_flow sent = planned_flow(3, list, 256);
    bytes_writer message = {0};
    pipeline_flow_write(&sent, &message);
    for (int i = 0; i < 3000; i++) {
        unsigned char *copy = malloc(message.count);
        memcpy(copy, message.data, message.count);
        size_t bytes = message.count - (size_t)random_between(&random, 0, 9) / 9;
        for (int64_t k = random_between(&random, 1, 3); k > 0; k--)
            copy[random_between(&random, 0, (int64_t)bytes - 1)] ^=
                (unsigned char)(1 << random_between(&random, 0, 7));
        pipeline_flow read = {.peer = 3, .tasks = list.tasks, .task_count = list.count};
        /* An accepted message is complete and fits, despite the damage. */
        if (pipeline_flow_read(1, copy, bytes, 256, &read) == BANYAN_OK) {
            uint64_t elems = 0, expected = 0;
            for (size_t k = 0; k < read.batches.segments.count; k++)
                elems += read.batches.segments.data[k].elem_count;
            for (size_t k = 0; k < list.count; k++)
                expected += list.tasks[k].elems;
            CHECK(elems == expected);
            for (size_t k = 0; k < read.batches.list.count; k++)
                CHECK(read.batches.list.data[k].bytes <= 256);
        }
        pipeline_flow_free(&read);
        free(copy);
    }
    bytes_writer_free(&message);
    pipeline_flow_free(&sent);
    free(list.tasks);
}

enum { SLOT_BYTES = 300 };

static bool has_flow(int source, int dest)
{
    return source != dest && (source * 7 + dest * 3) % 4 != 0;
}

static uint64_t flow_seed(int source, int dest)
{
    return (uint64_t)(1000 + source * 100 + dest);
}

/* Planned flows from this rank, and tasks to it. */
typedef struct rank_flows {
    pipeline_flow sends[8], recvs[8];
    size_t send_count, recv_count;
} rank_flows;

static rank_flows make_flows(banyan_world *world)
{
    rank_flows flows = {0};
    int rank = banyan_world_rank(world);
    for (int peer = 0; peer < banyan_world_size(world); peer++) {
        if (has_flow(rank, peer))
            flows.sends[flows.send_count++] =
                planned_flow(peer, random_tasks(flow_seed(rank, peer), 30), SLOT_BYTES);
        if (has_flow(peer, rank)) {
            task_list list = random_tasks(flow_seed(peer, rank), 30);
            flows.recvs[flows.recv_count++] =
                (pipeline_flow){.peer = peer, .tasks = list.tasks, .task_count = list.count};
        }
    }
    return flows;
}

static void free_flows(rank_flows *flows)
{
    for (size_t i = 0; i < flows->send_count; i++) {
        free((void *)(uintptr_t)flows->sends[i].tasks);
        pipeline_flow_free(&flows->sends[i]);
    }
    for (size_t i = 0; i < flows->recv_count; i++) {
        free((void *)(uintptr_t)flows->recvs[i].tasks);
        pipeline_flow_free(&flows->recvs[i]);
    }
}

static banyan_status exchange(banyan_world *world, banyan_status mine, rank_flows *flows)
{
    return pipeline_exchange(world, mine, flows->sends, flows->send_count, SLOT_BYTES, flows->recvs,
                             flows->recv_count);
}

static void rank_learns(banyan_world *world, void *context)
{
    (void)context;
    rank_flows flows = make_flows(world);
    CHECK_OK(exchange(world, BANYAN_OK, &flows));
    for (size_t i = 0; i < flows.recv_count; i++) {
        int peer = flows.recvs[i].peer;
        task_list list = random_tasks(flow_seed(peer, banyan_world_rank(world)), 30);
        pipeline_flow theirs = planned_flow(peer, list, SLOT_BYTES);
        check_equal(&theirs.batches, &flows.recvs[i].batches);
        pipeline_flow_free(&theirs);
        free(list.tasks);
    }
    free_flows(&flows);
}

static void receivers_learn_their_senders_batches(void **state)
{
    (void)state;
    ranks_run(5, rank_learns, NULL);
    ranks_run(1, rank_learns, NULL);
    ranks_run_threads(4, rank_learns, NULL);
}

static void rank_fails(banyan_world *world, void *context)
{
    (void)context;
    rank_flows flows = make_flows(world);
    int rank = banyan_world_rank(world);
    banyan_status mine =
        rank == 2 ? banyan_error_set(BANYAN_ERR_INVALID, "my own fault") : BANYAN_OK;
    banyan_status status = exchange(world, mine, &flows);
    CHECK(status == (rank == 2 ? BANYAN_ERR_INVALID : BANYAN_OK), "rank %d: %s", rank,
          banyan_last_error());
    CHECK_FAILS(control_agree(world, status), BANYAN_ERR_INVALID, "my own fault");
    free_flows(&flows);
}

static void all_ranks_report_the_rank_that_cannot_plan(void **state)
{
    (void)state;
    ranks_run(4, rank_fails, NULL);
}

static void rank_disagrees(banyan_world *world, void *context)
{
    bool missing = *(bool *)context;
    rank_flows flows = make_flows(world);
    int rank = banyan_world_rank(world);
    if (rank == 0 && missing)
        flows.send_count--;
    if (rank == 3 && !missing)
        flows.recv_count--;
    banyan_status status = control_agree(world, exchange(world, BANYAN_OK, &flows));
    CHECK(status == BANYAN_ERR_MISMATCH);
    CHECK(
        strstr(banyan_last_error(), missing ? "no plan came from rank 0" : "a plan came from rank"),
        "%s", banyan_last_error());
    if (rank == 0 && missing)
        flows.send_count++;
    if (rank == 3 && !missing)
        flows.recv_count++;
    free_flows(&flows);
}

static void partners_that_disagree_about_each_other_are_named(void **state)
{
    (void)state;
    bool missing = true;
    ranks_run(4, rank_disagrees, &missing);
    missing = false;
    ranks_run(4, rank_disagrees, &missing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flow_reads_back_as_it_was_written),
        cmocka_unit_test(messages_that_lie_are_refused_with_the_place),
        cmocka_unit_test(garbled_messages_never_give_other_batches),
        cmocka_unit_test(receivers_learn_their_senders_batches),
        cmocka_unit_test(all_ranks_report_the_rank_that_cannot_plan),
        cmocka_unit_test(partners_that_disagree_about_each_other_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
