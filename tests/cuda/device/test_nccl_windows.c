/* Windows of NCCL's groups. Both ends of a task put it into one window, at one position among
 * their common messages. No group exceeds one of NCCL's kernels, since kernels of different ranks
 * would wait for each other. Staging memory of a window does not overlap. */
#include "support/test.h"

#include "cuda/copy/nccl/plan.h"

#define RANKS 5
#define TASKS 4000
#define WINDOW_PARTS_MOST 216
#define STAGED_MOST ((uint64_t)2 * (RANKS - 1) * ((256u << 20) + (1u << 20)))

/* A task, with a separate shape and strides at each end. */
typedef struct task {
    int from, to;
    uint64_t id;
    uint32_t part;
    int64_t shape[2], dense[2], strided[2];
    bool is_strided[2];
} task;

typedef struct traffic {
    task tasks[TASKS];
    banyan_copy_op ops[2][TASKS];
    nccl_plan plans[RANKS];
} traffic;

static traffic *draw(random_state *random)
{
    traffic *made = calloc(1, sizeof *made);
    for (int i = 0; i < TASKS; i++) {
        task *of = &made->tasks[i];
        of->from = (int)random_between(random, 0, RANKS - 1);
        of->to = (int)random_between(random, 0, RANKS - 1);
        if (random_between(random, 0, 2) > 0)
            of->from = 0, of->to = 1;
        bool by_order = random_between(random, 0, 3) == 0;
        of->id = by_order ? BANYAN_TASK_ID_NONE : (uint64_t)(i / 3);
        of->part = by_order ? 0 : (uint32_t)(i % 3);
        of->shape[0] = random_between(random, 0, 40);
        of->shape[1] = random_between(random, 1, random_between(random, 0, 30) ? 100 : 4 << 20);
        of->dense[0] = of->shape[1], of->dense[1] = 1;
        of->strided[0] = 2 * of->shape[1], of->strided[1] = 2;
        of->is_strided[0] = random_between(random, 0, 1);
        of->is_strided[1] = random_between(random, 0, 1);
    }
    return made;
}

static banyan_copy_op op_of(task *of, bool is_send)
{
    static char memory;
    return (banyan_copy_op){
        .tensor = {.data = &memory,
                   .device = BANYAN_CUDA(0),
                   .ndim = 2,
                   .dtype = BANYAN_U8,
                   .shape = of->shape,
                   .strides = of->is_strided[is_send] ? of->strided : of->dense},
        .peer = is_send ? of->to : of->from,
        .task_id = of->id,
        .part = of->part};
}

static void plan_rank(traffic *all, int rank)
{
    banyan_copy_batch batch = {.sends = all->ops[0], .recvs = all->ops[1]};
    for (int i = 0; i < TASKS; i++) {
        if (all->tasks[i].from == rank)
            all->ops[0][batch.send_count++] = op_of(&all->tasks[i], true);
        if (all->tasks[i].to == rank)
            all->ops[1][batch.recv_count++] = op_of(&all->tasks[i], false);
    }
    assert_int_equal(nccl_plan_make(&batch, rank, RANKS, &all->plans[rank]), BANYAN_OK);
}

/* List one rank's messages to or from another in a window, in its order. */
static size_t list_lane(const nccl_plan *plan, size_t window, int peer, bool is_send,
                        const nccl_task **list)
{
    size_t count = 0;
    if (window >= plan->window_count)
        return 0;
    const nccl_window *of = &plan->windows[window];
    for (size_t i = of->first; i < of->first + of->count; i++)
        if (plan->tasks[i].op.peer == peer && plan->tasks[i].is_send == is_send)
            list[count++] = &plan->tasks[i];
    return count;
}

static void check_pair(const traffic *all, int from, int to)
{
    static const nccl_task *sent[TASKS], *received[TASKS];
    const nccl_plan *a = &all->plans[from], *b = &all->plans[to];
    size_t windows = a->window_count > b->window_count ? a->window_count : b->window_count;
    for (size_t w = 0; w < windows; w++) {
        size_t count = list_lane(a, w, to, true, sent);
        assert_int_equal(count, list_lane(b, w, from, false, received));
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(sent[i]->op.task_id, received[i]->op.task_id);
            assert_int_equal(sent[i]->op.part, received[i]->op.part);
            assert_int_equal(sent[i]->bytes, received[i]->bytes);
        }
    }
}

static void check_staging(const nccl_plan *plan, const nccl_window *window)
{
    uint64_t end = 0;
    for (size_t i = window->first; i < window->first + window->count; i++) {
        const nccl_task *of = &plan->tasks[i];
        if (!of->is_packed)
            continue;
        assert_true(of->staged_at >= end);
        assert_true(of->is_send ? window->packs : window->unpacks);
        end = of->staged_at + of->bytes;
    }
    assert_true(end <= plan->staging_bytes);
}

/* At most this many channels for a message, one for each 64 KiB, and more parts only if they
 * exceed 16 MiB. */
static uint64_t count_parts(const nccl_plan *plan, const nccl_window *window)
{
    uint64_t count = 0;
    for (size_t i = window->first; i < window->first + window->count; i++) {
        uint64_t bytes = plan->tasks[i].bytes, parts = (bytes + 65535) / 65536;
        parts = parts < 32 / RANKS ? parts : 32 / RANKS;
        while (bytes / parts > 16 << 20)
            parts *= 2;
        count += parts;
    }
    return count;
}

static void check_rank(const traffic *all, int rank)
{
    const nccl_plan *plan = &all->plans[rank];
    size_t tasks = 0, wanted = 0;
    for (int i = 0; i < TASKS; i++) {
        const task *of = &all->tasks[i];
        if (of->from != of->to && of->shape[0] > 0)
            wanted += (size_t)((of->from == rank) + (of->to == rank));
    }
    for (size_t w = 0; w < plan->window_count; w++) {
        assert_true(plan->windows[w].count > 0);
        assert_true(count_parts(plan, &plan->windows[w]) <= WINDOW_PARTS_MOST);
        check_staging(plan, &plan->windows[w]);
        tasks += plan->windows[w].count;
    }
    assert_int_equal(tasks, wanted);
    assert_int_equal(plan->count, wanted);
    assert_true(plan->staging_bytes <= STAGED_MOST);
}

static void both_ends_derive_the_same_windows(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int round = 0; round < 4; round++) {
        traffic *all = draw(&random);
        for (int rank = 0; rank < RANKS; rank++)
            plan_rank(all, rank);
        for (int rank = 0; rank < RANKS; rank++) {
            check_rank(all, rank);
            for (int peer = 0; peer < RANKS; peer++)
                if (peer != rank)
                    check_pair(all, rank, peer);
        }
        for (int rank = 0; rank < RANKS; rank++)
            nccl_plan_free(&all->plans[rank]);
        free(all);
    }
}

static void messages_point_into_staging_or_tensors(void **state)
{
    (void)state;
    random_state random = random_from(random_seed() + 1);
    traffic *all = draw(&random);
    char *staging = (char *)0x10000;
    plan_rank(all, 0);
    nccl_plan *plan = &all->plans[0];
    nccl_plan_place(plan, staging);
    for (size_t i = 0; i < plan->count; i++) {
        const nccl_task *of = &plan->tasks[i];
        const nccl_message *message = &plan->messages[i];
        assert_int_equal(message->bytes, of->bytes);
        assert_int_equal(message->peer, of->op.peer);
        assert_int_equal(message->is_send, of->is_send);
        assert_ptr_equal(message->data,
                         of->is_packed ? staging + of->staged_at : (char *)of->op.tensor.data);
    }
    nccl_plan_free(plan);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_derive_the_same_windows),
        cmocka_unit_test(messages_point_into_staging_or_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
