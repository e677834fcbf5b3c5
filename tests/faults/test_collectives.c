/* Executors, plans and communicators, with a fault at one rank. */
#include "core/status.h"
#include "faults/job.h"

#define ELEMS 3000
#define MOST_RANKS 4

struct things {
    banyan_memory *memory;
    banyan_executor *executor;
    banyan_plan *plan;
    banyan_loaded_plan *loaded;
    banyan_comm *comm;
    char *table;
};

static float input[MOST_RANKS * ELEMS], output[MOST_RANKS * ELEMS];

static void fill(const job_rank *r)
{
    for (int i = 0; i < MOST_RANKS * ELEMS; i++) {
        input[i] = (float)(r->rank + 1 + i % 100);
        output[i] = -1;
    }
}

static float sum_at(const job_rank *r, int i)
{
    return (float)(r->count * (r->count + 1) / 2 + r->count * (i % 100));
}

/* The process is one rank. */
static struct things *things_of(job_rank *r)
{
    static struct things things;
    return r->things = &things;
}

static void compile(job_rank *r)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    params.ranks = r->count;
    CHECK_OK(banyan_algorithm_compile("allreduce_packets", &params, &things_of(r)->plan));
}

static void finish(job_rank *r)
{
    struct things *t = things_of(r);
    if (t->loaded)
        (void)banyan_loaded_plan_close(t->loaded);
    banyan_executor_close(t->executor);
    if (t->comm)
        (void)banyan_comm_destroy(t->comm);
    banyan_memory_free(t->memory);
    banyan_plan_destroy(t->plan);
    free(t->table);
}

static banyan_status open_executor(job_rank *r)
{
    return banyan_executor_open(r->world, NULL, &things_of(r)->executor);
}

static banyan_status open_with_workers(job_rank *r)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    options.workers = 3;
    return banyan_executor_open(r->world, &options, &things_of(r)->executor);
}

static void close_executor(job_rank *r)
{
    (void)banyan_world_barrier(r->world);
    banyan_executor_close(things_of(r)->executor);
    things_of(r)->executor = NULL;
}

static void have_executor(job_rank *r)
{
    compile(r);
    CHECK_OK(open_executor(r));
}

static banyan_status load(job_rank *r)
{
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = ELEMS * sizeof(float);
    return banyan_loaded_plan_open(things_of(r)->executor, things_of(r)->plan, &options,
                                   &things_of(r)->loaded);
}

static void unload(job_rank *r)
{
    CHECK_OK(banyan_loaded_plan_close(things_of(r)->loaded));
    things_of(r)->loaded = NULL;
}

static void have_loaded(job_rank *r)
{
    have_executor(r);
    CHECK_OK(load(r));
}

static banyan_status unload_plan(job_rank *r)
{
    banyan_loaded_plan *loaded = things_of(r)->loaded;
    things_of(r)->loaded = NULL;
    return banyan_loaded_plan_close(loaded);
}

static banyan_status run_plan(job_rank *r)
{
    fill(r);
    return banyan_loaded_plan_run(things_of(r)->loaded, input, output, ELEMS * sizeof(float),
                                  BANYAN_F32, NULL);
}

static void check_sums(job_rank *r)
{
    for (int i = 0; i < ELEMS; i++)
        CHECK(output[i] == sum_at(r, i), "%d is %g", i, (double)output[i]);
}

static banyan_status time_plan(job_rank *r)
{
    uint64_t ns;
    fill(r);
    return banyan_loaded_plan_time(things_of(r)->loaded, input, output, ELEMS * sizeof(float),
                                   BANYAN_F32, 3, &ns);
}

static banyan_status start_plan(job_rank *r)
{
    banyan_request *request;
    fill(r);
    RETURN_IF_FAILED(banyan_loaded_plan_start(things_of(r)->loaded, input, output,
                                              ELEMS * sizeof(float), BANYAN_F32, &request));
    return banyan_request_wait(request);
}

static banyan_status reset_plan(job_rank *r)
{
    return banyan_loaded_plan_reset(things_of(r)->loaded);
}

static void have_trace(job_rank *r)
{
    have_loaded(r);
    CHECK_OK(banyan_executor_trace_begin(things_of(r)->executor));
    CHECK_OK(run_plan(r));
    things_of(r)->table = NULL;
}

static banyan_status write_trace(job_rank *r)
{
    char path[320];
    snprintf(path, sizeof path, "%s/trace.json", r->folder);
    return banyan_executor_trace_write(things_of(r)->executor, path);
}

static banyan_status create_comm(job_rank *r)
{
    return banyan_comm_create(r->world, NULL, &things_of(r)->comm);
}

static void destroy_comm(job_rank *r)
{
    CHECK_OK(banyan_comm_destroy(things_of(r)->comm));
    things_of(r)->comm = NULL;
}

static void have_comm(job_rank *r)
{
    CHECK_OK(create_comm(r));
}

static banyan_status destroy(job_rank *r)
{
    banyan_comm *comm = things_of(r)->comm;
    things_of(r)->comm = NULL;
    return banyan_comm_destroy(comm);
}

static banyan_status allreduce(job_rank *r)
{
    fill(r);
    return banyan_comm_allreduce(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, BANYAN_SUM,
                                 NULL);
}

static banyan_status allgather(job_rank *r)
{
    fill(r);
    return banyan_comm_allgather(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, NULL);
}

static void check_gathered(job_rank *r)
{
    for (int i = 0; i < r->count * ELEMS; i++)
        CHECK(output[i] == (float)(i / ELEMS + 1 + i % ELEMS % 100), "%d is %g", i,
              (double)output[i]);
}

static banyan_status reducescatter(job_rank *r)
{
    fill(r);
    return banyan_comm_reducescatter(things_of(r)->comm, input, output, ELEMS, BANYAN_F32,
                                     BANYAN_SUM, NULL);
}

static void check_scattered(job_rank *r)
{
    for (int i = 0; i < ELEMS; i++)
        CHECK(output[i] == sum_at(r, r->rank * ELEMS + i), "%d is %g", i, (double)output[i]);
}

static banyan_status scale(job_rank *r)
{
    fill(r);
    return banyan_comm_allreduce_scaled(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, 1,
                                        NULL);
}

static banyan_status scatter_scaled(job_rank *r)
{
    fill(r);
    return banyan_comm_reducescatter_scaled(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, 1,
                                            NULL);
}

static banyan_status alltoall(job_rank *r)
{
    fill(r);
    return banyan_comm_alltoall(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, NULL);
}

static void check_exchanged(job_rank *r)
{
    for (int i = 0; i < r->count * ELEMS; i++)
        CHECK(output[i] == (float)(i / ELEMS + 1 + (r->rank * ELEMS + i % ELEMS) % 100), "%d is %g",
              i, (double)output[i]);
}

static banyan_status broadcast(job_rank *r)
{
    fill(r);
    return banyan_comm_broadcast(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, 1, NULL);
}

static banyan_status reduce(job_rank *r)
{
    fill(r);
    return banyan_comm_reduce(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, BANYAN_SUM, 1,
                              NULL);
}

static banyan_status reduce_scaled(job_rank *r)
{
    fill(r);
    return banyan_comm_reduce_scaled(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, 1, 1,
                                     NULL);
}

static void check_reduced(job_rank *r)
{
    if (r->rank == 1)
        check_sums(r);
}

static banyan_status sendrecv(job_rank *r)
{
    fill(r);
    return banyan_comm_sendrecv(things_of(r)->comm, input, output, ELEMS, BANYAN_F32, 1, NULL);
}

static void have_memory(job_rank *r)
{
    have_comm(r);
    CHECK_OK(banyan_memory_alloc(r->world, 2 * ELEMS * sizeof(float), &things_of(r)->memory));
    float *mine = banyan_memory_local(things_of(r)->memory);
    fill(r);
    memcpy(mine, input, ELEMS * sizeof(float));
}

static banyan_status register_memory(job_rank *r)
{
    return banyan_comm_register(things_of(r)->comm, things_of(r)->memory);
}

static void unregister_memory(job_rank *r)
{
    CHECK_OK(banyan_comm_unregister(things_of(r)->comm, things_of(r)->memory));
}

static void have_registered(job_rank *r)
{
    have_memory(r);
    CHECK_OK(register_memory(r));
}

static banyan_status end_registration(job_rank *r)
{
    return banyan_comm_unregister(things_of(r)->comm, things_of(r)->memory);
}

static void register_again(job_rank *r)
{
    CHECK_OK(register_memory(r));
}

static banyan_status allreduce_registered(job_rank *r)
{
    float *mine = banyan_memory_local(things_of(r)->memory);
    return banyan_comm_allreduce(things_of(r)->comm, mine, mine + ELEMS, ELEMS, BANYAN_F32,
                                 BANYAN_SUM, NULL);
}

static void have_plan(job_rank *r)
{
    compile(r);
    have_comm(r);
}

static banyan_status add_plan(job_rank *r)
{
    return banyan_comm_add_plan(things_of(r)->comm, things_of(r)->plan);
}

static banyan_status tune(job_rank *r)
{
    banyan_tune_options options = BANYAN_TUNE_OPTIONS_INIT;
    options.min_bytes = 1024;
    options.max_bytes = 1024;
    options.seconds = 0.02;
    options.kind = BANYAN_ALLREDUCE;
    return banyan_comm_tune(things_of(r)->comm, &options);
}

static banyan_status save_tuning(job_rank *r)
{
    char path[320];
    snprintf(path, sizeof path, "%s/table", r->folder);
    return banyan_comm_save_tuning(things_of(r)->comm, path);
}

static banyan_status reset_comm(job_rank *r)
{
    return banyan_comm_reset(things_of(r)->comm);
}

#define REST .finish = finish
static const job_case cases[] = {
    {"executor_open", NULL, open_executor, close_executor, REST},
    {"executor_open_workers", NULL, open_with_workers, close_executor, REST},
    {"plan_load", have_executor, load, unload, REST},
    {"plan_run", have_loaded, run_plan, check_sums, REST},
    {"plan_time", have_loaded, time_plan, check_sums, REST},
    {"plan_start", have_loaded, start_plan, check_sums, REST},
    {"plan_reset", have_loaded, reset_plan, REST},
    {"plan_unload", have_loaded, unload_plan, REST, .only_once = true},
    {"trace_write", have_trace, write_trace, REST, .only_once = true},
    {"comm_create", NULL, create_comm, destroy_comm, REST},
    {"comm_destroy", have_comm, destroy, REST, .only_once = true},
    {"comm_register", have_memory, register_memory, unregister_memory, REST},
    {"comm_unregister", have_registered, end_registration, register_again, REST},
    {"comm_add_plan", have_plan, add_plan, REST, .only_once = true},
    {"comm_tune", have_comm, tune, REST, .only_once = true},
    {"comm_save_tuning", have_comm, save_tuning, REST},
    {"comm_reset", have_comm, reset_comm, REST},
    {"allreduce", have_comm, allreduce, check_sums, REST},
    {"allreduce_registered", have_registered, allreduce_registered, REST},
    {"allgather", have_comm, allgather, check_gathered, REST},
    {"reducescatter", have_comm, reducescatter, check_scattered, REST},
    {"alltoall", have_comm, alltoall, check_exchanged, REST},
    {"broadcast", have_comm, broadcast, REST},
    {"reduce", have_comm, reduce, check_reduced, REST},
    {"allreduce_scaled", have_comm, scale, check_sums, REST},
    {"reducescatter_scaled", have_comm, scatter_scaled, check_scattered, REST},
    {"reduce_scaled", have_comm, reduce_scaled, check_reduced, REST},
    {"sendrecv", have_comm, sendrecv, REST},
};

int main(void)
{
    return job_main(cases, sizeof cases / sizeof *cases, 12);
}
