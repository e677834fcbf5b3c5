/* The copy backend "mpi": one MPI message for each task (more for tasks above 256 MiB). It serves
 * comparisons, and clusters where only MPI works. Tensors that are not dense travel through dense
 * buffers of the schedule. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <banyan/copy.h>

#include "core/module.h"
#include "session.h"

#define MESSAGE_BYTES_MAX ((uint64_t)256 << 20)

/* Requests tested at a time, since MPI_Testsome examines all that it is given. */
#define TEST_WINDOW 16

#define TESTS_BEFORE_YIELD 16
#define TESTS_BEFORE_CHECK 1024

typedef struct mpi_state {
    mpi_session session;
    bool broken; /* a run ended with unfinished messages */
} mpi_state;

/* A task with another rank. Both ranks list their tasks in one order. */
typedef struct mpi_task {
    banyan_copy_op op; /* with the schedule's own shape and strides */
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    size_t order; /* index at submission */
    uint64_t bytes;
    char *dense; /* the bytes on the wire: the tensor's own memory or a buffer */
    bool is_packed;
    size_t first_message, message_count;
} mpi_task;

typedef struct mpi_tasks {
    mpi_task *tasks;
    size_t count, message_count;
} mpi_tasks;

typedef struct mpi_schedule {
    mpi_tasks sends, recvs;
    mpi_task *local_to, *local_from;
    size_t local_count;
    MPI_Request *requests; /* receives, then sends */
    size_t *recv_of;       /* index of the task of each receive message */
    size_t *missing;       /* messages that each receive still waits for */
} mpi_schedule;

static banyan_status mpi_backend_no_memory(size_t bytes)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "mpi: out of memory: %zu bytes for a schedule",
                            bytes);
}

static void task_set(mpi_task *task, const banyan_copy_op *op, size_t order)
{
    const DLTensor *tensor = &op->tensor;
    *task = (mpi_task){.op = *op, .order = order, .bytes = banyan_dtype_bytes(tensor->dtype)};
    int64_t dense = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        task->shape[i] = tensor->shape[i];
        task->strides[i] = tensor->strides ? tensor->strides[i] : dense;
        task->is_packed |= tensor->shape[i] > 1 && task->strides[i] != dense;
        dense *= tensor->shape[i];
        task->bytes *= (uint64_t)tensor->shape[i];
    }
    task->is_packed &= task->bytes > 0;
    task->dense = task->bytes > 0 ? (char *)tensor->data + tensor->byte_offset : NULL;
    task->message_count = (size_t)((task->bytes + MESSAGE_BYTES_MAX - 1) / MESSAGE_BYTES_MAX);
}

/* Call it once tasks have their final place in memory: their tensors may point into them. */
static void point_into_task(mpi_task *task)
{
    task->op.tensor.shape = task->shape;
    task->op.tensor.strides = task->strides;
}

static DLTensor dense_tensor(const mpi_task *task)
{
    DLTensor tensor = task->op.tensor;
    tensor.data = task->dense;
    tensor.byte_offset = 0;
    tensor.strides = NULL;
    return tensor;
}

static int compare_tasks(const void *a, const void *b)
{
    const mpi_task *left = a, *right = b;
    const banyan_copy_op *x = &left->op, *y = &right->op;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    if (x->task_id != y->task_id)
        return x->task_id < y->task_id ? -1 : 1;
    if (x->task_id != BANYAN_TASK_ID_NONE && x->part != y->part)
        return x->part < y->part ? -1 : 1;
    return (left->order > right->order) - (left->order < right->order);
}

static banyan_status tasks_open(mpi_tasks *list, int rank, const banyan_copy_op *ops, size_t count)
{
    list->tasks = calloc(count + 1, sizeof *list->tasks);
    if (!list->tasks)
        return mpi_backend_no_memory(count * sizeof *list->tasks);
    for (size_t i = 0; i < count; i++)
        if (ops[i].peer != rank)
            task_set(&list->tasks[list->count++], &ops[i], i);
    if (list->count > 1)
        qsort(list->tasks, list->count, sizeof *list->tasks, compare_tasks);
    for (size_t i = 0; i < list->count; i++) {
        mpi_task *task = &list->tasks[i];
        point_into_task(task);
        task->first_message = list->message_count;
        list->message_count += task->message_count;
        if (!task->is_packed)
            continue;
        task->dense = malloc((size_t)task->bytes);
        if (!task->dense) {
            task->is_packed = false;
            return mpi_backend_no_memory((size_t)task->bytes);
        }
    }
    return BANYAN_OK;
}

static void tasks_close(mpi_tasks *list)
{
    for (size_t i = 0; list->tasks && i < list->count; i++)
        if (list->tasks[i].is_packed)
            free(list->tasks[i].dense);
    free(list->tasks);
}

static void schedule_free(mpi_schedule *schedule)
{
    tasks_close(&schedule->sends);
    tasks_close(&schedule->recvs);
    free(schedule->local_to);
    free(schedule->local_from);
    free(schedule->requests);
    free(schedule->recv_of);
    free(schedule->missing);
    free(schedule);
}

static banyan_status keep_local(mpi_schedule *schedule, const banyan_copy_batch *batch)
{
    size_t count = batch->local_count;
    schedule->local_to = calloc(count + 1, sizeof *schedule->local_to);
    schedule->local_from = calloc(count + 1, sizeof *schedule->local_from);
    if (!schedule->local_to || !schedule->local_from)
        return mpi_backend_no_memory(2 * count * sizeof *schedule->local_to);
    for (size_t i = 0; i < count; i++) {
        task_set(&schedule->local_to[i], &batch->recvs[batch->local[i].recv], i);
        task_set(&schedule->local_from[i], &batch->sends[batch->local[i].send], i);
        point_into_task(&schedule->local_to[i]);
        point_into_task(&schedule->local_from[i]);
    }
    schedule->local_count = count;
    return BANYAN_OK;
}

static banyan_status schedule_fill(mpi_schedule *schedule, int rank, const banyan_copy_batch *batch)
{
    banyan_status status = tasks_open(&schedule->sends, rank, batch->sends, batch->send_count);
    if (status == BANYAN_OK)
        status = tasks_open(&schedule->recvs, rank, batch->recvs, batch->recv_count);
    if (status == BANYAN_OK)
        status = keep_local(schedule, batch);
    if (status != BANYAN_OK)
        return status;
    size_t recvs = schedule->recvs.message_count, all = recvs + schedule->sends.message_count;
    schedule->requests = malloc((all + 1) * sizeof *schedule->requests);
    schedule->recv_of = malloc((recvs + 1) * sizeof *schedule->recv_of);
    schedule->missing = malloc((schedule->recvs.count + 1) * sizeof *schedule->missing);
    if (!schedule->requests || !schedule->recv_of || !schedule->missing)
        return mpi_backend_no_memory(all * sizeof *schedule->requests);
    for (size_t i = 0; i < schedule->recvs.count; i++)
        for (size_t k = 0; k < schedule->recvs.tasks[i].message_count; k++)
            schedule->recv_of[schedule->recvs.tasks[i].first_message + k] = i;
    return BANYAN_OK;
}

static banyan_status mpi_backend_prepare(void *argument, const banyan_copy_batch *batch,
                                         void **planned)
{
    mpi_state *state = argument;
    banyan_world *world = state->session.world;
    banyan_status status = banyan_copy_match_batch(world, "mpi", batch);
    if (status != BANYAN_OK)
        return status;
    mpi_schedule *schedule = calloc(1, sizeof *schedule);
    status = schedule ? schedule_fill(schedule, banyan_world_rank(world), batch)
                      : mpi_backend_no_memory(sizeof *schedule);
    status = banyan_module_agree(world, status);
    if (status == BANYAN_OK)
        *planned = schedule;
    else if (schedule)
        schedule_free(schedule);
    return status;
}

static void mpi_backend_release(void *argument, void *planned)
{
    (void)argument;
    schedule_free(planned);
}

static banyan_status post_message(const mpi_session *session, const mpi_task *task, size_t k,
                                  bool is_send, int tag, MPI_Request *request)
{
    uint64_t at = k * MESSAGE_BYTES_MAX, left = task->bytes - at;
    int bytes = (int)(left < MESSAGE_BYTES_MAX ? left : MESSAGE_BYTES_MAX), peer = task->op.peer;
    char *data = task->dense + at;
    if (is_send)
        return mpi_check(session,
                         MPI_Isend(data, bytes, MPI_BYTE, peer, tag, session->comm, request),
                         "MPI_Isend");
    return mpi_check(session, MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, session->comm, request),
                     "MPI_Irecv");
}

/* Both ranks list their tasks in one order, so both give a message one number. If tags run out,
 * MPI's order of equal tags applies. */
static banyan_status mpi_backend_post(const mpi_session *session, mpi_tasks *list, bool is_send,
                                      MPI_Request *requests)
{
    uint64_t number = 0;
    for (size_t i = 0; i < list->count; i++) {
        mpi_task *task = &list->tasks[i];
        if (i == 0 || task->op.peer != task[-1].op.peer)
            number = 0;
        if (is_send && task->is_packed) {
            DLTensor dense = dense_tensor(task);
            banyan_status status = banyan_tensor_copy(&dense, &task->op.tensor);
            if (status != BANYAN_OK)
                return status;
        }
        for (size_t k = 0; k < task->message_count; k++, number++) {
            int tag = (int)(number % (uint64_t)session->tag_count);
            banyan_status status =
                post_message(session, task, k, is_send, tag, &requests[task->first_message + k]);
            if (status != BANYAN_OK)
                return status;
        }
    }
    return BANYAN_OK;
}

/* Record a received message; unpack the task with its last message. */
static banyan_status mpi_backend_take_message(mpi_schedule *schedule, size_t message)
{
    size_t i = schedule->recv_of[message];
    mpi_task *task = &schedule->recvs.tasks[i];
    if (--schedule->missing[i] > 0 || !task->is_packed)
        return BANYAN_OK;
    DLTensor dense = dense_tensor(task);
    return banyan_tensor_copy(&task->op.tensor, &dense);
}

/* Describe the oldest unfinished message; returns its peer's rank. */
static int describe_message(const mpi_schedule *schedule, size_t first, char *text, size_t bytes)
{
    size_t recvs = schedule->recvs.message_count;
    const mpi_task *task = NULL;
    if (first < recvs)
        task = &schedule->recvs.tasks[schedule->recv_of[first]];
    for (size_t i = 0; !task && i < schedule->sends.count; i++)
        if (first - recvs <
            schedule->sends.tasks[i].first_message + schedule->sends.tasks[i].message_count)
            task = &schedule->sends.tasks[i];
    int peer = task ? task->op.peer : -1;
    snprintf(text, bytes, "%s rank %d (mpi)",
             first < recvs ? "for a message from" : "to send a message to", peer);
    return peer;
}

/* Pause after a test without progress. MPI moves messages only inside its calls, so the rank must
 * not sleep, but it may yield the core. Returns true if it is time to check the wait. */
static bool mpi_backend_rest(unsigned *idle)
{
    if (++*idle > TESTS_BEFORE_YIELD)
        sched_yield();
    return *idle % TESTS_BEFORE_CHECK == 0;
}

/* Test windows of requests, the oldest first, until none is left. */
static banyan_status wait_all(mpi_state *state, mpi_schedule *schedule)
{
    size_t recvs = schedule->recvs.message_count, all = recvs + schedule->sends.message_count;
    module_wait wait = banyan_module_wait_begin(state->session.world);
    unsigned idle = 0;
    int done[TEST_WINDOW];
    banyan_status status = BANYAN_OK;
    for (size_t first = 0; first < all && status == BANYAN_OK;) {
        int window = (int)(all - first < TEST_WINDOW ? all - first : TEST_WINDOW), count = 0;
        int error =
            MPI_Testsome(window, schedule->requests + first, &count, done, MPI_STATUSES_IGNORE);
        status = mpi_check(&state->session, error, "MPI_Testsome");
        for (int i = 0; i < count && status == BANYAN_OK; i++)
            if (first + (size_t)done[i] < recvs)
                status = mpi_backend_take_message(schedule, first + (size_t)done[i]);
        char text[80];
        if (count > 0) {
            banyan_module_wait_end(&wait);
            wait = banyan_module_wait_begin(state->session.world);
            idle = 0;
        } else if (status == BANYAN_OK && mpi_backend_rest(&idle)) {
            int peer = describe_message(schedule, first, text, sizeof text);
            status = banyan_module_wait_on(&wait, peer, text);
        }
        while (first < all && schedule->requests[first] == MPI_REQUEST_NULL)
            first++;
    }
    banyan_module_wait_end(&wait);
    return status;
}

/* A complete send may still have bytes in a queue of this process, which only MPI calls drain. So
 * no rank leaves before all ranks have received everything. */
static banyan_status leave_together(mpi_state *state)
{
    MPI_Request request;
    banyan_status status =
        mpi_check(&state->session, MPI_Ibarrier(state->session.comm, &request), "MPI_Ibarrier");
    module_wait wait = banyan_module_wait_begin(state->session.world);
    unsigned idle = 0;
    for (int done = 0; status == BANYAN_OK && !done;) {
        status =
            mpi_check(&state->session, MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (status == BANYAN_OK && !done && mpi_backend_rest(&idle))
            status = banyan_module_wait_on(
                &wait, -1, "for the others to finish a run (mpi, which does not say who is late)");
    }
    banyan_module_wait_end(&wait);
    return status;
}

/* After a failure, cancel receives: no peer may write into buffers that are about to be freed. */
static void drop_requests(mpi_schedule *schedule)
{
    size_t recvs = schedule->recvs.message_count, all = recvs + schedule->sends.message_count;
    for (size_t i = 0; i < all; i++) {
        if (schedule->requests[i] == MPI_REQUEST_NULL)
            continue;
        if (i < recvs)
            MPI_Cancel(&schedule->requests[i]);
        MPI_Request_free(&schedule->requests[i]);
    }
}

static banyan_status move_all(mpi_state *state, mpi_schedule *schedule)
{
    size_t recvs = schedule->recvs.message_count;
    banyan_status status =
        mpi_backend_post(&state->session, &schedule->recvs, false, schedule->requests);
    if (status == BANYAN_OK)
        status =
            mpi_backend_post(&state->session, &schedule->sends, true, schedule->requests + recvs);
    for (size_t i = 0; i < schedule->local_count && status == BANYAN_OK; i++)
        status = banyan_tensor_copy(&schedule->local_to[i].op.tensor,
                                    &schedule->local_from[i].op.tensor);
    if (status == BANYAN_OK)
        status = wait_all(state, schedule);
    return status == BANYAN_OK ? leave_together(state) : status;
}

static banyan_status mpi_backend_execute(void *argument, void *planned, void *stream)
{
    (void)stream;
    mpi_state *state = argument;
    mpi_schedule *schedule = planned;
    if (state->broken)
        return banyan_error_set(BANYAN_ERR_INVALID,
                                "mpi: an earlier run on this service of rank %d ended in the "
                                "middle",
                                banyan_world_rank(state->session.world));
    size_t all = schedule->recvs.message_count + schedule->sends.message_count;
    for (size_t i = 0; i < all; i++)
        schedule->requests[i] = MPI_REQUEST_NULL;
    for (size_t i = 0; i < schedule->recvs.count; i++)
        schedule->missing[i] = schedule->recvs.tasks[i].message_count;
    banyan_status status = move_all(state, schedule);
    if (status != BANYAN_OK) {
        drop_requests(schedule);
        state->broken = true;
    }
    return status;
}

static banyan_status mpi_backend_state_open(banyan_world *world, const banyan_copy_options *options,
                                            void **opened)
{
    (void)options;
    mpi_state *state = calloc(1, sizeof *state);
    banyan_status status =
        banyan_module_agree(world, state ? BANYAN_OK : mpi_backend_no_memory(sizeof *state));
    if (status == BANYAN_OK)
        status = mpi_session_open(world, &state->session);
    if (status == BANYAN_OK)
        *opened = state;
    else
        free(state);
    return status;
}

static void mpi_backend_state_close(void *argument)
{
    mpi_state *state = argument;
    mpi_session_close(&state->session,
                      !state->broken && banyan_world_check(state->session.world) == BANYAN_OK);
    free(state);
}

static const banyan_copy_backend backend = {
    .size = sizeof(banyan_copy_backend),
    .name = "mpi",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES,
    .open = mpi_backend_state_open,
    .close = mpi_backend_state_close,
    .prepare = mpi_backend_prepare,
    .execute = mpi_backend_execute,
    .release = mpi_backend_release,
};

static const module_tables tables = {
    .abi_version = MODULE_ABI_VERSION,
    .name = "mpi",
    .copy_backend = &backend,
};

BANYAN_API bool banyan_module_entry(uint32_t abi_version, const module_tables **handed_over,
                                    char *reason, size_t reason_bytes);

bool banyan_module_entry(uint32_t abi_version, const module_tables **handed_over, char *reason,
                         size_t reason_bytes)
{
    if (abi_version != MODULE_ABI_VERSION) {
        snprintf(reason, reason_bytes, "made for version %d of the module interface, not %u",
                 MODULE_ABI_VERSION, abi_version);
        return false;
    }
    *handed_over = &tables;
    return true;
}
