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

typedef struct writer {
    const banyan_traffic *traffic;
    move_list *moves;
    banyan_forecast *counted;
    /* The sends, the unpacks that receive them, and the unpacks that emptied the granted slots. */
    batch_ends sends, unpacks, grants;
} writer;

static banyan_move moves_pipeline_move_of(int rank, const pipeline_step *step, int lane)
{
    static const char *const names[] = {"pack", "send", "unpack"};
    bool is_sent = lane == LANE_SEND;
    return (banyan_move){.rank = rank,
                         .peer = is_sent ? step->peer : rank,
                         .lane = lane,
                         .by = is_sent ? BANYAN_MOVE_BY_PROXY : BANYAN_MOVE_BY_BLOCKS,
                         .what = names[lane],
                         .bytes = step->bytes,
                         .after = {BANYAN_NO_MOVE, BANYAN_NO_MOVE}};
}

static banyan_status add_sending(writer *to, int rank, const pipeline_step_list *steps)
{
    size_t packed[BANYAN_PIPELINE_SLOTS], emptied[BANYAN_PIPELINE_SLOTS];
    for (int s = 0; s < BANYAN_PIPELINE_SLOTS; s++)
        emptied[s] = BANYAN_NO_MOVE;
    for (size_t i = 0; i < steps->count; i++) {
        const pipeline_step *step = &steps->data[i];
        size_t number = to->moves->count;
        bool packs = step->kind == PIPELINE_PACK;
        banyan_move next = moves_pipeline_move_of(rank, step, packs ? LANE_PACK : LANE_SEND);
        next.after[0] = packs ? emptied[step->slot] : packed[step->slot];
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
        emptied[s] = BANYAN_NO_MOVE;
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
                        .bytes = to->traffic->ranks[rank].local_bytes,
                        .after = {last_sent, last_unpacked}};
    return next.bytes == 0 || array_push(to->moves, next) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static size_t last_move(const batch_ends *ends, size_t before)
{
    return ends->count > before ? ends->data[ends->count - 1].move : BANYAN_NO_MOVE;
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
    return moves_pipeline_add_local(to, rank, last_move(&to->sends, sends),
                                    last_move(&to->unpacks, unpacks));
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

static banyan_status make_world(const banyan_traffic *traffic, bool optimal, pipeline_world *world)
{
    for (int r = 0; r < traffic->info.ranks; r++)
        RETURN_IF_FAILED(
            pipeline_world_send(world, r, traffic->ranks[r].tasks, traffic->ranks[r].task_count));
    RETURN_IF_FAILED(pipeline_world_link(world));
    return optimal ? pipeline_world_colour(world) : BANYAN_OK;
}

/* Count the distinct rounds that a rank takes part in. */
static banyan_status count_rounds(const pipeline_world *world, banyan_forecast *counted)
{
    for (int r = 0; r < world->ranks; r++) {
        pipeline_rounds rounds = {0};
        RETURN_IF_FAILED(pipeline_world_rounds(world, r, &rounds));
        counted->rounds = rounds.count > counted->rounds ? rounds.count : counted->rounds;
        array_free(&rounds);
    }
    return BANYAN_OK;
}

banyan_status moves_pipeline(const banyan_traffic *traffic, const banyan_forecast_options *options,
                             move_list *moves, banyan_forecast *counted)
{
    pipeline_world world;
    RETURN_IF_FAILED(pipeline_world_create(traffic->info.ranks, options->slot_bytes, &world));
    writer to = {.traffic = traffic, .moves = moves, .counted = counted};
    banyan_status status = make_world(traffic, options->optimal_rounds, &world);
    if (status == BANYAN_OK)
        status = count_rounds(&world, counted);
    for (int r = 0; r < traffic->info.ranks && status == BANYAN_OK; r++)
        status = moves_pipeline_add_rank(&to, &world, r);
    if (status == BANYAN_OK)
        status = join_ends(&to);
    array_free(&to.sends);
    array_free(&to.unpacks);
    array_free(&to.grants);
    pipeline_world_free(&world);
    return status;
}
