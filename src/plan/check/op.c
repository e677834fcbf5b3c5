#include "plan/op.h"
#include "plan/check/check.h"

#define ULL(number) ((unsigned long long)(number))

static banyan_status check_chunks(plan_checker *check, const plan_operand *operand, int rank,
                                  plan_buffer buffer, uint64_t chunks)
{
    const char *word = plan_buffer_word(buffer);
    if (operand->size == 0)
        return json_path_fail(&check->path, "has no chunks");
    if (operand->index >= chunks) {
        json_path_key(&check->path, "index");
        return json_path_fail(&check->path, "is %llu, and rank %d's %s has %llu chunks",
                              ULL(operand->index), rank, word, ULL(chunks));
    }
    if (operand->size > chunks - operand->index) {
        json_path_key(&check->path, "size");
        return json_path_fail(
            &check->path, "is %llu, and rank %d's %s has %llu chunks from %llu on",
            ULL(operand->size), rank, word, ULL(chunks - operand->index), ULL(operand->index));
    }
    return BANYAN_OK;
}

static banyan_status check_op_check_remote(plan_checker *check, const plan_op *op,
                                           const plan_operand *operand)
{
    uint32_t count = check->block->remote_buffer_count[op->channel_type];
    if (operand->reference >= count) {
        json_path_key(&check->path, "buffer_id");
        return json_path_fail(&check->path,
                              "is %u, and thread block %u of rank %d has %u remote buffers of "
                              "%s channels",
                              operand->reference, check->block->id, check->rank, count,
                              plan_channel_name(op->channel_type));
    }
    plan_where where = plan_operand_where(check->plan, check->rank, check->block, op, operand);
    return check_chunks(check, operand, where.rank, where.buffer,
                        check->plan->ranks[where.rank].chunks[where.buffer]);
}

static banyan_status check_op_check_group(plan_checker *check, const plan_operand *operand)
{
    uint32_t count = check->block->channel_count[PLAN_SWITCH];
    if (operand->reference >= count) {
        json_path_key(&check->path, "switch_channel_id");
        return json_path_fail(&check->path,
                              "is %u, and thread block %u of rank %d has %u switch channels",
                              operand->reference, check->block->id, check->rank, count);
    }
    uint32_t channel = check->block->channels[PLAN_SWITCH][operand->reference];
    const check_region *region = &check->regions[check->rank][channel];
    plan_buffer buffer = check->plan->ranks[check->rank].switches[channel].buffer;
    return check_chunks(check, operand, region->rank, buffer, region->chunks);
}

static banyan_status check_operand(plan_checker *check, const plan_op *op,
                                   const plan_operand *operand, bool is_packets)
{
    if (operand->place == PLAN_REMOTE)
        RETURN_IF_FAILED(check_op_check_remote(check, op, operand));
    else if (operand->place == PLAN_GROUP)
        RETURN_IF_FAILED(check_op_check_group(check, operand));
    else
        RETURN_IF_FAILED(check_chunks(check, operand, check->rank, operand->buffer,
                                      check->plan->ranks[check->rank].chunks[operand->buffer]));
    plan_where where = plan_operand_where(check->plan, check->rank, check->block, op, operand);
    if (is_packets && where.buffer != PLAN_SCRATCH)
        return json_path_fail(&check->path, "is packets in the %s: packets lie in scratch",
                              plan_buffer_word(where.buffer));
    return BANYAN_OK;
}

static uint32_t count_local(const plan_operand *operands, uint32_t count)
{
    uint32_t local = 0;
    while (local < count && operands[local].place == PLAN_LOCAL)
        local++;
    return local;
}

static bool all_of_place(const plan_operand *operands, uint32_t from, uint32_t count,
                         plan_place place)
{
    for (uint32_t i = from; i < count; i++) {
        if (operands[i].place != place)
            return false;
    }
    return true;
}

static bool check_op_within(uint32_t count, uint8_t least, uint8_t most)
{
    return count >= least && (most == PLAN_MANY || count <= most);
}

static bool fits_form(const plan_operands_form *form, const plan_operand *operands, uint32_t count)
{
    if (form->group)
        return count == 1 && operands[0].place == PLAN_GROUP;
    uint32_t local = count_local(operands, count);
    return all_of_place(operands, local, count, PLAN_REMOTE) &&
           check_op_within(local, form->local_least, form->local_most) &&
           check_op_within(count - local, form->remote_least, form->remote_most);
}

/* "1 local", "2 or more local, then 1 or more remote" */
static void describe_form(const plan_operands_form *form, char *text, size_t room)
{
    char local[32] = "", remote[32] = "";
    if (form->group)
        snprintf(local, sizeof local, "1 of a switch channel");
    else if (form->local_most)
        snprintf(local, sizeof local, "%u%s local", form->local_least,
                 form->local_most == PLAN_MANY ? " or more" : "");
    if (form->remote_most)
        snprintf(remote, sizeof remote, "%u%s remote", form->remote_least,
                 form->remote_most == PLAN_MANY ? " or more" : "");
    if (!local[0] && !remote[0])
        snprintf(text, room, "none");
    else
        snprintf(text, room, "%s%s%s", local, local[0] && remote[0] ? ", then " : "", remote);
}

static banyan_status check_operands(plan_checker *check, const plan_op *op, const char *key,
                                    const plan_operands_form *form, const plan_operand *operands,
                                    uint32_t count)
{
    char text[96];
    size_t mark = json_path_key(&check->path, key);
    if (!fits_form(form, operands, count)) {
        describe_form(form, text, sizeof text);
        return json_path_fail(&check->path, "does not fit %s, which takes %s",
                              plan_op_name(op->kind), text);
    }
    for (uint32_t i = 0; i < count; i++) {
        size_t inner = json_path_index(&check->path, i);
        bool is_packets = form->packets_from != PLAN_MANY && i >= form->packets_from;
        RETURN_IF_FAILED(check_operand(check, op, &operands[i], is_packets));
        json_path_pop(&check->path, inner);
    }
    json_path_pop(&check->path, mark);
    return BANYAN_OK;
}

static banyan_status check_op_check_sizes(plan_checker *check, const plan_op *op)
{
    if (plan_op_is_pairs(op->kind) && op->source_count != op->destination_count)
        return json_path_fail(&check->path, "has %u sources and %u destinations", op->source_count,
                              op->destination_count);
    for (uint32_t i = 1; i < plan_operand_count(op); i++) {
        uint32_t other = plan_op_is_pairs(op->kind) ? i % op->source_count : 0;
        uint64_t size = plan_operand_at(op, i)->size, first = plan_operand_at(op, other)->size;
        if (size != first)
            return json_path_fail(&check->path, "has operands of %llu and of %llu chunks",
                                  ULL(first), ULL(size));
    }
    return BANYAN_OK;
}

static banyan_status check_channel(plan_checker *check, const plan_op *op, uint32_t i)
{
    uint32_t count = check->block->channel_count[op->channel_type];
    if (op->channels[i] >= count)
        return json_path_fail(&check->path,
                              "is %u, and thread block %u of rank %d has %u %s channels",
                              op->channels[i], check->block->id, check->rank, count,
                              plan_channel_name(op->channel_type));
    const plan_op_form *form = plan_op_form_of(op->kind);
    uint32_t channel = plan_channel_of(check->block, op, op->channels[i]);
    int peer = check->plan->ranks[check->rank].peers[op->channel_type][channel], other;
    uint32_t back;
    if ((form->signals || form->channels == PLAN_CHANNELS_SIGNALLED) &&
        !plan_pairs_find(&check->pairs, check->rank, op->channel_type, channel, &other, &back))
        return json_path_fail(&check->path,
                              "names %s channel %u of rank %d, and rank %d has no channel back "
                              "that pairs with it",
                              plan_channel_name(op->channel_type), channel, check->rank, peer);
    if (form->channels == PLAN_CHANNELS_CARRY && op->channel_type == PLAN_PORT) {
        plan_where where =
            plan_operand_where(check->plan, check->rank, check->block, op, &op->destinations[i]);
        if (where.rank != peer)
            return json_path_fail(&check->path,
                                  "names a channel to rank %d, and the destination is rank %d's",
                                  peer, where.rank);
    }
    return BANYAN_OK;
}

static banyan_status check_op_channels(plan_checker *check, const plan_op *op)
{
    const plan_op_form *form = plan_op_form_of(op->kind);
    if (form->channels == PLAN_CHANNELS_UNUSED)
        return BANYAN_OK;
    size_t mark = json_path_key(&check->path, "channel_ids");
    bool carries = form->channels == PLAN_CHANNELS_CARRY;
    if (!carries && op->channel_count == 0)
        return json_path_fail(&check->path, "is empty");
    if (carries && op->channel_type == PLAN_PORT && op->channel_count != op->destination_count)
        return json_path_fail(&check->path, "has %u entries for %u destinations", op->channel_count,
                              op->destination_count);
    for (uint32_t i = 0; i < op->channel_count; i++) {
        size_t inner = json_path_index(&check->path, i);
        RETURN_IF_FAILED(check_channel(check, op, i));
        json_path_pop(&check->path, inner);
    }
    json_path_pop(&check->path, mark);
    return BANYAN_OK;
}

static banyan_status check_channel_type(plan_checker *check, const plan_op *op)
{
    const plan_op_form *form = plan_op_form_of(op->kind);
    unsigned possible = form->channel_types ? form->channel_types : PLAN_BIT(PLAN_NO_CHANNEL);
    if (possible & PLAN_BIT(op->channel_type))
        return BANYAN_OK;
    json_path_key(&check->path, "channel_type");
    return json_path_fail(&check->path, "is \"%s\", which %s cannot use",
                          plan_channel_name(op->channel_type), plan_op_name(op->kind));
}

static banyan_status check_semaphores(plan_checker *check, const plan_op *op)
{
    bool uses = op->kind == PLAN_SEM_ACQUIRE || op->kind == PLAN_SEM_RELEASE;
    uint32_t count = check->plan->ranks[check->rank].semaphore_count;
    size_t mark = json_path_key(&check->path, "semaphore_ids");
    if (uses && op->semaphore_count == 0)
        return json_path_fail(&check->path, "is empty");
    for (uint32_t i = 0; uses && i < op->semaphore_count; i++) {
        size_t inner = json_path_index(&check->path, i);
        if (op->semaphores[i] >= count)
            return json_path_fail(&check->path, "is %u, and rank %d has %u semaphores",
                                  op->semaphores[i], check->rank, count);
        json_path_pop(&check->path, inner);
    }
    json_path_pop(&check->path, mark);
    return BANYAN_OK;
}

static banyan_status check_share(plan_checker *check, const plan_op *op)
{
    if (op->group_size > 0 && op->group_index >= op->group_size)
        return json_path_fail(&check->path, "is thread block %u of a group of %u", op->group_index,
                              op->group_size);
    if (op->group_size > 0 && op->source_count == 0)
        return json_path_fail(&check->path, "is a group's, and %s moves no data",
                              plan_op_name(op->kind));
    return BANYAN_OK;
}

static banyan_status check_loop(plan_checker *check, const plan_op *loop)
{
    if (loop->unit_bytes == 0 || loop->loop_chunks == 0)
        return json_path_fail(&check->path, "is a loop over %llu chunks in units of %llu bytes",
                              ULL(loop->loop_chunks), ULL(loop->unit_bytes));
    size_t mark = json_path_key(&check->path, "ops");
    for (uint32_t i = 0; i < loop->op_count; i++) {
        size_t inner = json_path_index(&check->path, i);
        RETURN_IF_FAILED(check_op(check, &loop->ops[i], loop));
        json_path_pop(&check->path, inner);
    }
    json_path_pop(&check->path, mark);
    return BANYAN_OK;
}

/* Packets are consecutive from the first byte of the buffer on, so none may begin inside another.
 */
static banyan_status check_packets(plan_checker *check, const plan_op *op, const plan_op *loop)
{
    uint64_t alignment = check->plan->buffer_alignment;
    if (!plan_op_reads_packets(op->kind) && !plan_op_writes_packets(op->kind))
        return BANYAN_OK;
    if (alignment % PLAN_PACKET_DATA_BYTES != 0)
        return json_path_fail(&check->path,
                              "has packets, which carry %d bytes each: buffer_alignment is %llu, "
                              "and must be a multiple of that",
                              PLAN_PACKET_DATA_BYTES, ULL(alignment));
    if (loop && loop->unit_bytes % PLAN_PACKET_DATA_BYTES != 0)
        return json_path_fail(
            &check->path,
            "has packets, which carry %d bytes each: the unit_size of its loop is "
            "%llu, and must be a multiple of that",
            PLAN_PACKET_DATA_BYTES, ULL(loop->unit_bytes));
    return BANYAN_OK;
}

banyan_status check_op(plan_checker *check, const plan_op *op, const plan_op *loop)
{
    if (op->kind == PLAN_PIPELINE && loop)
        return json_path_fail(&check->path, "is a pipeline in a pipeline: they do not nest");
    if (op->line > check->plan->line_count) {
        json_path_key(&check->path, "line");
        return json_path_fail(&check->path, "is %u, and the plan has %u lines", op->line,
                              check->plan->line_count);
    }
    const plan_op_form *form = plan_op_form_of(op->kind);
    RETURN_IF_FAILED(check_channel_type(check, op));
    RETURN_IF_FAILED(
        check_operands(check, op, "src_buff", &form->sources, op->sources, op->source_count));
    RETURN_IF_FAILED(check_operands(check, op, "dst_buff", &form->destinations, op->destinations,
                                    op->destination_count));
    if (op->kind == PLAN_PIPELINE) {
        RETURN_IF_FAILED(check_share(check, op));
        return check_loop(check, op);
    }
    RETURN_IF_FAILED(check_op_check_sizes(check, op));
    RETURN_IF_FAILED(check_packets(check, op, loop));
    for (uint32_t i = 0; loop && i < op->source_count; i++) {
        if (op->sources[i].size > loop->loop_chunks)
            return json_path_fail(&check->path, "moves %llu chunks in a loop over %llu",
                                  ULL(op->sources[i].size), ULL(loop->loop_chunks));
    }
    RETURN_IF_FAILED(check_op_channels(check, op));
    RETURN_IF_FAILED(check_semaphores(check, op));
    return check_share(check, op);
}
