#include "copy/schedule/world.h"

/* A rank's part of the coloured rounds. */
typedef struct pipeline_world_runs {
    ARRAY(pipeline_run) sends, recvs;
} pipeline_world_runs;

banyan_status pipeline_world_create(int ranks, uint64_t slot_bytes, pipeline_world *made)
{
    pipeline_member *members =
        alloc_zeroed((size_t)ranks, sizeof *members, "a schedule of all ranks");
    RETURN_IF_NO_MEMORY(members);
    *made = (pipeline_world){.ranks = ranks, .slot_bytes = slot_bytes, .members = members};
    return BANYAN_OK;
}

void pipeline_world_free(pipeline_world *old)
{
    for (int r = 0; old->members && r < old->ranks; r++) {
        pipeline_member *member = &old->members[r];
        for (size_t i = 0; i < member->send_count; i++)
            pipeline_flow_free(&member->sends[i]);
        free(member->recvs);
        free(member->sends);
        free(member->tasks);
    }
    for (int r = 0; old->runs && r < old->ranks; r++) {
        array_free(&old->runs[r].sends);
        array_free(&old->runs[r].recvs);
    }
    free(old->runs);
    free(old->members);
}

static int by_peer(const void *left, const void *right)
{
    const pipeline_world_task *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->peer, b->peer);
    return COMPARE(a->id, b->id);
}

void pipeline_world_sort(pipeline_world_task *tasks, size_t count)
{
    sort_elements(tasks, count, sizeof *tasks, by_peer);
}

banyan_status pipeline_world_send(pipeline_world *world, int rank, const pipeline_world_task *tasks,
                                  size_t count)
{
    pipeline_member *member = &world->members[rank];
    member->tasks = calloc(count + 1, sizeof *member->tasks);
    member->sends = calloc(count + 1, sizeof *member->sends);
    if (!member->tasks || !member->sends)
        return error_no_memory(count * sizeof *member->sends, "a schedule of all ranks");
    for (size_t i = 0; i < count; i++) {
        member->tasks[i] = tasks[i].task;
        if (i == 0 || tasks[i - 1].peer != tasks[i].peer)
            member->sends[member->send_count++] =
                (pipeline_flow){.peer = tasks[i].peer, .tasks = &member->tasks[i]};
        member->sends[member->send_count - 1].task_count++;
    }
    for (size_t i = 0; i < member->send_count; i++) {
        pipeline_flow *flow = &member->sends[i];
        RETURN_IF_FAILED(
            pipeline_batch_pack(flow->tasks, flow->task_count, world->slot_bytes, &flow->batches));
    }
    return BANYAN_OK;
}

/* Link sender after sender, so that every receiver has them in ascending order. */
banyan_status pipeline_world_link(pipeline_world *world)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < world->ranks; r++) {
            const pipeline_member *sender = &world->members[r];
            for (size_t i = 0; i < sender->send_count; i++) {
                pipeline_member *receiver = &world->members[sender->sends[i].peer];
                if (receiver->recvs) {
                    receiver->recvs[receiver->recv_count] = sender->sends[i];
                    receiver->recvs[receiver->recv_count].peer = r;
                }
                receiver->recv_count++;
            }
        }
        for (int r = 0; r < world->ranks && pass == 0; r++) {
            pipeline_member *member = &world->members[r];
            RETURN_IF_NO_MEMORY(member->recvs =
                                    alloc_zeroed(member->recv_count + 1, sizeof *member->recvs,
                                                 "a schedule of all ranks"));
            member->recv_count = 0;
        }
    }
    return BANYAN_OK;
}

typedef ARRAY(colour_pair) colour_pairs;

static banyan_status schedule_world_count_pairs(const pipeline_world *world, colour_pairs *pairs)
{
    for (int r = 0; r < world->ranks; r++) {
        const pipeline_member *member = &world->members[r];
        for (size_t i = 0; i < member->send_count; i++) {
            const pipeline_flow *flow = &member->sends[i];
            if (!array_push(pairs, (colour_pair){r, flow->peer, flow->batches.list.count}))
                return BANYAN_ERR_NO_MEMORY;
        }
    }
    return BANYAN_OK;
}

static banyan_status keep_runs(pipeline_world *world, const colour_pairs *pairs,
                               const colouring *colours)
{
    RETURN_IF_NO_MEMORY(world->runs = alloc_zeroed((size_t)world->ranks, sizeof *world->runs,
                                                   "a schedule's rounds"));
    for (size_t i = 0; i < colours->runs.count; i++) {
        const colour_run *run = &colours->runs.data[i];
        const colour_pair *pair = &pairs->data[run->pair];
        pipeline_run sent = {pair->dest, run->first_round, run->count};
        pipeline_run received = {pair->source, run->first_round, run->count};
        RETURN_IF_NO_MEMORY(array_push(&world->runs[pair->source].sends, sent) &&
                            array_push(&world->runs[pair->dest].recvs, received));
    }
    return BANYAN_OK;
}

banyan_status pipeline_world_colour(pipeline_world *world)
{
    colour_pairs pairs = {0};
    colouring colours = {0};
    banyan_status status = schedule_world_count_pairs(world, &pairs);
    if (status == BANYAN_OK)
        status = colour_rounds(pairs.data, pairs.count, world->ranks, &colours);
    if (status == BANYAN_OK)
        status = keep_runs(world, &pairs, &colours);
    colouring_free(&colours);
    array_free(&pairs);
    return status;
}

banyan_status pipeline_world_rounds(const pipeline_world *world, int rank, pipeline_rounds *rounds)
{
    const pipeline_member *member = &world->members[rank];
    if (!world->runs)
        return pipeline_rounds_rotate(rank, world->ranks, member->sends, member->send_count,
                                      member->recvs, member->recv_count, rounds);
    const pipeline_world_runs *runs = &world->runs[rank];
    return pipeline_rounds_follow(rank, member->sends, member->send_count, runs->sends.data,
                                  runs->sends.count, member->recvs, member->recv_count,
                                  runs->recvs.data, runs->recvs.count, rounds);
}

static banyan_slot_batch schedule_world_batch_of(const pipeline_flow *flows, size_t flow,
                                                 size_t batch)
{
    if (flow == PIPELINE_NO_FLOW)
        return (banyan_slot_batch){.peer = -1};
    return (banyan_slot_batch){.peer = flows[flow].peer,
                               .bytes = flows[flow].batches.list.data[batch].bytes};
}

banyan_status pipeline_world_steps(const pipeline_world *world, int rank, pipeline_steps *steps)
{
    const pipeline_member *member = &world->members[rank];
    pipeline_rounds rounds = {0};
    RETURN_IF_FAILED(pipeline_world_rounds(world, rank, &rounds));
    banyan_iteration *iterations = calloc(rounds.count + 1, sizeof *iterations);
    banyan_status status = BANYAN_OK;
    if (!iterations)
        status = error_no_memory(rounds.count * sizeof *iterations, "a schedule's steps");
    for (size_t i = 0; status == BANYAN_OK && i < rounds.count; i++) {
        const pipeline_round *round = &rounds.data[i];
        iterations[i].send =
            schedule_world_batch_of(member->sends, round->send_flow, round->send_batch);
        iterations[i].recv =
            schedule_world_batch_of(member->recvs, round->recv_flow, round->recv_batch);
    }
    if (status == BANYAN_OK)
        status = pipeline_steps_of(iterations, rounds.count, steps);
    free(iterations);
    array_free(&rounds);
    return status;
}
