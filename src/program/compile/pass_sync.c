#include "program/compile/pass.h"

banyan_status pass_sync(const ops_place *place, plan_op **ops, uint32_t *count)
{
    return ops_place_sync(place, ops, count);
}
