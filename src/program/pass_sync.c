#include "program/ops.h"
#include "program/pass.h"

banyan_status pass_sync(const banyan_plan *plan, banyan_plan **made)
{
    return ops_rewrite_all(plan, ops_place_sync, made);
}
