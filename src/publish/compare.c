#include "publish/compare.h"

#include <stdlib.h>

#include "publish/delta/changes.h"
#include "publish/parallel.h"

/* Elements that one thread compares at a time: a multiple of CHANGES_BITS. */
#define RANGE_ELEMS ((uint64_t)1 << 18)

struct compare_range {
    struct delta_compare *tensor;
    uint64_t first, count, changed;
};

static void compare_range_of(void *context, int worker, size_t i)
{
    struct compare_range *range = (struct compare_range *)context + i;
    const struct delta_compare *tensor = range->tensor;
    (void)worker;
    range->changed =
        changes_find_some(&tensor->live, tensor->kept, tensor->map, range->first, range->count);
}

banyan_status compare_on_host(struct delta_compare *tensors, size_t count)
{
    ARRAY(struct compare_range) ranges = {0};
    bool fits = true;
    for (size_t i = 0; i < count; i++) {
        uint64_t elems = tensors[i].live.elems;
        for (uint64_t at = 0; at < elems && fits; at += RANGE_ELEMS)
            fits = array_push(&ranges, (struct compare_range){.tensor = &tensors[i],
                                                              .first = at,
                                                              .count = elems - at < RANGE_ELEMS
                                                                           ? elems - at
                                                                           : RANGE_ELEMS});
    }
    if (fits)
        parallel_run(ranges.count, compare_range_of, ranges.data);
    for (size_t i = 0; i < ranges.count; i++)
        ranges.data[i].tensor->changed += ranges.data[i].changed;
    array_free(&ranges);
    return fits ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}
