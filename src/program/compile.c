/* From a program to its plan. */
#include "program/builder.h"
#include "program/pass.h"

static plan_thread_block view_block(const program_block *block, uint32_t id)
{
    plan_thread_block seen = {
        .id = id, .ops = block->ops.data, .op_count = (uint32_t)block->ops.count};
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++) {
        seen.channels[type] = block->channels[type].numbers.data;
        seen.channel_count[type] = (uint32_t)block->channels[type].numbers.count;
        seen.remote_buffers[type] = block->remote_buffers[type].numbers.data;
        seen.remote_buffer_count[type] = (uint32_t)block->remote_buffers[type].numbers.count;
    }
    return seen;
}

static bool view_rank(banyan_plan *view, const program_rank *rank, plan_rank *seen)
{
    *seen = (plan_rank){.blocks = plan_take(view, rank->blocks.count, sizeof *seen->blocks),
                        .block_count = (uint32_t)rank->blocks.count,
                        .switches = rank->switches.data,
                        .remote_buffers = rank->remote_buffers.data,
                        .remote_buffer_count = (uint32_t)rank->remote_buffers.count,
                        .semaphores = rank->semaphores.data,
                        .semaphore_count = (uint32_t)rank->semaphores.count};
    if (!seen->blocks)
        return false;
    for (int buffer = 0; buffer < PLAN_BUFFERS; buffer++)
        seen->chunks[buffer] = rank->chunks[buffer];
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++) {
        seen->peers[type] = rank->peers[type].data;
        seen->channel_count[type] = (uint32_t)rank->peers[type].count;
    }
    seen->channel_count[PLAN_SWITCH] = (uint32_t)rank->switches.count;
    for (uint32_t i = 0; i < seen->block_count; i++)
        seen->blocks[i] = view_block(&rank->blocks.data[i], i);
    return true;
}

/* 0 is the default, so that to oneself is `ranks`, or a multiple of it. */
static int shift_of(const banyan_collective *collective, int ranks)
{
    int shift = (collective->shift ? collective->shift : 1) % ranks;
    return shift < 0 ? shift + ranks : shift;
}

static void view_header(banyan_plan *view, const banyan_program *program)
{
    const banyan_program_options *options = &program->options;
    const banyan_collective *collective = &program->collective;
    bool rooted = collective->kind == BANYAN_BROADCAST || collective->kind == BANYAN_REDUCE;
    view->name = program->name;
    view->collective_name = program->collective_name;
    view->collective = collective->kind;
    if (rooted)
        view->root = collective->root;
    if (collective->kind == BANYAN_SENDRECV)
        view->shift = shift_of(collective, program->rank_count);
    view->protocol = options->protocol;
    view->in_place = collective->in_place;
    view->reuse_resources = options->reuse_resources;
    if (options->reuse_resources && options->reused_scratch_bytes > 0)
        view->reused_scratch_bytes = options->reused_scratch_bytes;
    view->double_scratch = options->double_scratch;
    view->threads_per_block = options->threads_per_block;
    view->buffer_alignment = options->buffer_alignment;
    view->min_message_bytes = options->min_message_bytes;
    view->max_message_bytes = options->max_message_bytes;
    view->expected = program->expected;
    view->expected_op = collective->expected_op;
    view->tags = program->tags.data;
    view->tag_count = program->tags.count;
}

/* The program as it was written, in a plan of its own. */
static banyan_status plan_written(const banyan_program *program, banyan_plan **written)
{
    banyan_plan *view = plan_create(program->rank_count);
    if (!view)
        return BANYAN_ERR_NO_MEMORY;
    view_header(view, program);
    banyan_status status = BANYAN_OK;
    for (int rank = 0; rank < program->rank_count && status == BANYAN_OK; rank++) {
        if (!view_rank(view, &program->ranks[rank], &view->ranks[rank]))
            status = BANYAN_ERR_NO_MEMORY;
    }
    if (status == BANYAN_OK)
        status = plan_clone(view, written);
    banyan_plan_destroy(view);
    return status;
}

static void dump(const banyan_program *program, const char *pass, const banyan_plan *plan)
{
    if (program->options.dump)
        program->options.dump(program->options.dump_context, pass, plan);
}

typedef banyan_status (*pass_function)(const banyan_plan *plan, banyan_plan **made);

/* The pass's result takes the plan's place. */
static banyan_status run_pass(const banyan_program *program, const char *name, pass_function pass,
                              banyan_plan **plan)
{
    banyan_plan *made;
    RETURN_IF_FAILED(pass(*plan, &made));
    banyan_plan_destroy(*plan);
    *plan = made;
    dump(program, name, made);
    return BANYAN_OK;
}

static banyan_status run_instances(const banyan_program *program, banyan_plan **plan)
{
    banyan_plan *made;
    RETURN_IF_FAILED(
        pass_instances(*plan, program->options.instances, program->options.replication, &made));
    banyan_plan_destroy(*plan);
    *plan = made;
    dump(program, "instances", made);
    return BANYAN_OK;
}

static banyan_status run_passes(const banyan_program *program, banyan_plan **plan)
{
    const banyan_program_options *options = &program->options;
    dump(program, "program", *plan);
    RETURN_IF_FAILED(pairing_check(*plan));
    if (options->fuse_more)
        RETURN_IF_FAILED(run_pass(program, "more", pass_more, plan));
    if (options->fuse)
        RETURN_IF_FAILED(run_pass(program, "fuse", pass_fuse, plan));
    if (options->requested_sync)
        RETURN_IF_FAILED(run_pass(program, "sync", pass_sync, plan));
    if (options->auto_sync)
        RETURN_IF_FAILED(run_pass(program, "dependencies", pass_dependencies, plan));
    if (options->instances > 1)
        RETURN_IF_FAILED(run_instances(program, plan));
    return plan_check_indices(*plan, program->name);
}

static banyan_status report_first_error(const banyan_program *program)
{
    if (program->failed != BANYAN_OK)
        return error_set(program->failed, "program \"%s\": %s", program->name,
                         program->error ? program->error : "out of memory");
    if (program->in_loop)
        return error_set(BANYAN_ERR_INVALID, "program \"%s\": the loop begun at %s:%d has no end",
                         program->name, program->loop_place.file, program->loop_place.line);
    return BANYAN_OK;
}

banyan_status banyan_program_compile(banyan_program *program, banyan_plan **plan)
{
    if (!program)
        return error_set(BANYAN_ERR_INVALID, "there is no program to compile");
    RETURN_IF_FAILED(report_first_error(program));
    banyan_plan *made;
    RETURN_IF_FAILED(plan_written(program, &made));
    banyan_status status = run_passes(program, &made);
    if (status != BANYAN_OK) {
        banyan_plan_destroy(made);
        return status;
    }
    *plan = made;
    return BANYAN_OK;
}
