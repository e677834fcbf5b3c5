/* Jobs that run mixed collectives. */
#include "mixed/mixed_check.h"
#include "soak/job.h"

static mixed_one any_call(job *of, const mixed_case *c)
{
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t op_count, mode_count;
    CHECK_OK(banyan_mixed_valid_ops(c->mixed, ops, BANYAN_MIXED_OPS, &op_count));
    mixed_one call = {.kind = DATA_WHOLE};
    call.op = ops[random_between(&of->random, 0, (int64_t)op_count - 1)];
    CHECK_OK(banyan_mixed_valid_modes(c->mixed, call.op, modes, BANYAN_MIXED_MODES, &mode_count));
    call.mode = modes[random_between(&of->random, 0, (int64_t)mode_count - 1)];
    call.rows = (uint64_t)random_between(&of->random, 1, 16);
    call.row_elems = (uint64_t)random_between(&of->random, 1, 64);
    return call;
}

banyan_status job_mixed(job *of)
{
    enum { MOST_ELEMS = 16 * 64 };
    static const DLDataType types[] = {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}};
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    mixed_case c = {.world = of->world};
    int ranks = banyan_world_size(of->world);
    bool more = true;
    do {
        options.local_dp = (int)random_between(&of->random, 1, ranks);
    } while (ranks % options.local_dp != 0);
    options.local_tp = ranks / options.local_dp;
    options.use_autotune = false;
    c.dtype = options.dtype = types[random_between(&of->random, 0, 2)];
    banyan_status status = banyan_mixed_open(of->world, &options, &c.mixed);
    if (status != BANYAN_OK)
        return status;
    c.grid = banyan_mixed_describe(c.mixed);
    c.room = MOST_ELEMS * (uint64_t)c.grid.dp * banyan_dtype_bytes(c.dtype) + 2 * GUARD;
    c.input = case_alloc(&c);
    c.output = case_alloc(&c);
    while (status == BANYAN_OK && more) {
        mixed_one call = any_call(of, &c);
        case_fill(&c, &call);
        status = case_call(&c, &call);
        if (status == BANYAN_OK) {
            case_check(&c, &call);
            status = job_next(of, &more);
        }
    }
    banyan_status ended = banyan_mixed_close(c.mixed);
    case_release(&c, c.input);
    case_release(&c, c.output);
    return status != BANYAN_OK ? status : ended;
}
