/* Compile a program to its plan. */
#include "program/builder.h"
#include "program/compile/pass.h"

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

/* Return the shift modulo `ranks`. 0 in the options is the default, 1; a shift to oneself is given
 * as `ranks`, or a multiple of it. */
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
    if (collective->kind == BANYAN_CUSTOM && collective->block_chunks > 0)
        view->block_chunks = collective->block_chunks;
    view->threads_per_block = options->threads_per_block;
    view->buffer_alignment = options->buffer_alignment;
    view->min_message_bytes = options->min_message_bytes;
    view->max_message_bytes = options->max_message_bytes;
    view->expected = program->expected;
    view->expected_op = collective->expected_op;
    view->tags = program->tags.data;
    view->tag_count = program->tags.count;
    view->lines = program->lines.data;
    view->line_count = (uint32_t)program->lines.count;
}

/* View the program as a plan, as it was written: its lists remain those of the program. Destroy it
 * afterwards. */
static banyan_status view_program(const banyan_program *program, banyan_plan **seen)
{
    banyan_plan *view = plan_create(program->rank_count);
    if (!view)
        return BANYAN_ERR_NO_MEMORY;
    view_header(view, program);
    for (int rank = 0; rank < program->rank_count; rank++) {
        if (!view_rank(view, &program->ranks[rank], &view->ranks[rank])) {
            banyan_plan_destroy(view);
            return BANYAN_ERR_NO_MEMORY;
        }
    }
    *seen = view;
    return BANYAN_OK;
}

static void compile_dump(const banyan_program *program, const char *pass, const banyan_plan *plan)
{
    if (program->options.dump)
        program->options.dump(program->options.dump_context, pass, plan);
}

/* The selected rewriting passes. */
typedef struct pass_list {
    const char *names[5];
    ops_rewrite passes[5];
    size_t count;
} pass_list;

static void compile_want(pass_list *list, bool wanted, const char *name, ops_rewrite pass)
{
    if (!wanted)
        return;
    list->names[list->count] = name;
    list->passes[list->count++] = pass;
}

static pass_list wanted_passes(const banyan_program_options *options)
{
    pass_list list = {0};
    compile_want(&list, options->fuse_more, "more", pass_more);
    compile_want(&list, options->fuse, "fuse", pass_fuse);
    compile_want(&list, options->requested_sync, "sync", pass_sync);
    compile_want(&list, options->auto_sync, "dependencies", pass_dependencies);
    compile_want(&list, options->fuse_more, "idle", pass_idle);
    return list;
}

/* True if a pass needs the result of the previous pass for other thread blocks. */
static bool looks_around(const banyan_plan *plan)
{
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        if (at.op->kind == PLAN_GROUP_LOAD_REDUCE)
            return true;
    }
    return false;
}

/* Run all passes and return a new plan. One traversal, unless the caller wants to see the plan
 * after each pass. */
static banyan_status run_rewrites(const banyan_program *program, const banyan_plan *view,
                                  banyan_plan **plan)
{
    pass_list list = wanted_passes(&program->options);
    if (!program->options.dump && !looks_around(view))
        return ops_rewrite_all(view, list.passes, list.count, plan);
    banyan_plan *made, *next;
    RETURN_IF_FAILED(plan_clone(view, &made));
    for (size_t i = 0; i < list.count; i++) {
        banyan_status status = ops_rewrite_all(made, &list.passes[i], 1, &next);
        banyan_plan_destroy(made);
        if (status != BANYAN_OK)
            return status;
        made = next;
        compile_dump(program, list.names[i], made);
    }
    *plan = made;
    return BANYAN_OK;
}

static banyan_status run_instances(const banyan_program *program, banyan_plan **plan)
{
    banyan_plan *made;
    RETURN_IF_FAILED(
        pass_instances(*plan, program->options.instances, program->options.replication, &made));
    banyan_plan_destroy(*plan);
    *plan = made;
    compile_dump(program, "instances", made);
    return BANYAN_OK;
}

static banyan_status run_passes(const banyan_program *program, banyan_plan **plan)
{
    banyan_plan *view, *made;
    RETURN_IF_FAILED(view_program(program, &view));
    compile_dump(program, "program", view);
    banyan_status status = pairing_check(view);
    if (status == BANYAN_OK)
        status = run_rewrites(program, view, &made);
    banyan_plan_destroy(view);
    RETURN_IF_FAILED(status);
    if (program->options.instances > 1)
        status = run_instances(program, &made);
    if (status == BANYAN_OK)
        status = plan_check_indices(made, program->name);
    if (status != BANYAN_OK) {
        banyan_plan_destroy(made);
        return status;
    }
    *plan = made;
    return BANYAN_OK;
}

banyan_status banyan_program_compile(banyan_program *program, banyan_plan **plan)
{
    if (!program)
        return error_set(BANYAN_ERR_INVALID, "there is no program to compile");
    RETURN_IF_FAILED(banyan_program_status(program));
    if (program->in_loop)
        return error_set(BANYAN_ERR_INVALID, "program \"%s\": the loop begun at %s:%d has no end",
                         program->name, program_loop_file(program), program->loop_place.line);
    return run_passes(program, plan);
}
