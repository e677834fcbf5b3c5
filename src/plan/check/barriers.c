#include "core/containers.h"
#include "plan/check/check.h"

/* A barrier of the rank, and its first use. */
typedef struct barrier_use {
    const plan_op *op;
    uint32_t block, index, inner; /* inner: index in the loop at `index`, plus one; 0: in no loop */
    uint32_t blocks, last_block;  /* number of thread blocks that use it, and the last of them */
} barrier_use;

typedef struct barrier_uses {
    hash_map numbers; /* a barrier's number to its index in the list */
    ARRAY(barrier_use) list;
} barrier_uses;

static void push_use(plan_checker *check, const barrier_use *use)
{
    json_path_key(&check->path, "threadblocks");
    json_path_index(&check->path, use->block);
    json_path_key(&check->path, "ops");
    json_path_index(&check->path, use->index);
    if (use->inner > 0) {
        json_path_key(&check->path, "ops");
        json_path_index(&check->path, use->inner - 1);
    }
    json_path_key(&check->path, "num_threadblocks");
}

static banyan_status note_use(plan_checker *check, barrier_uses *uses, const barrier_use *use)
{
    const plan_op *op = use->op;
    uint64_t place = uses->list.count;
    if (!map_get(&uses->numbers, &op->barrier, sizeof op->barrier, &place)) {
        bool noted = map_put(&uses->numbers, &op->barrier, sizeof op->barrier, place) &&
                     array_push(&uses->list, *use);
        return noted ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    }
    barrier_use *first = &uses->list.data[place];
    if (op->barrier_members != first->op->barrier_members) {
        push_use(check, use);
        return json_path_fail(&check->path, "is %u, and thread block %u has %u for barrier %u",
                              op->barrier_members, first->block, first->op->barrier_members,
                              op->barrier);
    }
    first->blocks += first->last_block != use->block;
    first->last_block = use->block;
    return BANYAN_OK;
}

static banyan_status barriers_note_ops(plan_checker *check, barrier_uses *uses, uint32_t number)
{
    const plan_thread_block *block = &check->plan->ranks[check->rank].blocks[number];
    for (uint32_t i = 0; i < block->op_count; i++) {
        const plan_op *op = &block->ops[i];
        barrier_use use = {op, number, i, 0, 1, number};
        if (op->kind == PLAN_BARRIER)
            RETURN_IF_FAILED(note_use(check, uses, &use));
        for (uint32_t k = 0; k < op->op_count; k++) {
            use.op = &op->ops[k];
            use.inner = k + 1;
            if (use.op->kind == PLAN_BARRIER)
                RETURN_IF_FAILED(note_use(check, uses, &use));
        }
    }
    return BANYAN_OK;
}

static banyan_status barriers_count_blocks(plan_checker *check, const barrier_uses *uses)
{
    for (size_t i = 0; i < uses->list.count; i++) {
        const barrier_use *use = &uses->list.data[i];
        if (use->blocks == use->op->barrier_members)
            continue;
        push_use(check, use);
        return json_path_fail(&check->path, "is %u, and barrier %u is in %u of rank %d's blocks",
                              use->op->barrier_members, use->op->barrier, use->blocks, check->rank);
    }
    return BANYAN_OK;
}

banyan_status check_barriers(plan_checker *check)
{
    barrier_uses uses = {0};
    banyan_status status = BANYAN_OK;
    uint32_t count = check->plan->ranks[check->rank].block_count;
    for (uint32_t i = 0; i < count && status == BANYAN_OK; i++)
        status = barriers_note_ops(check, &uses, i);
    if (status == BANYAN_OK)
        status = barriers_count_blocks(check, &uses);
    map_free(&uses.numbers);
    array_free(&uses.list);
    return status;
}
