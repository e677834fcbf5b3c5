#include "execute/device/program.h"

#include <inttypes.h>

/* Largest number of listed iterations of a loop. */
#define ITERATIONS_MOST (UINT64_C(1) << 20)

struct program_maker {
    const banyan_loaded_plan *loaded;
    const specialized_plan *specialized;
    const plan_thread_block *block;
    engine_arrays *to;
    piece_words iteration; /* the pieces of one iteration */
};

/* Return the index of a channel's end in engine_plan's list. */
static uint32_t engine_end_number(const banyan_loaded_plan *loaded, plan_channel_type type,
                                  const channel_end *end)
{
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    uint32_t before = type == PLAN_PORT ? rank->channel_count[PLAN_MEMORY] : 0;
    return before + (uint32_t)(end - loaded->ends[type]);
}

static banyan_status add_words(struct program_maker *maker, const uint64_t *words, uint64_t count)
{
    if (!array_reserve(&maker->to->words, count))
        return BANYAN_ERR_NO_MEMORY;
    for (uint64_t i = 0; i < count; i++)
        maker->to->words.data[maker->to->words.count++] = words[i];
    return BANYAN_OK;
}

static banyan_status add_iteration(struct program_maker *maker, const step *s, uint64_t iteration)
{
    const uint64_t *words = maker->specialized->words.data;
    if (s->iteration_at)
        return add_words(maker, words + s->iteration_at[iteration],
                         s->iteration_at[iteration + 1] - s->iteration_at[iteration]);
    maker->iteration.count = 0;
    RETURN_IF_FAILED(specialize_pieces(maker->specialized, maker->loaded->plan,
                                       maker->loaded->executor->rank, maker->block, s, iteration,
                                       &maker->iteration));
    return add_words(maker, maker->iteration.data, maker->iteration.count);
}

static banyan_status refuse_loop(const struct program_maker *maker, const step *s,
                                 uint64_t iterations)
{
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d, thread block %" PRIu32 ", operation %" PRIu32
                     ": a message of %" PRIu64 " bytes makes a loop of %" PRIu64
                     " iterations, and a device lists %" PRIu64 " at most",
                     maker->loaded->executor->rank, maker->block->id, s->number,
                     maker->specialized->message_bytes, iterations, ITERATIONS_MOST);
}

static banyan_status device_program_add_pieces(struct program_maker *maker, const step *s,
                                               engine_step *made)
{
    made->words = maker->to->words.count;
    if (!s->loop) {
        made->piece_count = s->piece_count;
        return add_words(maker, maker->specialized->words.data + s->first_word,
                         s->piece_count * step_piece_words(s));
    }
    uint64_t iterations = plan_geometry_iterations(&maker->specialized->geometry, s->loop);
    if (iterations > ITERATIONS_MOST)
        return refuse_loop(maker, s, iterations);
    if (!array_reserve(&maker->to->words, iterations + 1))
        return BANYAN_ERR_NO_MEMORY;
    maker->to->words.count += iterations + 1;
    for (uint64_t i = 0; i < iterations; i++) {
        maker->to->words.data[made->words + i] = maker->to->words.count;
        RETURN_IF_FAILED(add_iteration(maker, s, i));
    }
    maker->to->words.data[made->words + iterations] = maker->to->words.count;
    return BANYAN_OK;
}

static banyan_status device_program_add_operands(struct program_maker *maker, const step *s,
                                                 engine_step *made)
{
    if (s->source_count > UINT16_MAX || s->destination_count > UINT16_MAX)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d, thread block %" PRIu32 ", operation %" PRIu32 ": %" PRIu32
                         " sources and %" PRIu32 " destinations are more than a device takes",
                         maker->loaded->executor->rank, maker->block->id, s->number,
                         s->source_count, s->destination_count);
    made->source_count = (uint16_t)s->source_count;
    made->destination_count = (uint16_t)s->destination_count;
    made->operands = (uint32_t)maker->to->operands.count;
    for (uint32_t i = 0; s->operands && i < step_operand_count(s); i++) {
        uint32_t packets = s->operands[i].packets ? ENGINE_PACKETS : 0;
        if (!array_push(&maker->to->operands, s->operands[i].base | packets))
            return BANYAN_ERR_NO_MEMORY;
    }
    return s->operands ? device_program_add_pieces(maker, s, made) : BANYAN_OK;
}

static banyan_status device_program_add_ends(struct program_maker *maker, const step *s,
                                             engine_step *made)
{
    made->ends = (uint32_t)maker->to->ends.count;
    bool semaphores = s->kind == STEP_ACQUIRE || s->kind == STEP_RELEASE;
    made->end_count = semaphores ? s->op->semaphore_count : s->end_count;
    for (uint32_t i = 0; i < made->end_count; i++) {
        uint32_t number =
            semaphores ? s->op->semaphores[i]
                       : engine_end_number(maker->loaded, s->whole->channel_type, s->ends[i]);
        if (!array_push(&maker->to->ends, number))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status device_program_add_step(struct program_maker *maker, const step *s)
{
    engine_step made = {
        .kind = (uint8_t)s->kind,
        .new_flags = s->new_flags,
        .in_loop = s->loop != NULL,
        .number = s->number,
        .jump = s->first,
        .barrier = s->barrier,
    };
    if (s->kind == STEP_COMBINE)
        made.op = (uint8_t)s->op->reduce_op;
    made.relaxed = s->whole && s->whole->kind == PLAN_RELAXED_SIGNAL;
    if (s->kind == STEP_BARRIER)
        made.barrier_members = s->op->barrier_members;
    if (s->kind == STEP_LOOP || s->kind == STEP_LOOP_END) {
        if (s->iterations > ITERATIONS_MOST)
            return refuse_loop(maker, s, s->iterations);
        made.iterations = (uint32_t)s->iterations;
    }
    RETURN_IF_FAILED(device_program_add_operands(maker, s, &made));
    RETURN_IF_FAILED(device_program_add_ends(maker, s, &made));
    return array_push(&maker->to->steps, made) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status device_program_add_block(struct program_maker *maker,
                                              const specialized_block *block)
{
    engine_arrays *to = maker->to;
    engine_block made = {
        .id = maker->block->id,
        .first_step = (uint32_t)to->steps.count,
        .step_count = (uint32_t)block->steps.count,
        .first_operand = (uint32_t)to->operands.count,
        .first_end = (uint32_t)to->ends.count,
        .first_word = to->words.count,
    };
    for (size_t i = 0; i < block->steps.count; i++)
        RETURN_IF_FAILED(device_program_add_step(maker, &block->steps.data[i]));
    made.operand_count = (uint32_t)to->operands.count - made.first_operand;
    made.end_count = (uint32_t)to->ends.count - made.first_end;
    made.word_count = to->words.count - made.first_word;
    return array_push(&to->blocks, made) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status device_program_add_all(struct program_maker *maker)
{
    const plan_rank *rank = &maker->loaded->plan->ranks[maker->loaded->executor->rank];
    for (uint32_t i = 0; i < rank->block_count; i++) {
        maker->block = &rank->blocks[i];
        RETURN_IF_FAILED(device_program_add_block(maker, &maker->specialized->blocks[i]));
    }
    for (size_t i = 0; i < maker->specialized->spans.count; i++) {
        const specialized_span *one = &maker->specialized->spans.data[i];
        if (!array_push(&maker->to->spans, (engine_span){one->offset, one->bytes}))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

banyan_status engine_program_make(const banyan_loaded_plan *loaded,
                                  const specialized_plan *specialized, uint32_t multicast,
                                  engine_arrays *arrays, engine_program *program)
{
    *arrays = (engine_arrays){0};
    struct program_maker maker = {.loaded = loaded, .specialized = specialized, .to = arrays};
    banyan_status status = device_program_add_all(&maker);
    array_free(&maker.iteration);
    RETURN_IF_FAILED(status);
    engine_fuse(loaded, arrays);
    multicast_use(loaded, specialized, multicast, arrays);
    RETURN_IF_FAILED(engine_order(loaded, arrays));
    *program = (engine_program){
        .dtype = specialized->dtype,
        .elem_bytes = (uint32_t)specialized->elem_bytes,
        .flags = specialized->flags,
        .blocks = arrays->blocks.data,
        .block_count = (uint32_t)arrays->blocks.count,
        .steps = arrays->steps.data,
        .step_count = (uint32_t)arrays->steps.count,
        .operands = arrays->operands.data,
        .operand_count = (uint32_t)arrays->operands.count,
        .ends = arrays->ends.data,
        .end_count = (uint32_t)arrays->ends.count,
        .words = arrays->words.data,
        .word_count = arrays->words.count,
        .spans = arrays->spans.data,
        .span_count = (uint32_t)arrays->spans.count,
    };
    return BANYAN_OK;
}

void engine_arrays_free(engine_arrays *arrays)
{
    array_free(&arrays->blocks);
    array_free(&arrays->steps);
    array_free(&arrays->operands);
    array_free(&arrays->ends);
    array_free(&arrays->words);
    array_free(&arrays->spans);
}
