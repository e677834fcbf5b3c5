#include "reshard/planner/replay.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "world/directory/directory.h"

double plan_processor_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool plan_replay_keep(plan_replay *replay, plan_messages *to, int from, const void *data,
                      size_t bytes)
{
    size_t before = to->capacity;
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (!copy) {
        error_no_memory(bytes, "a message that is measured");
        return false;
    }
    if (bytes > 0)
        memcpy(copy, data, bytes);
    if (!array_push(to, (control_message){from, copy, bytes})) {
        free(copy);
        return false;
    }
    replay->bytes += bytes + (to->capacity - before) * sizeof *to->data;
    return true;
}

static void free_messages(plan_messages *messages)
{
    for (size_t i = 0; i < messages->count; i++)
        free(messages->data[i].data);
    array_free(messages);
}

void plan_replay_free(plan_replay *replay)
{
    free_messages(&replay->puts);
    for (int round = 0; round < PLANNER_ROUNDS; round++)
        free_messages(&replay->questions[round]);
}

static banyan_status planner_replay_absorb(const plan_messages *puts, directory_part *part,
                                           uint64_t *in_flight)
{
    for (size_t i = 0; i < puts->count; i++) {
        RETURN_IF_FAILED(directory_part_absorb(part, puts->data[i].rank, puts->data[i].data,
                                               puts->data[i].bytes));
        *in_flight += puts->data[i].bytes;
    }
    return BANYAN_OK;
}

/* Compute all answers before the first one leaves, as a real owner does. */
static banyan_status planner_replay_answer(const plan_messages *questions, directory_part *part,
                                           uint64_t *in_flight)
{
    size_t count = questions->count;
    control_message *answers = calloc(count ? count : 1, sizeof *answers);
    if (!answers)
        return error_no_memory(count * sizeof *answers, "the directory's answers");
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        status = directory_part_answer(part, questions->data[i].data, questions->data[i].bytes,
                                       &answers[i].data, &answers[i].bytes);
        *in_flight += questions->data[i].bytes + answers[i].bytes;
    }
    control_messages_free(answers, count);
    return status;
}

banyan_status plan_replay_run(const plan_replay *replay, int rank, int world_size,
                              banyan_reshard_plan_cost *cost)
{
    directory_part *part;
    RETURN_IF_FAILED(directory_part_create(rank, world_size, &part));
    uint64_t in_flight[1 + PLANNER_ROUNDS] = {0}, most = 0;
    double began = plan_processor_s();
    banyan_status status = planner_replay_absorb(&replay->puts, part, &in_flight[0]);
    for (int round = 0; round < PLANNER_ROUNDS && status == BANYAN_OK; round++)
        status = planner_replay_answer(&replay->questions[round], part, &in_flight[1 + round]);
    cost->owner_seconds = plan_processor_s() - began;
    cost->seconds += cost->owner_seconds;
    for (int i = 0; i <= PLANNER_ROUNDS; i++)
        most = in_flight[i] > most ? in_flight[i] : most;
    /* An owner answers while its own planner waits, so both are in memory at once. */
    cost->bytes += most;
    cost->owner_bytes = directory_part_memory(part);
    directory_part_destroy(part);
    return status;
}
