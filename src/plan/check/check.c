#include "plan/check/check.h"
#include "plan/op.h"

#define ULL(number) ((unsigned long long)(number))

#define ALIGNMENT_MAX (UINT64_C(1) << 30)

/* True if the collective allows these numbers of chunks. */
static bool chunks_fit(const banyan_plan *plan, uint64_t input, uint64_t output)
{
    uint64_t ranks = (uint64_t)plan->rank_count;
    switch (plan->collective) {
    case BANYAN_ALLGATHER:
        return input > 0 && output / ranks == input && output % ranks == 0;
    case BANYAN_REDUCESCATTER:
        return output > 0 && input / ranks == output && input % ranks == 0;
    case BANYAN_ALLTOALL:
        return input > 0 && input == output && input % ranks == 0;
    case BANYAN_CUSTOM:
        return true;
    default:
        return input > 0 && input == output;
    }
}

static banyan_status plan_check_blocks(plan_checker *check, const uint64_t *chunks)
{
    uint64_t block = check->plan->block_chunks;
    if (chunks[PLAN_INPUT] % block == 0 && chunks[PLAN_OUTPUT] % block == 0)
        return BANYAN_OK;
    return json_path_fail(&check->path,
                          "has %llu input and %llu output chunks, which are not whole blocks of "
                          "%llu",
                          ULL(chunks[PLAN_INPUT]), ULL(chunks[PLAN_OUTPUT]), ULL(block));
}

static banyan_status plan_check_collective(plan_checker *check, int r)
{
    const banyan_plan *plan = check->plan;
    const uint64_t *first = plan->ranks[0].chunks, *chunks = plan->ranks[r].chunks;
    if (chunks[PLAN_INPUT] > INT64_MAX || chunks[PLAN_OUTPUT] > INT64_MAX ||
        chunks[PLAN_SCRATCH] > INT64_MAX)
        return json_path_fail(&check->path, "has more chunks than can be counted");
    if (plan->collective == BANYAN_CUSTOM)
        return plan_check_blocks(check, chunks);
    if (chunks[PLAN_INPUT] != first[PLAN_INPUT] || chunks[PLAN_OUTPUT] != first[PLAN_OUTPUT])
        return json_path_fail(&check->path,
                              "has %llu input and %llu output chunks, and rank 0 has %llu and %llu",
                              ULL(chunks[PLAN_INPUT]), ULL(chunks[PLAN_OUTPUT]),
                              ULL(first[PLAN_INPUT]), ULL(first[PLAN_OUTPUT]));
    if (!chunks_fit(plan, chunks[PLAN_INPUT], chunks[PLAN_OUTPUT]))
        return json_path_fail(&check->path,
                              "has %llu input and %llu output chunks, which does not make %s of %d "
                              "ranks",
                              ULL(chunks[PLAN_INPUT]), ULL(chunks[PLAN_OUTPUT]),
                              plan->collective_name, plan->rank_count);
    return BANYAN_OK;
}

/* Check that whole blocks come from whole blocks, chunk by chunk, so that dividing a block into
 * chunks does not change its result. */
static banyan_status check_block_expected(plan_checker *check, int rank, uint64_t chunk)
{
    const plan_expected *of = check->plan->expected[rank];
    uint64_t within = chunk % check->plan->block_chunks;
    const plan_expected *first = &of[chunk - within], *this = &of[chunk];
    bool same = first->count == this->count;
    for (size_t i = 0; same && i < this->count; i++) {
        const plan_contribution *begin = &first->contributions[i], *from = &this->contributions[i];
        same = begin->chunk % check->plan->block_chunks == 0 && from->rank == begin->rank &&
               from->chunk == begin->chunk + within;
    }
    if (same)
        return BANYAN_OK;
    return json_path_fail(&check->path,
                          "expects output chunk %llu of rank %d to come from elsewhere than the "
                          "block of %llu chunks that it is in",
                          ULL(chunk), rank, ULL(check->plan->block_chunks));
}

static banyan_status check_expected(plan_checker *check)
{
    const banyan_plan *plan = check->plan;
    if (plan->expected && plan->collective != BANYAN_CUSTOM)
        return json_path_fail(&check->path, "states the result of %s", plan->collective_name);
    for (int r = 0; plan->expected && r < plan->rank_count; r++) {
        for (uint64_t c = 0; plan->expected[r] && c < plan->ranks[r].chunks[PLAN_OUTPUT]; c++) {
            RETURN_IF_FAILED(check_block_expected(check, r, c));
            const plan_expected *chunk = &plan->expected[r][c];
            for (size_t i = 0; i < chunk->count; i++) {
                plan_contribution from = chunk->contributions[i];
                if (from.rank >= 0 && from.rank < plan->rank_count &&
                    from.chunk < plan->ranks[from.rank].chunks[PLAN_INPUT])
                    continue;
                return json_path_fail(
                    &check->path,
                    "expects input chunk %llu of rank %d in output chunk %llu of rank %d: there is "
                    "no such chunk",
                    ULL(from.chunk), from.rank, ULL(c), r);
            }
        }
    }
    return BANYAN_OK;
}

static banyan_status plan_check_head(plan_checker *check)
{
    const banyan_plan *plan = check->plan;
    json_path *path = &check->path;
    if (plan->rank_count < 1 || plan->rank_count > BANYAN_MAX_RANKS)
        return json_path_fail(path, "has %d ranks: 1 to %d are possible", plan->rank_count,
                              BANYAN_MAX_RANKS);
    if (plan->threads_per_block < 1)
        return json_path_fail(path, "has %d threads per block", plan->threads_per_block);
    if (plan->buffer_alignment < 1 || plan->buffer_alignment > ALIGNMENT_MAX)
        return json_path_fail(path, "has a buffer alignment of %llu bytes: 1 to %llu are possible",
                              ULL(plan->buffer_alignment), ULL(ALIGNMENT_MAX));
    if (plan->min_message_bytes > plan->max_message_bytes)
        return json_path_fail(path, "is for messages of at least %llu and at most %llu bytes",
                              ULL(plan->min_message_bytes), ULL(plan->max_message_bytes));
    if (plan->root < 0 || plan->root >= plan->rank_count)
        return json_path_fail(path, "has the root %d, but only %d ranks", plan->root,
                              plan->rank_count);
    if (plan->shift < 0 || plan->shift >= plan->rank_count)
        return json_path_fail(path, "has the shift %d, but only %d ranks", plan->shift,
                              plan->rank_count);
    return BANYAN_OK;
}

/* Check that the name matches the collective: a reader selects the collective by its name, so a
 * written plan is read back as it was. */
static banyan_status plan_check_name(plan_checker *check)
{
    const banyan_plan *plan = check->plan;
    banyan_collective_kind kind;
    bool known = banyan_collective_kind_parse(plan->collective_name, &kind) == BANYAN_OK;
    if (plan->collective_name[0] == '\0')
        return json_path_fail(&check->path, "has a collective without a name");
    if (plan->collective != (known ? kind : BANYAN_CUSTOM))
        return json_path_fail(&check->path, "is of the collective %s, but named %s",
                              banyan_collective_kind_name(plan->collective), plan->collective_name);
    return BANYAN_OK;
}

static banyan_status check_remote_buffers(plan_checker *check)
{
    const plan_rank *rank = &check->plan->ranks[check->rank];
    size_t key = json_path_key(&check->path, "remote_buffers");
    for (uint32_t i = 0; i < rank->remote_buffer_count; i++) {
        size_t mark = json_path_index(&check->path, i);
        int owner = rank->remote_buffers[i].rank;
        if (owner < 0 || owner >= check->plan->rank_count)
            return json_path_fail(&check->path, "is rank %d's, and the plan has %d ranks", owner,
                                  check->plan->rank_count);
        if (owner == check->rank)
            return json_path_fail(&check->path, "is rank %d's own", owner);
        json_path_pop(&check->path, mark);
    }
    json_path_pop(&check->path, key);
    return BANYAN_OK;
}

/* After the key "channels": the numbers by type, as operations count them. */
static banyan_status check_block_channels(plan_checker *check, const plan_thread_block *block)
{
    const plan_rank *rank = &check->plan->ranks[check->rank];
    size_t key = json_path_key(&check->path, "channels");
    for (int type = PLAN_NO_CHANNEL; type < PLAN_CHANNEL_TYPES; type++) {
        size_t inner = json_path_key(&check->path, plan_channel_name(type));
        uint32_t count = type == PLAN_NO_CHANNEL ? 0 : rank->channel_count[type];
        for (uint32_t i = 0; i < block->channel_count[type]; i++) {
            size_t mark = json_path_index(&check->path, i);
            if (block->channels[type][i] >= count)
                return json_path_fail(&check->path, "is %u, and rank %d has %u %s channels",
                                      block->channels[type][i], check->rank, count,
                                      plan_channel_name(type));
            json_path_pop(&check->path, mark);
        }
        json_path_pop(&check->path, inner);
    }
    json_path_pop(&check->path, key);
    return BANYAN_OK;
}

static banyan_status check_block_buffers(plan_checker *check, const plan_thread_block *block)
{
    const plan_rank *rank = &check->plan->ranks[check->rank];
    size_t key = json_path_key(&check->path, "remote_buffer_refs");
    for (int type = PLAN_NO_CHANNEL; type < PLAN_CHANNEL_TYPES; type++) {
        size_t inner = json_path_key(&check->path, plan_channel_name(type));
        for (uint32_t i = 0; i < block->remote_buffer_count[type]; i++) {
            size_t mark = json_path_index(&check->path, i);
            uint32_t id = block->remote_buffers[type][i];
            if (id >= rank->remote_buffer_count)
                return json_path_fail(&check->path, "is %u, and rank %d has %u remote buffers", id,
                                      check->rank, rank->remote_buffer_count);
            if (!(rank->remote_buffers[id].access & PLAN_BIT(type)))
                return json_path_fail(
                    &check->path, "is %u, and rank %d's remote buffer %u is not for %s channels",
                    id, check->rank, id, plan_channel_name(type));
            json_path_pop(&check->path, mark);
        }
        json_path_pop(&check->path, inner);
    }
    json_path_pop(&check->path, key);
    return BANYAN_OK;
}

static banyan_status check_block(plan_checker *check)
{
    const plan_thread_block *block = check->block;
    RETURN_IF_FAILED(check_block_channels(check, block));
    RETURN_IF_FAILED(check_block_buffers(check, block));
    size_t key = json_path_key(&check->path, "ops");
    for (uint32_t i = 0; i < block->op_count; i++) {
        size_t mark = json_path_index(&check->path, i);
        RETURN_IF_FAILED(check_op(check, &block->ops[i], NULL));
        json_path_pop(&check->path, mark);
    }
    json_path_pop(&check->path, key);
    return BANYAN_OK;
}

static banyan_status plan_check_rank(plan_checker *check)
{
    const plan_rank *rank = &check->plan->ranks[check->rank];
    RETURN_IF_FAILED(plan_check_collective(check, check->rank));
    RETURN_IF_FAILED(check_remote_buffers(check));
    size_t key = json_path_key(&check->path, "threadblocks");
    for (uint32_t i = 0; i < rank->block_count; i++) {
        size_t mark = json_path_index(&check->path, i);
        check->block = &rank->blocks[i];
        RETURN_IF_FAILED(check_block(check));
        json_path_pop(&check->path, mark);
    }
    json_path_pop(&check->path, key);
    return check_barriers(check);
}

static banyan_status plan_check_ranks(plan_checker *check)
{
    size_t key = json_path_key(&check->path, "gpus");
    for (int r = 0; r < check->plan->rank_count; r++) {
        size_t mark = json_path_index(&check->path, (size_t)r);
        check->rank = r;
        RETURN_IF_FAILED(plan_check_rank(check));
        json_path_pop(&check->path, mark);
    }
    json_path_pop(&check->path, key);
    return BANYAN_OK;
}

banyan_status plan_check_indices(const banyan_plan *plan, const char *name)
{
    plan_checker check = {.plan = plan, .path = {.file = name}};
    RETURN_IF_FAILED(plan_check_name(&check));
    RETURN_IF_FAILED(plan_check_head(&check));
    banyan_status status = check_channels(&check);
    if (status == BANYAN_OK)
        status = plan_check_ranks(&check);
    if (status == BANYAN_OK)
        status = check_expected(&check);
    check_channels_free(&check);
    return status;
}
