#include "simulate/simulation.h"

#include "core/error.h"
#include "simulate/engine/engine.h"

typedef struct used_resource {
    double bytes;
    uint64_t busy_ps;
} used_resource;

struct banyan_simulation {
    const banyan_topology *topology;
    int rank_count;
    uint64_t *ends_ps; /* of each rank */
    uint64_t end_ps;
    used_resource *used; /* links, then memories */
    size_t used_count;
    record record;
    uint32_t *path;
    size_t path_count;
};

banyan_status resources_make(const banyan_topology *topology, uint32_t ranks, uint32_t flow_count,
                             agenda *ends, sharing *made)
{
    uint32_t links = (uint32_t)topology->links.count;
    RETURN_IF_FAILED(sharing_make(ends, flow_count, links + 2 * ranks, made));
    for (uint32_t i = 0; i < links; i++)
        made->resources[i].bytes_per_s = topology->links.data[i].bytes_per_s;
    for (uint32_t r = 0; r < ranks; r++) {
        const processor_kind *kind = topology->vertices.data[r].kind;
        made->resources[links + r].bytes_per_s = kind->memory_bytes_per_s;
        made->resources[links + ranks + r].bytes_per_s = kind->blocks_at_once * BLOCK_SECOND;
    }
    return BANYAN_OK;
}

static banyan_status keep_uses(const sharing *shared, size_t count, banyan_simulation *to)
{
    to->used_count = count;
    to->used = calloc(count + 1, sizeof *to->used);
    if (!to->used)
        return error_no_memory(count * sizeof *to->used, "the use of links");
    for (size_t i = 0; i < count; i++)
        to->used[i] = (used_resource){shared->resources[i].carried, shared->resources[i].busy_ps};
    return BANYAN_OK;
}

static banyan_status keep_ends(const uint64_t *ends_ps, int ranks, banyan_simulation *to)
{
    to->rank_count = ranks;
    to->ends_ps = calloc((size_t)ranks, sizeof *to->ends_ps);
    if (!to->ends_ps)
        return error_no_memory((size_t)ranks * sizeof *to->ends_ps, "a simulation");
    for (int r = 0; r < ranks; r++) {
        to->ends_ps[r] = ends_ps[r];
        to->end_ps = ends_ps[r] > to->end_ps ? ends_ps[r] : to->end_ps;
    }
    return BANYAN_OK;
}

banyan_status simulation_make(const banyan_topology *topology, int ranks, const sharing *shared,
                              const uint64_t *ends_ps, record *kept, banyan_simulation **simulation)
{
    banyan_simulation *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "a simulation");
    made->topology = topology;
    made->record = *kept;
    *kept = (record){0};
    banyan_status status = keep_ends(ends_ps, ranks, made);
    if (status == BANYAN_OK)
        status = keep_uses(shared, topology->links.count + (size_t)ranks, made);
    if (status == BANYAN_OK)
        status = record_path(&made->record, &made->path, &made->path_count);
    if (status != BANYAN_OK) {
        banyan_simulation_destroy(made);
        return status;
    }
    *simulation = made;
    return BANYAN_OK;
}

banyan_status banyan_plan_simulate(const banyan_plan *plan, const banyan_topology *topology,
                                   const banyan_simulate_options *given,
                                   banyan_simulation **simulation)
{
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    sim_engine at;
    RETURN_IF_FAILED(options_take(given, "BANYAN_SIMULATE_OPTIONS_INIT", &options, sizeof options));
    banyan_status status = sim_make(plan, topology, &options, &at);
    if (status == BANYAN_OK)
        status = sim_run(&at);
    if (status == BANYAN_OK)
        status = simulation_make(topology, plan->rank_count, &at.sharing, at.ends_ps, &at.record,
                                 simulation);
    sim_free(&at);
    return status;
}

void banyan_simulation_destroy(banyan_simulation *simulation)
{
    if (!simulation)
        return;
    free(simulation->ends_ps);
    free(simulation->used);
    free(simulation->path);
    array_free(&simulation->record.steps);
    free(simulation);
}

double banyan_simulation_seconds(const banyan_simulation *simulation)
{
    return (double)simulation->end_ps / 1e12;
}

double banyan_simulation_rank_seconds(const banyan_simulation *simulation, int rank)
{
    bool there = rank >= 0 && rank < simulation->rank_count;
    return there ? (double)simulation->ends_ps[rank] / 1e12 : 0;
}

bool banyan_simulation_link(const banyan_simulation *simulation, size_t index, banyan_link_use *use)
{
    const banyan_topology *topology = simulation->topology;
    size_t links = topology->links.count;
    if (index >= simulation->used_count)
        return false;
    const used_resource *used = &simulation->used[index];
    const topology_vertex *vertices = topology->vertices.data;
    double seconds = banyan_simulation_seconds(simulation), rate;
    if (index < links) {
        const topology_link *link = &topology->links.data[index];
        *use = (banyan_link_use){vertices[link->from].name, vertices[link->to].name, 0, 0, 0};
        rate = link->bytes_per_s;
    } else {
        const topology_vertex *processor = &vertices[index - links];
        *use = (banyan_link_use){processor->name, NULL, 0, 0, 0};
        rate = processor->kind->memory_bytes_per_s;
    }
    use->bytes = (uint64_t)(used->bytes + 0.5);
    use->busy = seconds > 0 ? (double)used->busy_ps / 1e12 / seconds : 0;
    use->full = seconds > 0 ? used->bytes / rate / seconds : 0;
    return true;
}

bool banyan_simulation_step_at(const banyan_simulation *simulation, size_t index,
                               banyan_simulation_step *step)
{
    if (index >= simulation->record.steps.count)
        return false;
    const step_record *one = &simulation->record.steps.data[index];
    bool launch = one->at == STEP_LAUNCH;
    *step = (banyan_simulation_step){
        .rank = one->rank,
        .thread_block = (int)one->thread_block,
        .operation = launch ? -1 : (int)one->at,
        .loop_operation = one->inner == STEP_NOT_IN_LOOP ? -1 : (int)one->inner,
        .iteration = one->iteration,
        .proxy = one->proxy,
        .what = one->what,
        .began_s = (double)one->began_ps / 1e12,
        .ended_s = (double)one->end_ps / 1e12,
        .after = one->after == NO_STEP ? SIZE_MAX : one->after,
    };
    return true;
}

bool banyan_simulation_path(const banyan_simulation *simulation, size_t index,
                            banyan_simulation_step *step)
{
    if (index >= simulation->path_count)
        return false;
    banyan_simulation_step before = {0};
    if (index > 0)
        banyan_simulation_step_at(simulation, simulation->path[index - 1], &before);
    banyan_simulation_step_at(simulation, simulation->path[index], step);
    step->began_s = before.ended_s;
    return true;
}

banyan_status banyan_simulation_write_trace(const banyan_simulation *simulation, const char *path)
{
    if (simulation->record.too_long)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "the simulation had too many steps for a trace: try a shorter message, or "
                         "fewer ranks");
    if (!simulation->record.wanted)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "the simulation was not asked to keep its steps, for a trace");
    return record_write(&simulation->record, path);
}
