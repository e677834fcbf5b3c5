#include "ucx/network/work.h"

#define ROWS 640
#define COLUMNS 1000
#define SUMMED 1500

struct weights {
    banyan_world *world;
    banyan_layout *rows, *columns;
    banyan_tensors *source, *destination;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    banyan_comm *comm;
    bool in_move; /* in the latest step, rather than in its sum */
};

static float element(int row, int column, int version)
{
    return (float)((row * COLUMNS + column) % 65536 * 16 + version);
}

static void *weights_open(banyan_world *world, const char *backend)
{
    struct weights *w = calloc(1, sizeof *w);
    int rank = banyan_world_rank(world);
    banyan_mesh mesh = {.ndim = 1, .extent = {banyan_world_size(world)}};
    banyan_placement by_row = {BANYAN_SHARD, 0}, by_column = {BANYAN_SHARD, 1};
    int64_t shape[] = {ROWS, COLUMNS};
    CHECK(w != NULL);
    w->world = world;
    CHECK_OK(banyan_layout_create(&w->rows));
    CHECK_OK(banyan_layout_create(&w->columns));
    banyan_layout_add_sharded(w->rows, "w", BANYAN_F32, 2, shape, &mesh, &by_row, rank);
    banyan_layout_add_sharded(w->columns, "w", BANYAN_F32, 2, shape, &mesh, &by_column, rank);
    CHECK_OK(banyan_tensors_alloc(w->rows, world, &w->source));
    CHECK_OK(banyan_tensors_alloc(w->columns, world, &w->destination));
    CHECK_OK(banyan_reshard_plan_create(w->rows, w->columns, world, NULL, &w->plan));
    CHECK_OK(banyan_copy_service_open(world, backend, NULL, &w->service));
    CHECK(strcmp(banyan_copy_service_name(w->service), backend ? backend : "direct") == 0);
    CHECK_OK(banyan_comm_create(world, NULL, &w->comm));
    return w;
}

/* Sum a vector of a version over all ranks, and compare every element. */
static banyan_status weights_sum(const struct weights *w, int version)
{
    int64_t input[SUMMED], output[SUMMED], size = banyan_world_size(w->world);
    for (int i = 0; i < SUMMED; i++)
        input[i] =
            (int64_t)version * SUMMED + i + ((int64_t)1 << (8 + banyan_world_rank(w->world)));
    memset(output, 0xff, sizeof output);
    banyan_status status =
        banyan_comm_allreduce(w->comm, input, output, SUMMED, BANYAN_I64, BANYAN_SUM, NULL);
    for (int i = 0; status == BANYAN_OK && i < SUMMED; i++)
        CHECK(output[i] == size * ((int64_t)version * SUMMED + i) + (((1 << size) - 1) << 8),
              "element %d of version %d", i, version);
    return status;
}

/* Move one version, and compare every element. */
static banyan_status weights_move(struct weights *w, int version)
{
    int rank = banyan_world_rank(w->world), size = banyan_world_size(w->world);
    const DLTensor *from = banyan_tensors_get(w->source, 0);
    const DLTensor *to = banyan_tensors_get(w->destination, 0);
    float *source = from->data, *destination = to->data;
    int rows = (int)from->shape[0], columns = (int)to->shape[1];
    int first_row = (ROWS + size - 1) / size * rank;
    int first_column = (COLUMNS + size - 1) / size * rank;
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < COLUMNS; column++)
            source[row * COLUMNS + column] = element(first_row + row, column, version);
    memset(destination, 0xff, (size_t)ROWS * (size_t)columns * sizeof *destination);
    banyan_status status = banyan_reshard_execute(w->plan, w->source, w->destination, w->service,
                                                  w->world, NULL, NULL);
    for (int row = 0; status == BANYAN_OK && row < ROWS; row++)
        for (int column = 0; column < columns; column++)
            CHECK(destination[row * columns + column] ==
                      element(row, first_column + column, version),
                  "row %d, column %d of version %d", row, first_column + column, version);
    return status;
}

static banyan_status weights_step(void *state, int number)
{
    struct weights *w = state;
    w->in_move = true;
    RETURN_IF_FAILED(weights_move(w, number));
    w->in_move = false;
    return weights_sum(w, number);
}

/* After a failed run, the destination is torn, or nothing has changed: some rank did not enter. */
static void weights_check(const struct weights *w, banyan_status status)
{
    const DLTensor *to = banyan_tensors_get(w->destination, 0);
    const unsigned char *bytes = to->data;
    size_t count = (size_t)(to->shape[0] * to->shape[1]) * sizeof(float);
    if (!w->in_move) {
        CHECK(banyan_tensors_get_state(w->destination) == BANYAN_TENSORS_WHOLE);
    } else if (banyan_tensors_get_state(w->destination) != BANYAN_TENSORS_TORN) {
        CHECK(status == BANYAN_ERR_TIMEOUT);
        for (size_t i = 0; i < count; i++)
            CHECK(bytes[i] == 0xff, "byte %zu has changed", i);
    }
}

static void weights_close(void *state, banyan_status status)
{
    struct weights *w = state;
    weights_check(w, status);
    (void)banyan_comm_destroy(w->comm);
    banyan_copy_service_close(w->service);
    banyan_reshard_plan_destroy(w->plan);
    banyan_tensors_destroy(w->source);
    banyan_tensors_destroy(w->destination);
    banyan_layout_destroy(w->rows);
    banyan_layout_destroy(w->columns);
    free(w);
}

const work work_weights_direct = {"weights, direct", weights_open, weights_step, weights_close,
                                  NULL};
const work work_weights_pipeline = {"weights, pipeline", weights_open, weights_step, weights_close,
                                    "pipeline"};
