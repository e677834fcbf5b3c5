#include "plan/geometry/geometry.h"

#include <stdlib.h>
#include <string.h>

static const char *const collective_names[] = {
    [BANYAN_CUSTOM] = "custom",       [BANYAN_ALLREDUCE] = "allreduce",
    [BANYAN_ALLGATHER] = "allgather", [BANYAN_REDUCESCATTER] = "reducescatter",
    [BANYAN_ALLTOALL] = "alltoall",   [BANYAN_SENDRECV] = "sendrecv",
    [BANYAN_BROADCAST] = "broadcast", [BANYAN_REDUCE] = "reduce",
};

#define COLLECTIVE_COUNT (sizeof collective_names / sizeof collective_names[0])

const char *banyan_collective_kind_name(banyan_collective_kind kind)
{
    return (size_t)kind < COLLECTIVE_COUNT ? collective_names[kind] : "?";
}

banyan_status banyan_collective_kind_parse(const char *name, banyan_collective_kind *kind)
{
    for (size_t i = 0; i < COLLECTIVE_COUNT; i++) {
        if (strcmp(collective_names[i], name) == 0) {
            *kind = (banyan_collective_kind)i;
            return BANYAN_OK;
        }
    }
    return error_set(BANYAN_ERR_NOT_FOUND, "\"%s\" names no collective", name);
}

static const char *const executor_names[] = {
    [BANYAN_EXECUTOR_BANYAN] = "banyan", [BANYAN_EXECUTOR_MSCCLPP] = "mscclpp"};

#define EXECUTOR_COUNT (sizeof executor_names / sizeof executor_names[0])

const char *banyan_plan_executor_name(banyan_plan_executor executor)
{
    return (size_t)executor < EXECUTOR_COUNT ? executor_names[executor] : "?";
}

banyan_status banyan_plan_executor_parse(const char *name, banyan_plan_executor *executor)
{
    for (size_t i = 0; i < EXECUTOR_COUNT; i++) {
        if (strcmp(executor_names[i], name) == 0) {
            *executor = (banyan_plan_executor)i;
            return BANYAN_OK;
        }
    }
    return error_set(BANYAN_ERR_NOT_FOUND,
                     "\"%s\" names no executor: banyan and mscclpp are possible", name);
}

void *plan_take(banyan_plan *plan, size_t count, size_t bytes)
{
    return arena_zeroed(&plan->memory, count, bytes);
}

const char *plan_take_text(banyan_plan *plan, const char *text)
{
    return arena_copy(&plan->memory, text, strlen(text) + 1);
}

banyan_plan *plan_create(int ranks)
{
    if (ranks < 1 || ranks > BANYAN_MAX_RANKS) {
        error_set(BANYAN_ERR_INVALID, "a plan cannot have %d ranks: 1 to %d are possible", ranks,
                  BANYAN_MAX_RANKS);
        return NULL;
    }
    banyan_plan *plan = malloc(sizeof *plan);
    if (!plan) {
        error_no_memory(sizeof *plan, "a plan");
        return NULL;
    }
    *plan = (banyan_plan){
        .name = "",
        .collective_name = collective_names[BANYAN_CUSTOM],
        .threads_per_block = 1024,
        .buffer_alignment = 16,
        .max_message_bytes = UINT64_MAX,
        .reused_scratch_bytes = PLAN_REUSED_SCRATCH_BYTES,
        .block_chunks = 1,
        .rank_count = ranks,
    };
    plan->ranks = plan_take(plan, (size_t)ranks, sizeof *plan->ranks);
    if (!plan->ranks) {
        banyan_plan_destroy(plan);
        return NULL;
    }
    return plan;
}

void banyan_plan_destroy(banyan_plan *plan)
{
    if (!plan)
        return;
    arena_free(&plan->memory);
    free(plan);
}

banyan_plan_info banyan_plan_describe(const banyan_plan *plan)
{
    banyan_plan_info info = {
        .name = plan->name,
        .collective = plan->collective,
        .collective_name = plan->collective_name,
        .ranks = plan->rank_count,
        .root = plan->root,
        .shift = plan->shift,
        .protocol = plan->protocol,
        .in_place = plan->in_place,
        .reuse_resources = plan->reuse_resources,
        .double_scratch = plan->double_scratch,
        .threads_per_block = plan->threads_per_block,
        .buffer_alignment = plan->buffer_alignment,
        .min_message_bytes = plan->min_message_bytes,
        .max_message_bytes = plan->max_message_bytes,
        .executor = plan->executor,
    };
    uint64_t block_chunks;
    plan_message_divide(plan, &info.message_parts, &block_chunks);
    for (int r = 0; r < plan->rank_count; r++) {
        if ((int)plan->ranks[r].block_count > info.thread_blocks)
            info.thread_blocks = (int)plan->ranks[r].block_count;
    }
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);)
        info.operations++;
    return info;
}

const char *banyan_plan_tag(const banyan_plan *plan, const char *key)
{
    for (size_t i = 0; i < plan->tag_count; i++) {
        if (strcmp(plan->tags[i].key, key) == 0)
            return plan->tags[i].value;
    }
    return NULL;
}

const char *banyan_plan_tag_key(const banyan_plan *plan, size_t index)
{
    return index < plan->tag_count ? plan->tags[index].key : NULL;
}

bool plan_cursor_next(plan_cursor *at)
{
    const banyan_plan *plan = at->plan;
    if (at->op) {
        const plan_op *outer = &at->block->ops[at->at];
        at->inner = at->loop ? at->inner + 1 : 0;
        at->loop = at->inner < outer->op_count ? outer : NULL;
        at->at += !at->loop;
    }
    while (!at->block || at->at >= at->block->op_count) {
        at->number = at->block ? at->number + 1 : 0;
        for (; at->rank < plan->rank_count; at->rank++, at->number = 0) {
            if (at->number < plan->ranks[at->rank].block_count)
                break;
        }
        if (at->rank >= plan->rank_count)
            return false;
        at->block = &plan->ranks[at->rank].blocks[at->number];
        at->at = 0;
    }
    at->op = at->loop ? &at->loop->ops[at->inner] : &at->block->ops[at->at];
    return true;
}

plan_where plan_operand_where(const banyan_plan *plan, int rank, const plan_thread_block *block,
                              const plan_op *op, const plan_operand *operand)
{
    const plan_rank *own = &plan->ranks[rank];
    if (operand->place == PLAN_REMOTE) {
        uint32_t id = block->remote_buffers[op->channel_type][operand->reference];
        return (plan_where){own->remote_buffers[id].rank, own->remote_buffers[id].buffer};
    }
    if (operand->place == PLAN_GROUP) {
        const plan_switch *group = plan_operand_group(plan, rank, block, operand);
        return (plan_where){group->ranks[0], group->buffer};
    }
    return (plan_where){rank, operand->buffer};
}

int plan_operand_ranks(const banyan_plan *plan, int rank, const plan_thread_block *block,
                       const plan_op *op, const plan_operand *operand, const int **ranks, int *room)
{
    if (operand->place != PLAN_GROUP) {
        *room = plan_operand_where(plan, rank, block, op, operand).rank;
        *ranks = room;
        return 1;
    }
    const plan_switch *group = plan_operand_group(plan, rank, block, operand);
    *ranks = group->ranks;
    return group->rank_count;
}

bool plan_channel_pair(const banyan_plan *plan, int rank, plan_channel_type type, uint32_t channel,
                       int *peer, uint32_t *peer_channel)
{
    const plan_rank *own = &plan->ranks[rank];
    int other = own->peers[type][channel];
    const plan_rank *theirs = &plan->ranks[other];
    uint32_t before = 0;
    for (uint32_t i = 0; i < channel; i++)
        before += own->peers[type][i] == other;
    for (uint32_t i = 0; i < theirs->channel_count[type]; i++) {
        if (theirs->peers[type][i] != rank)
            continue;
        if (before == 0) {
            *peer = other;
            *peer_channel = i;
            return true;
        }
        before--;
    }
    return false;
}

bool plan_op_writes_to(const banyan_plan *plan, int rank, const plan_thread_block *block,
                       const plan_op *op, int reader, const plan_operand *wanted)
{
    for (uint32_t i = 0; i < op->destination_count; i++) {
        const plan_operand *to = &op->destinations[i];
        const int *ranks;
        int room;
        if (!plan_destination_is_packets(op, i) || !plan_operands_overlap(to, wanted))
            continue;
        int count = plan_operand_ranks(plan, rank, block, op, to, &ranks, &room);
        for (int r = 0; r < count; r++) {
            if (ranks[r] == reader)
                return true;
        }
    }
    return false;
}
