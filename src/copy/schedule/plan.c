#include "copy/schedule/plan.h"

#include <inttypes.h>
#include <string.h>

#include "copy/match/match.h"
#include "copy/schedule/rounds.h"
#include "copy/strided/strided.h"

/* How the elements of one task change between this rank's tensor and the slot. */
typedef struct schedule_form {
    pipeline_formats formats;
    uint64_t elems_each; /* elements of the tensor for each element of the task: 1, or a block */
} schedule_form;

/* One direction: the tasks by peer, as matched, and their flows. */
typedef struct schedule_direction {
    bool is_send;
    const banyan_copy_op *ops;
    const copy_match *matches;
    size_t match_count;
    pipeline_task *tasks; /* one per match, as it travels */
    schedule_form *forms; /* one per task */
    pipeline_flow *flows;
    size_t flow_count;
} schedule_direction;

typedef struct schedule_planner {
    banyan_world *world;
    banyan_transport *transport;
    uint64_t slot_bytes;
    copy_matches matches;
    schedule_direction sends, recvs;
    pipeline_rounds rounds;
} schedule_planner;

static banyan_status check_reachable(const schedule_planner *plan, int peer)
{
    int rank = banyan_world_rank(plan->world);
    if (!plan->transport || banyan_transport_capabilities(plan->transport, peer) != 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_UNSUPPORTED,
                     "pipeline: rank %d (node %d) cannot reach rank %d (node %d) by transport %s; "
                     "install the module ucx, or take the mpi backend (BANYAN_COPY=mpi)",
                     rank, banyan_world_node_of(plan->world, rank), peer,
                     banyan_world_node_of(plan->world, peer),
                     banyan_transport_name(plan->transport));
}

/* Blocks travel whole, so a slot ends between two of them: the sender quantizes. */
static void plan_blocks(const strided_view *own, strided_format quantized, bool is_send,
                        pipeline_task *task, schedule_form *form)
{
    bool is_scales = strided_is_scales(quantized);
    form->elems_each = is_scales && !is_send ? 1 : STRIDED_BLOCK;
    if (is_send)
        form->formats = (pipeline_formats){own->format, quantized};
    *task = (pipeline_task){own->elems / form->elems_each, is_scales ? 1 : STRIDED_BLOCK};
}

/* Elements that are cast travel in the type with fewer bytes, those of equal types in the
 * receiver's. */
static void plan_cast(const strided_view *own, const copy_match *match, bool is_send,
                      pipeline_task *task, schedule_form *form)
{
    size_t sent_bytes = is_send ? own->elem_bytes : match->elem_bytes;
    size_t received_bytes = is_send ? match->elem_bytes : own->elem_bytes;
    bool at_sender = received_bytes <= sent_bytes;
    if (at_sender == is_send)
        form->formats = (pipeline_formats){own->format, match->format};
    *task = (pipeline_task){own->elems, at_sender ? received_bytes : sent_bytes};
}

static banyan_status plan_task(const schedule_direction *side, size_t i)
{
    const copy_match *match = &side->matches[i];
    pipeline_task *task = &side->tasks[i];
    schedule_form *form = &side->forms[i];
    strided_view own;
    RETURN_IF_FAILED(copy_op_view(&side->ops[match->op], side->is_send, &own));
    strided_format received = side->is_send ? match->format : own.format;
    *form = (schedule_form){.elems_each = 1};
    if (strided_is_mxfp8(received))
        plan_blocks(&own, received, side->is_send, task, form);
    else if (own.format != match->format)
        plan_cast(&own, match, side->is_send, task, form);
    else
        *task = (pipeline_task){own.elems, own.elem_bytes};
    return BANYAN_OK;
}

static banyan_status side_tasks(schedule_direction *side)
{
    size_t count = side->match_count;
    side->tasks = calloc(count + 1, sizeof *side->tasks);
    side->forms = calloc(count + 1, sizeof *side->forms);
    side->flows = calloc(count + 1, sizeof *side->flows);
    if (!side->tasks || !side->forms || !side->flows)
        return error_no_memory(
            (count + 1) * (sizeof *side->tasks + sizeof *side->forms + sizeof *side->flows),
            "planning a batch");
    for (size_t i = 0; i < count; i++)
        RETURN_IF_FAILED(plan_task(side, i));
    return BANYAN_OK;
}

static banyan_status side_flows(const schedule_planner *plan, schedule_direction *side)
{
    RETURN_IF_FAILED(side_tasks(side));
    for (size_t i = 0; i < side->match_count; i++) {
        int peer = side->matches[i].peer;
        if (i == 0 || side->matches[i - 1].peer != peer) {
            RETURN_IF_FAILED(check_reachable(plan, peer));
            side->flows[side->flow_count++] =
                (pipeline_flow){.peer = peer, .tasks = &side->tasks[i]};
        }
        side->flows[side->flow_count - 1].task_count++;
    }
    return BANYAN_OK;
}

static banyan_status plan_flows(schedule_planner *plan)
{
    RETURN_IF_FAILED(side_flows(plan, &plan->sends));
    RETURN_IF_FAILED(side_flows(plan, &plan->recvs));
    for (size_t i = 0; i < plan->sends.flow_count; i++) {
        pipeline_flow *flow = &plan->sends.flows[i];
        RETURN_IF_FAILED(
            pipeline_batch_pack(flow->tasks, flow->task_count, plan->slot_bytes, &flow->batches));
    }
    return BANYAN_OK;
}

static banyan_status plan_rounds(schedule_planner *plan, bool optimal)
{
    const schedule_direction *sends = &plan->sends, *recvs = &plan->recvs;
    if (optimal)
        return pipeline_rounds_colour(plan->world, sends->flows, sends->flow_count, recvs->flows,
                                      recvs->flow_count, &plan->rounds);
    return pipeline_rounds_rotate(banyan_world_rank(plan->world), banyan_world_size(plan->world),
                                  sends->flows, sends->flow_count, recvs->flows, recvs->flow_count,
                                  &plan->rounds);
}

/* Copy a tensor; its shape and strides belong to the caller. */
static banyan_status copy_tensor(arena *memory, const DLTensor *tensor, DLTensor *copy)
{
    size_t dims = (size_t)tensor->ndim, bytes = dims * sizeof(int64_t);
    int64_t *kept = arena_take(memory, 2 * bytes + sizeof(int64_t));
    RETURN_IF_NO_MEMORY(kept);
    *copy = *tensor;
    if (dims > 0)
        memcpy(kept, tensor->shape, bytes);
    copy->shape = kept;
    if (tensor->strides && dims > 0)
        memcpy(kept + dims, tensor->strides, bytes);
    copy->strides = tensor->strides ? kept + dims : NULL;
    return BANYAN_OK;
}

/* Copy the matched tensors, in the matches' order. */
static banyan_status side_tensors(arena *memory, const schedule_direction *side, DLTensor **tensors)
{
    DLTensor *kept = arena_take(memory, (side->match_count + 1) * sizeof *kept);
    RETURN_IF_NO_MEMORY(kept);
    for (size_t i = 0; i < side->match_count; i++)
        RETURN_IF_FAILED(copy_tensor(memory, &side->ops[side->matches[i].op].tensor, &kept[i]));
    *tensors = kept;
    return BANYAN_OK;
}

/* A flow's segments, in the order of its batches. */
typedef struct flow_segments {
    banyan_segment *list;
    pipeline_formats *formats;
} flow_segments;

static banyan_status side_segments(arena *memory, const schedule_direction *side,
                                   flow_segments *segments)
{
    DLTensor *tensors;
    RETURN_IF_FAILED(side_tensors(memory, side, &tensors));
    for (size_t f = 0; f < side->flow_count; f++) {
        const pipeline_flow *flow = &side->flows[f];
        size_t first = (size_t)(flow->tasks - side->tasks), count = flow->batches.segments.count;
        flow_segments *made = &segments[f];
        made->list = arena_take(memory, (count + 1) * sizeof *made->list);
        made->formats = arena_take(memory, (count + 1) * sizeof *made->formats);
        RETURN_IF_NO_MEMORY(made->list && made->formats);
        for (size_t i = 0; i < count; i++) {
            const pipeline_segment *segment = &flow->batches.segments.data[i];
            const schedule_form *form = &side->forms[first + segment->task];
            made->list[i] = (banyan_segment){
                tensors[first + segment->task], segment->first_elem * form->elems_each,
                segment->elem_count * form->elems_each, segment->slot_offset};
            made->formats[i] = form->formats;
        }
    }
    return BANYAN_OK;
}

static banyan_slot_batch slot_batch(const schedule_direction *side, const flow_segments *segments,
                                    size_t flow, size_t index, const pipeline_formats **formats)
{
    *formats = NULL;
    if (flow == PIPELINE_NO_FLOW)
        return (banyan_slot_batch){.peer = -1};
    const pipeline_batch *batch = &side->flows[flow].batches.list.data[index];
    *formats = segments[flow].formats + batch->first_segment;
    return (banyan_slot_batch){side->flows[flow].peer, segments[flow].list + batch->first_segment,
                               batch->segment_count, batch->bytes};
}

static banyan_status fill_iterations(const schedule_planner *plan, pipeline_schedule *schedule)
{
    arena *memory = &schedule->memory;
    size_t flows = plan->sends.flow_count + plan->recvs.flow_count, count = plan->rounds.count;
    flow_segments *segments = arena_take(memory, (flows + 1) * sizeof *segments);
    banyan_iteration *iterations = arena_take(memory, (count + 1) * sizeof *iterations);
    uint64_t *rounds = arena_take(memory, (count + 1) * sizeof *rounds);
    const pipeline_formats **formats = arena_take(memory, (2 * count + 1) * sizeof *formats);
    RETURN_IF_NO_MEMORY(segments && iterations && rounds && formats);
    flow_segments *recv_segments = segments + plan->sends.flow_count;
    schedule->send_formats = formats;
    schedule->recv_formats = formats + count;
    RETURN_IF_FAILED(side_segments(memory, &plan->sends, segments));
    RETURN_IF_FAILED(side_segments(memory, &plan->recvs, recv_segments));
    for (size_t i = 0; i < count; i++) {
        const pipeline_round *round = &plan->rounds.data[i];
        iterations[i] =
            (banyan_iteration){slot_batch(&plan->sends, segments, round->send_flow,
                                          round->send_batch, &schedule->send_formats[i]),
                               slot_batch(&plan->recvs, recv_segments, round->recv_flow,
                                          round->recv_batch, &schedule->recv_formats[i])};
        schedule->recv_bytes += iterations[i].recv.bytes;
        rounds[i] = round->number;
    }
    schedule->iterations = iterations;
    schedule->rounds = rounds;
    schedule->iteration_count = count;
    return BANYAN_OK;
}

/* Fill in moves within the rank, which number their operations separately. */
static banyan_status schedule_plan_fill_local(const banyan_copy_batch *batch,
                                              pipeline_schedule *schedule)
{
    arena *memory = &schedule->memory;
    size_t count = batch->local_count;
    banyan_copy_op *sends = arena_take(memory, (count + 1) * sizeof *sends);
    banyan_copy_op *recvs = arena_take(memory, (count + 1) * sizeof *recvs);
    banyan_copy_pair *pairs = arena_take(memory, (count + 1) * sizeof *pairs);
    RETURN_IF_NO_MEMORY(sends && recvs && pairs);
    for (size_t i = 0; i < count; i++) {
        const banyan_copy_op *send = &batch->sends[batch->local[i].send];
        const banyan_copy_op *recv = &batch->recvs[batch->local[i].recv];
        sends[i] = *send;
        recvs[i] = *recv;
        RETURN_IF_FAILED(copy_tensor(memory, &send->tensor, &sends[i].tensor));
        RETURN_IF_FAILED(copy_tensor(memory, &recv->tensor, &recvs[i].tensor));
        pairs[i] = (banyan_copy_pair){i, i};
    }
    schedule->sends = sends;
    schedule->recvs = recvs;
    schedule->local = pairs;
    schedule->local_count = count;
    return BANYAN_OK;
}

/* Plan the batch after matching. */
static banyan_status plan_matched(schedule_planner *plan, bool optimal,
                                  const banyan_copy_batch *batch, pipeline_schedule *schedule)
{
    banyan_status status = copy_agree(plan->world, plan_flows(plan));
    if (status != BANYAN_OK)
        return status;
    status = pipeline_exchange(plan->world, status, plan->sends.flows, plan->sends.flow_count,
                               plan->slot_bytes, plan->recvs.flows, plan->recvs.flow_count);
    /* Rank 0 cannot colour counts that a failed rank has not sent. */
    if (optimal) {
        status = copy_agree(plan->world, status);
        if (status != BANYAN_OK)
            return status;
    }
    if (status == BANYAN_OK)
        status = plan_rounds(plan, optimal);
    if (status == BANYAN_OK)
        status = fill_iterations(plan, schedule);
    if (status == BANYAN_OK)
        status = schedule_plan_fill_local(batch, schedule);
    return copy_agree(plan->world, status);
}

static void side_free(schedule_direction *side)
{
    for (size_t i = 0; i < side->flow_count; i++)
        pipeline_flow_free(&side->flows[i]);
    free(side->flows);
    free(side->forms);
    free(side->tasks);
}

banyan_status pipeline_plan(banyan_world *world, banyan_transport *transport, uint64_t slot_bytes,
                            bool optimal_rounds, const banyan_copy_batch *batch,
                            pipeline_schedule *schedule)
{
    schedule_planner plan = {.world = world, .transport = transport, .slot_bytes = slot_bytes};
    RETURN_IF_FAILED(copy_match_batch(world, "pipeline", batch, NULL, NULL, &plan.matches));
    plan.sends = (schedule_direction){.is_send = true,
                                      .ops = batch->sends,
                                      .matches = plan.matches.sends,
                                      .match_count = plan.matches.send_count};
    plan.recvs = (schedule_direction){
        .ops = batch->recvs, .matches = plan.matches.recvs, .match_count = plan.matches.recv_count};
    pipeline_schedule made = {0};
    banyan_status status = plan_matched(&plan, optimal_rounds, batch, &made);
    side_free(&plan.sends);
    side_free(&plan.recvs);
    array_free(&plan.rounds);
    copy_matches_free(&plan.matches);
    if (status == BANYAN_OK)
        *schedule = made;
    else
        pipeline_schedule_free(&made);
    return status;
}

void pipeline_schedule_free(pipeline_schedule *schedule)
{
    arena_free(&schedule->memory);
}
