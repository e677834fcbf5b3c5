#include "mixed/mixed_check.h"
#include "ucx/network/work.h"

#define ELEMS_MOST 3000

/* Both groups of a rank have ranks of other nodes. */
static void *mixed_open(banyan_world *world, const char *backend)
{
    int nodes = banyan_world_size(world) / WORK_NODE_RANKS, inter_dp = nodes % 2 ? nodes : 2;
    grid_sizes sizes = {nodes, WORK_NODE_RANKS, 1, nodes / inter_dp, inter_dp};
    banyan_mixed_options options = options_of(&sizes, BANYAN_BF16);
    mixed_case *c = calloc(1, sizeof *c);
    (void)backend;
    CHECK(c != NULL);
    c->world = world;
    case_open(c, &options, ELEMS_MOST);
    return c;
}

/* Both operations in both modes, in turn; every second pair is long. */
static banyan_status mixed_step(void *state, int number)
{
    static const banyan_mixed_mode modes[] = {BANYAN_MIXED_SINGLE, BANYAN_MIXED_SEPARATE};
    static const banyan_mixed_op ops[] = {BANYAN_MIXED_ALLREDUCE_ALLGATHER,
                                          BANYAN_MIXED_REDUCESCATTER_ALLREDUCE};
    mixed_case *c = state;
    mixed_one call = {ops[number % 2],
                      modes[number / 2 % 2],
                      DATA_WHOLE,
                      3,
                      number / 4 % 2 ? ELEMS_MOST / 3 : number % 9 + 1,
                      false};
    case_fill(c, &call);
    RETURN_IF_FAILED(case_call(c, &call));
    case_check(c, &call);
    return BANYAN_OK;
}

/* A failed context stays failed. */
static void mixed_close(void *state, banyan_status status)
{
    mixed_case *c = state;
    CHECK(banyan_mixed_status(c->mixed) == status);
    if (status != BANYAN_OK) {
        CHECK(mixed_step(c, 0) == status, "%s", banyan_last_error());
        CHECK(banyan_mixed_close(c->mixed) == status, "%s", banyan_last_error());
        case_free(c);
    } else {
        case_close(c);
    }
    free(c);
}

const work work_mixed = {"mixed", mixed_open, mixed_step, mixed_close, NULL};
