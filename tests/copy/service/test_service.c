#include "support/test.h"

#include <unistd.h>

#include "copy/strided/strided.h"
#include "copy/traffic.h"
#include "core/containers.h"
#include "core/deadline.h"
#include "world/control.h"

typedef ARRAY(banyan_copy_op) op_array;

typedef struct plain_state {
    banyan_world *world;
    op_array sends, recvs;
    int refuse_task; /* the send that submit refuses; -1: none */
} plain_state;

static int plain_refuses = -1;
static _Atomic int plain_opened, plain_closed;

static banyan_status plain_open(banyan_world *world, const banyan_copy_options *options,
                                void **state)
{
    (void)options;
    plain_state *made = calloc(1, sizeof *made);
    made->world = world;
    made->refuse_task = plain_refuses;
    plain_opened++;
    *state = made;
    return BANYAN_OK;
}

static void plain_close(void *state)
{
    plain_state *plain = state;
    array_free(&plain->sends);
    array_free(&plain->recvs);
    free(plain);
    plain_closed++;
}

static banyan_status plain_send(void *state, const banyan_send_op *op)
{
    plain_state *plain = state;
    CHECK(op->peer != banyan_world_rank(plain->world), "a send to oneself is the service's");
    if (plain->refuse_task >= 0 && op->task_id == (uint64_t)plain->refuse_task)
        return banyan_error_set(BANYAN_ERR_INVALID, "plain refuses task %d", plain->refuse_task);
    return array_push(&plain->sends, *op) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status plain_recv(void *state, const banyan_recv_op *op)
{
    plain_state *plain = state;
    CHECK(op->peer != banyan_world_rank(plain->world), "a receive from oneself is the service's");
    return array_push(&plain->recvs, *op) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* A task's bytes as one message whose tag is its id. */
static banyan_status plain_move(banyan_world *world, const banyan_copy_op *sends, size_t send_count,
                                const banyan_copy_op *recvs, size_t recv_count)
{
    int rank = banyan_world_rank(world);
    for (size_t i = 0; i < send_count; i++) {
        strided_view view;
        CHECK_OK(strided_view_of(&sends[i].tensor, &view));
        char *dense = malloc(view.elems * view.elem_bytes + 1);
        strided_pack(dense, &view, 0, view.elems);
        if (sends[i].peer != rank)
            RETURN_IF_FAILED(control_send(world, sends[i].peer,
                                          sends[i].task_id << 8 | sends[i].part, dense,
                                          view.elems * view.elem_bytes));
        free(dense);
    }
    for (size_t i = 0; i < recv_count; i++) {
        strided_view view;
        void *dense;
        size_t bytes;
        CHECK_OK(strided_view_of(&recvs[i].tensor, &view));
        if (recvs[i].peer == rank)
            continue;
        RETURN_IF_FAILED(control_receive(world, recvs[i].peer,
                                         recvs[i].task_id << 8 | recvs[i].part, "a plain task",
                                         &dense, &bytes));
        CHECK(bytes == view.elems * view.elem_bytes);
        strided_unpack(&view, 0, view.elems, dense);
        free(dense);
    }
    return BANYAN_OK;
}

static banyan_status plain_run(void *state, void *stream)
{
    CHECK(!stream);
    plain_state *plain = state;
    banyan_status status = plain_move(plain->world, plain->sends.data, plain->sends.count,
                                      plain->recvs.data, plain->recvs.count);
    array_free(&plain->sends);
    array_free(&plain->recvs);
    return status;
}

static const banyan_copy_backend plain_backend = {
    .size = sizeof(banyan_copy_backend),
    .name = "plain",
    .capabilities = BANYAN_COPY_STRIDED,
    .open = plain_open,
    .close = plain_close,
    .submit_send = plain_send,
    .submit_recv = plain_recv,
    .run = plain_run,
};

/* The other kind of backend: it keeps schedules, and also moves data from a rank to itself. */
typedef struct kept_schedule {
    op_array sends, recvs;
    ARRAY(banyan_copy_pair) local;
    ARRAY(int64_t *) shapes;
} kept_schedule;

static banyan_copy_op kept_op(kept_schedule *kept, banyan_copy_op op)
{
    int ndim = op.tensor.ndim;
    int64_t *shape = malloc(2 * BANYAN_MAX_DIMS * sizeof *shape);
    CHECK(array_push(&kept->shapes, shape));
    memcpy(shape, op.tensor.shape, (size_t)ndim * sizeof *shape);
    op.tensor.shape = shape;
    if (op.tensor.strides) {
        memcpy(shape + ndim, op.tensor.strides, (size_t)ndim * sizeof *shape);
        op.tensor.strides = shape + ndim;
    }
    return op;
}

static banyan_status kept_prepare(void *state, const banyan_copy_batch *batch, void **schedule)
{
    plain_state *plain = state;
    RETURN_IF_FAILED(banyan_copy_match_batch(plain->world, "kept", batch));
    kept_schedule *kept = calloc(1, sizeof *kept);
    for (size_t i = 0; i < batch->send_count; i++)
        CHECK(array_push(&kept->sends, kept_op(kept, batch->sends[i])));
    for (size_t i = 0; i < batch->recv_count; i++)
        CHECK(array_push(&kept->recvs, kept_op(kept, batch->recvs[i])));
    for (size_t i = 0; i < batch->local_count; i++)
        CHECK(array_push(&kept->local, batch->local[i]));
    *schedule = kept;
    return BANYAN_OK;
}

static banyan_status kept_execute(void *state, void *schedule, void *stream)
{
    CHECK(!stream);
    plain_state *plain = state;
    kept_schedule *kept = schedule;
    for (size_t i = 0; i < kept->local.count; i++)
        RETURN_IF_FAILED(banyan_tensor_copy(&kept->recvs.data[kept->local.data[i].recv].tensor,
                                            &kept->sends.data[kept->local.data[i].send].tensor));
    return plain_move(plain->world, kept->sends.data, kept->sends.count, kept->recvs.data,
                      kept->recvs.count);
}

static void kept_release(void *state, void *schedule)
{
    (void)state;
    kept_schedule *kept = schedule;
    for (size_t i = 0; i < kept->shapes.count; i++)
        free(kept->shapes.data[i]);
    array_free(&kept->shapes);
    array_free(&kept->sends);
    array_free(&kept->recvs);
    array_free(&kept->local);
    free(kept);
}

static const banyan_copy_backend kept_backend = {
    .size = sizeof(banyan_copy_backend),
    .name = "kept",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_KEEPS_SCHEDULES,
    .open = plain_open,
    .close = plain_close,
    .prepare = kept_prepare,
    .execute = kept_execute,
    .release = kept_release,
};

static const char *const names[] = {"direct", "pipeline", "plain", "kept"};

static banyan_copy_service *service_of(banyan_world *world, const char *name)
{
    banyan_copy_service *service;
    if (strcmp(name, "plain") == 0)
        CHECK_OK(banyan_copy_service_open_backend(world, &plain_backend, NULL, &service));
    else if (strcmp(name, "kept") == 0)
        CHECK_OK(banyan_copy_service_open_backend(world, &kept_backend, NULL, &service));
    else
        CHECK_OK(banyan_copy_service_open(world, name, NULL, &service));
    CHECK(strcmp(banyan_copy_service_name(service), name) == 0);
    return service;
}

typedef struct traffic_case {
    const char *backend;
    uint64_t seed;
    int batches, tasks, runs;
    traffic_ids ids;
    int64_t most;
} traffic_case;

static void run_traffic(banyan_world *world, void *context)
{
    const traffic_case *test = context;
    banyan_copy_service *service = service_of(world, test->backend);
    for (int batch = 0; batch < test->batches; batch++) {
        uint64_t seed = test->seed + (uint64_t)batch;
        traffic *all = traffic_make(world, seed, test->tasks, test->ids, test->most);
        traffic_fill(all, 0);
        traffic_submit(all, service);
        CHECK_OK(banyan_copy_service_run(service, NULL));
        traffic_check(all, 0);
        CHECK_OK(banyan_copy_service_run(service, NULL));

        banyan_copy_schedule *schedule;
        traffic_submit(all, service);
        CHECK_OK(banyan_copy_service_prepare(service, &schedule));
        for (int run = 1; run <= test->runs; run++) {
            traffic_fill(all, (uint64_t)run);
            CHECK_OK(banyan_copy_schedule_run(schedule, NULL));
            traffic_check(all, (uint64_t)run);
        }
        banyan_copy_schedule_destroy(schedule);
        traffic_free(all);
    }
    banyan_copy_service_close(service);
}

static void every_element_arrives_whatever_is_sent(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 5, 8};
    random_state random = random_from(random_seed());
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            traffic_case test = {names[i], random_next(&random), 2, 40, 2, TRAFFIC_BY_ID, 1500};
            ranks_run(sizes[k], run_traffic, &test);
        }
}

static void large_tensors_arrive_too(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        traffic_case test = {names[i], random_seed() + 1, 1, 12, 1, TRAFFIC_BY_ID, 400000};
        ranks_run(3, run_traffic, &test);
    }
}

static void a_kept_schedule_moves_new_data_a_hundred_times(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        traffic_case test = {names[i], random_seed() + 2, 1, 20, 100, TRAFFIC_BY_ID, 200};
        ranks_run(4, run_traffic, &test);
    }
}

static void tasks_without_ids_match_in_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        traffic_case test = {names[i], random_seed() + 3, 4, 60, 2, TRAFFIC_BY_ORDER, 500};
        ranks_run(4, run_traffic, &test);
    }
}

static void ranks_in_one_process_move_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        traffic_case test = {names[i], random_seed() + 4, 2, 30, 5, TRAFFIC_BY_ID, 1000};
        ranks_run_threads(4, run_traffic, &test);
    }
}

/* A matrix in ordinary memory, as rank 0 sends and rank 1 receives it: `pitch` elements per row. */
typedef struct matrix {
    DLDataType type;
    int64_t shape[2][2], pitch[2];
} matrix;

static void send_matrix(banyan_world *world, void *context)
{
    const matrix *of = context;
    int rank = banyan_world_rank(world);
    const int64_t *shape = of->shape[rank];
    int64_t strides[] = {of->pitch[rank], 1};
    size_t elem = banyan_dtype_bytes(of->type), row_bytes = (size_t)strides[0] * elem;
    unsigned char *memory = malloc((size_t)shape[0] * row_bytes);
    DLTensor tensor = {.data = memory,
                       .device = BANYAN_HOST,
                       .ndim = 2,
                       .dtype = of->type,
                       .shape = (int64_t *)shape,
                       .strides = strides};
    memset(memory, 0xa5, (size_t)shape[0] * row_bytes);
    for (int64_t i = 0; rank == 0 && i < shape[0] * shape[1]; i++)
        memset(memory + (size_t)(i / shape[1]) * row_bytes + (size_t)(i % shape[1]) * elem,
               (int)(i % 101), elem);
    banyan_copy_service *service = service_of(world, "direct");
    if (rank == 0)
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 1, 7));
    else
        CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 0, 7));
    CHECK_OK(banyan_copy_service_run(service, NULL));
    for (int64_t i = 0; rank == 1 && i < shape[0] * strides[0]; i++) {
        const unsigned char *at = memory + (size_t)i * elem;
        int64_t row = i / strides[0], column = i % strides[0];
        int wanted = column < shape[1] ? (int)((row * shape[1] + column) % 101) : 0xa5;
        CHECK(at[0] == wanted && memcmp(at, at + 1, elem - 1) == 0, "row %d, column %d", (int)row,
              (int)column);
    }
    banyan_copy_service_close(service);
    free(memory);
}

/* Rows that are read directly to their place, without a buffer. */
static void rows_of_kilobytes_arrive(void **state)
{
    (void)state;
    matrix rows = {BANYAN_F32, {{6, 600}, {6, 600}}, {700, 650}};
    ranks_run(2, send_matrix, &rows);
}

/* Each is longer than the buffer for reading pieces of a peer's tensor. */
static void elements_of_a_mebibyte_arrive(void **state)
{
    (void)state;
    matrix huge = {{kDLUInt, 128, UINT16_MAX}, {{3, 2}, {2, 3}}, {4, 4}};
    ranks_run(2, send_matrix, &huge);
}

static void run_with_staging(banyan_world *world, void *context)
{
    setenv("BANYAN_USER_MEMORY", "staging", 1);
    run_traffic(world, context);
}

static void ordinary_memory_is_reached_through_staging(void **state)
{
    (void)state;
    traffic_case test = {"direct", random_seed() + 5, 3, 40, 2, TRAFFIC_BY_ID, 3000};
    ranks_run(4, run_with_staging, &test);
}

static char unmoved[256];

static DLTensor small_tensor(int64_t *shape)
{
    return (DLTensor){
        .data = unmoved, .device = {kDLCPU, 0}, .ndim = 1, .dtype = BANYAN_F32, .shape = shape};
}

/* The queue is empty and the service works: a valid batch succeeds. */
static void check_still_works(banyan_world *world, banyan_copy_service *service)
{
    traffic *all = traffic_make(world, 5, 20, TRAFFIC_BY_ID, 100);
    traffic_fill(all, 1);
    traffic_submit(all, service);
    CHECK_OK(banyan_copy_service_run(service, NULL));
    traffic_check(all, 1);
    traffic_free(all);
}

/* Rank 1 adds an error to a valid batch; all ranks get it, and nothing has moved. */
static void check_batch_fails(banyan_world *world, banyan_copy_service *service,
                              void (*spoil)(banyan_copy_service *service), const char *message)
{
    traffic *all = traffic_make(world, 6, 20, TRAFFIC_BY_ID, 100);
    traffic_fill(all, 1);
    traffic_submit(all, service);
    if (banyan_world_rank(world) == 1)
        spoil(service);
    CHECK_FAILS(banyan_copy_service_run(service, NULL), BANYAN_ERR_MISMATCH, message);
    CHECK(strstr(banyan_last_error(), banyan_copy_service_name(service)), "%s",
          banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    traffic_check_untouched(all);
    traffic_free(all);
    check_still_works(world, service);
}

static int64_t spoil_shape[] = {5}, spoil_other_shape[] = {6};

static void send_twice(banyan_copy_service *service)
{
    DLTensor tensor = small_tensor(spoil_shape);
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 0, 1000));
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 0, 1000));
}

static void receive_twice(banyan_copy_service *service)
{
    DLTensor tensor = small_tensor(spoil_shape);
    CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 0, 1000));
    CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 0, 1000));
}

static void send_alone(banyan_copy_service *service)
{
    DLTensor tensor = small_tensor(spoil_shape);
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 2, 1000));
}

static void receive_alone(banyan_copy_service *service)
{
    DLTensor tensor = small_tensor(spoil_shape);
    CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 2, 1000));
}

static void send_to_self_alone(banyan_copy_service *service)
{
    DLTensor tensor = small_tensor(spoil_shape);
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 1, 1000));
}

static void self_sizes_differ(banyan_copy_service *service)
{
    DLTensor tensor = small_tensor(spoil_shape), other = small_tensor(spoil_other_shape);
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 1, 1000));
    CHECK_OK(banyan_copy_service_submit_recv(service, &other, 1, 1000));
}

static void self_without_id(banyan_copy_service *service)
{
    DLTensor tensor = small_tensor(spoil_shape);
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 1, BANYAN_TASK_ID_NONE));
    CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, 1, BANYAN_TASK_ID_NONE));
}

static void fail_in_every_way(banyan_world *world, void *context)
{
    const char *name = context;
    int rank = banyan_world_rank(world);
    banyan_copy_service *service = service_of(world, name);
    bool keeps = banyan_copy_service_capabilities(service) & BANYAN_COPY_KEEPS_SCHEDULES;
    check_batch_fails(world, service, send_twice, "task ids 1000 (rank 0)");
    check_batch_fails(world, service, receive_twice, "task ids 1000 (rank 0)");
    check_batch_fails(world, service, send_to_self_alone, "only sent are task ids 1000");
    check_batch_fails(world, service, self_sizes_differ, "1000 (5 elements of 4 bytes sent, 6");
    check_batch_fails(world, service, self_without_id, "without a task id");
    if (keeps) {
        check_batch_fails(world, service, send_alone, "only rank 1 has task ids 1000");
        check_batch_fails(world, service, receive_alone, "only rank 1 has task ids 1000");
    }

    DLTensor tensor = small_tensor(spoil_shape), bad = tensor;
    CHECK_FAILS(banyan_copy_service_submit_send(service, &tensor, 3, 7), BANYAN_ERR_INVALID,
                "send to rank 3, task 7, part 0: the world has 3");
    CHECK_FAILS(banyan_copy_service_submit_recv(service, &tensor, -1, 7), BANYAN_ERR_INVALID,
                "receive from rank -1");
    bad.ndim = 9;
    CHECK_FAILS(banyan_copy_service_submit_send(service, &bad, 0, 7), BANYAN_ERR_INVALID,
                "9 dimensions");
    bad = tensor;
    bad.data = NULL;
    CHECK_FAILS(banyan_copy_service_submit_recv(service, &bad, 0, 7), BANYAN_ERR_INVALID,
                "5 elements has no data");
    bad = tensor;
    bad.device.device_type = kDLCUDA;
    CHECK_FAILS(banyan_copy_service_submit_send(service, &bad, 0, 7), BANYAN_ERR_INVALID,
                "is said to lie in GPU 0, and the service moves tensors in host memory: open it "
                "with banyan_copy_options.device = GPU 0");
    int64_t zero[] = {0};
    bad = tensor;
    bad.strides = zero;
    CHECK_FAILS(banyan_copy_service_submit_recv(service, &bad, 0, 7), BANYAN_ERR_INVALID,
                "written twice");
    CHECK_OK(banyan_copy_service_submit_send(service, &bad, (rank + 1) % 3, 7));
    CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, (rank + 2) % 3, 7));
    CHECK_OK(banyan_copy_service_run(service, NULL));
    check_still_works(world, service);
    banyan_copy_service_close(service);
}

static void a_wrong_batch_fails_everywhere_and_moves_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        ranks_run(3, fail_in_every_way, (void *)(uintptr_t)names[i]);
}

static void refuse_a_task(banyan_world *world, void *context)
{
    (void)context;
    int rank = banyan_world_rank(world);
    plain_refuses = rank == 1 ? 2 : -1;
    banyan_copy_service *service = service_of(world, "plain");
    int64_t shape[] = {5};
    DLTensor tensor = small_tensor(shape);
    for (uint64_t task = 0; task < 3; task++) {
        CHECK_OK(banyan_copy_service_submit_send(service, &tensor, (rank + 1) % 3, task));
        CHECK_OK(banyan_copy_service_submit_recv(service, &tensor, (rank + 2) % 3, task));
    }
    plain_refuses = -1;
    CHECK_FAILS(banyan_copy_service_run(service, NULL), BANYAN_ERR_INVALID, "plain refuses task 2");
    CHECK(plain_opened == 2 && plain_closed == 1);
    check_still_works(world, service);
    banyan_copy_service_close(service);
    CHECK(plain_closed == 2);
}

static void an_operation_refused_on_one_rank_is_dropped_on_all(void **state)
{
    (void)state;
    ranks_run(3, refuse_a_task, NULL);
}

static void a_backend_that_this_build_lacks_is_not_in_the_list(void **state)
{
    (void)state;
    const banyan_copy_backend *backend;
    const char *before = getenv("BANYAN_MODULE_PATH");
    char *kept = before ? strdup(before) : NULL;
    setenv("BANYAN_MODULE_PATH", "/nonexistent", 1);
    CHECK_FAILS(banyan_copy_backend_find("teleport", &backend), BANYAN_ERR_NOT_FOUND,
                "this build has direct, pipeline; for mpi, build with MPI");
    CHECK_FAILS(banyan_copy_backend_find("mpi", &backend), BANYAN_ERR_UNSUPPORTED,
                "this build has no copy backend mpi: there is no libbanyan_mpi.so");
    setenv("BANYAN_MODULE_PATH", BANYAN_BINARY_DIR "/lib", 1);
    if (access(BANYAN_BINARY_DIR "/lib/libbanyan_mpi.so", R_OK) == 0)
        CHECK_FAILS(banyan_copy_backend_find("teleport", &backend), BANYAN_ERR_NOT_FOUND,
                    "this build has direct, pipeline, mpi");
    unsetenv("BANYAN_MODULE_PATH");
    if (kept)
        setenv("BANYAN_MODULE_PATH", kept, 1);
    free(kept);
}

static void open_in_every_way(banyan_world *world, void *context)
{
    (void)context;
    banyan_copy_service *service;
    unsetenv("BANYAN_COPY");
    CHECK_OK(banyan_copy_service_open(world, NULL, NULL, &service));
    CHECK(strcmp(banyan_copy_service_name(service), "direct") == 0);
    banyan_copy_service_close(service);
    CHECK_FAILS(banyan_copy_service_open(world, "teleport", NULL, &service), BANYAN_ERR_NOT_FOUND,
                "there is no copy backend \"teleport\"; this build has direct, pipeline");
    setenv("BANYAN_COPY", "telepathy", 1);
    CHECK_FAILS(banyan_copy_service_open(world, NULL, NULL, &service), BANYAN_ERR_NOT_FOUND,
                "telepathy");
    unsetenv("BANYAN_COPY");
    if (banyan_world_rank(world) == 1)
        CHECK_FAILS(banyan_copy_service_open_backend(world, &plain_backend, NULL, &service),
                    BANYAN_ERR_MISMATCH, "rank 1 opens copy backend plain, rank 0 opens direct");
    else
        CHECK_FAILS(banyan_copy_service_open(world, "direct", NULL, &service), BANYAN_ERR_MISMATCH,
                    "rank 1 opens copy backend plain");
    banyan_copy_backend lacking = plain_backend;
    lacking.run = NULL;
    CHECK_FAILS(banyan_copy_service_open_backend(world, &lacking, NULL, &service),
                BANYAN_ERR_INVALID, "plain has neither");
    CHECK_FAILS(banyan_copy_service_open_backend(world, NULL, NULL, &service), BANYAN_ERR_INVALID,
                "no copy backend");
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    if (banyan_world_rank(world) == 1)
        options.size = 0;
    CHECK_FAILS(banyan_copy_service_open(world, "direct", &options, &service), BANYAN_ERR_INVALID,
                "BANYAN_COPY_OPTIONS_INIT sets it");
    banyan_copy_backend dense = plain_backend;
    dense.capabilities = 0;
    CHECK_OK(banyan_copy_service_open_backend(world, &dense, NULL, &service));
    int64_t shape[] = {5}, strides[] = {2};
    DLTensor tensor = small_tensor(shape);
    tensor.strides = strides;
    CHECK_FAILS(banyan_copy_service_submit_send(service, &tensor, 0, 7), BANYAN_ERR_INVALID,
                "dense tensors only");
    tensor.strides = NULL;
    CHECK_OK(banyan_copy_service_submit_send(service, &tensor, 0, BANYAN_TASK_ID_NONE));
    CHECK_FAILS(banyan_copy_service_run(service, NULL), BANYAN_ERR_MISMATCH,
                "cannot match by order");
    banyan_copy_service_close(service);
}

static void a_backend_opens_on_all_ranks_or_on_none(void **state)
{
    (void)state;
    ranks_run(3, open_in_every_way, NULL);
}

static void outlive_a_service(banyan_world *world, void *context)
{
    (void)context;
    static const char *const backends[] = {"direct", "pipeline"};
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        banyan_copy_service *service;
        banyan_copy_schedule *first, *second, *third;
        CHECK_OK(banyan_copy_service_open(world, backends[i], NULL, &service));
        CHECK_OK(banyan_copy_service_prepare(service, &first));
        CHECK_OK(banyan_copy_service_prepare(service, &second));
        CHECK_OK(banyan_copy_service_prepare(service, &third));
        banyan_copy_schedule_destroy(second);
        banyan_copy_service_close(service);
        CHECK_FAILS(banyan_copy_schedule_run(first, NULL), BANYAN_ERR_INVALID, "service is closed");
        banyan_copy_schedule_destroy(third);
        banyan_copy_schedule_destroy(first);
    }
}

static void a_schedule_may_be_freed_after_its_service(void **state)
{
    (void)state;
    ranks_run(2, outlive_a_service, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_whatever_is_sent),
        cmocka_unit_test(large_tensors_arrive_too),
        cmocka_unit_test(a_kept_schedule_moves_new_data_a_hundred_times),
        cmocka_unit_test(tasks_without_ids_match_in_order),
        cmocka_unit_test(ranks_in_one_process_move_tensors),
        cmocka_unit_test(rows_of_kilobytes_arrive),
        cmocka_unit_test(elements_of_a_mebibyte_arrive),
        cmocka_unit_test(ordinary_memory_is_reached_through_staging),
        cmocka_unit_test(a_wrong_batch_fails_everywhere_and_moves_nothing),
        cmocka_unit_test(an_operation_refused_on_one_rank_is_dropped_on_all),
        cmocka_unit_test(a_backend_that_this_build_lacks_is_not_in_the_list),
        cmocka_unit_test(a_backend_opens_on_all_ranks_or_on_none),
        cmocka_unit_test(a_schedule_may_be_freed_after_its_service),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
