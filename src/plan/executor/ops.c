/* Lists of operations under construction. */
#include "plan/executor/mscclpp.h"

banyan_status mscclpp_ops_store(banyan_plan *plan, mscclpp_ops *made, plan_op **ops,
                                uint32_t *count)
{
    plan_op *taken = plan_take(plan, made->count, sizeof *taken);
    if (taken) {
        for (size_t i = 0; i < made->count; i++)
            taken[i] = made->data[i];
        *ops = taken;
        *count = (uint32_t)made->count;
    }
    array_free(made);
    return taken ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}
