/* Jobs that run collectives: by a communicator, and by their own plans. */
#include "execute/collective_check.h"
#include "soak/job.h"

#include <banyan/collective.h>

static banyan_status call(banyan_comm *comm, const collective_case *c, const case_buffers *b,
                          const banyan_plan_info *info)
{
    size_t elem = banyan_dtype_bytes(c->dtype), count = (size_t)(c->message_bytes / elem);
    size_t block = count / (size_t)info->ranks;
    switch (info->collective) {
    case BANYAN_ALLREDUCE:
        return banyan_comm_allreduce(comm, b->input, b->output, count, c->dtype, c->op, NULL);
    case BANYAN_ALLGATHER:
        return banyan_comm_allgather(comm, b->input, b->output, count, c->dtype, NULL);
    case BANYAN_REDUCESCATTER:
        return banyan_comm_reducescatter(comm, b->input, b->output, block, c->dtype, c->op, NULL);
    case BANYAN_ALLTOALL:
        return banyan_comm_alltoall(comm, b->input, b->output, block, c->dtype, NULL);
    case BANYAN_BROADCAST:
        return banyan_comm_broadcast(comm, b->input, b->output, count, c->dtype, info->root, NULL);
    case BANYAN_REDUCE:
        return banyan_comm_reduce(comm, b->input, b->output, count, c->dtype, c->op, info->root,
                                  NULL);
    default:
        return banyan_comm_sendrecv(comm, b->input, b->output, count, c->dtype, info->shift, NULL);
    }
}

/* Return a built-in algorithm that supports this number of ranks. */
static banyan_plan *any_plan(job *of, int ranks, bool in_place)
{
    for (;;) {
        banyan_algorithm_info info;
        banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
        banyan_plan *plan;
        if (banyan_algorithm_at((size_t)random_between(&of->random, 0, 63), &info) != BANYAN_OK)
            continue;
        params.ranks = ranks;
        params.in_place = in_place;
        params.root = (int)random_between(&of->random, 0, ranks - 1);
        params.shift = 1;
        if (banyan_algorithm_compile(info.name, &params, &plan) == BANYAN_OK)
            return plan;
    }
}

static collective_case any_case(job *of, const banyan_plan *plan, uint64_t most)
{
    banyan_plan_info info = banyan_plan_describe(plan);
    collective_case c = {.plan = plan, .apart = !info.in_place};
    c.dtype = dtypes[random_between(&of->random, 0, DTYPES - 1)];
    uint64_t unit = banyan_dtype_bytes(c.dtype) * info.message_parts;
    c.message_bytes = unit * (uint64_t)random_between(&of->random, 1, (int64_t)(most / unit + 1));
    return c;
}

banyan_status job_collectives(job *of)
{
    banyan_comm *comm = NULL;
    int ranks = banyan_world_size(of->world), rank = banyan_world_rank(of->world);
    bool more = true;
    banyan_status status = banyan_comm_create(of->world, NULL, &comm);
    while (status == BANYAN_OK && more) {
        banyan_plan *plan = any_plan(of, ranks, random_next(&of->random) % 2);
        collective_case c = any_case(of, plan, random_next(&of->random) % 8 ? 4096 : 1 << 20);
        banyan_plan_info info = banyan_plan_describe(plan);
        case_buffers b = case_take(&c, of->world);
        case_fill(&c, &b, rank, of->rounds);
        status = call(comm, &c, &b, &info);
        if (status == BANYAN_OK)
            case_check(&c, &b, rank, of->rounds);
        case_give_back(&c, &b);
        banyan_plan_destroy(plan);
        if (status == BANYAN_OK)
            status = job_next(of, &more);
    }
    banyan_status ended = banyan_comm_destroy(comm);
    return status != BANYAN_OK ? status : ended;
}

static banyan_status run_plan(job *of, banyan_executor *executor, const banyan_plan *plan)
{
    int rank = banyan_world_rank(of->world);
    collective_case c = any_case(of, plan, 65536);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    banyan_loaded_plan *loaded = NULL;
    options.max_message_bytes = c.message_bytes;
    banyan_status status = banyan_loaded_plan_open(executor, plan, &options, &loaded);
    case_buffers b = case_take(&c, of->world);
    for (int run = 0; run < 4 && status == BANYAN_OK; run++) {
        case_fill(&c, &b, rank, run);
        status = banyan_loaded_plan_run(loaded, b.input, b.output, c.message_bytes, c.dtype, NULL);
        if (status == BANYAN_OK)
            case_check(&c, &b, rank, run);
    }
    case_give_back(&c, &b);
    banyan_status ended = banyan_loaded_plan_close(loaded);
    return status != BANYAN_OK ? status : ended;
}

banyan_status job_plans(job *of)
{
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor = NULL;
    bool more = true;
    options.workers = (int)random_between(&of->random, 1, 3);
    banyan_status status = banyan_executor_open(of->world, &options, &executor);
    while (status == BANYAN_OK && more) {
        banyan_plan *plan =
            any_plan(of, banyan_world_size(of->world), random_next(&of->random) % 2);
        status = run_plan(of, executor, plan);
        banyan_plan_destroy(plan);
        if (status == BANYAN_OK)
            status = job_next(of, &more);
    }
    banyan_executor_close(executor);
    return status;
}
