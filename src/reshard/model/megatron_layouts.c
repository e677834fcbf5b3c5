#include "reshard/model/megatron_layouts.h"

banyan_status case_add_layout(const banyan_megatron_case *loaded, int rank, banyan_side side,
                              banyan_layout *layout)
{
    size_t count;
    const banyan_megatron_tensor *held = banyan_megatron_case_tensors(loaded, rank, side, &count);
    for (size_t i = 0; i < count; i++)
        banyan_layout_add_megatron(layout, &held[i], rank, 0);
    return banyan_layout_check_as(layout, side);
}
