#include "mixed/through_collectives.h"

#include <stdio.h>
#include <string.h>

#include "collective/comm.h"
#include "core/error.h"
#include "core/log.h"
#include "mixed/grid.h"
#include "mixed/memory.h"
#include "mixed/modes.h"
#include "mixed/tuning/autotune.h"
#include "world/control.h"

/* One call, and the collectives it uses. */
typedef struct way {
    banyan_mixed *mixed;
    const mixed_call *call;
    uint64_t elem_bytes;
    void *stream;
} way;

/* ", among the ranks 0, 2 of its dp group": the ranks that a group's message counts. */
static void name_members(const banyan_mixed *mixed, mixed_group group, char *names, size_t bytes)
{
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    bool tp = group == MIXED_TP;
    size_t at = (size_t)snprintf(names, bytes, ", among the ranks ");
    for (int i = 0; i < (tp ? grid->tp : grid->dp) && at < bytes; i++) {
        int rank = grid_rank_at(grid, tp ? i : grid->tp_index, tp ? grid->dp_index : i);
        at += (size_t)snprintf(names + at, bytes - at, "%s%d", i > 0 ? ", " : "", rank);
    }
    if (at < bytes)
        snprintf(names + at, bytes - at, " of its %s group", tp ? "tp" : "dp");
}

/* The world's message about a lost peer takes precedence: its rank numbers are world ranks, and it
 * is the cause, not a consequence in a group. */
static banyan_status through_collectives_explain(const banyan_mixed *mixed, mixed_group group,
                                                 const char *what, banyan_status status)
{
    char names[160] = "";
    error_kept cause = error_keep(status);
    banyan_status ended_with = control_check(mixed->setup.worlds[MIXED_WORLD]);
    if (ended_with != BANYAN_OK && group != MIXED_WORLD && status != BANYAN_ERR_TIMEOUT) {
        cause = error_keep(ended_with);
    } else if (group != MIXED_WORLD) {
        name_members(mixed, group, names, sizeof names);
    }
    char own[32] = "";
    if (strncmp(cause.message, "rank ", 5) != 0)
        snprintf(own, sizeof own, "rank %d: ", mixed->rank);
    return error_set(cause.status, "%s%s; the call was %s%s", own, cause.message, what, names);
}

static banyan_status explain_mode(const banyan_mixed *mixed, mixed_group group,
                                  banyan_mixed_mode mode, banyan_status status)
{
    char what[96];
    snprintf(what, sizeof what, "in mode %s", banyan_mixed_mode_name(mode));
    return through_collectives_explain(mixed, group, what, status);
}

static banyan_status through_collectives_report(const way *with, mixed_group group,
                                                banyan_status status)
{
    const banyan_mixed *mixed = with->mixed;
    if (status == BANYAN_OK || (!mode_is_nccl(with->call->mode) && !mixed_is_of_waits(status)))
        return status;
    char what[96];
    snprintf(what, sizeof what, "%s (%s)", banyan_mixed_op_name(with->call->op),
             banyan_mixed_mode_name(with->call->mode));
    return through_collectives_explain(mixed, group, what, status);
}

/* A rank whose own group timed out reports that; the others report its message. */
static banyan_status through_collectives_agree(const way *with, banyan_status mine)
{
    error_kept kept = error_keep(mine);
    banyan_status status = control_agree(with->mixed->setup.worlds[MIXED_WORLD], mine);
    if (mine == BANYAN_OK)
        return through_collectives_report(with, MIXED_WORLD, status);
    return mixed_is_of_waits(mine) ? error_again(&kept) : status;
}

/* All ranks agree, so that the communicator is open on all or on none, also in other groups. */
static banyan_status open_comm(const way *with, mixed_group group)
{
    banyan_mixed *mixed = with->mixed;
    if (mixed->comms[group])
        return BANYAN_OK;
    banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
    banyan_comm *made = NULL;
    options.device = mixed->setup.device;
    banyan_status status = through_collectives_agree(
        with, through_collectives_report(
                  with, group, banyan_comm_create(mixed->setup.worlds[group], &options, &made)));
    if (status == BANYAN_OK)
        status = comm_share_with(made, mixed->setup.worlds[MIXED_WORLD]); /* with other groups */
    if (status != BANYAN_OK) {
        (void)banyan_comm_destroy(made);
        return status;
    }
    mixed->comms[group] = made;
    return BANYAN_OK;
}

/* As open_comm. */
static banyan_status open_nccl(banyan_mixed *mixed, mixed_group group)
{
    if (mixed->nccl_is_open[group])
        return BANYAN_OK;
    RETURN_IF_FAILED(control_agree(mixed->setup.worlds[MIXED_WORLD],
                                   mixed->ops->nccl_open(mixed->engine, group)));
    mixed->nccl_is_open[group] = true;
    return BANYAN_OK;
}

static banyan_status open_nccl_of(banyan_mixed *mixed, banyan_mixed_mode mode)
{
    if (!mode_is_separate(mode))
        return open_nccl(mixed, MIXED_WORLD);
    RETURN_IF_FAILED(open_nccl(mixed, MIXED_TP));
    return open_nccl(mixed, MIXED_DP);
}

banyan_status collectives_start_nccl(banyan_mixed *mixed, banyan_mixed_mode mode)
{
    banyan_status status = open_nccl_of(mixed, mode);
    if (status == BANYAN_OK)
        return BANYAN_OK;
    snprintf(mixed->nccl_lacks, sizeof mixed->nccl_lacks, "NCCL does not start: %s",
             banyan_last_error());
    status = control_check(mixed->setup.worlds[MIXED_WORLD]);
    if (status != BANYAN_OK)
        return explain_mode(mixed, MIXED_WORLD, mode, status);
    log_info("mixed collectives do without NCCL: %s", mixed->nccl_lacks);
    mixed->has_nccl = false;
    autotune_choose(mixed);
    (void)error_set(BANYAN_ERR_SYSTEM, "%s", mixed->nccl_lacks);
    return explain_mode(mixed, MIXED_WORLD, mode, BANYAN_ERR_SYSTEM);
}

/* `elems` as in nccl_run. */
typedef struct single {
    mixed_group group;
    banyan_mixed_op op;
    const void *input;
    void *output;
    uint64_t elems;
} single;

static banyan_collective_kind through_collectives_kind_of(banyan_mixed_op op)
{
    return op == BANYAN_MIXED_ALLREDUCE   ? BANYAN_ALLREDUCE
           : op == BANYAN_MIXED_ALLGATHER ? BANYAN_ALLGATHER
                                          : BANYAN_REDUCESCATTER;
}

/* Open everything that a call lacks, on all ranks or on none, including those of other groups:
 * either all continue or none. All made equal calls before, so all lack the same parts. */
static banyan_status through_collectives_prepare(const way *with, const single *of)
{
    banyan_mixed *mixed = with->mixed;
    call wanted;
    banyan_loaded_plan *loaded;
    if (mode_is_nccl(with->call->mode))
        return BANYAN_OK;
    RETURN_IF_FAILED(open_comm(with, of->group));
    banyan_comm *comm = mixed->comms[of->group];
    RETURN_IF_FAILED(comm_call_of(comm, through_collectives_kind_of(of->op), of->input, of->output,
                                  of->elems, mixed->setup.dtype, &wanted));
    if (comm_is_ready(comm, &wanted))
        return BANYAN_OK;
    banyan_status mine =
        through_collectives_report(with, of->group, comm_prepare(comm, &wanted, &loaded));
    banyan_status status = through_collectives_agree(with, mine);
    if (status == BANYAN_OK || mine != BANYAN_OK ||
        control_check(mixed->setup.worlds[MIXED_WORLD]) != BANYAN_OK)
        return status;
    error_kept kept = error_keep(status);
    (void)comm_unprepare(comm, &wanted);
    return error_again(&kept);
}

static banyan_status run_comm(const way *with, const single *of)
{
    DLDataType dtype = with->mixed->setup.dtype;
    banyan_comm *comm = with->mixed->comms[of->group];
    switch (of->op) {
    case BANYAN_MIXED_ALLREDUCE:
        return banyan_comm_allreduce(comm, of->input, of->output, of->elems, dtype, BANYAN_SUM,
                                     with->stream);
    case BANYAN_MIXED_ALLGATHER:
        return banyan_comm_allgather(comm, of->input, of->output, of->elems, dtype, with->stream);
    default:
        return banyan_comm_reducescatter(comm, of->input, of->output, of->elems, dtype, BANYAN_SUM,
                                         with->stream);
    }
}

/* End the world after this rank's error, so that no rank waits for it. Not needed for a device's
 * communicator of all ranks, where all receive the error. */
static banyan_status end_others(const way *with, mixed_group group, banyan_status status)
{
    const banyan_mixed *mixed = with->mixed;
    if (status != BANYAN_OK && !mixed_is_of_waits(status) &&
        (group != MIXED_WORLD || mixed_is_host(mixed)))
        return control_fail(mixed->setup.worlds[MIXED_WORLD], status);
    return status;
}

static banyan_status through_collectives_run(const way *with, const single *of)
{
    banyan_mixed *mixed = with->mixed;
    banyan_status status = mode_is_nccl(with->call->mode)
                               ? mixed->ops->nccl_run(mixed->engine, of->group, of->op, of->input,
                                                      of->output, of->elems, with->stream)
                               : end_others(with, of->group, run_comm(with, of));
    return through_collectives_report(with, of->group, status);
}

static banyan_status collective(const way *with, const single *of)
{
    RETURN_IF_FAILED(through_collectives_prepare(with, of));
    return through_collectives_run(with, of);
}

static banyan_status group_status(const banyan_mixed *mixed, mixed_group group, bool by_nccl)
{
    if (by_nccl)
        return mixed->nccl_is_open[group] ? mixed->ops->nccl_check(mixed->engine, group)
                                          : BANYAN_OK;
    return mixed->comms[group] ? banyan_comm_status(mixed->comms[group]) : BANYAN_OK;
}

static banyan_status mode_status(const banyan_mixed *mixed, banyan_mixed_mode mode)
{
    for (int group = 0; group < MIXED_GROUPS; group++) {
        if ((group == MIXED_WORLD) == mode_is_separate(mode))
            continue;
        banyan_status status = group_status(mixed, (mixed_group)group, mode_is_nccl(mode));
        if (status != BANYAN_OK)
            return explain_mode(mixed, (mixed_group)group, mode, status);
    }
    return BANYAN_OK;
}

/* The latest call's communicators come first: a lost peer also ends idle communicators, even of
 * groups without it. */
banyan_status collectives_status(const banyan_mixed *mixed)
{
    if (mixed->latest >= BANYAN_MIXED_SINGLE) {
        RETURN_IF_FAILED(mode_status(mixed, mixed->latest));
        banyan_status status = control_check(mixed->setup.worlds[MIXED_WORLD]);
        if (status != BANYAN_OK)
            return explain_mode(mixed, MIXED_WORLD, mixed->latest, status);
    }
    for (int mode = BANYAN_MIXED_SINGLE; mode < BANYAN_MIXED_MODES; mode++)
        RETURN_IF_FAILED(mode_status(mixed, (banyan_mixed_mode)mode));
    return BANYAN_OK;
}

static char *block_at(const way *with, void *buffer, int index)
{
    return (char *)buffer + (uint64_t)index * with->call->elems * with->elem_bytes;
}

/* Zeros add nothing to the rows of the other data-parallel ranks. */
static banyan_status place_rows(const way *with)
{
    const banyan_mixed *mixed = with->mixed;
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    void *output = with->call->output;
    uint64_t bytes = with->call->elems * with->elem_bytes;
    int before = grid->dp_index, behind = grid->dp - before - 1;
    if (before > 0)
        RETURN_IF_FAILED(
            mixed->ops->zero(mixed->engine, output, (uint64_t)before * bytes, with->stream));
    if (behind > 0)
        RETURN_IF_FAILED(mixed->ops->zero(mixed->engine, block_at(with, output, before + 1),
                                          (uint64_t)behind * bytes, with->stream));
    return mixed->ops->copy(mixed->engine, block_at(with, output, before), with->call->input, bytes,
                            with->stream);
}

static banyan_status world_gathers(const way *with)
{
    void *output = with->call->output;
    RETURN_IF_FAILED(place_rows(with));
    return collective(with, &(single){MIXED_WORLD, BANYAN_MIXED_ALLREDUCE, output, output,
                                      with->call->elems * (uint64_t)with->mixed->setup.grid.dp});
}

static banyan_status world_scatters(const way *with)
{
    banyan_mixed *mixed = with->mixed;
    uint64_t bytes = with->call->elems * with->elem_bytes;
    uint64_t dp = (uint64_t)mixed->setup.grid.dp;
    void *sums;
    RETURN_IF_FAILED(staging_take(mixed, bytes * dp, &sums));
    RETURN_IF_FAILED(collective(with, &(single){MIXED_WORLD, BANYAN_MIXED_ALLREDUCE,
                                                with->call->input, sums, with->call->elems * dp}));
    return mixed->ops->copy(mixed->engine, with->call->output,
                            block_at(with, sums, mixed->setup.grid.dp_index), bytes, with->stream);
}

static banyan_status by_world(const way *with)
{
    const mixed_call *asked = with->call;
    switch (asked->op) {
    case BANYAN_MIXED_ALLREDUCE_ALLGATHER:
        return world_gathers(with);
    case BANYAN_MIXED_REDUCESCATTER_ALLREDUCE:
        return world_scatters(with);
    default:
        return collective(
            with, &(single){MIXED_WORLD, asked->op, asked->input, asked->output, asked->elems});
    }
}

/* Report what either collective lacks before the first one moves anything. */
static banyan_status one_by_one(const way *with, const single *first, const single *second)
{
    RETURN_IF_FAILED(through_collectives_prepare(with, first));
    RETURN_IF_FAILED(through_collectives_prepare(with, second));
    RETURN_IF_FAILED(through_collectives_run(with, first));
    return through_collectives_run(with, second);
}

static banyan_status by_two(const way *with)
{
    const mixed_call *asked = with->call;
    void *output = asked->output;
    uint64_t elems = asked->elems;
    if (asked->op == BANYAN_MIXED_ALLREDUCE_ALLGATHER) {
        void *own = block_at(with, output, with->mixed->setup.grid.dp_index);
        return one_by_one(with,
                          &(single){MIXED_TP, BANYAN_MIXED_ALLREDUCE, asked->input, own, elems},
                          &(single){MIXED_DP, BANYAN_MIXED_ALLGATHER, own, output, elems});
    }
    return one_by_one(with,
                      &(single){MIXED_DP, BANYAN_MIXED_REDUCESCATTER, asked->input, output, elems},
                      &(single){MIXED_TP, BANYAN_MIXED_ALLREDUCE, output, output, elems});
}

banyan_status through_collectives(banyan_mixed *mixed, const mixed_call *asked, void *stream)
{
    way with = {mixed, asked, banyan_dtype_bytes(mixed->setup.dtype), stream};
    return mode_is_separate(asked->mode) ? by_two(&with) : by_world(&with);
}
