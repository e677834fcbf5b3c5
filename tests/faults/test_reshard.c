/* Copy services, reshard plans and runs, checkpoints, with a fault at one rank. */
#include "core/status.h"
#include "faults/job.h"
#include "support/folder.h"

#define ROWS 24
#define COLUMNS 40

struct things {
    banyan_copy_service *service;
    banyan_copy_schedule *schedule;
    banyan_reshard_plan *plan;
    banyan_layout *from, *to;
    banyan_tensors *source, *destination;
    int saves;
};

static float sent[ROWS], received[ROWS];

/* The process is one rank. */
static struct things *things_of(job_rank *r)
{
    static struct things things;
    return r->things = &things;
}

static void finish(job_rank *r)
{
    struct things *t = things_of(r);
    banyan_copy_schedule_destroy(t->schedule);
    banyan_reshard_plan_destroy(t->plan);
    banyan_copy_service_close(t->service);
    banyan_tensors_destroy(t->source);
    banyan_tensors_destroy(t->destination);
    banyan_layout_destroy(t->from);
    banyan_layout_destroy(t->to);
}

static banyan_status open_direct(job_rank *r)
{
    return banyan_copy_service_open(r->world, "direct", NULL, &things_of(r)->service);
}

static banyan_status open_pipeline(job_rank *r)
{
    return banyan_copy_service_open(r->world, "pipeline", NULL, &things_of(r)->service);
}

static banyan_status open_backend(job_rank *r)
{
    const banyan_copy_backend *backend;
    CHECK_OK(banyan_copy_backend_find("direct", &backend));
    return banyan_copy_service_open_backend(r->world, backend, NULL, &things_of(r)->service);
}

static void close_service(job_rank *r)
{
    (void)banyan_world_barrier(r->world);
    banyan_copy_service_close(things_of(r)->service);
    things_of(r)->service = NULL;
}

static void have_direct(job_rank *r)
{
    CHECK_OK(open_direct(r));
}

static void have_pipeline(job_rank *r)
{
    CHECK_OK(open_pipeline(r));
}

/* To the next rank, from the previous one. */
static banyan_status submit(job_rank *r)
{
    static int64_t shape[] = {ROWS};
    banyan_copy_service *service = things_of(r)->service;
    int next = (r->rank + 1) % r->count, before = (r->rank + r->count - 1) % r->count;
    DLTensor tensor = {
        .data = sent, .device = BANYAN_HOST, .ndim = 1, .dtype = BANYAN_F32, .shape = shape};
    for (int i = 0; i < ROWS; i++) {
        sent[i] = (float)(100 * r->rank + i);
        received[i] = -1;
    }
    banyan_status status =
        banyan_copy_service_submit_send(service, &tensor, next, (uint64_t)r->rank);
    tensor.data = received;
    if (status == BANYAN_OK)
        status = banyan_copy_service_submit_recv(service, &tensor, before, (uint64_t)before);
    return status;
}

static void have_submitted(job_rank *r)
{
    have_direct(r);
    CHECK_OK(submit(r));
}

static void have_submitted_pipeline(job_rank *r)
{
    have_pipeline(r);
    CHECK_OK(submit(r));
}

static banyan_status match_batch(job_rank *r)
{
    static int64_t shape[] = {ROWS};
    int next = (r->rank + 1) % r->count, before = (r->rank + r->count - 1) % r->count;
    DLTensor tensor = {
        .data = sent, .device = BANYAN_HOST, .ndim = 1, .dtype = BANYAN_F32, .shape = shape};
    banyan_send_op send = {.tensor = tensor, .peer = next, .task_id = (uint64_t)r->rank};
    banyan_recv_op recv = {.tensor = tensor, .peer = before, .task_id = (uint64_t)before};
    banyan_copy_batch batch = {.sends = &send, .send_count = 1, .recvs = &recv, .recv_count = 1};
    return banyan_copy_match_batch(r->world, "faults", &batch);
}

static banyan_status run_service(job_rank *r)
{
    return banyan_copy_service_run(things_of(r)->service, NULL);
}

static void check_received(job_rank *r)
{
    int before = (r->rank + r->count - 1) % r->count;
    for (int i = 0; i < ROWS; i++)
        CHECK(received[i] == (float)(100 * before + i));
}

static banyan_status prepare(job_rank *r)
{
    return banyan_copy_service_prepare(things_of(r)->service, &things_of(r)->schedule);
}

static void have_schedule(job_rank *r)
{
    have_submitted(r);
    CHECK_OK(prepare(r));
}

static void have_schedule_pipeline(job_rank *r)
{
    have_submitted_pipeline(r);
    CHECK_OK(prepare(r));
}

static banyan_status run_schedule(job_rank *r)
{
    return banyan_copy_schedule_run(things_of(r)->schedule, NULL);
}

static banyan_layout *make_layout(const job_rank *r, int dim)
{
    banyan_layout *layout;
    static const int64_t shape[] = {ROWS, COLUMNS};
    banyan_mesh mesh = {.ndim = 1, .extent = {r->count}};
    banyan_placement placement = {.kind = BANYAN_SHARD, .dim = dim};
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_sharded(layout, "weight", BANYAN_F32, 2, shape, &mesh, &placement, r->rank);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static void have_layouts(job_rank *r)
{
    things_of(r)->from = make_layout(r, 0);
    things_of(r)->to = make_layout(r, 1);
}

static banyan_status make_plan(job_rank *r)
{
    struct things *t = things_of(r);
    return banyan_reshard_plan_create(t->from, t->to, r->world, NULL, &t->plan);
}

static void destroy_plan(job_rank *r)
{
    banyan_reshard_plan_destroy(things_of(r)->plan);
    things_of(r)->plan = NULL;
}

static banyan_status alloc_tensors(job_rank *r)
{
    return banyan_tensors_alloc(things_of(r)->from, r->world, &things_of(r)->source);
}

static banyan_status alloc_planned(job_rank *r)
{
    return banyan_tensors_alloc_planned(things_of(r)->plan, r->world, &things_of(r)->source);
}

static void have_plan(job_rank *r)
{
    have_layouts(r);
    CHECK_OK(make_plan(r));
}

static void destroy_tensors(job_rank *r)
{
    banyan_tensors_destroy(things_of(r)->source);
    things_of(r)->source = NULL;
}

static void have_reshard(job_rank *r)
{
    struct things *t = things_of(r);
    have_layouts(r);
    CHECK_OK(make_plan(r));
    CHECK_OK(alloc_tensors(r));
    CHECK_OK(banyan_tensors_alloc(t->to, r->world, &t->destination));
    int rows = ROWS / r->count;
    float *data = banyan_tensors_get(t->source, 0)->data;
    for (int i = 0; i < rows * COLUMNS; i++)
        data[i] = (float)(r->rank * rows * COLUMNS + i);
}

static void have_reshard_direct(job_rank *r)
{
    have_reshard(r);
    have_direct(r);
}

static void have_reshard_pipeline(job_rank *r)
{
    have_reshard(r);
    have_pipeline(r);
}

static banyan_status execute(job_rank *r)
{
    struct things *t = things_of(r);
    return banyan_reshard_execute(t->plan, t->source, t->destination, t->service, r->world, NULL,
                                  NULL);
}

static banyan_status start(job_rank *r)
{
    struct things *t = things_of(r);
    banyan_request *request;
    RETURN_IF_FAILED(banyan_reshard_start(t->plan, t->source, t->destination, t->service, r->world,
                                          NULL, &request));
    return banyan_request_wait(request);
}

static void check_resharded(job_rank *r)
{
    int columns = COLUMNS / r->count;
    const float *data = banyan_tensors_get(things_of(r)->destination, 0)->data;
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < columns; j++)
            CHECK(data[i * columns + j] == (float)(i * COLUMNS + r->rank * columns + j));
    }
}

static banyan_status save(job_rank *r)
{
    struct things *t = things_of(r);
    char path[320];
    snprintf(path, sizeof path, "%s/saved", r->folder);
    return banyan_checkpoint_save(path, t->from, t->source, r->world, NULL);
}

static void remove_saved(job_rank *r)
{
    char path[320];
    snprintf(path, sizeof path, "%s/saved", r->folder);
    CHECK_OK(banyan_world_barrier(r->world));
    if (r->rank == 0)
        CHECK(nftw(path, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
    CHECK_OK(banyan_world_barrier(r->world));
}

#define REST .finish = finish
static const job_case cases[] = {
    {"service_open", NULL, open_direct, close_service, REST},
    {"service_open_pipeline", NULL, open_pipeline, close_service, REST},
    {"service_open_backend", NULL, open_backend, close_service, REST},
    {"match_batch", NULL, match_batch, REST},
    {"service_run", have_submitted, run_service, check_received, REST, .only_once = true,
     .may_differ = true},
    {"service_run_pipeline", have_submitted_pipeline, run_service, check_received, REST,
     .only_once = true},
    {"service_prepare", have_submitted, prepare, REST, .only_once = true},
    {"service_prepare_pipeline", have_submitted_pipeline, prepare, REST, .only_once = true},
    {"schedule_run", have_schedule, run_schedule, check_received, REST, .may_differ = true},
    {"schedule_run_pipeline", have_schedule_pipeline, run_schedule, check_received, REST},
    {"tensors_alloc", have_layouts, alloc_tensors, destroy_tensors, REST},
    {"tensors_alloc_planned", have_plan, alloc_planned, destroy_tensors, REST},
    {"reshard_plan", have_layouts, make_plan, destroy_plan, REST},
    {"reshard_execute", have_reshard_direct, execute, check_resharded, REST},
    {"reshard_execute_pipeline", have_reshard_pipeline, execute, check_resharded, REST},
    {"reshard_start", have_reshard_direct, start, check_resharded, REST},
    {"checkpoint_save", have_reshard, save, remove_saved, REST, .leaves_no_files = true},
};

int main(void)
{
    return job_main(cases, sizeof cases / sizeof *cases, 12);
}
