#include "support/symbolic/symbolic.h"

#include "support/symbolic/symbolic_play.h"

/* All units of a rank's input, or output. */
#define EACH_UNIT(p, rank, buffer, chunk, unit)                                                    \
    for (uint64_t chunk = 0; chunk < (p)->plan->ranks[rank].chunks[buffer]; chunk++)               \
        for (uint64_t unit = 0, unit##_end = chunk_units(p, (p)->ranks[rank].run, buffer, chunk);  \
             unit < unit##_end; unit++)

static void poison(play *p, agent *user, plan_buffer buffer)
{
    int rank = user->rank, run = p->ranks[rank].run;
    EACH_UNIT(p, rank, buffer, chunk, unit)
    cell_write(p, user, cell_at(p, rank, run, buffer, chunk, unit), (cell){0});
}

static void begin_run(play *p, agent *user)
{
    rank_state *rank = &p->ranks[user->rank];
    bool speaks = p->plan->collective != BANYAN_BROADCAST || user->rank == p->plan->root;
    poison(p, user, PLAN_OUTPUT);
    EACH_UNIT(p, user->rank, PLAN_INPUT, chunk, unit)
    {
        uint64_t one = play_symbol(user->rank, chunk, unit, rank->run);
        cell_write(p, user, cell_at(p, user->rank, rank->run, PLAN_INPUT, chunk, unit),
                   (cell){.valid = speaks, .sum = one, .order = one});
    }
    clocks told = play_tell(p, user);
    for (uint32_t b = 0; b < p->plan->ranks[user->rank].block_count; b++) {
        agent *block = &p->agents[rank->first_block + b];
        play_hear(p, block, told, true);
        block->at = 0;
        block->ended = block->block->op_count == 0;
    }
    rank->running = true;
}

static void check_unit(play *p, agent *user, uint64_t chunk, uint64_t unit, plan_contribution *room)
{
    int rank = user->rank, run = p->ranks[rank].run;
    plan_expected expected;
    banyan_reduce_op op;
    if (!plan_expected_of(p->plan, rank, chunk, room, &expected, &op))
        return;
    uint64_t sum = 0;
    for (size_t i = 0; i < expected.count; i++)
        sum +=
            play_symbol(expected.contributions[i].rank, expected.contributions[i].chunk, unit, run);
    cell got = cell_read(p, user, cell_at(p, rank, run, PLAN_OUTPUT, chunk, unit), false);
    if (got.sum != sum)
        play_fail(p, "rank %d, run %d: output chunk %llu, unit %llu is wrong", rank, run,
                  (unsigned long long)chunk, (unsigned long long)unit);
    if (!p->options.same_bits)
        return;
    uint64_t outputs = p->plan->ranks[0].chunks[PLAN_OUTPUT], units = (uint64_t)p->options.units;
    uint64_t *bits = &p->bits[((uint64_t)run * outputs + chunk) * units + unit];
    if (*bits && *bits != got.order)
        play_fail(p,
                  "rank %d, run %d: output chunk %llu is added up in another order than elsewhere",
                  rank, run, (unsigned long long)chunk);
    *bits = got.order;
}

static void end_run(play *p, agent *user, plan_contribution *room)
{
    rank_state *rank = &p->ranks[user->rank];
    for (uint32_t b = 0; b < p->plan->ranks[user->rank].block_count; b++)
        play_hear(p, user, play_tell(p, &p->agents[rank->first_block + b]), true);
    EACH_UNIT(p, user->rank, PLAN_OUTPUT, chunk, unit)
    check_unit(p, user, chunk, unit, room);
    poison(p, user, PLAN_INPUT);
    poison(p, user, PLAN_OUTPUT);
    rank->running = false;
    rank->run++;
}

static bool user_step(play *p, agent *user, plan_contribution *room)
{
    rank_state *rank = &p->ranks[user->rank];
    if (rank->run == p->options.runs)
        return false;
    if (!rank->running) {
        begin_run(p, user);
        return true;
    }
    for (uint32_t b = 0; b < p->plan->ranks[user->rank].block_count; b++)
        if (!p->agents[rank->first_block + b].ended)
            return false;
    end_run(p, user, room);
    return true;
}

static bool agent_step(play *p, agent *a, plan_contribution *room)
{
    switch (a->kind) {
    case AGENT_USER:
        return user_step(p, a, room);
    case AGENT_BLOCK:
        return play_block_step(p, a);
    case AGENT_PORT:
        return play_port_step(p, a);
    }
    return false;
}

/* Step a random agent that can continue, among the lagging ones or the others. */
static bool anyone_step(play *p, bool lagging, plan_contribution *room)
{
    uint32_t first = (uint32_t)random_between(&p->random, 0, p->agent_count - 1);
    for (uint32_t i = 0; i < p->agent_count; i++) {
        agent *a = &p->agents[(first + i) % p->agent_count];
        if (p->ranks[a->rank].lags == lagging && agent_step(p, a, room))
            return true;
    }
    return false;
}

static void choose_laggards(play *p)
{
    for (int rank = 0; rank < p->plan->rank_count; rank++)
        p->ranks[rank].lags = random_between(&p->random, 0, 2) == 0;
}

static void explain_standstill(play *p)
{
    char me[64];
    for (uint32_t i = 0; i < p->agent_count; i++) {
        const agent *a = &p->agents[i];
        if (a->kind != AGENT_BLOCK || a->ended || !p->ranks[a->rank].running)
            continue;
        const plan_op *op = &a->block->ops[a->at];
        if (op->kind == PLAN_PIPELINE)
            op = &op->ops[a->inner];
        play_fail(p, "nobody can go on: %s waits in %s, operation %u, run %d", play_name(p, i, me),
                  plan_op_name(op->kind), a->at, p->ranks[a->rank].run);
    }
}

static void check_ends(play *p)
{
    for (int r = 0; r < p->plan->rank_count; r++) {
        if (p->ranks[r].run < p->options.runs)
            explain_standstill(p);
        for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
            for (uint32_t c = 0; c < p->plan->ranks[r].channel_count[type]; c++)
                if (post_ready(&p->ranks[r].channels[type][c]))
                    play_fail(p, "rank %d: nobody waited for a signal on channel %u", r, c);
    }
}

static void play_all(play *p)
{
    plan_contribution *room = play_take(p, (size_t)p->plan->rank_count, sizeof *room);
    int64_t until_change = 0;
    while (!p->failed) {
        if (until_change-- == 0) {
            choose_laggards(p);
            until_change = random_between(&p->random, 1, 200);
        }
        if (!anyone_step(p, false, room) && !anyone_step(p, true, room))
            break;
    }
    if (!p->failed)
        check_ends(p);
}

static uint64_t units_in_ring(const banyan_plan *plan, uint64_t units)
{
    if (!plan->reuse_resources)
        return units;
    uint64_t halves = plan->double_scratch ? 2 : 1;
    for (int r = 0; r < plan->rank_count; r++)
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++)
            for (uint32_t o = 0; o < plan->ranks[r].blocks[b].op_count; o++) {
                const plan_op *op = &plan->ranks[r].blocks[b].ops[o];
                if (op->kind == PLAN_PIPELINE)
                    return plan->reused_scratch_bytes /
                           (halves * plan->ranks[r].chunks[PLAN_SCRATCH] * op->unit_bytes);
            }
    return units;
}

/* A custom collective's chunks are whole, whatever the message. */
static uint64_t block_chunks_of(const banyan_plan *plan)
{
    if (plan->collective == BANYAN_CUSTOM)
        return 1;
    bool blocks = plan->collective == BANYAN_REDUCESCATTER || plan->collective == BANYAN_ALLTOALL;
    return plan->ranks[0].chunks[PLAN_INPUT] / (blocks ? (uint64_t)plan->rank_count : 1);
}

/* Sometimes the longest, and often such that chunks are clipped, or empty. */
static void choose_sizes(play *p)
{
    p->block_chunks = block_chunks_of(p->plan);
    p->run_units = play_take(p, (size_t)p->options.runs, sizeof *p->run_units);
    p->run_message = play_take(p, (size_t)p->options.runs, sizeof *p->run_message);
    int64_t most = (int64_t)p->block_chunks * p->options.units;
    for (int run = 0; run < p->options.runs; run++) {
        int64_t chosen = random_between(&p->random, 1, 2 * most);
        p->run_message[run] = (uint64_t)(chosen < most ? chosen : most);
        p->run_units[run] = (p->run_message[run] + p->block_chunks - 1) / p->block_chunks;
    }
}

static void count_agents(play *p)
{
    p->ranks = play_take(p, (size_t)p->plan->rank_count, sizeof *p->ranks);
    for (int r = 0; r < p->plan->rank_count; r++) {
        rank_state *state = &p->ranks[r];
        state->user = p->agent_count;
        state->first_block = state->user + 1;
        state->first_port = state->first_block + p->plan->ranks[r].block_count;
        p->agent_count = state->first_port + p->plan->ranks[r].channel_count[PLAN_PORT];
    }
}

static void make_agents(play *p)
{
    p->agents = play_take(p, p->agent_count, sizeof *p->agents);
    for (int r = 0; r < p->plan->rank_count; r++) {
        const rank_state *state = &p->ranks[r];
        uint32_t end = state->first_port + p->plan->ranks[r].channel_count[PLAN_PORT];
        for (uint32_t i = state->user; i < end; i++) {
            agent *a = &p->agents[i];
            a->kind = i == state->user        ? AGENT_USER
                      : i < state->first_port ? AGENT_BLOCK
                                              : AGENT_PORT;
            a->rank = r;
            a->index = i;
            a->knows = play_clocks(p);
            a->knows.order[i] = a->knows.seen[i] = 1;
            if (a->kind == AGENT_BLOCK)
                a->block = &p->plan->ranks[r].blocks[i - state->first_block];
            else if (a->kind == AGENT_PORT)
                a->channel = i - state->first_port;
        }
    }
}

static void make_cells(play *p, int r)
{
    const plan_rank *of = &p->plan->ranks[r];
    for (int buffer = 0; buffer < PLAN_BUFFERS; buffer++) {
        uint64_t cells = of->chunks[buffer] *
                         (buffer == PLAN_SCRATCH ? 2 * p->ring : (uint64_t)p->options.units);
        p->ranks[r].buffers[buffer] = play_take(p, cells, sizeof(cell));
        uint32_t *times = play_take(p, cells * p->agent_count, sizeof *times);
        for (uint64_t i = 0; i < cells; i++)
            p->ranks[r].buffers[buffer][i].read_times = times + i * p->agent_count;
    }
}

static void make_posts(play *p, int r)
{
    const plan_rank *of = &p->plan->ranks[r];
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
        p->ranks[r].channels[type] = play_take(p, of->channel_count[type], sizeof(post));
    p->ranks[r].semaphores = play_take(p, of->semaphore_count, sizeof(post));
    for (uint32_t i = 0; i < of->semaphore_count; i++)
        for (uint64_t credit = 0; credit < of->semaphores[i]; credit++)
            post_add(&p->ranks[r].semaphores[i], (clocks){0});
}

static void free_all(play *p)
{
    for (int r = 0; r < p->plan->rank_count; r++) {
        for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
            for (uint32_t c = 0; c < p->plan->ranks[r].channel_count[type]; c++)
                array_free(&p->ranks[r].channels[type][c].words);
        for (uint32_t i = 0; i < p->plan->ranks[r].semaphore_count; i++)
            array_free(&p->ranks[r].semaphores[i].words);
    }
    for (uint32_t i = 0; i < p->agent_count; i++)
        array_free(&p->agents[i].tasks);
    arena_free(&p->memory);
}

bool symbolic_play(const banyan_plan *plan, const symbolic_options *options, char *problem,
                   size_t problem_bytes)
{
    play p = {.plan = plan,
              .options = *options,
              .random = random_from(options->seed),
              .ring = units_in_ring(plan, (uint64_t)options->units),
              .problem = problem,
              .problem_bytes = problem_bytes};
    if (p.ring == 0)
        play_fail(&p, "scratch that is reused has no room for a unit");
    choose_sizes(&p);
    count_agents(&p);
    make_agents(&p);
    for (int r = 0; r < plan->rank_count; r++) {
        make_cells(&p, r);
        make_posts(&p, r);
    }
    p.bits = play_take(
        &p, (uint64_t)options->runs * plan->ranks[0].chunks[PLAN_OUTPUT] * (uint64_t)options->units,
        sizeof *p.bits);
    if (!p.failed)
        play_all(&p);
    free_all(&p);
    return !p.failed;
}
