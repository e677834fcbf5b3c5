/* Builds the steps of a launch between nodes.
 *
 * b rows move in cells. One-shot modes have one cell. Two-shot modes have one for each
 * tensor-parallel rank of a node; the local rank with that number adds it inside the node. In
 * two_shot_nodes each of these has one for each tensor-parallel node, which adds it between nodes.
 * The sums return the same way. Phases have their own slots, of sizes that follow from the grid. */
#include "cuda/mixed/nodes/nodes.h"

typedef struct nodes_builder {
    const nodes_places *places;
    const nodes_layout *layout;
    const nodes_call *call;
    nodes_args *args;
    int local_size, nodes, parts; /* parts: cells of a tensor-parallel rank */
    char *
        cast; /* multicast address of all ranks of the node that get equal data; NULL: one by one */
    int staged, source_count, target_count;
    bool is_full;
} nodes_builder;

static bool is_waits(banyan_mixed_mode mode)
{
    return mixed_unicast(mode) == BANYAN_MIXED_ONE_SHOT;
}

static bool saves_all_bytes(banyan_mixed_mode mode)
{
    return mixed_unicast(mode) == BANYAN_MIXED_TWO_SHOT_NODES;
}

static int nodes_program_parts_of(const banyan_mixed_grid *grid, banyan_mixed_mode mode)
{
    return saves_all_bytes(mode) ? grid->inter_tp : 1;
}

int nodes_cells(const banyan_mixed_grid *grid, banyan_mixed_mode mode)
{
    return is_waits(mode) ? 1 : grid->local_tp * nodes_program_parts_of(grid, mode);
}

uint64_t nodes_cell_bytes(const banyan_mixed_grid *grid, banyan_mixed_mode mode, uint64_t bytes)
{
    uint64_t cells = (uint64_t)nodes_cells(grid, mode);
    uint64_t units = (bytes + MIXED_UNIT - 1) / MIXED_UNIT;
    return (units + cells - 1) / cells * MIXED_UNIT;
}

/* Slots of the phases inside a node, before and after those between nodes. */
static int local_slots(const banyan_mixed_grid *grid, banyan_mixed_mode mode)
{
    return grid->local_size * grid->inter_dp * nodes_program_parts_of(grid, mode);
}

int nodes_slots(const banyan_mixed_grid *grid, banyan_mixed_mode mode)
{
    if (is_waits(mode))
        return grid->local_size * grid->nodes;
    return 2 * local_slots(grid, mode) + 2 * grid->nodes;
}

static int slot_gathered(const nodes_builder *b, int local, int e, int part)
{
    return (local * b->places->grid->inter_dp + e) * b->parts + part;
}

/* Return the slot for sums of a node, or for complete sums. */
static int slot_of_node(const nodes_builder *b, bool complete, int node)
{
    return local_slots(b->places->grid, b->call->mode) + (complete ? b->nodes : 0) + node;
}

static int slot_handed(const nodes_builder *b, int local, int e, int part)
{
    return slot_of_node(b, true, b->nodes) + slot_gathered(b, local, e, part);
}

static uint64_t slot_at(const nodes_builder *b, int slot)
{
    return b->layout->slots_at + (uint64_t)slot * b->layout->slot_bytes;
}

static uint64_t flags_at(int slot)
{
    return (uint64_t)slot * NODES_TILES * sizeof(uint64_t);
}

static int nodes_program_rank_at(const nodes_builder *b, int node, int local)
{
    return node * b->local_size + local;
}

static int node_at(const nodes_builder *b, int i, int e)
{
    return e * b->places->grid->inter_tp + i;
}

/* Return the offset of the rows of the data-parallel rank with local number d and node number e. */
static uint64_t rows_at(const nodes_builder *b, int d, int e)
{
    return (uint64_t)(d + e * b->places->grid->local_dp) * b->call->whole_bytes;
}

static uint64_t cell_at(const nodes_builder *b, int t, int part)
{
    uint64_t cell = nodes_cell_bytes(b->places->grid, b->call->mode, b->call->bytes);
    uint64_t at = (uint64_t)(t * b->parts + part) * cell;
    return at < b->call->bytes ? at : b->call->bytes;
}

static uint64_t cell_bytes(const nodes_builder *b, int t, int part)
{
    return part + 1 < b->parts ? cell_at(b, t, part + 1) - cell_at(b, t, part)
                               : cell_at(b, t + 1, 0) - cell_at(b, t, part);
}

static bool nodes_program_scatters(const nodes_builder *b)
{
    return b->call->op == BANYAN_MIXED_REDUCESCATTER ||
           b->call->op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE;
}

static void phase_begin(nodes_builder *b)
{
    if (b->args->phase_count == NODES_PHASES) {
        b->is_full = true;
        return;
    }
    b->args->phases[b->args->phase_count++] = (nodes_phase){
        .first_step = (uint16_t)b->args->step_count,
        .first_source = (uint16_t)b->source_count,
        .first_target = (uint16_t)b->target_count,
    };
}

static nodes_phase *phase_of(const nodes_builder *b)
{
    return &b->args->phases[b->args->phase_count - 1];
}

static void step_begin(nodes_builder *b, uint64_t bytes)
{
    if (b->args->step_count == NODES_STEPS || b->is_full) {
        b->is_full = true;
        return;
    }
    nodes_phase *phase = phase_of(b);
    phase->step_count++;
    phase->bytes = bytes > phase->bytes ? bytes : phase->bytes;
    b->args->steps[b->args->step_count++] = (nodes_step){
        .bytes = bytes,
        .first_source = (uint16_t)b->source_count,
        .first_target = (uint16_t)b->target_count,
    };
}

static void nodes_program_add_source(nodes_builder *b, nodes_source source)
{
    if (b->source_count == NODES_SOURCES || b->is_full) {
        b->is_full = true;
        return;
    }
    nodes_phase *phase = phase_of(b);
    source.step = (uint16_t)(b->args->step_count - 1);
    b->args->sources[b->source_count++] = source;
    b->args->steps[source.step].source_count++;
    phase->source_count++;
    phase->flagged = (uint16_t)(phase->flagged + (source.flags ? 1 : 0));
}

static void add_target(nodes_builder *b, nodes_target target)
{
    if (b->target_count == NODES_TARGETS || b->is_full) {
        b->is_full = true;
        return;
    }
    nodes_phase *phase = phase_of(b);
    target.step = (uint16_t)(b->args->step_count - 1);
    b->args->targets[b->target_count++] = target;
    b->args->steps[target.step].target_count++;
    phase->target_count++;
    phase->put = (uint16_t)(phase->put + (target.way == NODES_PUT ? 1 : 0));
}

static void from_input(nodes_builder *b, uint64_t at)
{
    nodes_program_add_source(b, (nodes_source){.at = b->call->input + at});
}

static void to_output(nodes_builder *b, uint64_t at)
{
    add_target(b, (nodes_target){.to = b->call->output + at, .way = NODES_OUTPUT});
}

static void from_slot(nodes_builder *b, int slot, int rank)
{
    const nodes_places *places = b->places;
    bool near = rank / b->local_size == places->rank / b->local_size;
    char *base = near ? places->from_node : places->from_elsewhere;
    nodes_program_add_source(b, (nodes_source){.at = base + slot_at(b, slot),
                                               .flags = (uint64_t *)(void *)(base + flags_at(slot)),
                                               .rank = (uint32_t)rank,
                                               .is_far = !near});
}

/* Stage one copy for all ranks that a step puts to. */
static void nodes_program_stage(nodes_builder *b)
{
    nodes_step *step = &b->args->steps[b->args->step_count - 1];
    if (step->staged)
        return;
    char *at = b->places->own + slot_at(b, b->layout->received + b->staged++);
    step->staged = at;
    add_target(b, (nodes_target){.to = at, .way = NODES_STAGED});
}

static void to_slot(nodes_builder *b, int slot, int rank)
{
    char *base = b->places->mapped[rank];
    if (!base && !b->is_full)
        nodes_program_stage(b);
    const int *pes = b->places->pes;
    nodes_target target = {.way = base  ? NODES_STORED
                                  : pes ? NODES_PUT
                                        : NODES_POSTED,
                           .peer = (uint32_t)(pes ? pes[rank] : rank)};
    base = base ? base : b->places->own;
    target.to = base + slot_at(b, slot);
    target.flags = (uint64_t *)(void *)(base + flags_at(slot));
    add_target(b, target);
}

/* When scattering, the tensor-parallel ranks of a node get equal data, and only they may use their
 * address. */
static char *find_cast(const nodes_builder *b)
{
    const nodes_places *places = b->places;
    if (!mode_is_multicast(b->call->mode))
        return NULL;
    if (nodes_program_scatters(b))
        return places->grid->local_tp > 1 ? places->cast_tp : NULL;
    return places->cast_node;
}

static bool nodes_program_is_cast_to(const nodes_builder *b, int rank)
{
    const banyan_mixed_grid *grid = b->places->grid;
    return b->cast && rank / b->local_size == grid->node &&
           (!nodes_program_scatters(b) ||
            rank % b->local_size / grid->local_tp == grid->local_dp_rank);
}

/* Store into the slot of all ranks that the multicast address reaches; this rank reads its own
 * from there. */
static void nodes_program_cast(nodes_builder *b, int slot)
{
    add_target(b, (nodes_target){.to = b->cast + slot_at(b, slot),
                                 .flags = (uint64_t *)(void *)(b->cast + flags_at(slot)),
                                 .way = NODES_CAST});
}

/* Return the offset of the rows that this rank takes from its own input. */
static uint64_t own_rows(const nodes_builder *b)
{
    const banyan_mixed_grid *grid = b->places->grid;
    return nodes_program_scatters(b) ? rows_at(b, grid->local_dp_rank, grid->inter_dp_rank) : 0;
}

static void waits_send(nodes_builder *b)
{
    const banyan_mixed_grid *grid = b->places->grid;
    int me = b->places->rank, ranks = b->places->ranks;
    if (b->cast || !nodes_program_scatters(b)) {
        step_begin(b, b->call->bytes);
        from_input(b, own_rows(b));
    }
    if (b->cast)
        nodes_program_cast(b, me);
    for (int k = 1; k < ranks; k++) {
        int to = (me + k) % ranks, local = to % b->local_size, node = to / b->local_size;
        if (nodes_program_is_cast_to(b, to))
            continue;
        if (!nodes_program_scatters(b)) {
            to_slot(b, me, to);
            continue;
        }
        step_begin(b, b->call->bytes);
        from_input(b, rows_at(b, local / grid->local_tp, node / grid->inter_tp));
        to_slot(b, me, to);
    }
}

/* Sum over some ranks, or copy the data of a single one. */
static void waits_add_up(nodes_builder *b, int first_tp, int tp_count, int dp_from, int dp_to,
                         uint64_t output)
{
    const banyan_mixed_grid *grid = b->places->grid;
    step_begin(b, b->call->bytes);
    for (int d = dp_from; d < dp_to; d++) {
        for (int t = first_tp; t < first_tp + tp_count; t++) {
            int rank = banyan_mixed_rank_at(grid, t, d);
            if (rank != b->places->rank || b->cast)
                from_slot(b, rank, rank);
            else
                from_input(b, own_rows(b));
        }
    }
    to_output(b, output);
}

static void build_waits(nodes_builder *b)
{
    const banyan_mixed_grid *grid = b->places->grid;
    phase_begin(b);
    waits_send(b);
    phase_begin(b);
    if (nodes_program_scatters(b)) {
        waits_add_up(b, 0, grid->tp, 0, grid->dp, 0);
        return;
    }
    for (int d = 0; d < grid->dp; d++)
        waits_add_up(b, 0, grid->tp, d, d + 1, (uint64_t)d * b->call->whole_bytes);
}

/* Send every local rank the cells that it adds. */
static void local_send(nodes_builder *b)
{
    const banyan_mixed_grid *grid = b->places->grid;
    int me = grid->local_rank;
    for (int k = 1; k < b->local_size; k++) {
        int to = (me + k) % b->local_size, t = to % grid->local_tp, d = to / grid->local_tp;
        if (!nodes_program_scatters(b) && d != grid->local_dp_rank)
            continue;
        for (int e = 0; e < (nodes_program_scatters(b) ? grid->inter_dp : 1); e++) {
            for (int part = 0; part < b->parts; part++) {
                step_begin(b, cell_bytes(b, t, part));
                from_input(b, cell_at(b, t, part) +
                                  (nodes_program_scatters(b) ? rows_at(b, d, e) : 0));
                to_slot(b, slot_gathered(b, me, e, part), nodes_program_rank_at(b, grid->node, to));
            }
        }
    }
}

/* Add the cells of the local ranks that have it as sources, in their order. */
static void from_local(nodes_builder *b, int e, int part)
{
    const banyan_mixed_grid *grid = b->places->grid;
    int first = nodes_program_scatters(b) ? 0 : grid->local_dp_rank * grid->local_tp;
    int count = nodes_program_scatters(b) ? b->local_size : grid->local_tp;
    for (int local = first; local < first + count; local++) {
        if (local != grid->local_rank)
            from_slot(b, slot_gathered(b, local, e, part),
                      nodes_program_rank_at(b, grid->node, local));
        else
            from_input(b, cell_at(b, grid->local_tp_rank, part) +
                              (nodes_program_scatters(b) ? rows_at(b, grid->local_dp_rank, e) : 0));
    }
}

/* Send the sum to this local rank's counterparts on the nodes that add it further. */
static void local_add_up(nodes_builder *b, int e, int part)
{
    const banyan_mixed_grid *grid = b->places->grid;
    int slot = slot_of_node(b, false, grid->node);
    step_begin(b, cell_bytes(b, grid->local_tp_rank, part));
    from_local(b, e, part);
    for (int k = 0; k < b->nodes; k++) {
        int node = (grid->node + k) % b->nodes;
        int i = node % grid->inter_tp, its_e = node / grid->inter_tp;
        bool adds =
            saves_all_bytes(b->call->mode)
                ? i == part && its_e == (nodes_program_scatters(b) ? e : grid->inter_dp_rank)
                : !nodes_program_scatters(b) || its_e == e;
        if (adds)
            to_slot(b, slot, nodes_program_rank_at(b, node, grid->local_rank));
    }
}

/* Store a complete sum to this rank's output, and send it to the local ranks that need it. */
static void nodes_program_hand_out(nodes_builder *b, int e, int part)
{
    const banyan_mixed_grid *grid = b->places->grid;
    int me = grid->local_rank;
    if (b->cast)
        return nodes_program_cast(b, slot_handed(b, me, e, part));
    to_output(b, cell_at(b, grid->local_tp_rank, part) +
                     (nodes_program_scatters(b) ? 0 : rows_at(b, grid->local_dp_rank, e)));
    for (int k = 1; k < b->local_size; k++) {
        int local = (me + k) % b->local_size;
        if (!nodes_program_scatters(b) || local / grid->local_tp == grid->local_dp_rank)
            to_slot(b, slot_handed(b, me, e, part), nodes_program_rank_at(b, grid->node, local));
    }
}

/* Read this rank's own sums last; with multicast they arrive here as well. */
static void take_handed(nodes_builder *b)
{
    const banyan_mixed_grid *grid = b->places->grid;
    for (int k = 1; k < b->local_size + (b->cast ? 1 : 0); k++) {
        int local = (grid->local_rank + b->local_size - k) % b->local_size;
        int t = local % grid->local_tp, d = local / grid->local_tp;
        if (nodes_program_scatters(b) && d != grid->local_dp_rank)
            continue;
        for (int e = 0; e < (nodes_program_scatters(b) ? 1 : grid->inter_dp); e++) {
            for (int part = 0; part < b->parts; part++) {
                step_begin(b, cell_bytes(b, t, part));
                from_slot(b, slot_handed(b, local, e, part),
                          nodes_program_rank_at(b, grid->node, local));
                to_output(b,
                          cell_at(b, t, part) + (nodes_program_scatters(b) ? 0 : rows_at(b, d, e)));
            }
        }
    }
}

static void from_nodes(nodes_builder *b, bool complete, int first, int count)
{
    for (int node = first; node < first + count; node++)
        from_slot(b, slot_of_node(b, complete, node),
                  nodes_program_rank_at(b, node, b->places->grid->local_rank));
}

/* All ranks that hand out sums of nodes add them. */
static void nodes_add_up_everywhere(nodes_builder *b)
{
    const banyan_mixed_grid *grid = b->places->grid;
    for (int e = 0; e < (nodes_program_scatters(b) ? 1 : grid->inter_dp); e++) {
        step_begin(b, cell_bytes(b, grid->local_tp_rank, 0));
        if (nodes_program_scatters(b))
            from_nodes(b, false, 0, b->nodes);
        else
            from_nodes(b, false, node_at(b, 0, e), grid->inter_tp);
        nodes_program_hand_out(b, e, 0);
    }
}

/* One of the ranks adds each sum, and sends it to the others. */
static void nodes_add_up_once(nodes_builder *b)
{
    const banyan_mixed_grid *grid = b->places->grid;
    int own = grid->inter_tp_rank, e = grid->inter_dp_rank;
    step_begin(b, cell_bytes(b, grid->local_tp_rank, own));
    if (nodes_program_scatters(b))
        from_nodes(b, false, 0, b->nodes);
    else
        from_nodes(b, false, node_at(b, 0, e), grid->inter_tp);
    for (int k = 0; k < b->nodes; k++) {
        int node = (grid->node + k) % b->nodes;
        if (!nodes_program_scatters(b) || node / grid->inter_tp == e)
            to_slot(b, slot_of_node(b, true, grid->node),
                    nodes_program_rank_at(b, node, grid->local_rank));
    }
    phase_begin(b);
    for (int k = 0; k < b->nodes; k++) {
        int node = (grid->node + b->nodes - k) % b->nodes;
        int part = node % grid->inter_tp, its_e = node / grid->inter_tp;
        if (nodes_program_scatters(b) && its_e != e)
            continue;
        step_begin(b, cell_bytes(b, grid->local_tp_rank, part));
        from_nodes(b, true, node, 1);
        nodes_program_hand_out(b, nodes_program_scatters(b) ? 0 : its_e, part);
    }
}

static void build_bytes(nodes_builder *b)
{
    const banyan_mixed_grid *grid = b->places->grid;
    phase_begin(b);
    local_send(b);
    phase_begin(b);
    for (int e = 0; e < (nodes_program_scatters(b) ? grid->inter_dp : 1); e++) {
        for (int part = 0; part < b->parts; part++)
            local_add_up(b, e, part);
    }
    phase_begin(b);
    if (saves_all_bytes(b->call->mode))
        nodes_add_up_once(b);
    else
        nodes_add_up_everywhere(b);
    phase_begin(b);
    take_handed(b);
}

banyan_status nodes_build(const nodes_places *places, const nodes_layout *layout,
                          const nodes_call *call, nodes_args *args)
{
    nodes_builder b = {
        .places = places,
        .layout = layout,
        .call = call,
        .args = args,
        .local_size = places->grid->local_size,
        .nodes = places->grid->nodes,
        .parts = nodes_program_parts_of(places->grid, call->mode),
    };
    b.cast = find_cast(&b);
    args->step_count = args->phase_count = 0;
    if (is_waits(call->mode))
        build_waits(&b);
    else
        build_bytes(&b);
    if (b.is_full)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "cuda: %s over %d nodes of %d ranks takes more steps than a launch "
                                "has room for",
                                banyan_mixed_op_name(call->op), b.nodes, b.local_size);
    return BANYAN_OK;
}
