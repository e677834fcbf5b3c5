#include "reshard/transform/object.h"

uint64_t transform_wire_bytes(const banyan_transform *transform, const banyan_transfer *transfer)
{
    if (transfer->value_map || !transform ||
        !transform->should_transform(transform->context, transfer))
        return transfer->bytes;
    if (transform_is_mxfp8(transform))
        return mxfp8_wire_bytes(transform, transfer);
    return transform_is_cast(transform) ? cast_wire_bytes(transform, transfer) : transfer->bytes;
}
