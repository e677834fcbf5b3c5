#include "execute/collective_check.h"
#include "ucx/network/work.h"

#define HELD 2
#define ELEMS 3001

struct held {
    collective_case c;
    case_buffers buffers;
    banyan_plan *plan;
    banyan_loaded_plan *loaded;
};

struct plans {
    banyan_world *world;
    banyan_executor *executor;
    struct held held[HELD];
};

/* The first puts into scratch; the second puts into its peers' output. */
static const char *const algorithms[HELD] = {"allreduce_hierarchical", "alltoall_ports"};

static void held_open(struct held *h, struct plans *p, const char *algorithm)
{
    banyan_algorithm_params params = BANYAN_ALGORITHM_PARAMS_INIT;
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    params.ranks = banyan_world_size(p->world);
    params.ranks_per_node = WORK_NODE_RANKS;
    CHECK_OK(banyan_algorithm_compile(algorithm, &params, &h->plan));
    h->c =
        (collective_case){.plan = h->plan, .dtype = BANYAN_F32, .symmetric = true, .apart = true};
    h->c.message_bytes = sizeof(float) * ELEMS * (uint64_t)params.ranks;
    h->buffers = case_take(&h->c, p->world);
    options.max_message_bytes = h->c.message_bytes;
    options.input = options.output = h->buffers.memory;
    CHECK_OK(banyan_loaded_plan_open(p->executor, h->plan, &options, &h->loaded));
}

static void *plans_open(banyan_world *world, const char *backend)
{
    struct plans *p = calloc(1, sizeof *p);
    (void)backend;
    CHECK(p != NULL);
    p->world = world;
    CHECK_OK(banyan_executor_open(world, NULL, &p->executor));
    for (int i = 0; i < HELD; i++)
        held_open(&p->held[i], p, algorithms[i]);
    return p;
}

static banyan_status plans_step(void *state, int number)
{
    struct plans *p = state;
    struct held *h = &p->held[number % HELD];
    int rank = banyan_world_rank(p->world);
    case_fill(&h->c, &h->buffers, rank, number);
    RETURN_IF_FAILED(banyan_loaded_plan_run(h->loaded, h->buffers.input, h->buffers.output,
                                            h->c.message_bytes, h->c.dtype, NULL));
    case_check(&h->c, &h->buffers, rank, number);
    return BANYAN_OK;
}

/* A failed plan stays failed, and so do others of its world. */
static void plans_close(void *state, banyan_status status)
{
    struct plans *p = state;
    for (int i = 0; i < HELD; i++) {
        struct held *h = &p->held[i];
        CHECK(banyan_loaded_plan_status(h->loaded) == status);
        CHECK(status == BANYAN_OK || plans_step(p, i) == status, "%s", banyan_last_error());
    }
    for (int i = 0; i < HELD; i++) {
        CHECK(banyan_loaded_plan_close(p->held[i].loaded) == status, "%s", banyan_last_error());
        banyan_plan_destroy(p->held[i].plan);
    }
    banyan_executor_close(p->executor);
    for (int i = 0; i < HELD; i++)
        case_give_back(&p->held[i].c, &p->held[i].buffers);
    free(p);
}

const work work_plans = {"plans", plans_open, plans_step, plans_close, NULL};
