#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "reshard/planner/sample.h"
#include "reshard/verify/check.h"
#include "world/directory/directory.h"

/* One rank's layouts and planner, made on demand and freed at once: thousands would not fit in
 * memory. */
struct sample_rank {
    int rank;
    banyan_layout *source, *destination;
    planner *planner;
    banyan_reshard_plan_cost *cost; /* NULL: not measured */
    uint64_t allocated_before;
};

struct sample_job {
    const banyan_reshard_sample_world *world;
    const banyan_reshard_options *options;
    int *nodes; /* of each rank */
    directory_part **parts;
    banyan_reshard_plan_cost **costs; /* of each rank, NULL for most */
    planner_replay *replays;          /* for each rank; empty except for measured ranks */
    uint64_t replay_bytes;
    uint64_t steps_done;
    planner_take_fn take; /* receives every rank's transfers; NULL: discard them */
    void *take_context;
};

static uint64_t allocated_bytes(const struct sample_job *job)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd - job->replay_bytes;
}

/* Record the rank's peak memory: its part of the directory, plus allocations since it was made. */
static void note_memory(const struct sample_job *job, const struct sample_rank *of)
{
    if (!of->cost)
        return;
    uint64_t now = allocated_bytes(job), owned = directory_part_memory(job->parts[of->rank]);
    uint64_t held = owned + (now > of->allocated_before ? now - of->allocated_before : 0);
    if (held > of->cost->bytes)
        of->cost->bytes = held;
}

/* Read the clock only for measured ranks: a reading takes longer than many steps. */
static double sample_begin_step(const banyan_reshard_plan_cost *cost)
{
    return cost ? planner_processor_s() : 0;
}

static void end_step(banyan_reshard_plan_cost *cost, double began)
{
    if (cost)
        cost->seconds += planner_processor_s() - began;
}

/* Keep the message of a measured owner, whose work is timed later, in one go. */
static banyan_status keep_message(struct sample_job *job, int owner, planner_messages *to, int from,
                                  const control_message *message)
{
    if (!job->costs[owner])
        return BANYAN_OK;
    planner_replay *replay = &job->replays[owner];
    uint64_t before = replay->bytes;
    bool kept = planner_replay_keep(replay, to, from, message->data, message->bytes);
    job->replay_bytes += replay->bytes - before;
    return kept ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static void step_done(struct sample_job *job)
{
    job->steps_done++;
    if (job->world->progress)
        job->world->progress(job->world->context, job->steps_done,
                             2 * (uint64_t)job->world->world_size);
}

static void sample_rank_free(struct sample_rank *of)
{
    planner_destroy(of->planner);
    banyan_layout_destroy(of->destination);
    banyan_layout_destroy(of->source);
}

static banyan_status put_in_part(void *part, const char *key, const void *value, size_t bytes,
                                 const banyan_rank_set *holders)
{
    return directory_part_put(part, key, value, bytes, holders);
}

static banyan_status put_nowhere(void *part, const char *key, const void *value, size_t bytes,
                                 const banyan_rank_set *holders)
{
    (void)part;
    (void)key;
    (void)value;
    (void)bytes;
    (void)holders;
    return BANYAN_OK;
}

static banyan_status sample_rank_make(struct sample_job *job, int rank, struct sample_rank *of)
{
    *of = (struct sample_rank){.rank = rank, .cost = job->costs[rank]};
    of->allocated_before = of->cost ? allocated_bytes(job) : 0;
    const banyan_reshard_sample_world *world = job->world;
    RETURN_IF_FAILED(banyan_layout_create(&of->source));
    RETURN_IF_FAILED(banyan_layout_create(&of->destination));
    RETURN_IF_FAILED(world->layouts(world->context, rank, of->source, of->destination));
    RETURN_IF_FAILED(banyan_layout_check_as(of->source, BANYAN_SOURCE));
    return banyan_layout_check_as(of->destination, BANYAN_DESTINATION);
}

static banyan_status sample_rank_describe(struct sample_job *job, struct sample_rank *of,
                                          planner_put_fn put)
{
    RETURN_IF_FAILED(planner_create(of->rank, job->world->world_size, job->nodes, of->source,
                                    of->destination, job->options, &of->planner));
    return planner_describe(of->planner, put, job->parts[of->rank]);
}

/* First half: every rank publishes its records. */

static banyan_status absorb_all(struct sample_job *job, int from, const control_message *messages,
                                size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int owner = messages[i].rank;
        RETURN_IF_FAILED(keep_message(job, owner, &job->replays[owner].puts, from, &messages[i]));
        RETURN_IF_FAILED(
            directory_part_absorb(job->parts[owner], from, messages[i].data, messages[i].bytes));
    }
    return BANYAN_OK;
}

static banyan_status sample_describe(struct sample_job *job, int rank)
{
    struct sample_rank of;
    control_message *messages = NULL;
    size_t count = 0;
    banyan_status status = sample_rank_make(job, rank, &of);
    double began = sample_begin_step(of.cost);
    if (status == BANYAN_OK)
        status = sample_rank_describe(job, &of, put_in_part);
    if (status == BANYAN_OK)
        status = directory_part_take_puts(job->parts[rank], &messages, &count);
    end_step(of.cost, began);
    note_memory(job, &of);
    if (status == BANYAN_OK)
        status = absorb_all(job, rank, messages, count);
    control_messages_free(messages, count);
    sample_rank_free(&of);
    return status;
}

/* Second half: every rank asks, and the measured ranks plan. */

static banyan_status sample_answer_all(struct sample_job *job, int from, int round,
                                       const control_message *questions, size_t count,
                                       control_message *answers)
{
    for (size_t i = 0; i < count; i++) {
        int owner = questions[i].rank;
        answers[i].rank = owner;
        RETURN_IF_FAILED(
            keep_message(job, owner, &job->replays[owner].questions[round], from, &questions[i]));
        RETURN_IF_FAILED(directory_part_answer(job->parts[owner], questions[i].data,
                                               questions[i].bytes, &answers[i].data,
                                               &answers[i].bytes));
    }
    return BANYAN_OK;
}

static banyan_status ask_round(struct sample_job *job, struct sample_rank *of, int round)
{
    directory_part *part = job->parts[of->rank];
    control_message *questions = NULL, *answers = NULL;
    size_t key_count, count = 0;
    const char *const *keys;
    double began = sample_begin_step(of->cost);
    banyan_status status = planner_ask(of->planner, &key_count, &keys);
    if (status == BANYAN_OK)
        status = directory_part_ask(part, key_count, keys, &questions, &count);
    end_step(of->cost, began);
    if (status != BANYAN_OK)
        return status;
    answers = calloc(count ? count : 1, sizeof *answers);
    status = answers ? sample_answer_all(job, of->rank, round, questions, count, answers)
                     : error_no_memory(count * sizeof *answers, "the directory's answers");
    began = sample_begin_step(of->cost);
    if (status == BANYAN_OK)
        status = directory_part_visit(part, answers, count, planner_receive, of->planner);
    end_step(of->cost, began);
    note_memory(job, of);
    control_messages_free(answers, answers ? count : 0);
    control_messages_free(questions, count);
    return status;
}

/* Run the checks of a first run. */
static banyan_status sample_prove(const struct sample_rank *of, const planner_result *result)
{
    const check_rank part = {of->rank, of->source, of->destination, result};
    double began = planner_processor_s();
    banyan_status status = check_rank_sound(&part);
    of->cost->prove_seconds = planner_processor_s() - began;
    return status;
}

static banyan_status sample_derive(const struct sample_job *job, const struct sample_rank *of)
{
    planner_result result = {0};
    double began = sample_begin_step(of->cost);
    banyan_status status = planner_derive(of->planner, &result);
    if (status == BANYAN_OK)
        status = planner_check_whole_source(of->planner);
    end_step(of->cost, began);
    note_memory(job, of);
    if (status == BANYAN_OK && job->take)
        return job->take(job->take_context, of->rank, &result);
    if (status == BANYAN_OK) {
        of->cost->transfers = result.send_count + result.recv_count;
        for (size_t i = 0; i < result.recv_count; i++)
            of->cost->transfer_bytes += result.recvs[i].bytes;
        status = sample_prove(of, &result);
    }
    planner_result_free(&result);
    return status;
}

static banyan_status sample_ask(struct sample_job *job, int rank)
{
    struct sample_rank of;
    banyan_status status = sample_rank_make(job, rank, &of);
    if (status == BANYAN_OK)
        status = sample_rank_describe(job, &of, put_nowhere);
    for (int round = 0; round < PLANNER_ROUNDS && status == BANYAN_OK; round++)
        status = ask_round(job, &of, round);
    if (status == BANYAN_OK && (of.cost || job->take))
        status = sample_derive(job, &of);
    sample_rank_free(&of);
    return status;
}

static banyan_status replay_owners(const struct sample_job *job)
{
    int size = job->world->world_size;
    for (int rank = 0; rank < size; rank++)
        if (job->costs[rank])
            RETURN_IF_FAILED(planner_replay_run(&job->replays[rank], rank, size, job->costs[rank]));
    return BANYAN_OK;
}

static banyan_status sample_play(struct sample_job *job)
{
    int size = job->world->world_size;
    for (int rank = 0; rank < size; rank++)
        RETURN_IF_FAILED(directory_part_create(rank, size, &job->parts[rank]));
    for (int rank = 0; rank < size; rank++) {
        RETURN_IF_FAILED(sample_describe(job, rank));
        step_done(job);
    }
    for (int rank = 0; rank < size; rank++) {
        RETURN_IF_FAILED(sample_ask(job, rank));
        step_done(job);
    }
    return replay_owners(job);
}

/* Set where each rank's cost is kept. */
static banyan_status sample_choose_ranks(struct sample_job *job, const int *ranks, int count,
                                         banyan_reshard_plan_cost *costs)
{
    int size = job->world->world_size;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= size || job->costs[ranks[i]])
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d cannot be sampled (once) from a world of %d", ranks[i], size);
        costs[i] = (banyan_reshard_plan_cost){.rank = ranks[i]};
        job->costs[ranks[i]] = &costs[i];
    }
    return BANYAN_OK;
}

/* With `take` NULL the costs of `ranks` are measured; otherwise `ranks` is empty. */
static banyan_status sample_imagine(const banyan_reshard_sample_world *world,
                                    const banyan_reshard_options *options, const int *ranks,
                                    int count, banyan_reshard_plan_cost *costs,
                                    planner_take_fn take, void *take_context)
{
    if (world->ranks_per_node < 0)
        return error_set(BANYAN_ERR_INVALID, "%d ranks for each node", world->ranks_per_node);
    if (world->world_size < 1 || count < 0)
        return error_set(BANYAN_ERR_INVALID, "%d sampled ranks of a world of %d", count,
                         world->world_size);
    if (world->world_size > BANYAN_MAX_RANKS)
        return error_set(BANYAN_ERR_INVALID, "%d ranks are more than the %d that a world can have",
                         world->world_size, BANYAN_MAX_RANKS);
    banyan_reshard_options chosen = BANYAN_RESHARD_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(options, "BANYAN_RESHARD_OPTIONS_INIT", &chosen, sizeof chosen));
    size_t size = (size_t)world->world_size;
    struct sample_job job = {
        .world = world, .options = &chosen, .take = take, .take_context = take_context};
    banyan_reshard_plan_cost *found = calloc((size_t)count + 1, sizeof *found);
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    job.parts = calloc(size, sizeof *job.parts);
    job.costs = calloc(size, sizeof *job.costs);
    job.replays = calloc(size, sizeof *job.replays);
    job.nodes = calloc(size, sizeof *job.nodes);
    if (!job.parts || !job.costs || !job.replays || !job.nodes || !found) {
        error_no_memory(size * sizeof *job.parts, "an job world");
        goto free_imagined;
    }
    for (int rank = 0; rank < world->world_size && world->ranks_per_node > 0; rank++)
        job.nodes[rank] = rank / world->ranks_per_node;
    status = sample_choose_ranks(&job, ranks, count, found);
    if (status == BANYAN_OK)
        status = sample_play(&job);
    if (status == BANYAN_OK && count > 0)
        memcpy(costs, found, (size_t)count * sizeof *costs);
    for (size_t rank = 0; rank < size; rank++) {
        planner_replay_free(&job.replays[rank]);
        directory_part_destroy(job.parts[rank]);
    }
free_imagined:
    free(job.nodes);
    free(job.replays);
    free(job.costs);
    free(job.parts);
    free(found);
    return status;
}

banyan_status banyan_reshard_plan_sample(const banyan_reshard_sample_world *world,
                                         const banyan_reshard_options *options, const int *ranks,
                                         int count, banyan_reshard_plan_cost *costs)
{
    return sample_imagine(world, options, ranks, count, costs, NULL, NULL);
}

banyan_status planner_imagine(const banyan_reshard_sample_world *world,
                              const banyan_reshard_options *options, planner_take_fn take,
                              void *context)
{
    return sample_imagine(world, options, NULL, 0, NULL, take, context);
}

double planner_processor_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool planner_replay_keep(planner_replay *replay, planner_messages *to, int from, const void *data,
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

static void free_messages(planner_messages *messages)
{
    for (size_t i = 0; i < messages->count; i++)
        free(messages->data[i].data);
    array_free(messages);
}

void planner_replay_free(planner_replay *replay)
{
    free_messages(&replay->puts);
    for (int round = 0; round < PLANNER_ROUNDS; round++)
        free_messages(&replay->questions[round]);
}

static banyan_status planner_replay_absorb(const planner_messages *puts, directory_part *part,
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
static banyan_status planner_replay_answer(const planner_messages *questions, directory_part *part,
                                           uint64_t *in_flight)
{
    size_t count = questions->count;
    control_message *answers = alloc_zeroed(count, sizeof *answers, "the directory's answers");
    RETURN_IF_NO_MEMORY(answers);
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        status = directory_part_answer(part, questions->data[i].data, questions->data[i].bytes,
                                       &answers[i].data, &answers[i].bytes);
        *in_flight += questions->data[i].bytes + answers[i].bytes;
    }
    control_messages_free(answers, count);
    return status;
}

banyan_status planner_replay_run(const planner_replay *replay, int rank, int world_size,
                                 banyan_reshard_plan_cost *cost)
{
    directory_part *part;
    RETURN_IF_FAILED(directory_part_create(rank, world_size, &part));
    uint64_t in_flight[1 + PLANNER_ROUNDS] = {0}, most = 0;
    double began = planner_processor_s();
    banyan_status status = planner_replay_absorb(&replay->puts, part, &in_flight[0]);
    for (int round = 0; round < PLANNER_ROUNDS && status == BANYAN_OK; round++)
        status = planner_replay_answer(&replay->questions[round], part, &in_flight[1 + round]);
    cost->owner_seconds = planner_processor_s() - began;
    cost->seconds += cost->owner_seconds;
    for (int i = 0; i <= PLANNER_ROUNDS; i++)
        most = in_flight[i] > most ? in_flight[i] : most;
    /* An owner answers while its own planner waits, so both are in memory at once. */
    cost->bytes += most;
    cost->owner_bytes = directory_part_memory(part);
    directory_part_destroy(part);
    return status;
}

banyan_status planner_tasks_sent(const planner_result *transfers, pipeline_world_task **tasks,
                                 size_t *count)
{
    size_t kept = 0;
    pipeline_world_task *made =
        alloc_zeroed(transfers->send_count + 1, sizeof *made, "a rank's sends");
    RETURN_IF_NO_MEMORY(made);
    for (size_t i = 0; i < transfers->send_count; i++) {
        const banyan_transfer *sent = &transfers->sends[i];
        bool converted = sent->wire_bytes != sent->bytes;
        uint64_t elem_bytes = converted ? 1 : banyan_dtype_bytes(sent->source_dtype);
        if (sent->destination_rank != sent->source_rank)
            made[kept++] =
                (pipeline_world_task){.peer = sent->destination_rank,
                                      .id = sent->task_id,
                                      .task = {sent->wire_bytes / elem_bytes, elem_bytes},
                                      .stage = sent->stage,
                                      .turn = sent->turn};
    }
    pipeline_world_sort(made, kept);
    *tasks = made;
    *count = kept;
    return BANYAN_OK;
}
