/* Steps of mixed collectives between nodes, for all grids of up to the largest number of ranks. A
 * launch has space for the steps. Each receiver of a message awaits it once, in a later phase, and
 * nothing else. Nothing runs. */
#include "cuda/mixed/nodes/nodes.h"
#include "mixed/grids.h"

#define GRIDS_MOST 128
#define SLOTS_MOST 256
#define SLOT_BYTES (UINT64_C(1) << 16)
#define SLOTS_AT ((uint64_t)SLOTS_MOST * NODES_TILES * sizeof(uint64_t))

/* Kinds of memory; the upper half of an address contains the kind and owner. */
enum kind { INPUT, OUTPUT, NEAR, FAR, CAST_NODE, CAST_TP };

static char *memory_of(enum kind kind, int owner)
{
    return (char *)((uintptr_t)(1 + (unsigned)kind * 64 + (unsigned)owner) << 32);
}

typedef struct place {
    enum kind kind;
    int owner, slot;
} place;

/* Return a slot's place; its flags must have the same place. */
static place place_of(const void *address, const uint64_t *flags)
{
    uintptr_t at = (uintptr_t)address, base = at >> 32 << 32;
    unsigned number = (unsigned)(at >> 32) - 1;
    uint64_t slot = (at - base - SLOTS_AT) / SLOT_BYTES;
    CHECK((at - base - SLOTS_AT) % SLOT_BYTES == 0 && slot < SLOTS_MOST);
    CHECK(!flags || (uintptr_t)flags == base + slot * NODES_TILES * sizeof(uint64_t));
    return (place){(enum kind)(number / 64), (int)(number % 64), (int)slot};
}

/* The messages to a rank's slot, and its reads from there. */
typedef struct message {
    int sent, taken, sender, waited_for;
    int sent_phase, taken_phase;
    uint64_t sent_bytes, taken_bytes;
} message;

typedef struct setting {
    banyan_mixed_grid grid; /* of the rank under test */
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    nodes_by by;
    int pes[MIXED_RANKS_MAX]; /* an order other than the ranks' */
    int rank, ranks, phase;
    message near[MIXED_RANKS_MAX][SLOTS_MOST], far[MIXED_RANKS_MAX][SLOTS_MOST];
} setting;

static nodes_places places_of(const setting *s)
{
    const banyan_mixed_grid *grid = &s->grid;
    nodes_places places = {
        .grid = grid,
        .rank = s->rank,
        .ranks = s->ranks,
        .own = memory_of(FAR, s->rank),
        .from_node = memory_of(NEAR, s->rank),
        .from_elsewhere = memory_of(FAR, s->rank),
        .cast_node = memory_of(CAST_NODE, grid->node),
        .cast_tp = memory_of(CAST_TP, grid->node * grid->local_dp + grid->local_dp_rank),
        .pes = s->by == NODES_BY_PUTS ? s->pes : NULL,
    };
    for (int rank = 0; rank < s->ranks; rank++) {
        bool near = rank / grid->local_size == grid->node;
        bool mapped = near || s->by == NODES_BY_STORES;
        places.mapped[rank] = mapped ? memory_of(near ? NEAR : FAR, rank) : NULL;
    }
    return places;
}

static void deliver(setting *s, enum kind kind, int to, int slot, uint64_t bytes)
{
    message *one = kind == NEAR ? &s->near[to][slot] : &s->far[to][slot];
    bool is_near = to / s->grid.local_size == s->grid.node;
    CHECK(is_near == (kind == NEAR), "from %d to %d", s->rank, to);
    one->sent++;
    one->sender = s->rank;
    one->sent_phase = s->phase;
    one->sent_bytes = bytes;
}

static void deliver_to_many(setting *s, place at, uint64_t bytes)
{
    int local_size = s->grid.local_size, tp = s->grid.local_tp;
    int count = at.kind == CAST_NODE ? local_size : tp;
    int own = s->rank / count; /* group */
    CHECK(count > 1 && at.owner == own, "rank %d casts to group %d", s->rank, at.owner);
    for (int i = 0; i < count; i++)
        deliver(s, NEAR, own * count + i, at.slot, bytes);
}

static int rank_of_pe(const setting *s, int pe)
{
    int rank = 0;
    while (rank < s->ranks && s->pes[rank] != pe)
        rank++;
    CHECK(rank < s->ranks, "there is no PE %d", pe);
    return rank;
}

static void send(setting *s, const nodes_target *target, uint64_t bytes)
{
    if (target->way == NODES_OUTPUT || target->way == NODES_STAGED)
        return;
    place at = place_of(target->to, target->flags);
    if (target->way == NODES_CAST)
        deliver_to_many(s, at, bytes);
    else if (target->way == NODES_POSTED)
        deliver(s, at.kind, (int)target->peer, at.slot, bytes);
    else if (target->way == NODES_PUT)
        deliver(s, at.kind, rank_of_pe(s, (int)target->peer), at.slot, bytes);
    else
        deliver(s, at.kind, at.owner, at.slot, bytes);
}

static void take(setting *s, const nodes_source *source, uint64_t bytes)
{
    if (!source->flags)
        return;
    place at = place_of(source->at, source->flags);
    CHECK(at.owner == s->rank && (at.kind == NEAR || at.kind == FAR));
    CHECK((source->is_far != 0) == (at.kind == FAR));
    message *one = at.kind == NEAR ? &s->near[s->rank][at.slot] : &s->far[s->rank][at.slot];
    one->taken++;
    one->waited_for = (int)source->rank;
    one->taken_phase = s->phase;
    one->taken_bytes = bytes;
}

/* Check that the step itself stages the data of its puts, in a slot with no other use. */
static void check_staged(const setting *s, const nodes_args *args, const nodes_step *step,
                         const nodes_layout *layout, bool *used)
{
    const nodes_target *targets = &args->targets[step->first_target];
    nodes_way way = s->by == NODES_BY_PUTS ? NODES_PUT : NODES_POSTED;
    int put = 0, staged = 0;
    for (int i = 0; i < step->target_count; i++) {
        put += targets[i].way == (uint32_t)way;
        if (targets[i].way != NODES_STAGED)
            continue;
        place at = place_of(targets[i].to, NULL);
        CHECK(targets[i].to == step->staged && at.kind == FAR && at.owner == s->rank);
        CHECK(at.slot >= layout->received && at.slot < 2 * layout->received && !used[at.slot]);
        used[at.slot] = true;
        staged++;
    }
    CHECK(staged == (put > 0), "%d staged, %d put", staged, put);
}

/* Check a phase's totals of its steps, which follow those of the previous phase. */
static void check_phase(const nodes_args *args, const nodes_phase *phase, nodes_phase *all)
{
    nodes_phase own = {.first_step = (uint16_t)(all->first_step + all->step_count),
                       .first_source = (uint16_t)(all->first_source + all->source_count),
                       .first_target = (uint16_t)(all->first_target + all->target_count),
                       .step_count = phase->step_count};
    for (unsigned i = own.first_step; i < (unsigned)own.first_step + own.step_count; i++) {
        const nodes_step *step = &args->steps[i];
        own.bytes = step->bytes > own.bytes ? step->bytes : own.bytes;
        for (int k = 0; k < step->source_count; k++, own.source_count++) {
            CHECK(args->sources[step->first_source + k].step == i);
            own.flagged = (uint16_t)(own.flagged + !!args->sources[step->first_source + k].flags);
        }
        for (int k = 0; k < step->target_count; k++, own.target_count++) {
            CHECK(args->targets[step->first_target + k].step == i);
            own.put =
                (uint16_t)(own.put + (args->targets[step->first_target + k].way == NODES_PUT));
        }
    }
    CHECK(memcmp(&own, phase, sizeof own) == 0, "a phase from step %d on", own.first_step);
    *all = own;
}

static void walk_step(setting *s, const nodes_args *args, const nodes_step *step)
{
    CHECK(step->source_count > 0 && step->target_count > 0, "a step does nothing");
    for (int k = 0; k < step->source_count; k++)
        take(s, &args->sources[step->first_source + k], step->bytes);
    for (int k = 0; k < step->target_count; k++)
        send(s, &args->targets[step->first_target + k], step->bytes);
}

static void walk(setting *s)
{
    nodes_phase last = {0};
    static nodes_args args;
    bool used[SLOTS_MOST] = {false};
    nodes_places places = places_of(s);
    nodes_layout layout = {SLOTS_AT, SLOT_BYTES, nodes_slots(&s->grid, s->mode)};
    nodes_call call = {.op = s->op,
                       .mode = s->mode,
                       .input = memory_of(INPUT, s->rank),
                       .output = memory_of(OUTPUT, s->rank),
                       .whole_bytes = 40000,
                       .bytes = 3001};
    CHECK(2 * layout.received <= SLOTS_MOST, "%d slots", layout.received);
    CHECK_OK(nodes_build(&places, &layout, &call, &args));
    for (s->phase = 0; s->phase < (int)args.phase_count; s->phase++) {
        const nodes_phase *phase = &args.phases[s->phase];
        check_phase(&args, phase, &last);
        for (int i = 0; i < phase->step_count; i++) {
            const nodes_step *step = &args.steps[phase->first_step + i];
            walk_step(s, &args, step);
            check_staged(s, &args, step, &layout, used);
        }
    }
    CHECK((uint32_t)last.first_step + last.step_count == args.step_count);
}

static void check_messages(const setting *s, const message *of, int rank)
{
    for (int slot = 0; slot < SLOTS_MOST; slot++)
        CHECK(of[slot].sent == of[slot].taken && of[slot].sent <= 1 &&
                  of[slot].sender == of[slot].waited_for &&
                  (of[slot].sent == 0 || of[slot].sent_phase < of[slot].taken_phase) &&
                  of[slot].sent_bytes == of[slot].taken_bytes,
              "tp %d × %d, dp %d × %d, %s, %s: slot %d of rank %d: %d sent by %d, %d taken from %d",
              s->grid.local_tp, s->grid.inter_tp, s->grid.local_dp, s->grid.inter_dp,
              banyan_mixed_op_name(s->op), banyan_mixed_mode_name(s->mode), slot, rank,
              of[slot].sent, of[slot].sender, of[slot].taken, of[slot].waited_for);
}

static void check_call(setting *s)
{
    memset(s->near, 0, sizeof s->near);
    memset(s->far, 0, sizeof s->far);
    for (s->rank = 0; s->rank < s->ranks; s->rank++) {
        s->grid = grid_of_rank(&s->grid, s->rank);
        walk(s);
    }
    for (int rank = 0; rank < s->ranks; rank++) {
        check_messages(s, s->near[rank], rank);
        check_messages(s, s->far[rank], rank);
    }
}

static bool has_mode(const banyan_mixed_grid *grid, banyan_mixed_mode mode)
{
    if (mode >= BANYAN_MIXED_ONE_SHOT_MULTICAST && grid->local_size == 1)
        return false;
    if (mode == BANYAN_MIXED_TWO_SHOT || mode == BANYAN_MIXED_TWO_SHOT_MULTICAST)
        return grid->local_tp > 1;
    if (mode == BANYAN_MIXED_TWO_SHOT_NODES || mode == BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST)
        return grid->inter_tp > 1;
    return true;
}

static void check_grid(setting *s)
{
    for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
        if (!grid_allows(&s->grid, (banyan_mixed_op)op))
            continue;
        for (int mode = BANYAN_MIXED_ONE_SHOT; mode < BANYAN_MIXED_SINGLE; mode++) {
            if (!has_mode(&s->grid, (banyan_mixed_mode)mode))
                continue;
            s->op = (banyan_mixed_op)op;
            s->mode = (banyan_mixed_mode)mode;
            for (int by = NODES_BY_STORES; by <= NODES_BY_PROXY; by++) {
                s->by = (nodes_by)by;
                check_call(s);
            }
        }
    }
}

static int apart(void *context, int rank)
{
    (void)context;
    return rank;
}

static void each_message_is_awaited_once_by_all_that_get_it(void **state)
{
    static setting s;
    (void)state;
    for (int ranks = 2; ranks <= MIXED_RANKS_MAX; ranks++) {
        grid_sizes grids[GRIDS_MOST];
        int count = grids_of(ranks, grids, GRIDS_MOST);
        s.ranks = ranks;
        for (int rank = 0; rank < ranks; rank++)
            s.pes[rank] = ranks - 1 - rank;
        for (int i = 0; i < count; i++) {
            banyan_mixed_options options = options_of(&grids[i], BANYAN_BF16);
            if (grids[i].nodes == 1)
                continue;
            CHECK_OK(grid_resolve(&options, 0, ranks, apart, NULL, &s.grid));
            check_grid(&s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_message_is_awaited_once_by_all_that_get_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
