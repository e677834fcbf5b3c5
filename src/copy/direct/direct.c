#include "copy/direct/plan.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "copy/service/progress.h"
#include "copy/strided/loops.h"
#include "core/deadline.h"
#include "world/control.h"

#define LINE_BYTES 64

/* One per flow, in the receiver's memory: the next chunk that neither end has taken. */
typedef struct direct_claim {
    _Atomic uint64_t next;
    char padding[LINE_BYTES - sizeof(uint64_t)];
} direct_claim;

#define WHY_BYTES 1024

/* In each rank's memory that its peers can reach. */
typedef struct direct_shared {
    char why[WHY_BYTES];   /* message of its last run's failure */
    direct_claim claims[]; /* one for each local rank that sends here */
} direct_shared;

/* The last seen values of a peer's two counters. One counter shows that the peer has entered the
 * run, the other that it has finished its part with this rank. The lower halves count runs; the
 * upper halves add up the statuses of failed runs. */
typedef struct direct_seen {
    uint64_t entered, finished;
} direct_seen;

#define FAILED_SHIFT 32

typedef struct direct_state {
    banyan_world *world;
    banyan_transport *transport;
    direct_reader *reader;
    banyan_memory *shared;
    int local_size, local_rank;
    uint32_t first_signal, signal_ranks;
    remote_signals remote;
    copy_progress progress;
    bool broken;        /* a run ended in the middle, so counters are no longer valid */
    direct_seen seen[]; /* for each local rank */
} direct_state;

static void copy_direct_state_close(void *argument)
{
    direct_state *state = argument;
    remote_signals_close(&state->remote);
    if (state->signal_ranks > 0)
        banyan_transport_signals_free(state->transport, state->first_signal,
                                      2 * state->signal_ranks);
    banyan_memory_free(state->shared);
    direct_reader_destroy(state->reader);
    banyan_transport_close(state->transport);
    free(state);
}

/* Every step is collective, in equal order on every rank. */
static banyan_status copy_direct_open_shared(direct_state *state,
                                             const banyan_copy_options *options)
{
    uint64_t signal_ranks;
    RETURN_IF_FAILED(control_max(state->world, (uint64_t)state->local_size, &signal_ranks));
    RETURN_IF_FAILED(banyan_transport_open(state->world, options->transport, &state->transport));
    size_t bytes = sizeof(direct_shared) + (size_t)state->local_size * sizeof(direct_claim);
    RETURN_IF_FAILED(banyan_memory_alloc(state->world, bytes, &state->shared));
    RETURN_IF_FAILED(banyan_transport_signals_alloc(state->transport, 2 * (uint32_t)signal_ranks,
                                                    &state->first_signal));
    state->signal_ranks = (uint32_t)signal_ranks;
    return remote_signals_open(state->world, state->transport, &state->remote);
}

static banyan_status copy_direct_state_open(banyan_world *world, const banyan_copy_options *options,
                                            void **opened)
{
    size_t local_size = (size_t)banyan_world_local_size(world);
    size_t bytes = sizeof(direct_state) + local_size * sizeof(direct_seen);
    void *memory;
    RETURN_IF_FAILED(copy_alloc_on_all(world, bytes, "a copy backend", &memory));
    direct_state *state = memory;
    state->world = world;
    state->local_size = (int)local_size;
    state->local_rank = banyan_world_local_rank(world);
    copy_progress_open(&state->progress, options);
    banyan_status status = copy_direct_open_shared(state, options);
    if (status == BANYAN_OK)
        status = direct_reader_create(state->transport, &state->reader);
    if (status != BANYAN_OK) {
        copy_direct_state_close(state);
        return status;
    }
    *opened = state;
    return BANYAN_OK;
}

/* A partner whose memory is mapped, during a run. */
typedef struct direct_partner_run {
    const direct_partner *partner;
    int slot; /* the partner's local rank */
    bool worked;
    direct_claim *in, *out;
    const char *why; /* the partner's message */
} direct_partner_run;

/* A schedule and the memory that its runs need. */
typedef struct direct_schedule {
    direct_plan *plan;
    direct_partner_run *runs; /* of partners whose memory is mapped */
    remote_run *remote_runs;  /* of the others */
    size_t run_count, remote_count;
    bool streaming;
} direct_schedule;

static uint32_t entered_signal(const direct_state *state, int slot)
{
    return state->first_signal + (uint32_t)slot;
}

static uint32_t finished_signal(const direct_state *state, int slot)
{
    return state->first_signal + state->signal_ranks + (uint32_t)slot;
}

static banyan_status signal_entered(const direct_state *state, const direct_schedule *schedule)
{
    for (size_t i = 0; i < schedule->run_count; i++)
        atomic_store_explicit(&schedule->runs[i].in->next, 0, memory_order_relaxed);
    for (size_t i = 0; i < schedule->run_count; i++)
        RETURN_IF_FAILED(banyan_transport_signal(state->transport, schedule->runs[i].partner->peer,
                                                 entered_signal(state, state->local_rank), 1));
    for (size_t i = 0; i < schedule->remote_count; i++)
        RETURN_IF_FAILED(remote_run_begin(&state->remote, &schedule->remote_runs[i]));
    return BANYAN_OK;
}

static banyan_status signal_finished(const direct_state *state, int peer, banyan_status status)
{
    strided_fence();
    return banyan_transport_signal(state->transport, peer,
                                   finished_signal(state, state->local_rank),
                                   1 + ((uint64_t)status << FAILED_SHIFT));
}

static bool copy_direct_has_entered(direct_state *state, int slot)
{
    direct_seen *seen = &state->seen[slot];
    uint64_t count = banyan_transport_read(state->transport, entered_signal(state, slot));
    if (count == seen->entered)
        return false;
    seen->entered++;
    return true;
}

static void copy_direct_run_all(const direct_moves *moves, bool streaming, copy_progress *progress)
{
    size_t chunks = moves->chunk_ends.count;
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        direct_moves_run_chunk(moves, chunk, streaming);
        copy_progress_add(progress, moves->bytes / chunks);
    }
}

/* The chunks before the one that this rank gets are taken, by either end. */
static void run_shared(const direct_moves *moves, direct_claim *claim, bool streaming,
                       copy_progress *progress)
{
    uint64_t chunks = moves->chunk_ends.count, chunk = 0;
    while (chunk < chunks) {
        uint64_t before = chunk;
        chunk = atomic_fetch_add_explicit(&claim->next, 1, memory_order_relaxed);
        uint64_t taken = (chunk < chunks ? chunk : chunks) - before;
        copy_progress_add(progress, taken * (moves->bytes / chunks));
        if (chunk < chunks)
            direct_moves_run_chunk(moves, chunk, streaming);
    }
}

static banyan_status read_flow(direct_reader *reader, const direct_flow *flow,
                               copy_progress *progress)
{
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < flow->reads.count && status == BANYAN_OK; i++) {
        status = direct_reader_read(reader, &flow->reads.data[i]);
        copy_progress_add(progress, direct_gather_bytes(&flow->reads.data[i]));
    }
    if (status == BANYAN_OK)
        status = direct_reader_finish(reader);
    if (status != BANYAN_OK)
        direct_reader_reset(reader);
    return status;
}

/* Move everything that only this rank can move, and its share of what the partner sends. A partner
 * that learned of a loss first may have left, and withdrawn the memory that is read here. */
static banyan_status work_with(direct_state *state, const direct_partner_run *run, bool streaming)
{
    const direct_partner *partner = run->partner;
    copy_progress *progress = &state->progress;
    copy_direct_run_all(&partner->out.own, streaming, progress);
    copy_direct_run_all(&partner->in.own, streaming, progress);
    run_shared(&partner->in.shared, run->in, streaming, progress);
    banyan_status status = read_flow(state->reader, &partner->in, progress);
    return status == BANYAN_OK ? BANYAN_OK : control_first_cause(state->world, status);
}

/* Wait for the first partner that is not done; partners come in any order. */
static banyan_status wait_for_absent(direct_state *state, const direct_schedule *schedule,
                                     control_wait *wait, uint64_t epoch)
{
    uint64_t nap_ns;
    size_t i = 0, k = 0;
    int absent;
    char text[64];
    while (i < schedule->run_count && schedule->runs[i].worked)
        i++;
    if (i < schedule->run_count) {
        absent = schedule->runs[i].partner->peer;
        snprintf(text, sizeof text, "for rank %d to enter a direct copy", absent);
    } else {
        while (remote_run_is_done(&schedule->remote_runs[k]))
            k++;
        absent = schedule->remote_runs[k].peer;
        remote_run_describe(&state->remote, &schedule->remote_runs[k], text);
    }
    RETURN_IF_FAILED(control_wait_on(wait, absent, text, &nap_ns));
    return banyan_transport_idle(state->transport, epoch);
}

/* Serve the partners that have entered since the last call. A failure of this rank, `*mine`, does
 * not end the run: the signals that the partners wait for report it to them. */
static size_t work_with_entered(direct_state *state, direct_schedule *schedule, banyan_status *mine)
{
    size_t served = 0;
    for (size_t i = 0; i < schedule->run_count; i++) {
        direct_partner_run *run = &schedule->runs[i];
        if (run->worked || !copy_direct_has_entered(state, run->slot))
            continue;
        if (*mine == BANYAN_OK)
            *mine = work_with(state, run, schedule->streaming);
        run->worked = true;
        served++;
    }
    return served;
}

/* Take a turn with each partner that is reached by puts; `*left` receives how many are not done. */
static banyan_status turn_with_remote(direct_state *state, direct_schedule *schedule, size_t *left,
                                      bool *moved)
{
    *left = 0;
    for (size_t i = 0; i < schedule->remote_count; i++) {
        remote_run *run = &schedule->remote_runs[i];
        if (remote_run_is_done(run))
            continue;
        RETURN_IF_FAILED(
            remote_run_turn(&state->remote, run, schedule->streaming, &state->progress, moved));
        *left += !remote_run_is_done(run);
    }
    return BANYAN_OK;
}

/* Work with all partners whose memory is mapped, and meanwhile with the others. `to_the_end`: until
 * those are done, too. */
static banyan_status work_with_all(direct_state *state, direct_schedule *schedule, bool to_the_end,
                                   banyan_status *mine)
{
    control_wait wait = control_wait_begin(state->world);
    banyan_status status = BANYAN_OK;
    size_t left = to_the_end ? 0 : schedule->run_count, remote_left = schedule->remote_count;
    while (left > 0 || (to_the_end && remote_left > 0)) {
        uint64_t epoch = banyan_transport_epoch(state->transport);
        bool moved = false;
        status = turn_with_remote(state, schedule, &remote_left, &moved);
        if (status != BANYAN_OK)
            break;
        size_t served = left > 0 ? work_with_entered(state, schedule, mine) : 0;
        left -= served;
        if (served > 0 || moved) {
            control_wait_restart(&wait);
            continue;
        }
        if (left == 0 && remote_left == 0)
            break;
        status = wait_for_absent(state, schedule, &wait, epoch);
        if (status != BANYAN_OK)
            break;
    }
    control_wait_end(&wait);
    return status;
}

/* Wait until the partner has finished; `*theirs` is its status. */
static banyan_status wait_finished(direct_state *state, const direct_partner_run *run,
                                   banyan_status *theirs)
{
    uint64_t *seen = &state->seen[run->slot].finished, before = *seen;
    uint32_t signal = finished_signal(state, run->slot);
    RETURN_IF_FAILED(banyan_transport_wait(state->transport, signal, before + 1, run->partner->peer,
                                           "its part of a direct copy"));
    *seen = banyan_transport_read(state->transport, signal);
    *theirs = (banyan_status)((*seen >> FAILED_SHIFT) - (before >> FAILED_SHIFT));
    return BANYAN_OK;
}

/* Report the partner's failure as this rank's error. A lost third rank may be reported by the
 * partner, or by the world. */
static banyan_status report_theirs(const direct_state *state, const direct_partner_run *run,
                                   banyan_status theirs)
{
    if (theirs == BANYAN_ERR_PEER_LOST)
        RETURN_IF_FAILED(control_first_cause(state->world, BANYAN_OK));
    return error_set(theirs, "direct: rank %d could not move its part of a run: %.*s",
                     run->partner->peer, WHY_BYTES, run->why);
}

/* Enter, move this rank's part, help partners that still take from this rank, and leave when all
 * partners have finished with it. */
static banyan_status run_with_partners(direct_state *state, direct_schedule *schedule,
                                       banyan_status *mine)
{
    size_t count = schedule->run_count;
    RETURN_IF_FAILED(signal_entered(state, schedule));
    copy_direct_run_all(&schedule->plan->local, schedule->streaming, &state->progress);
    RETURN_IF_FAILED(work_with_all(state, schedule, false, mine));
    /* All partners have entered, so none reads an earlier run's message. */
    if (*mine != BANYAN_OK)
        snprintf(((direct_shared *)banyan_memory_local(state->shared))->why, WHY_BYTES, "%s",
                 banyan_last_error());
    for (size_t i = 0; i < count; i++) {
        const direct_partner_run *run = &schedule->runs[i];
        if (*mine == BANYAN_OK)
            run_shared(&run->partner->out.shared, run->out, schedule->streaming, &state->progress);
        RETURN_IF_FAILED(signal_finished(state, run->partner->peer, *mine));
    }
    RETURN_IF_FAILED(work_with_all(state, schedule, true, mine));
    for (size_t i = 0; i < count; i++) {
        banyan_status theirs;
        RETURN_IF_FAILED(wait_finished(state, &schedule->runs[i], &theirs));
        if (*mine == BANYAN_OK && theirs != BANYAN_OK)
            *mine = report_theirs(state, &schedule->runs[i], theirs);
    }
    return BANYAN_OK;
}

/* Return the bytes that this rank moves, alone or together with a partner. */
static uint64_t copy_direct_bytes(const direct_plan *plan)
{
    uint64_t bytes = plan->local.bytes;
    for (size_t i = 0; i < plan->partner_count; i++) {
        const direct_partner *partner = &plan->partners[i];
        bytes += partner->remote_in.bytes + partner->remote_out.bytes;
        bytes += partner->in.shared.bytes + partner->in.own.bytes;
        bytes += partner->out.shared.bytes + partner->out.own.bytes;
        for (size_t read = 0; read < partner->in.reads.count; read++)
            bytes += direct_gather_bytes(&partner->in.reads.data[read]);
    }
    return bytes;
}

/* End the world after a run that ended in the middle, and what this rank still puts: it may not
 * read its sources any more. Peers may not write here any more either. */
static banyan_status end_remote(direct_state *state, direct_schedule *schedule,
                                banyan_status status)
{
    if (schedule->remote_count == 0)
        return status;
    status = control_fail(state->world, control_first_cause(state->world, status));
    error_kept kept = error_keep(status);
    for (size_t i = 0; i < schedule->remote_count; i++)
        (void)banyan_transport_settle(state->transport, schedule->remote_runs[i].peer);
    direct_plan_withdraw(schedule->plan);
    return error_again(&kept);
}

static banyan_status copy_direct_execute(void *argument, void *planned, void *stream)
{
    (void)stream;
    direct_state *state = argument;
    direct_schedule *schedule = planned;
    if (state->broken)
        return error_set(BANYAN_ERR_INVALID,
                         "direct: an earlier run on this service of rank %d ended in the middle",
                         banyan_world_rank(state->world));
    for (size_t i = 0; i < schedule->run_count; i++)
        schedule->runs[i].worked = false;
    banyan_status mine = BANYAN_OK;
    if (state->progress.report)
        copy_progress_begin(&state->progress, copy_direct_bytes(schedule->plan));
    banyan_status status = run_with_partners(state, schedule, &mine);
    state->broken = status != BANYAN_OK;
    if (status != BANYAN_OK)
        return end_remote(state, schedule, status);
    if (mine == BANYAN_OK)
        copy_progress_end(&state->progress);
    return mine;
}

/* Open the runs of a partner whose memory is mapped. */
static banyan_status open_run(const direct_state *state, const direct_partner *partner,
                              direct_partner_run *run)
{
    direct_shared *own = banyan_memory_local(state->shared);
    void *far;
    size_t bytes;
    run->partner = partner;
    run->slot = direct_local_rank(state->world, partner->peer);
    run->in = &own->claims[run->slot];
    RETURN_IF_FAILED(banyan_memory_peer(state->shared, partner->peer, &far, &bytes));
    run->out = &((direct_shared *)far)->claims[state->local_rank];
    run->why = ((direct_shared *)far)->why;
    return BANYAN_OK;
}

static banyan_status open_runs(const direct_state *state, direct_schedule *schedule)
{
    size_t count = schedule->plan->partner_count;
    RETURN_IF_NO_MEMORY(
        schedule->runs = alloc_zeroed(count, sizeof *schedule->runs, "the partners of a schedule"));
    RETURN_IF_NO_MEMORY(schedule->remote_runs = alloc_zeroed(count, sizeof *schedule->remote_runs,
                                                             "the partners of a schedule"));
    for (size_t i = 0; i < count; i++) {
        const direct_partner *partner = &schedule->plan->partners[i];
        if (partner->is_remote)
            schedule->remote_runs[schedule->remote_count++] = (remote_run){
                .peer = partner->peer, .out = &partner->remote_out, .in = &partner->remote_in};
        else
            RETURN_IF_FAILED(open_run(state, partner, &schedule->runs[schedule->run_count++]));
    }
    return BANYAN_OK;
}

static void copy_direct_release(void *argument, void *planned)
{
    (void)argument;
    direct_schedule *schedule = planned;
    direct_plan_destroy(schedule->plan);
    free(schedule->runs);
    free(schedule->remote_runs);
    free(schedule);
}

static banyan_status copy_direct_prepare(void *argument, const banyan_copy_batch *batch,
                                         void **planned)
{
    const direct_state *state = argument;
    direct_plan *plan;
    RETURN_IF_FAILED(direct_plan_create(state->world, state->transport, state->remote.peers != NULL,
                                        batch, &plan));
    direct_schedule *schedule = calloc(1, sizeof *schedule);
    banyan_status status = BANYAN_OK;
    if (schedule) {
        schedule->plan = plan;
        schedule->streaming = plan->bytes >= STRIDED_STREAMING_BYTES;
        status = open_runs(state, schedule);
    } else {
        direct_plan_destroy(plan);
        status = error_no_memory(sizeof *schedule, "a schedule");
    }
    return copy_keep_on_all(state->world, status, schedule, copy_direct_release, argument, planned);
}

const banyan_copy_backend copy_backend_direct = {
    .size = sizeof(banyan_copy_backend),
    .name = "direct",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES,
    .open = copy_direct_state_open,
    .close = copy_direct_state_close,
    .prepare = copy_direct_prepare,
    .execute = copy_direct_execute,
    .release = copy_direct_release,
};
