/* Compiles a fused mode: its layout of scratch, expected results and options. */
#include "mixed/fused/program.h"

#include <stdio.h>

#include "core/error.h"
#include "mixed/grid.h"

/* Measured, as for the communicator's pipelines. With many ranks units are shorter, so that their
 * rings of scratch, with both halves, stay below RINGS_MOST. */
#define UNIT_MOST (UINT64_C(128) << 10)
#define UNIT_LEAST (UINT64_C(4) << 10)
#define RINGS_MOST (UINT64_C(64) << 20)

static uint64_t fused_take(fused_layout *at, int chunks)
{
    uint64_t first = at->chunks;
    at->chunks += (uint64_t)chunks;
    return first;
}

/* One slot for each rank; if nothing is summed, one slot in which peers read this rank's data. */
static int slots_at_once(const fused *f)
{
    int ranks = fused_ranks(f);
    if (ranks == 1)
        return 0;
    return f->gathers && f->grid.tp == 1 && !f->kind.packets ? 1 : ranks;
}

/* A gathering rank publishes sums for all nodes; a scattering one takes part in the sums of all
 * nodes. */
static void fused_lay_out(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    fused_layout *at = &f->at;
    if (f->kind.mode == BANYAN_MIXED_ONE_SHOT) {
        at->first = fused_take(at, slots_at_once(f));
        return;
    }
    int rows = fused_rows(f), adders = f->gathers ? grid->local_tp : grid->local_size;
    int own_rows = f->gathers ? f->shares : rows, shown_rows = f->gathers ? rows : f->shares;
    bool adds = adders > 1, has_nodes = grid->nodes > 1;
    at->first = fused_take(at, adds ? adders * own_rows : 0);
    at->partial = fused_take(at, adds && has_nodes ? own_rows : 0);
    at->inter = fused_take(at, has_nodes ? grid->nodes : 0);
    at->across = fused_take(at, f->two_shots && f->kind.packets ? grid->nodes : 0);
    at->gathered = fused_take(at, f->kind.packets ? grid->local_size * shown_rows : shown_rows);
}

/* Return the number of rings of units in scratch. */
static uint64_t fused_rings_of(const fused *f)
{
    return f->at.chunks * PIPELINE_UNITS * 2;
}

static uint64_t fused_unit_for(const fused *f)
{
    uint64_t unit = UNIT_MOST;
    while (unit > UNIT_LEAST && fused_rings_of(f) * unit > RINGS_MOST)
        unit /= 2;
    return unit;
}

/* List the contributions to output chunk `chunk` of the rank. */
static size_t list_sources(const fused *f, int chunk, banyan_contribution *sources)
{
    const banyan_mixed_grid *grid = &f->grid;
    size_t count = 0;
    int block = f->gathers ? chunk / f->chunks : grid->dp_index, within = chunk % f->chunks;
    for (int dp = 0; dp < grid->dp; dp++) {
        for (int tp = 0; tp < grid->tp && (!f->gathers || dp == block); tp++)
            sources[count++] =
                (banyan_contribution){grid_rank_at(grid, tp, dp),
                                      (uint64_t)(f->gathers ? within : block * f->chunks + within)};
    }
    return count;
}

static banyan_status fused_expect(fused *f, arena *memory, banyan_collective *collective)
{
    int ranks = fused_ranks(f), outputs = (int)collective->output_chunks;
    size_t count = (size_t)ranks * (size_t)outputs;
    size_t each = (size_t)(f->gathers ? f->grid.tp : ranks);
    banyan_expected_chunk *expected = arena_take(memory, count * sizeof *expected);
    banyan_contribution *sources = arena_take(memory, count * each * sizeof *sources);
    if (!expected || !sources)
        return BANYAN_ERR_NO_MEMORY;
    collective->expected = expected;
    collective->expected_count = count;
    for (int rank = 0; rank < ranks; rank++) {
        fused_turn_to(f, rank);
        for (int chunk = 0; chunk < outputs; chunk++) {
            size_t from = list_sources(f, chunk, sources);
            *expected++ = (banyan_expected_chunk){rank, (uint64_t)chunk, sources, from};
            sources += from;
        }
    }
    return BANYAN_OK;
}

static banyan_status set_up(const banyan_mixed_grid *grid, const fused_kind *kind, fused *f)
{
    int ranks = grid->nodes * grid->local_size;
    if (ranks > FUSED_RANKS_MOST)
        return error_set(BANYAN_ERR_INVALID,
                         "programs of mixed collectives are for up to %d ranks, not %d",
                         FUSED_RANKS_MOST, ranks);
    bool two_shots = kind->mode == BANYAN_MIXED_TWO_SHOT_NODES;
    bool local = kind->mode == BANYAN_MIXED_TWO_SHOT;
    if ((!two_shots && !local && kind->mode != BANYAN_MIXED_ONE_SHOT) ||
        (local && grid->local_tp == 1) || (two_shots && grid->inter_tp == 1) ||
        !grid_allows(grid, kind->op))
        return error_set(BANYAN_ERR_INVALID,
                         "there is no program for %s as %s in a grid of tp %d × %d, dp %d × %d",
                         banyan_mixed_op_name(kind->op), banyan_mixed_mode_name(kind->mode),
                         grid->local_tp, grid->inter_tp, grid->local_dp, grid->inter_dp);
    *f = (fused){.grid = *grid, .kind = *kind, .two_shots = two_shots};
    f->gathers = kind->op == BANYAN_MIXED_ALLREDUCE || kind->op == BANYAN_MIXED_ALLGATHER ||
                 kind->op == BANYAN_MIXED_ALLREDUCE_ALLGATHER;
    f->shares = two_shots ? grid->inter_tp : 1;
    f->chunks = two_shots || local ? grid->local_tp * f->shares : 1;
    f->a.ranks = fused_ranks(f);
    f->a.in_place = kind->in_place;
    f->a.op = BANYAN_SUM;
    fused_lay_out(f);
    f->a.unit_bytes = fused_unit_for(f);
    return BANYAN_OK;
}

static banyan_program_options fused_options_for(const fused *f)
{
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.fuse_more = true;
    options.double_scratch = true;
    options.protocol = f->kind.packets ? BANYAN_LL : BANYAN_SIMPLE;
    options.reuse_resources = !f->kind.packets && f->at.chunks > 0;
    options.reused_scratch_bytes = fused_rings_of(f) * f->a.unit_bytes;
    return options;
}

static banyan_status fused_write_program(fused *f, arena *memory, banyan_program **program)
{
    char name[64];
    uint64_t blocks = (uint64_t)f->grid.dp;
    snprintf(name, sizeof name, "mixed_%s", banyan_mixed_op_name(f->kind.op));
    banyan_collective collective = {.kind = BANYAN_CUSTOM,
                                    .name = name,
                                    .in_place = f->kind.in_place,
                                    .block_chunks = (uint64_t)f->chunks};
    collective.input_chunks = (uint64_t)f->chunks * (f->gathers ? 1 : blocks);
    collective.output_chunks = (uint64_t)f->chunks * (f->gathers ? blocks : 1);
    f->a.input_chunks = collective.input_chunks;
    f->a.ranks_per_node = f->a.ranks;
    banyan_program_options options = fused_options_for(f);
    RETURN_IF_FAILED(algorithm_take_tables(&f->a, memory));
    RETURN_IF_FAILED(fused_expect(f, memory, &collective));
    RETURN_IF_FAILED(banyan_program_create(banyan_mixed_mode_name(f->kind.mode), &collective,
                                           f->a.ranks, &options, program));
    f->a.program = *program;
    (void)slots_take(&f->a, (int)f->at.chunks);
    if (f->kind.packets)
        fused_write_packets(f);
    else
        fused_write_units(f);
    return BANYAN_OK;
}

banyan_status fused_compile(const banyan_mixed_grid *grid, const fused_kind *kind,
                            banyan_plan **plan)
{
    fused f;
    RETURN_IF_FAILED(set_up(grid, kind, &f));
    arena memory = {0};
    banyan_program *program = NULL;
    banyan_status status = fused_write_program(&f, &memory, &program);
    if (status == BANYAN_OK)
        status = banyan_program_compile(program, plan);
    banyan_program_destroy(program);
    arena_free(&memory);
    return status;
}
