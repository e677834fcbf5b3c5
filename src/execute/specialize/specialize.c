#include "execute/specialize/specialize.h"

#include <inttypes.h>
#include <string.h>

#include "execute/load/loaded.h"

/* Largest number of iterations whose pieces are prepared in advance. */
#define TABLE_MOST 65536

/* Bytes that a reduction processes at a time, so that packet data, and results that are stored
 * again, stay in the first-level cache. */
#define BLOCK_BYTES 8192

struct builder {
    const banyan_loaded_plan *loaded;
    const banyan_plan *plan;
    int rank;
    specialized_plan *made;
    const plan_thread_block *block;
    specialized_block *steps;
    const plan_op *whole; /* the current operation */
    const plan_op *loop;  /* its loop */
    uint32_t number;      /* number of the operation, or of its loop, in the thread block */
};

static banyan_status specialize_add_pieces(struct builder *build, step *s)
{
    specialized_plan *made = build->made;
    if (!build->loop) {
        s->first_word = made->words.count;
        RETURN_IF_FAILED(
            specialize_pieces(made, build->plan, build->rank, build->block, s, 0, &made->words));
        s->piece_count = (made->words.count - s->first_word) / step_piece_words(s);
        return BANYAN_OK;
    }
    uint64_t iterations = plan_geometry_iterations(&made->geometry, build->loop);
    if (iterations > TABLE_MOST)
        return BANYAN_OK;
    s->iteration_at = arena_take(&made->memory, (iterations + 1) * sizeof *s->iteration_at);
    if (!s->iteration_at)
        return BANYAN_ERR_NO_MEMORY;
    for (uint64_t i = 0; i < iterations; i++) {
        s->iteration_at[i] = made->words.count;
        RETURN_IF_FAILED(
            specialize_pieces(made, build->plan, build->rank, build->block, s, i, &made->words));
    }
    s->iteration_at[iterations] = made->words.count;
    return BANYAN_OK;
}

static step *specialize_add_step(struct builder *build, step_kind kind)
{
    if (!array_reserve(&build->steps->steps, 1))
        return NULL;
    step *added = &build->steps->steps.data[build->steps->steps.count++];
    *added = (step){
        .kind = kind,
        .number = build->number,
        .whole = build->whole,
        .loop = build->loop,
        .target = STEP_NO_TARGET,
    };
    return added;
}

static banyan_status specialize_add_operands(struct builder *build, step *s)
{
    const plan_op *op = s->op;
    const int *ranks;
    int room;
    uint32_t counts[2] = {0, 0}, at = 0;
    for (uint32_t i = 0; i < plan_operand_count(op); i++)
        counts[i >= op->source_count] += (uint32_t)plan_operand_ranks(
            build->plan, build->rank, build->block, op, plan_operand_at(op, i), &ranks, &room);
    s->source_count = counts[0];
    s->destination_count = counts[1];
    s->operands = arena_take(&build->made->memory, step_operand_count(s) * sizeof *s->operands);
    if (!s->operands)
        return BANYAN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < plan_operand_count(op); i++) {
        const plan_operand *operand = plan_operand_at(op, i);
        plan_where where = plan_operand_where(build->plan, build->rank, build->block, op, operand);
        int count =
            plan_operand_ranks(build->plan, build->rank, build->block, op, operand, &ranks, &room);
        for (int r = 0; r < count; r++)
            s->operands[at++] = (step_operand){.base = step_base(ranks[r], where.buffer),
                                               .packets = plan_operand_is_packets(op, i)};
    }
    return BANYAN_OK;
}

/* A waiter on this rank's only thread needs no wake-up: the thread polls it before it sleeps. */
static banyan_status add_doorbells(struct builder *build, step *s)
{
    const banyan_executor *executor = build->loaded->executor;
    s->doorbells =
        arena_take(&build->made->memory, (s->destination_count + 1) * sizeof *s->doorbells);
    if (!s->doorbells)
        return BANYAN_ERR_NO_MEMORY;
    for (uint32_t i = s->source_count; i < step_operand_count(s); i++) {
        int owner = (int)(s->operands[i].base / PLAN_BUFFERS);
        wake_up *of = executor_wake_up(executor, owner);
        bool known = !of || !s->operands[i].packets || (owner == build->rank && !executor->pool);
        for (uint32_t k = 0; k < s->doorbell_count; k++)
            known |= s->doorbells[k] == of;
        if (!known)
            s->doorbells[s->doorbell_count++] = of;
    }
    return BANYAN_OK;
}

/* True if the operation reuses scratch in a loop: then it must not take old packets for new
 * ones. */
static bool goes_round(const plan_geometry *geometry)
{
    return geometry->scratch_stride < geometry->chunk_bytes;
}

static bool specialize_is_large(const struct builder *build, const step_operand *operand)
{
    const plan_geometry *geometry = &build->made->geometry;
    uint64_t input = geometry->buffers[PLAN_INPUT].bytes;
    uint64_t output = geometry->buffers[PLAN_OUTPUT].bytes;
    uint64_t longer = input > output ? input : output;
    uint64_t least = build->loaded->executor->large_bytes;
    bool large = longer >= least || (!build->plan->in_place && input + output >= least);
    return large && operand->base % PLAN_BUFFERS != PLAN_SCRATCH;
}

/* Keep scratch, and outputs that the plan reads, in the caches: they are read again soon. */
static void choose_way(const struct builder *build, step *s)
{
    bool into_cache = true, past_cache = true;
    for (uint32_t i = 0; i < s->source_count; i++)
        into_cache &= specialize_is_large(build, &s->operands[i]);
    for (uint32_t i = s->source_count; i < step_operand_count(s); i++) {
        step_operand *to = &s->operands[i];
        to->past_cache = specialize_is_large(build, to) && !build->loaded->reaches[to->base].read;
        past_cache &= to->past_cache;
        s->streams |= to->past_cache;
    }
    s->way = past_cache   ? MULTI_COPY_PAST_CACHE
             : into_cache ? MULTI_COPY_INTO_CACHE
                          : MULTI_COPY_PLAIN;
}

/* A reduction writes each block once to its target, preferably local memory, and copies it from
 * there to the other destinations. Destinations that bypass the caches are copied from the task's
 * buffer. */
static void choose_target(const struct builder *build, step *s)
{
    s->target = STEP_NO_TARGET;
    if (s->streams)
        return;
    for (uint32_t i = step_operand_count(s); i-- > s->source_count;) {
        bool own = (int)(s->operands[i].base / PLAN_BUFFERS) == build->rank;
        if (!s->operands[i].packets && (own || s->target == STEP_NO_TARGET))
            s->target = i;
    }
}

static banyan_status finish_combine(struct builder *build, step *s)
{
    s->reduce = reduce_find(build->made->dtype, s->op->reduce_op);
    choose_target(build, s);
    uint32_t packets = 0;
    for (uint32_t i = 0; i < s->source_count; i++)
        packets += s->operands[i].packets;
    bool in_one = packets == 0 && s->destination_count == 1 && s->target != STEP_NO_TARGET;
    s->block_bytes = in_one ? UINT64_MAX : BLOCK_BYTES;
    size_t room = (packets + (s->target == STEP_NO_TARGET)) * (size_t)BLOCK_BYTES;
    if (room > build->steps->room_bytes)
        build->steps->room_bytes = room;
    if (s->source_count > build->steps->most_sources)
        build->steps->most_sources = s->source_count;
    return BANYAN_OK;
}

/* Add a step that moves bytes: the i-th part of the operation. */
static banyan_status specialize_add_move(struct builder *build, step_kind kind, uint32_t i)
{
    plan_op *part = arena_take(&build->made->memory, sizeof *part);
    if (!part)
        return BANYAN_ERR_NO_MEMORY;
    *part = plan_op_part(build->whole, i);
    step *s = specialize_add_step(build, kind);
    if (!s)
        return BANYAN_ERR_NO_MEMORY;
    s->op = part;
    s->new_flags = build->loop && goes_round(&build->made->geometry);
    RETURN_IF_FAILED(specialize_add_operands(build, s));
    choose_way(build, s);
    RETURN_IF_FAILED(add_doorbells(build, s));
    if (kind == STEP_COMBINE)
        RETURN_IF_FAILED(finish_combine(build, s));
    return specialize_add_pieces(build, s);
}

/* Add a step that signals or waits on channels [first, first + count) of the operation. */
static banyan_status specialize_add_ends(struct builder *build, step_kind kind, uint32_t first,
                                         uint32_t count)
{
    const plan_op *op = build->whole;
    step *s = specialize_add_step(build, kind);
    if (!s)
        return BANYAN_ERR_NO_MEMORY;
    s->op = op;
    s->end_count = count;
    s->ends = arena_take(&build->made->memory, (count + 1) * sizeof *s->ends);
    if (!s->ends)
        return BANYAN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t channel = plan_channel_of(build->block, op, op->channels[first + i]);
        s->ends[i] = &build->loaded->ends[op->channel_type][channel];
    }
    return BANYAN_OK;
}

/* The channel of the i-th part of a put: the i-th, or the only one. */
static uint32_t channel_of_part(const plan_op *op, uint32_t i)
{
    return i < op->channel_count ? i : op->channel_count - 1;
}

static banyan_status add_post(struct builder *build, step_kind kind, uint32_t i)
{
    const plan_op *op = build->whole;
    RETURN_IF_FAILED(specialize_add_move(build, kind, i));
    step *s = &build->steps->steps.data[build->steps->steps.count - 1];
    s->end_count = 1;
    s->ends = arena_take(&build->made->memory, sizeof *s->ends);
    if (!s->ends)
        return BANYAN_ERR_NO_MEMORY;
    if (kind == STEP_POST_FORWARD && build->steps->room_bytes < BLOCK_BYTES)
        build->steps->room_bytes = BLOCK_BYTES;
    uint32_t channel = plan_channel_of(build->block, op, op->channels[channel_of_part(op, i)]);
    s->ends[0] = &build->loaded->ends[PLAN_PORT][channel];
    return BANYAN_OK;
}

static banyan_status add_put(struct builder *build, step_kind kind, step_kind post)
{
    const plan_op *op = build->whole;
    bool port = op->channel_type == PLAN_PORT;
    bool signals = op->kind == PLAN_PUT_WITH_SIGNAL || op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
    for (uint32_t i = 0; i < plan_op_part_count(op); i++) {
        RETURN_IF_FAILED((port ? add_post : specialize_add_move)(build, port ? post : kind, i));
        if (signals)
            RETURN_IF_FAILED(specialize_add_ends(build, port ? STEP_POST_SIGNAL : STEP_SIGNAL,
                                                 channel_of_part(op, i), 1));
    }
    if (port && op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH)
        return specialize_add_ends(build, STEP_FLUSH, 0, op->channel_count);
    return BANYAN_OK;
}

static banyan_status specialize_add_parts(struct builder *build, step_kind kind)
{
    for (uint32_t i = 0; i < plan_op_part_count(build->whole); i++)
        RETURN_IF_FAILED(specialize_add_move(build, kind, i));
    return BANYAN_OK;
}

static banyan_status add_plain(struct builder *build, step_kind kind)
{
    step *s = specialize_add_step(build, kind);
    if (!s)
        return BANYAN_ERR_NO_MEMORY;
    s->op = build->whole;
    return BANYAN_OK;
}

static banyan_status add_barrier(struct builder *build)
{
    RETURN_IF_FAILED(add_plain(build, STEP_BARRIER));
    uint64_t place = 0;
    uint32_t number = build->whole->barrier;
    map_get(&build->loaded->barrier_places, &number, sizeof number, &place);
    build->steps->steps.data[build->steps->steps.count - 1].barrier = (uint32_t)place;
    return BANYAN_OK;
}

static banyan_status specialize_add_op(struct builder *build, const plan_op *op);

static banyan_status specialize_add_loop(struct builder *build, const plan_op *loop)
{
    uint32_t begin = (uint32_t)build->steps->steps.count;
    RETURN_IF_FAILED(add_plain(build, STEP_LOOP));
    build->loop = loop;
    for (uint32_t i = 0; i < loop->op_count; i++)
        RETURN_IF_FAILED(specialize_add_op(build, &loop->ops[i]));
    build->loop = NULL;
    build->whole = loop;
    RETURN_IF_FAILED(add_plain(build, STEP_LOOP_END));
    step *steps = build->steps->steps.data;
    uint32_t end = (uint32_t)build->steps->steps.count - 1;
    steps[begin].iterations = steps[end].iterations =
        plan_geometry_iterations(&build->made->geometry, loop);
    steps[begin].first = end + 1;
    steps[end].first = begin + 1;
    return BANYAN_OK;
}

static banyan_status specialize_add_op(struct builder *build, const plan_op *op)
{
    build->whole = op;
    bool port = op->channel_type == PLAN_PORT;
    switch (op->kind) {
    case PLAN_NOP:
        return add_plain(build, STEP_NOP);
    case PLAN_COPY:
    case PLAN_GET:
    case PLAN_GROUP_STORE:
        return specialize_add_parts(build, STEP_COPY);
    case PLAN_COPY_PACKET:
        return specialize_add_parts(build, STEP_PACK);
    case PLAN_GROUP_STORE_PACKET:
        return specialize_add_parts(build, STEP_FORWARD);
    case PLAN_UNPACK_PACKET:
        return specialize_add_parts(build, STEP_UNPACK);
    case PLAN_PUT:
    case PLAN_PUT_WITH_SIGNAL:
    case PLAN_PUT_WITH_SIGNAL_AND_FLUSH:
        return add_put(build, STEP_COPY, STEP_POST_COPY);
    case PLAN_PUT_PACKET:
        return add_put(build, STEP_PACK, STEP_POST_PACK);
    case PLAN_READ_PUT_PACKET:
        return add_put(build, STEP_FORWARD, STEP_POST_FORWARD);
    case PLAN_REDUCE:
    case PLAN_REDUCE_PACKET:
    case PLAN_REDUCE_COPY_PACKET:
    case PLAN_REDUCE_SEND:
    case PLAN_REDUCE_SEND_PACKET:
    case PLAN_REDUCE_COPY_SEND_PACKET:
    case PLAN_READ_REDUCE:
    case PLAN_READ_REDUCE_SEND:
    case PLAN_GROUP_LOAD_REDUCE:
    case PLAN_GROUP_LOAD_REDUCE_STORE:
        return specialize_add_parts(build, STEP_COMBINE);
    case PLAN_SEM_ACQUIRE:
        return add_plain(build, STEP_ACQUIRE);
    case PLAN_SEM_RELEASE:
        return add_plain(build, STEP_RELEASE);
    case PLAN_SIGNAL:
    case PLAN_RELAXED_SIGNAL:
        return specialize_add_ends(build, port ? STEP_POST_SIGNAL : STEP_SIGNAL, 0,
                                   op->channel_count);
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
        return specialize_add_ends(build, STEP_WAIT, 0, op->channel_count);
    case PLAN_BARRIER:
        return add_barrier(build);
    case PLAN_FLUSH:
        return port ? specialize_add_ends(build, STEP_FLUSH, 0, op->channel_count)
                    : add_plain(build, STEP_NOP);
    case PLAN_PIPELINE:
        return specialize_add_loop(build, op);
    case PLAN_OP_KINDS:
        break;
    }
    return error_set(BANYAN_ERR_INVALID, "rank %d, thread block %" PRIu32 ": operation of kind %d",
                     build->rank, build->block->id, (int)op->kind);
}

static banyan_status specialize_add_blocks(struct builder *build)
{
    const plan_rank *rank = &build->plan->ranks[build->rank];
    specialized_plan *made = build->made;
    made->block_count = rank->block_count;
    made->blocks = calloc(rank->block_count + 1, sizeof *made->blocks);
    if (!made->blocks)
        return error_no_memory((rank->block_count + 1) * sizeof *made->blocks,
                               "a plan's thread blocks");
    for (uint32_t i = 0; i < rank->block_count; i++) {
        build->block = &rank->blocks[i];
        build->steps = &made->blocks[i];
        for (build->number = 0; build->number < build->block->op_count; build->number++)
            RETURN_IF_FAILED(specialize_add_op(build, &build->block->ops[build->number]));
    }
    return BANYAN_OK;
}

/* Count all ranks' flags on every rank, so that all get the same number. */
static uint64_t count_flags(const struct builder *build)
{
    uint64_t most = 1, iterations;
    plan_cursor at = {.plan = build->plan};
    while (goes_round(&build->made->geometry) && plan_cursor_next(&at)) {
        iterations = plan_geometry_iterations(&build->made->geometry, at.op);
        most = iterations > most ? iterations : most;
    }
    return most;
}

static banyan_status specialize_for_size(struct builder *build)
{
    const banyan_loaded_plan *loaded = build->loaded;
    specialized_plan *made = build->made;
    made->elem_bytes = banyan_dtype_bytes(made->dtype);
    if (made->elem_bytes == 0)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: a plan cannot run on elements that do not fill whole bytes",
                         build->rank);
    RETURN_IF_FAILED(
        plan_geometry_make(build->plan, made->message_bytes, made->elem_bytes, &made->geometry));
    /* Scratch chunks keep the positions of the longest message. Data for a peer then lies in one
     * place for every size, and consecutive runs of different sizes are as safe as runs of one
     * size. */
    made->geometry.scratch_stride = loaded->largest.scratch_stride;
    made->geometry.scratch_half_bytes = loaded->largest.scratch_half_bytes;
    for (int buffer = PLAN_INPUT; buffer <= PLAN_OUTPUT; buffer++)
        made->bytes[buffer] =
            plan_geometry_bytes(&made->geometry, build->plan, build->rank, (plan_buffer)buffer);
    uint64_t flags = count_flags(build);
    if (flags > UINT32_MAX / 2)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: a message of %" PRIu64 " bytes goes round the plan's scratch "
                         "%" PRIu64 " times, more often than packets can distinguish",
                         build->rank, made->message_bytes, flags);
    made->flags = (uint32_t)flags;
    return BANYAN_OK;
}

/* Check the operations of all ranks: otherwise a rank that only sends would wait for peers that
 * cannot reduce. */
static banyan_status check_reductions(const banyan_plan *plan, DLDataType dtype)
{
    plan_cursor at = {.plan = plan};
    while (!reduce_find(dtype, BANYAN_SUM) && plan_cursor_next(&at)) {
        if (plan_op_reduces(at.op->kind) && !reduce_find(dtype, at.op->reduce_op))
            return error_set(BANYAN_ERR_INVALID,
                             "plan \"%s\" reduces (%s of rank %d, thread block %" PRIu32
                             "), and elements of type %s (code %d, %d bits × %d) cannot be reduced",
                             plan->name, plan_op_name(at.op->kind), at.rank, at.block->id,
                             banyan_dtype_name(dtype), dtype.code, dtype.bits, dtype.lanes);
    }
    return BANYAN_OK;
}

banyan_status specialize_make(const banyan_loaded_plan *loaded, uint64_t message_bytes,
                              DLDataType dtype, specialized_plan **made)
{
    RETURN_IF_FAILED(check_reductions(loaded->plan, dtype));
    specialized_plan *new = calloc(1, sizeof *new);
    if (!new)
        return error_no_memory(sizeof *new, "a specialized plan");
    new->message_bytes = message_bytes;
    new->dtype = dtype;
    struct builder build = {
        .loaded = loaded, .plan = loaded->plan, .rank = loaded->executor->rank, .made = new};
    banyan_status status = specialize_for_size(&build);
    if (status == BANYAN_OK)
        status = specialize_add_blocks(&build);
    if (status == BANYAN_OK && loaded->copies_output)
        status = specialize_find_spans(new, loaded->plan, build.rank, loaded->redirects_output);
    if (status != BANYAN_OK) {
        specialize_free(new);
        return status;
    }
    *made = new;
    return BANYAN_OK;
}

void specialize_free(specialized_plan *old)
{
    if (!old)
        return;
    for (uint32_t i = 0; old->blocks && i < old->block_count; i++)
        array_free(&old->blocks[i].steps);
    free(old->blocks);
    array_free(&old->words);
    array_free(&old->spans);
    arena_free(&old->memory);
    free(old);
}
