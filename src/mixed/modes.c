#include "mixed/modes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "mixed/grid.h"

static const char *const op_names[BANYAN_MIXED_OPS] = {
    [BANYAN_MIXED_ALLREDUCE] = "allreduce",
    [BANYAN_MIXED_ALLGATHER] = "allgather",
    [BANYAN_MIXED_REDUCESCATTER] = "reducescatter",
    [BANYAN_MIXED_ALLREDUCE_ALLGATHER] = "allreduce_allgather",
    [BANYAN_MIXED_REDUCESCATTER_ALLREDUCE] = "reducescatter_allreduce",
};

static const char *const mode_names[BANYAN_MIXED_MODES] = {
    [BANYAN_MIXED_AUTO] = "auto",
    [BANYAN_MIXED_ONE_SHOT] = "one_shot",
    [BANYAN_MIXED_TWO_SHOT] = "two_shot",
    [BANYAN_MIXED_TWO_SHOT_NODES] = "two_shot_nodes",
    [BANYAN_MIXED_ONE_SHOT_MULTICAST] = "one_shot_multicast",
    [BANYAN_MIXED_TWO_SHOT_MULTICAST] = "two_shot_multicast",
    [BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST] = "two_shot_nodes_multicast",
    [BANYAN_MIXED_SINGLE] = "single",
    [BANYAN_MIXED_SEPARATE] = "separate",
    [BANYAN_MIXED_SINGLE_NCCL] = "single_nccl",
    [BANYAN_MIXED_SEPARATE_NCCL] = "separate_nccl",
};

/* Names of earlier releases, which saved tables may contain. */
static const struct {
    const char *name;
    banyan_mixed_mode mode;
} old_mode_names[] = {
    {"fewest_waits", BANYAN_MIXED_ONE_SHOT},
    {"fewest_local_bytes", BANYAN_MIXED_TWO_SHOT},
    {"fewest_bytes", BANYAN_MIXED_TWO_SHOT_NODES},
    {"fewest_waits_multicast", BANYAN_MIXED_ONE_SHOT_MULTICAST},
    {"fewest_local_bytes_multicast", BANYAN_MIXED_TWO_SHOT_MULTICAST},
    {"fewest_bytes_multicast", BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST},
    {"world", BANYAN_MIXED_SINGLE},
    {"two", BANYAN_MIXED_SEPARATE},
    {"world_nccl", BANYAN_MIXED_SINGLE_NCCL},
    {"two_nccl", BANYAN_MIXED_SEPARATE_NCCL},
};

const char *banyan_mixed_op_name(banyan_mixed_op op)
{
    return (unsigned)op < BANYAN_MIXED_OPS ? op_names[op] : "?";
}

const char *banyan_mixed_mode_name(banyan_mixed_mode mode)
{
    return (unsigned)mode < BANYAN_MIXED_MODES ? mode_names[mode] : "?";
}

static int modes_find(const char *name, const char *const *names, int count)
{
    int i = 0;
    while (i < count && (!name || strcmp(names[i], name) != 0))
        i++;
    return i;
}

#define NAMES_BYTES 512

static void list_names(const char *const *names, int count, char *list)
{
    size_t length = 0;
    for (int i = 0; i < count && length < NAMES_BYTES; i++)
        length +=
            (size_t)snprintf(list + length, NAMES_BYTES - length, "%s%s", i ? ", " : "", names[i]);
}

static banyan_status refuse_name(const char *what, const char *name, const char *const *names,
                                 int count)
{
    char list[NAMES_BYTES];
    list_names(names, count, list);
    return error_set(BANYAN_ERR_NOT_FOUND, "%s \"%s\"; there are %s", what, name ? name : "", list);
}

banyan_status banyan_mixed_op_parse(const char *name, banyan_mixed_op *op)
{
    int found = modes_find(name, op_names, BANYAN_MIXED_OPS);
    if (found == BANYAN_MIXED_OPS)
        return refuse_name("there is no mixed collective", name, op_names, BANYAN_MIXED_OPS);
    RETURN_IF_NULL(op);
    *op = (banyan_mixed_op)found;
    return BANYAN_OK;
}

banyan_status banyan_mixed_mode_parse(const char *name, banyan_mixed_mode *mode)
{
    int found = modes_find(name, mode_names, BANYAN_MIXED_MODES);
    for (size_t i = 0; name && i < sizeof old_mode_names / sizeof old_mode_names[0]; i++) {
        if (strcmp(name, old_mode_names[i].name) == 0)
            found = (int)old_mode_names[i].mode;
    }
    if (found == BANYAN_MIXED_MODES)
        return refuse_name("mixed collectives have no mode", name, mode_names, BANYAN_MIXED_MODES);
    RETURN_IF_NULL(mode);
    *mode = (banyan_mixed_mode)found;
    return BANYAN_OK;
}

bool mode_is_fused(banyan_mixed_mode mode)
{
    return mode >= BANYAN_MIXED_ONE_SHOT && mode <= BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST;
}

bool mode_is_nccl(banyan_mixed_mode mode)
{
    return mode == BANYAN_MIXED_SINGLE_NCCL || mode == BANYAN_MIXED_SEPARATE_NCCL;
}

bool mode_is_separate(banyan_mixed_mode mode)
{
    return mode == BANYAN_MIXED_SEPARATE || mode == BANYAN_MIXED_SEPARATE_NCCL;
}

bool op_is_pair(banyan_mixed_op op)
{
    return op == BANYAN_MIXED_ALLREDUCE_ALLGATHER || op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE;
}

typedef struct why {
    char *text;
    size_t bytes;
} why;

static bool modes_refuse(const why *reason, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool modes_refuse(const why *reason, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason->text, reason->bytes, format, arguments);
    va_end(arguments);
    return false;
}

static bool fused_is_valid(const banyan_mixed *mixed, banyan_mixed_op op, banyan_mixed_mode mode,
                           const why *reason)
{
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    bool local = mode == BANYAN_MIXED_TWO_SHOT || mode == BANYAN_MIXED_TWO_SHOT_MULTICAST;
    bool all = mode == BANYAN_MIXED_TWO_SHOT_NODES || mode == BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST;
    if (local && grid->local_tp == 1)
        return modes_refuse(reason, "local_tp is 1");
    if (all && grid->inter_tp == 1)
        return modes_refuse(reason, "inter_tp is 1");
    if (mixed->is_suspended)
        return modes_refuse(reason, "they are suspended");
    if (!mixed->has_memory)
        return modes_refuse(reason, "banyan_mixed_init_virtual_memory has not been called");
    return mixed->ops->has(mixed->engine, op, mode, reason->text, reason->bytes);
}

static bool modes_has_comms(const banyan_mixed *mixed, banyan_mixed_mode mode)
{
    return mode_is_separate(mode) ? mixed->has_comms[MIXED_TP] && mixed->has_comms[MIXED_DP]
                                  : mixed->has_comms[MIXED_WORLD];
}

static bool collective_is_valid(const banyan_mixed *mixed, banyan_mixed_op op,
                                banyan_mixed_mode mode, const why *reason)
{
    if (mode_is_separate(mode) && !op_is_pair(op))
        return modes_refuse(reason, "it is a single collective");
    if (mixed->is_suspended)
        return modes_refuse(reason, "they are suspended");
    if (!mode_is_nccl(mode) && !modes_has_comms(mixed, mode))
        return modes_refuse(reason,
                            "communicators of GPUs are of one machine, and its ranks are on %d",
                            banyan_world_node_count(mixed->world));
    if (mode_is_nccl(mode) && !mixed->has_nccl)
        return modes_refuse(reason, "%s", mixed->nccl_lacks);
    return true;
}

bool mode_is_valid(const banyan_mixed *mixed, banyan_mixed_op op, banyan_mixed_mode mode,
                   char *reason, size_t reason_bytes)
{
    why answer = {reason, reason_bytes};
    reason[0] = '\0';
    if (!grid_allows(&mixed->setup.grid, op))
        return modes_refuse(&answer, "tp is %d and dp is %d", mixed->setup.grid.tp,
                            mixed->setup.grid.dp);
    if (mode_is_fused(mode))
        return fused_is_valid(mixed, op, mode, &answer);
    if (mode > BANYAN_MIXED_AUTO && mode < BANYAN_MIXED_MODES)
        return collective_is_valid(mixed, op, mode, &answer);
    return modes_refuse(&answer, "there is no such mode");
}

banyan_status banyan_mixed_valid_ops(const banyan_mixed *mixed, banyan_mixed_op *ops, size_t room,
                                     size_t *count)
{
    size_t found = 0;
    RETURN_IF_NULL(mixed);
    RETURN_IF_NULL(count);
    if (room > 0)
        RETURN_IF_NULL(ops);
    for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
        if (!grid_allows(&mixed->setup.grid, (banyan_mixed_op)op))
            continue;
        if (found < room)
            ops[found] = (banyan_mixed_op)op;
        found++;
    }
    *count = found;
    return BANYAN_OK;
}

banyan_status banyan_mixed_valid_modes(const banyan_mixed *mixed, banyan_mixed_op op,
                                       banyan_mixed_mode *modes, size_t room, size_t *count)
{
    char reason[MODE_REASON_BYTES];
    size_t found = 0;
    RETURN_IF_NULL(mixed);
    RETURN_IF_NULL(count);
    if (room > 0)
        RETURN_IF_NULL(modes);
    RETURN_IF_FAILED(op_check(mixed, op));
    for (int mode = BANYAN_MIXED_AUTO + 1; mode < BANYAN_MIXED_MODES; mode++) {
        if (!mode_is_valid(mixed, op, (banyan_mixed_mode)mode, reason, sizeof reason))
            continue;
        if (found < room)
            modes[found] = (banyan_mixed_mode)mode;
        found++;
    }
    *count = found;
    return BANYAN_OK;
}

static banyan_status refuse_op(const banyan_mixed *mixed, banyan_mixed_op op)
{
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    const char *allowed[BANYAN_MIXED_OPS];
    char list[NAMES_BYTES];
    int count = 0;
    for (int i = 0; i < BANYAN_MIXED_OPS; i++) {
        if (grid_allows(grid, (banyan_mixed_op)i))
            allowed[count++] = op_names[i];
    }
    list_names(allowed, count, list);
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: a grid of tp %d × dp %d does not allow %s, but %s", mixed->rank,
                     grid->tp, grid->dp, banyan_mixed_op_name(op), list);
}

banyan_status op_check(const banyan_mixed *mixed, banyan_mixed_op op)
{
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    if ((unsigned)op >= BANYAN_MIXED_OPS)
        return error_set(BANYAN_ERR_INVALID, "rank %d: there is no mixed collective %d",
                         mixed->rank, (int)op);
    return grid_allows(grid, op) ? BANYAN_OK : refuse_op(mixed, op);
}

banyan_status mixed_check_awake(const banyan_mixed *mixed)
{
    if (!mixed->is_suspended)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: the mixed collectives are suspended: call banyan_mixed_resume first",
                     mixed->rank);
}

banyan_status mode_check(const banyan_mixed *mixed, banyan_mixed_op op, banyan_mixed_mode mode)
{
    char reason[MODE_REASON_BYTES];
    if (mode_is_valid(mixed, op, mode, reason, sizeof reason))
        return BANYAN_OK;
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: %s cannot run as %s (mode %d) in a grid of tp %d × %d, dp %d × %d "
                     "(inside × between nodes): %s",
                     mixed->rank, banyan_mixed_op_name(op), banyan_mixed_mode_name(mode), (int)mode,
                     grid->local_tp, grid->inter_tp, grid->local_dp, grid->inter_dp, reason);
}

/* Up to this many bytes of b rows, one wait costs more than the additional bytes. */
#define HOST_SHORT (UINT64_C(16) << 10)
#define GPU_SHORT (UINT64_C(128) << 10)

banyan_mixed_mode mode_default(const banyan_mixed *mixed, banyan_mixed_op op, uint64_t bytes)
{
    static const banyan_mixed_mode brief[] = {BANYAN_MIXED_ONE_SHOT, BANYAN_MIXED_SEPARATE,
                                              BANYAN_MIXED_SINGLE, BANYAN_MIXED_SEPARATE_NCCL,
                                              BANYAN_MIXED_SINGLE_NCCL};
    static const banyan_mixed_mode lengthy[] = {
        BANYAN_MIXED_TWO_SHOT_NODES, BANYAN_MIXED_TWO_SHOT, BANYAN_MIXED_SEPARATE,
        BANYAN_MIXED_ONE_SHOT,       BANYAN_MIXED_SINGLE,   BANYAN_MIXED_SEPARATE_NCCL,
        BANYAN_MIXED_SINGLE_NCCL};
    char reason[MODE_REASON_BYTES];
    bool is_short = bytes <= (mixed_is_host(mixed) ? HOST_SHORT : GPU_SHORT);
    const banyan_mixed_mode *wanted = is_short ? brief : lengthy;
    size_t count = is_short ? sizeof brief / sizeof *brief : sizeof lengthy / sizeof *lengthy;
    for (size_t i = 0; i < count; i++) {
        if (mode_is_valid(mixed, op, wanted[i], reason, sizeof reason))
            return wanted[i];
    }
    return BANYAN_MIXED_ONE_SHOT;
}
