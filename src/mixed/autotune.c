#include "core/error.h"
#include "mixed/modes.h"

banyan_status banyan_mixed_select_autotune_mode(const banyan_mixed *mixed, banyan_mixed_op op,
                                                uint64_t bytes, banyan_mixed_mode *mode)
{
    RETURN_IF_FAILED(op_check(mixed, op));
    *mode = mode_default(mixed, op, bytes);
    return BANYAN_OK;
}
