#include "mixed/modes.h"

#include <string.h>

#include "core/error.h"

static const char *const op_names[BANYAN_MIXED_OPS] = {
    [BANYAN_MIXED_ALLREDUCE] = "allreduce",
    [BANYAN_MIXED_ALLGATHER] = "allgather",
    [BANYAN_MIXED_REDUCESCATTER] = "reducescatter",
    [BANYAN_MIXED_ALLREDUCE_ALLGATHER] = "allreduce_allgather",
    [BANYAN_MIXED_REDUCESCATTER_ALLREDUCE] = "reducescatter_allreduce",
};

static const char *const mode_names[BANYAN_MIXED_MODES] = {
    [BANYAN_MIXED_AUTO] = "auto",
    [BANYAN_MIXED_FEWEST_WAITS] = "fewest_waits",
    [BANYAN_MIXED_FEWEST_LOCAL_BYTES] = "fewest_local_bytes",
    [BANYAN_MIXED_FEWEST_BYTES] = "fewest_bytes",
    [BANYAN_MIXED_FEWEST_WAITS_MULTICAST] = "fewest_waits_multicast",
    [BANYAN_MIXED_FEWEST_LOCAL_BYTES_MULTICAST] = "fewest_local_bytes_multicast",
    [BANYAN_MIXED_FEWEST_BYTES_MULTICAST] = "fewest_bytes_multicast",
    [BANYAN_MIXED_WORLD] = "world",
    [BANYAN_MIXED_TWO] = "two",
    [BANYAN_MIXED_WORLD_NCCL] = "world_nccl",
    [BANYAN_MIXED_TWO_NCCL] = "two_nccl",
};

const char *banyan_mixed_op_name(banyan_mixed_op op)
{
    return (unsigned)op < BANYAN_MIXED_OPS ? op_names[op] : "?";
}

const char *banyan_mixed_mode_name(banyan_mixed_mode mode)
{
    return (unsigned)mode < BANYAN_MIXED_MODES ? mode_names[mode] : "?";
}

static int find(const char *name, const char *const *names, int count)
{
    int i = 0;
    while (i < count && (!name || strcmp(names[i], name) != 0))
        i++;
    return i;
}

banyan_status banyan_mixed_op_parse(const char *name, banyan_mixed_op *op)
{
    int found = find(name, op_names, BANYAN_MIXED_OPS);
    if (found == BANYAN_MIXED_OPS)
        return error_set(BANYAN_ERR_NOT_FOUND, "there is no mixed collective \"%s\"",
                         name ? name : "");
    *op = (banyan_mixed_op)found;
    return BANYAN_OK;
}

banyan_status banyan_mixed_mode_parse(const char *name, banyan_mixed_mode *mode)
{
    int found = find(name, mode_names, BANYAN_MIXED_MODES);
    if (found == BANYAN_MIXED_MODES)
        return error_set(BANYAN_ERR_NOT_FOUND, "mixed collectives have no mode \"%s\"",
                         name ? name : "");
    *mode = (banyan_mixed_mode)found;
    return BANYAN_OK;
}

bool mode_is_fused(banyan_mixed_mode mode)
{
    return mode >= BANYAN_MIXED_FEWEST_WAITS && mode <= BANYAN_MIXED_FEWEST_BYTES_MULTICAST;
}
