/* Turn the steps of the pipeline's executors into moves: a rank packs and unpacks by kernels and
 * sends by its proxy. A step comes after the one that emptied its slot, a send after its partner's
 * grant, and unpacking after the arrival of the sent batch. */
#include "forecast/traffic.h"

enum { LANE_PACK, LANE_SEND, LANE_UNPACK };

/* One end of a batch: the n-th between two ranks matches the n-th at the other end. */
typedef struct batch_end {
    int sender, receiver;
    size_t number; /* in the order of the rank's steps */
    size_t move;   /* BANYAN_NO_MOVE: a slot that was never used */
} batch_end;

typedef ARRAY(batch_end) batch_ends;

/* A rank's last moves of the wave before; BANYAN_NO_MOVE. */
typedef struct wave_end {
    size_t sent, unpacked;
} wave_end;

typedef struct writer {
    const banyan_traffic *traffic;
    uint64_t wave;
    move_list *moves;
    banyan_forecast *counted;
    wave_end *before; /* of each rank */
    /* Batches of this wave: the sends, the unpacks that receive them, and the unpacks that emptied
     * the granted slots. */
    batch_ends sends, unpacks, grants;
} writer;

static banyan_move moves_pipeline_move_of(int rank, const pipeline_step *step, int lane)
{
    static const char *const lane_names[] = {"pack", "send", "unpack"};
    bool is_sent = lane == LANE_SEND;
    return (banyan_move){.rank = rank,
                         .peer = is_sent ? step->peer : rank,
                         .lane = lane,
                         .by = is_sent ? BANYAN_MOVE_BY_PROXY : BANYAN_MOVE_BY_BLOCKS,
                         .what = lane_names[lane],
                         .bytes = step->bytes,
                         .after = {BANYAN_NO_MOVE, BANYAN_NO_MOVE}};
}

static banyan_status add_sending(writer *to, int rank, const pipeline_step_list *steps)
{
    size_t packed[BANYAN_PIPELINE_SLOTS], emptied[BANYAN_PIPELINE_SLOTS];
    for (int s = 0; s < BANYAN_PIPELINE_SLOTS; s++)
        emptied[s] = to->before[rank].sent;
    for (size_t i = 0; i < steps->count; i++) {
        const pipeline_step *step = &steps->data[i];
        size_t number = to->moves->count;
        bool packs = step->kind == PIPELINE_PACK;
        banyan_move next = moves_pipeline_move_of(rank, step, packs ? LANE_PACK : LANE_SEND);
        next.after[0] = packs ? emptied[step->slot] : packed[step->slot];
        if (packs)
            next.after[1] = to->before[rank].unpacked;
        *(packs ? &packed[step->slot] : &emptied[step->slot]) = number;
        if (!array_push(to->moves, next))
            return BANYAN_ERR_NO_MEMORY;
        if (!packs && !array_push(&to->sends, (batch_end){rank, step->peer, i, number}))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status add_receiving(writer *to, int rank, const pipeline_step_list *steps)
{
    size_t emptied[BANYAN_PIPELINE_SLOTS];
    for (int s = 0; s < BANYAN_PIPELINE_SLOTS; s++)
        emptied[s] = to->before[rank].unpacked;
    for (size_t i = 0; i < steps->count; i++) {
        const pipeline_step *step = &steps->data[i];
        batch_end end = {step->peer, rank, i, emptied[step->slot]};
        if (step->kind == PIPELINE_GRANT) {
            if (!array_push(&to->grants, end))
                return BANYAN_ERR_NO_MEMORY;
            continue;
        }
        end.move = emptied[step->slot] = to->moves->count;
        if (!array_push(to->moves, moves_pipeline_move_of(rank, step, LANE_UNPACK)) ||
            !array_push(&to->unpacks, end))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

/* Moves within a rank come last: partners wait for the rest. */
static banyan_status moves_pipeline_add_local(writer *to, int rank, size_t last_sent,
                                              size_t last_unpacked)
{
    banyan_move next = {.rank = rank,
                        .peer = rank,
                        .lane = LANE_PACK,
                        .by = BANYAN_MOVE_BY_BLOCKS,
                        .what = "copy",
                        .bytes = to->wave == 0 ? to->traffic->ranks[rank].local_bytes : 0,
                        .after = {last_sent, last_unpacked}};
    return next.bytes == 0 || array_push(to->moves, next) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Return the last move since `before`, or else `otherwise`. */
static size_t last_move(const batch_ends *ends, size_t before, size_t otherwise)
{
    return ends->count > before ? ends->data[ends->count - 1].move : otherwise;
}

static banyan_status moves_pipeline_add_rank(writer *to, const pipeline_world *world, int rank)
{
    pipeline_steps steps = {0};
    size_t sends = to->sends.count, unpacks = to->unpacks.count;
    banyan_status status = pipeline_world_steps(world, rank, &steps);
    if (status == BANYAN_OK)
        status = add_sending(to, rank, &steps.sending);
    if (status == BANYAN_OK)
        status = add_receiving(to, rank, &steps.receiving);
    pipeline_steps_free(&steps);
    if (status != BANYAN_OK)
        return status;
    to->counted->batches += to->sends.count - sends;
    wave_end *end = &to->before[rank];
    *end = (wave_end){last_move(&to->sends, sends, end->sent),
                      last_move(&to->unpacks, unpacks, end->unpacked)};
    return moves_pipeline_add_local(to, rank, end->sent, end->unpacked);
}

static int moves_pipeline_by_ranks(const void *left, const void *right)
{
    const batch_end *a = left, *b = right;
    if (a->sender != b->sender)
        return a->sender < b->sender ? -1 : 1;
    if (a->receiver != b->receiver)
        return a->receiver < b->receiver ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

static void moves_pipeline_sort(batch_ends *ends)
{
    if (ends->count > 0)
        qsort(ends->data, ends->count, sizeof *ends->data, moves_pipeline_by_ranks);
}

static banyan_status join_ends(writer *to)
{
    moves_pipeline_sort(&to->sends);
    moves_pipeline_sort(&to->unpacks);
    moves_pipeline_sort(&to->grants);
    if (to->sends.count != to->unpacks.count || to->sends.count != to->grants.count)
        return error_set(BANYAN_ERR_MISMATCH,
                         "the pipeline sends %zu batches, unpacks %zu and grants %zu slots",
                         to->sends.count, to->unpacks.count, to->grants.count);
    for (size_t i = 0; i < to->sends.count; i++) {
        to->moves->data[to->sends.data[i].move].after[1] = to->grants.data[i].move;
        to->moves->data[to->unpacks.data[i].move].after[0] = to->sends.data[i].move;
    }
    return BANYAN_OK;
}

static banyan_status make_world(const banyan_traffic *traffic, uint64_t wave, bool optimal,
                                pipeline_world *world)
{
    for (int r = 0; r < traffic->info.ranks; r++) {
        traffic_slice of = traffic_wave(traffic, r, wave);
        RETURN_IF_FAILED(pipeline_world_send(world, r, of.tasks, of.count));
    }
    RETURN_IF_FAILED(pipeline_world_link(world));
    return optimal ? pipeline_world_colour(world) : BANYAN_OK;
}

/* Count the distinct rounds that each rank takes part in. */
static banyan_status count_rounds(const pipeline_world *world, uint64_t *counts)
{
    for (int r = 0; r < world->ranks; r++) {
        pipeline_rounds rounds = {0};
        RETURN_IF_FAILED(pipeline_world_rounds(world, r, &rounds));
        counts[r] += rounds.count;
        array_free(&rounds);
    }
    return BANYAN_OK;
}

static banyan_status add_wave(writer *to, const banyan_forecast_options *options, uint64_t *rounds)
{
    pipeline_world world;
    int ranks = to->traffic->info.ranks;
    RETURN_IF_FAILED(pipeline_world_create(ranks, options->slot_bytes, &world));
    to->sends.count = to->unpacks.count = to->grants.count = 0;
    banyan_status status = make_world(to->traffic, to->wave, options->optimal_rounds, &world);
    if (status == BANYAN_OK)
        status = count_rounds(&world, rounds);
    for (int r = 0; r < ranks && status == BANYAN_OK; r++)
        status = moves_pipeline_add_rank(to, &world, r);
    if (status == BANYAN_OK)
        status = join_ends(to);
    pipeline_world_free(&world);
    return status;
}

banyan_status moves_pipeline(const banyan_traffic *traffic, const banyan_forecast_options *options,
                             move_list *moves, banyan_forecast *counted)
{
    size_t ranks = (size_t)traffic->info.ranks;
    writer to = {.traffic = traffic, .moves = moves, .counted = counted};
    uint64_t *rounds = alloc_zeroed(ranks, sizeof *rounds, "rounds of ranks");
    to.before = alloc_zeroed(ranks, sizeof *to.before, "ends of waves");
    banyan_status status = rounds && to.before ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    for (size_t r = 0; r < ranks && to.before; r++)
        to.before[r] = (wave_end){BANYAN_NO_MOVE, BANYAN_NO_MOVE};
    for (; to.wave < traffic_wave_count(traffic) && status == BANYAN_OK; to.wave++)
        status = add_wave(&to, options, rounds);
    for (size_t r = 0; r < ranks && rounds; r++)
        counted->rounds = rounds[r] > counted->rounds ? rounds[r] : counted->rounds;
    array_free(&to.sends);
    array_free(&to.unpacks);
    array_free(&to.grants);
    free(to.before);
    free(rounds);
    return status;
}
