#include "program/builder.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"

/* Compute the collective's sizes in chunks, equal at all ranks. */
static banyan_status buffer_sizes(const banyan_collective *collective, int ranks, uint64_t *input,
                                  uint64_t *output)
{
    uint64_t one = collective->chunk_factor ? (uint64_t)collective->chunk_factor : 1;
    uint64_t all;
    if (__builtin_mul_overflow(one, (uint64_t)ranks, &all))
        return error_set(BANYAN_ERR_INVALID, "%d ranks of %" PRIu64 " chunks are too many", ranks,
                         one);
    switch (collective->kind) {
    case BANYAN_CUSTOM:
        *input = collective->input_chunks;
        *output = collective->output_chunks;
        return BANYAN_OK;
    case BANYAN_ALLREDUCE:
    case BANYAN_ALLTOALL:
        *input = all;
        *output = all;
        return BANYAN_OK;
    case BANYAN_ALLGATHER:
        *input = one;
        *output = all;
        return BANYAN_OK;
    case BANYAN_REDUCESCATTER:
        *input = all;
        *output = one;
        return BANYAN_OK;
    case BANYAN_SENDRECV:
    case BANYAN_BROADCAST:
    case BANYAN_REDUCE:
        *input = one;
        *output = one;
        return BANYAN_OK;
    }
    return error_set(BANYAN_ERR_INVALID, "collective %d is unknown", (int)collective->kind);
}

static banyan_status program_check_collective(const banyan_collective *collective, int ranks)
{
    if (collective->chunk_factor < 0)
        return error_set(BANYAN_ERR_INVALID, "the chunk factor is %d", collective->chunk_factor);
    bool rooted = collective->kind == BANYAN_BROADCAST || collective->kind == BANYAN_REDUCE;
    if (rooted && (collective->root < 0 || collective->root >= ranks))
        return error_set(BANYAN_ERR_INVALID, "root %d is not one of %d ranks", collective->root,
                         ranks);
    if (collective->expected_count > 0 && collective->kind != BANYAN_CUSTOM)
        return error_set(BANYAN_ERR_INVALID,
                         "%s has a result of its own: only custom collectives are given one",
                         banyan_collective_kind_name(collective->kind));
    return BANYAN_OK;
}

static banyan_status program_take_options(const banyan_program_options *options,
                                          banyan_program_options *taken)
{
    *taken = (banyan_program_options)BANYAN_PROGRAM_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(options, "BANYAN_PROGRAM_OPTIONS_INIT", taken, sizeof *taken));
    if (taken->instances < 1)
        return error_set(BANYAN_ERR_INVALID, "a program of %d instances", taken->instances);
    if (taken->threads_per_block < 1)
        return error_set(BANYAN_ERR_INVALID, "thread blocks of %d threads",
                         taken->threads_per_block);
    if (taken->protocol != BANYAN_SIMPLE && taken->protocol != BANYAN_LL)
        return error_set(BANYAN_ERR_INVALID, "protocol %d is unknown", (int)taken->protocol);
    if (taken->buffer_alignment == 0)
        return error_set(BANYAN_ERR_INVALID, "the buffers' alignment is 0 bytes");
    if (taken->min_message_bytes > taken->max_message_bytes)
        return error_set(BANYAN_ERR_INVALID,
                         "the smallest message, %" PRIu64
                         " bytes, is longer than the largest, %" PRIu64,
                         taken->min_message_bytes, taken->max_message_bytes);
    return BANYAN_OK;
}

static banyan_status keep_contributions(banyan_program *program,
                                        const banyan_expected_chunk *expected, uint64_t inputs,
                                        uint64_t outputs)
{
    if (expected->rank < 0 || expected->rank >= program->rank_count || expected->chunk >= outputs)
        return error_set(BANYAN_ERR_INVALID,
                         "expected result: rank %d's output chunk %" PRIu64
                         " is not one of %d ranks with %" PRIu64 " chunks",
                         expected->rank, expected->chunk, program->rank_count, outputs);
    plan_expected *made = &program->expected[expected->rank][expected->chunk];
    if (made->contributions)
        return error_set(BANYAN_ERR_INVALID,
                         "expected result: rank %d's output chunk %" PRIu64 " is given twice",
                         expected->rank, expected->chunk);
    plan_contribution *kept =
        program_take(program, expected->count ? expected->count : 1, sizeof *kept);
    if (!kept)
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < expected->count; i++) {
        const banyan_contribution *from = &expected->contributions[i];
        if (from->rank < 0 || from->rank >= program->rank_count || from->chunk >= inputs)
            return error_set(BANYAN_ERR_INVALID,
                             "expected result of rank %d's output chunk %" PRIu64
                             ": rank %d's input chunk %" PRIu64
                             " is not one of %d ranks with %" PRIu64 " chunks",
                             expected->rank, expected->chunk, from->rank, from->chunk,
                             program->rank_count, inputs);
        kept[i] = (plan_contribution){from->rank, from->chunk};
    }
    *made = (plan_expected){kept, expected->count};
    return BANYAN_OK;
}

static banyan_status keep_expected(banyan_program *program, const banyan_collective *collective,
                                   uint64_t inputs, uint64_t outputs)
{
    if (collective->expected_count == 0)
        return BANYAN_OK;
    program->expected =
        program_take(program, (size_t)program->rank_count, sizeof *program->expected);
    for (int rank = 0; program->expected && rank < program->rank_count; rank++) {
        program->expected[rank] = program_take(program, outputs, sizeof **program->expected);
        if (!program->expected[rank])
            program->expected = NULL;
    }
    if (!program->expected)
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < collective->expected_count; i++)
        RETURN_IF_FAILED(keep_contributions(program, &collective->expected[i], inputs, outputs));
    return BANYAN_OK;
}

static banyan_status keep_collective(banyan_program *program, const char *name,
                                     const banyan_collective *collective)
{
    const char *called = collective->kind == BANYAN_CUSTOM
                             ? (collective->name ? collective->name : "custom")
                             : banyan_collective_kind_name(collective->kind);
    uint64_t input = 0, output = 0;
    RETURN_IF_FAILED(buffer_sizes(collective, program->rank_count, &input, &output));
    program->collective = *collective;
    program->name = program_take_text(program, name);
    program->collective_name = program_take_text(program, called);
    program->ranks = calloc((size_t)program->rank_count, sizeof *program->ranks);
    if (!program->ranks)
        return error_no_memory((size_t)program->rank_count * sizeof *program->ranks,
                               "a program's ranks");
    if (!program->name || !program->collective_name)
        return BANYAN_ERR_NO_MEMORY;
    for (int rank = 0; rank < program->rank_count; rank++) {
        program->ranks[rank].chunks[PLAN_INPUT] = input;
        program->ranks[rank].chunks[PLAN_OUTPUT] = output;
    }
    return keep_expected(program, collective, input, output);
}

banyan_status banyan_program_create(const char *name, const banyan_collective *collective,
                                    int ranks, const banyan_program_options *options,
                                    banyan_program **program)
{
    if (ranks < 1 || ranks > BANYAN_MAX_RANKS)
        return error_set(BANYAN_ERR_INVALID, "a program of %d ranks: 1 to %d are possible", ranks,
                         BANYAN_MAX_RANKS);
    if (!collective)
        return error_set(BANYAN_ERR_INVALID, "a program of %d ranks has no collective", ranks);
    banyan_program_options taken;
    RETURN_IF_FAILED(program_take_options(options, &taken));
    RETURN_IF_FAILED(program_check_collective(collective, ranks));
    banyan_program *created = calloc(1, sizeof *created);
    if (!created)
        return error_no_memory(sizeof *created, "a program");
    created->options = taken;
    created->rank_count = ranks;
    banyan_status status = keep_collective(created, name, collective);
    if (status != BANYAN_OK) {
        banyan_program_destroy(created);
        return status;
    }
    *program = created;
    return BANYAN_OK;
}

static void free_numbers(program_numbers *numbers)
{
    array_free(&numbers->numbers);
    map_free(&numbers->places);
}

static void free_block(program_block *block)
{
    array_free(&block->ops);
    array_free(&block->loop_ops);
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++) {
        free_numbers(&block->channels[type]);
        free_numbers(&block->remote_buffers[type]);
    }
}

static void program_free_rank(program_rank *rank)
{
    for (size_t i = 0; i < rank->blocks.count; i++)
        free_block(&rank->blocks.data[i]);
    array_free(&rank->blocks);
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
        array_free(&rank->peers[type]);
    array_free(&rank->switches);
    array_free(&rank->remote_buffers);
    map_free(&rank->remote_numbers);
    array_free(&rank->semaphores);
    array_free(&rank->barriers);
}

void banyan_program_destroy(banyan_program *program)
{
    if (!program)
        return;
    for (int rank = 0; program->ranks && rank < program->rank_count; rank++)
        program_free_rank(&program->ranks[rank]);
    free(program->ranks);
    array_free(&program->tags);
    array_free(&program->lines);
    map_free(&program->line_numbers);
    arena_free(&program->memory);
    free(program->error);
    free(program);
}

void banyan_program_tag(banyan_program *program, const char *key, const char *value)
{
    if (!program_call_begin(program, (program_call){.operation = "tag", .rank = -1}))
        return;
    plan_tag tag = {program_take_text(program, key), program_take_text(program, value)};
    if (!tag.key || !tag.value)
        return;
    for (size_t i = 0; i < program->tags.count; i++) {
        if (strcmp(program->tags.data[i].key, tag.key) == 0) {
            program->tags.data[i] = tag;
            return;
        }
    }
    if (!array_push(&program->tags, tag))
        program_fail_memory(program);
}
