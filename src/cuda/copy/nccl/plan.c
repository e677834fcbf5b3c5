#include "cuda/copy/nccl/plan.h"

#include <stdlib.h>

/* NCCL spreads a message over channels by its size, and runs a group as one kernel if all channels
 * together have at most this many parts. A larger group becomes several kernels, which NCCL
 * divides differently on different ranks: these kernels may then wait for each other in a cycle. */
#define WINDOW_PARTS 216
#define PARTS_MOST 32
#define PART_BYTES ((uint64_t)64 << 10)
#define PART_BYTES_MOST ((uint64_t)16 << 20)
/* Staging memory that a window may use from and to one partner. */
#define WINDOW_BYTES ((uint64_t)256 << 20)
#define STAGING_ALIGNMENT 256

static banyan_status nccl_plan_no_memory(size_t bytes)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "nccl: out of memory: %zu bytes for a schedule",
                            bytes);
}

static nccl_task nccl_plan_task_of(const banyan_copy_op *op, size_t order, bool is_send)
{
    const DLTensor *tensor = &op->tensor;
    nccl_task task = {
        .op = *op, .order = order, .is_send = is_send, .bytes = banyan_dtype_bytes(tensor->dtype)};
    int64_t dense = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        task.shape[i] = tensor->shape[i];
        task.strides[i] = tensor->strides ? tensor->strides[i] : dense;
        task.is_packed |= tensor->shape[i] > 1 && task.strides[i] != dense;
        dense *= tensor->shape[i];
        task.bytes *= (uint64_t)tensor->shape[i];
    }
    return task;
}

/* Both ends order the tasks between them in this way; sends and receives of a partner are
 * separate. */
static int compare_by_partner(const void *a, const void *b)
{
    const nccl_task *left = a, *right = b;
    const banyan_copy_op *x = &left->op, *y = &right->op;
    if (left->is_send != right->is_send)
        return left->is_send ? -1 : 1;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    if (x->task_id != y->task_id)
        return x->task_id < y->task_id ? -1 : 1;
    if (x->task_id != BANYAN_TASK_ID_NONE && x->part != y->part)
        return x->part < y->part ? -1 : 1;
    return (left->order > right->order) - (left->order < right->order);
}

/* Within a window, NCCL matches messages between two ranks by order. */
static int compare_by_window(const void *a, const void *b)
{
    const nccl_task *left = a, *right = b;
    if (left->window != right->window)
        return left->window < right->window ? -1 : 1;
    return compare_by_partner(a, b);
}

static uint64_t nccl_plan_parts_of(const nccl_task *task, int ranks)
{
    uint64_t parts = (task->bytes - 1) / PART_BYTES + 1, most = PARTS_MOST / (uint64_t)ranks;
    if (parts > most)
        parts = most > 0 ? most : 1;
    while (parts < PARTS_MOST && task->bytes / parts > PART_BYTES_MOST)
        parts *= 2;
    return parts;
}

/* A window ends for two partners when it has this many parts, or this many bytes. */
static void number_windows(nccl_plan *plan, int ranks)
{
    uint64_t bytes = 0, parts = 0, most = WINDOW_PARTS / 2 / (uint64_t)(ranks > 1 ? ranks - 1 : 1);
    size_t window = 0;
    for (size_t i = 0; i < plan->count; i++) {
        nccl_task *task = &plan->tasks[i];
        uint64_t more = nccl_plan_parts_of(task, ranks);
        if (i == 0 || task->is_send != task[-1].is_send || task->op.peer != task[-1].op.peer) {
            window = 0;
            bytes = parts = 0;
        } else if (parts + more > most || bytes + task->bytes > WINDOW_BYTES) {
            window++;
            bytes = parts = 0;
        }
        task->window = window;
        parts += more;
        bytes += task->bytes;
        if (window + 1 > plan->window_count)
            plan->window_count = window + 1;
    }
}

static void list_tasks(nccl_plan *plan, const banyan_copy_op *ops, size_t count, int rank,
                       bool is_send)
{
    for (size_t i = 0; i < count; i++) {
        nccl_task task = nccl_plan_task_of(&ops[i], i, is_send);
        if (ops[i].peer != rank && task.bytes > 0)
            plan->tasks[plan->count++] = task;
    }
}

static void fill_window(nccl_plan *plan, nccl_window *window)
{
    size_t staged = 0;
    for (size_t i = window->first; i < window->first + window->count; i++) {
        nccl_task *task = &plan->tasks[i];
        if (!task->is_packed)
            continue;
        task->staged_at = staged;
        staged +=
            ((size_t)task->bytes + STAGING_ALIGNMENT - 1) / STAGING_ALIGNMENT * STAGING_ALIGNMENT;
        window->packs |= task->is_send;
        window->unpacks |= !task->is_send;
    }
    if (staged > plan->staging_bytes)
        plan->staging_bytes = staged;
}

/* Call it once tasks have their final place in memory: their tensors may point into them. */
static void fill_windows(nccl_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        nccl_task *task = &plan->tasks[i];
        nccl_window *window = &plan->windows[task->window];
        task->op.tensor.shape = task->shape;
        task->op.tensor.strides = task->strides;
        if (window->count++ == 0)
            window->first = i;
    }
    for (size_t w = 0; w < plan->window_count; w++)
        fill_window(plan, &plan->windows[w]);
}

banyan_status nccl_plan_make(const banyan_copy_batch *batch, int rank, int ranks, nccl_plan *plan)
{
    nccl_plan made = {0};
    size_t most = batch->send_count + batch->recv_count;
    made.tasks = calloc(most + 1, sizeof *made.tasks);
    made.messages = calloc(most + 1, sizeof *made.messages);
    if (made.tasks && made.messages) {
        list_tasks(&made, batch->sends, batch->send_count, rank, true);
        list_tasks(&made, batch->recvs, batch->recv_count, rank, false);
        qsort(made.tasks, made.count, sizeof *made.tasks, compare_by_partner);
        number_windows(&made, ranks);
        qsort(made.tasks, made.count, sizeof *made.tasks, compare_by_window);
        made.windows = calloc(made.window_count + 1, sizeof *made.windows);
    }
    if (!made.windows) {
        nccl_plan_free(&made);
        return nccl_plan_no_memory(most * (sizeof *made.tasks + sizeof *made.messages));
    }
    fill_windows(&made);
    *plan = made;
    return BANYAN_OK;
}

void nccl_plan_place(nccl_plan *plan, char *staging)
{
    for (size_t i = 0; i < plan->count; i++) {
        const nccl_task *task = &plan->tasks[i];
        char *own = (char *)task->op.tensor.data + task->op.tensor.byte_offset;
        plan->messages[i] = (nccl_message){
            .data = task->is_packed ? staging + task->staged_at : own,
            .bytes = (size_t)task->bytes,
            .peer = task->op.peer,
            .is_send = task->is_send,
        };
    }
}

void nccl_plan_free(nccl_plan *plan)
{
    free(plan->tasks);
    free(plan->messages);
    free(plan->windows);
    *plan = (nccl_plan){0};
}

DLTensor nccl_task_staged(const nccl_task *task, char *staging)
{
    DLTensor tensor = task->op.tensor;
    tensor.data = staging + task->staged_at;
    tensor.byte_offset = 0;
    tensor.strides = NULL;
    return tensor;
}
