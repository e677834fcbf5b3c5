#include "collective/algorithms/algorithms.h"

#include <string.h>

#include "core/error.h"
#include "core/nearest.h"

/* Measured: shorter units spend more time waiting. Longer ones gain nothing, and messages of only
 * a few units do not overlap. */
#define PIPELINE_UNIT (UINT64_C(128) << 10)
#define UNIT_MULTIPLE 64

/* Limit: the tables of channels grow with the square of the number of ranks. */
#define MOST_RANKS 1024
#define MOST_UNIT (UINT64_C(1) << 30)

banyan_status banyan_algorithm_at(size_t index, banyan_algorithm_info *info)
{
    if (index >= algorithm_table_count)
        return error_set(BANYAN_ERR_NOT_FOUND,
                         "there are %zu built-in algorithms, none has index %zu",
                         algorithm_table_count, index);
    *info = algorithm_table[index].info;
    return BANYAN_OK;
}

banyan_status algorithm_find(const char *name, const algorithm_entry **entry)
{
    names_search search = names_search_for(name);
    for (size_t i = 0; i < algorithm_table_count; i++) {
        if (strcmp(algorithm_table[i].info.name, name) == 0) {
            *entry = &algorithm_table[i];
            return BANYAN_OK;
        }
        names_search_try(&search, algorithm_table[i].info.name);
    }
    return error_set(BANYAN_ERR_NOT_FOUND, "no built-in algorithm is called %s%s%s%s", name,
                     search.nearest ? " (did you mean " : "", search.nearest ? search.nearest : "",
                     search.nearest ? "?)" : "");
}

static bool has_root(banyan_collective_kind kind)
{
    return kind == BANYAN_BROADCAST || kind == BANYAN_REDUCE;
}

banyan_status algorithm_check(const algorithm_entry *entry, const banyan_algorithm_params *params)
{
    const char *name = entry->info.name;
    if (params->ranks < 1 || params->ranks > MOST_RANKS)
        return error_set(BANYAN_ERR_INVALID, "%s is for 1 to %d ranks, not %d", name, MOST_RANKS,
                         params->ranks);
    if (has_root(entry->info.collective) && (params->root < 0 || params->root >= params->ranks))
        return error_set(BANYAN_ERR_INVALID, "%s: root %d is not one of %d ranks", name,
                         params->root, params->ranks);
    if (params->instances < 0)
        return error_set(BANYAN_ERR_INVALID, "%s: %d instances", name, params->instances);
    if (params->in_place && entry->apart)
        return error_set(BANYAN_ERR_INVALID,
                         "%s cannot work in place: outputs are written while inputs are still read",
                         name);
    if (params->ranks_per_node < 0 ||
        (entry->by_nodes && params->ranks_per_node && params->ranks % params->ranks_per_node))
        return error_set(BANYAN_ERR_INVALID, "%s: %d ranks are not whole nodes of %d", name,
                         params->ranks, params->ranks_per_node);
    if (params->unit_bytes > MOST_UNIT)
        return error_set(BANYAN_ERR_INVALID, "%s: units of %llu bytes; at most %llu", name,
                         (unsigned long long)params->unit_bytes, (unsigned long long)MOST_UNIT);
    return BANYAN_OK;
}

static bool is_pipeline(const algorithm_entry *entry)
{
    return entry->ring_per_rank || entry->ring_once;
}

static uint64_t algorithms_unit_for(const algorithm_entry *entry,
                                    const banyan_algorithm_params *params)
{
    if (!is_pipeline(entry))
        return 0;
    uint64_t unit = params->unit_bytes ? params->unit_bytes : PIPELINE_UNIT;
    return (unit + UNIT_MULTIPLE - 1) / UNIT_MULTIPLE * UNIT_MULTIPLE;
}

static banyan_program_options algorithms_options_for(const algorithm_entry *entry,
                                                     const banyan_algorithm_params *params)
{
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    options.instances = params->instances ? params->instances : 1;
    options.fuse_more = true;
    options.protocol = entry->protocol;
    options.double_scratch = entry->double_scratch;
    options.reuse_resources = is_pipeline(entry);
    if (options.reuse_resources) {
        options.reused_scratch_bytes =
            ((uint64_t)entry->ring_per_rank * (uint64_t)params->ranks + entry->ring_once) *
            (uint64_t)options.instances * PIPELINE_UNITS * algorithms_unit_for(entry, params) *
            (options.double_scratch ? 2 : 1);
    }
    return options;
}

int factor_ranks(int ranks)
{
    return ranks;
}

static banyan_collective collective_for(const algorithm_entry *entry,
                                        const banyan_algorithm_params *params)
{
    banyan_collective collective = {.kind = entry->info.collective, .in_place = params->in_place};
    collective.chunk_factor = entry->chunk_factor ? entry->chunk_factor(params->ranks) : 1;
    if (has_root(collective.kind))
        collective.root = params->root;
    if (collective.kind == BANYAN_SENDRECV)
        collective.shift = params->shift % params->ranks ? params->shift : params->ranks;
    return collective;
}

/* Return the number of a rank's input chunks. */
static uint64_t input_chunks_of(const banyan_collective *collective, int ranks)
{
    bool has_blocks = collective->kind == BANYAN_ALLREDUCE ||
                      collective->kind == BANYAN_REDUCESCATTER ||
                      collective->kind == BANYAN_ALLTOALL;
    return (uint64_t)collective->chunk_factor * (has_blocks ? (uint64_t)ranks : 1);
}

/* Write the program for one rank, or for a message to oneself. */
static void keep_all(algorithm *a)
{
    for (int rank = 0; rank < a->ranks; rank++)
        local_keep(a, output_range(a, rank, 0, (int)a->input_chunks), input_all(a, rank), 0);
}

banyan_status algorithm_take_tables(algorithm *a, arena *memory)
{
    size_t ranks = (size_t)a->ranks, pairs = ranks * ranks;
    for (int mesh = 0; mesh < ALGORITHM_MESHES; mesh++) {
        a->meshes[mesh] = arena_take(memory, pairs * sizeof **a->meshes);
        if (!a->meshes[mesh])
            return BANYAN_ERR_NO_MEMORY;
        memset(a->meshes[mesh], 0, pairs * sizeof **a->meshes);
        a->links[mesh] =
            a->ranks_per_node == a->ranks ? NULL : arena_take(memory, pairs * sizeof **a->links);
        if (a->links[mesh])
            memset(a->links[mesh], 0, pairs * sizeof **a->links);
        else if (a->ranks_per_node != a->ranks)
            return BANYAN_ERR_NO_MEMORY;
    }
    a->ports = arena_take(memory, pairs * sizeof *a->ports);
    a->parts = arena_take(memory, 2 * (ranks + 1) * sizeof *a->parts);
    a->everyone = arena_take(memory, ranks * sizeof *a->everyone);
    if (!a->ports || !a->parts || !a->everyone)
        return BANYAN_ERR_NO_MEMORY;
    memset(a->ports, 0, pairs * sizeof *a->ports);
    for (int rank = 0; rank < a->ranks; rank++)
        a->everyone[rank] = rank;
    return BANYAN_OK;
}

/* True if no rank sends to another. */
static bool is_alone(const algorithm *a, banyan_collective_kind kind)
{
    return a->ranks == 1 || (kind == BANYAN_SENDRECV && a->shift == 0);
}

static banyan_status algorithms_write_program(const algorithm_entry *entry,
                                              const banyan_algorithm_params *params, arena *memory,
                                              banyan_program **program)
{
    banyan_collective collective = collective_for(entry, params);
    banyan_program_options options = algorithms_options_for(entry, params);
    algorithm a = {.ranks = params->ranks,
                   .ranks_per_node = entry->over_nodes && params->ranks_per_node
                                         ? params->ranks_per_node
                                         : params->ranks,
                   .collective = collective.kind,
                   .in_place = params->in_place,
                   .split = entry->mixes_sizes && options.instances > 1,
                   .root = collective.root,
                   .op = params->op,
                   .input_chunks = input_chunks_of(&collective, params->ranks),
                   .unit_bytes = algorithms_unit_for(entry, params)};
    a.shift = algorithm_rank(&a, params->shift);
    RETURN_IF_FAILED(algorithm_take_tables(&a, memory));
    RETURN_IF_FAILED(
        banyan_program_create(entry->info.name, &collective, a.ranks, &options, program));
    a.program = *program;
    if (is_alone(&a, collective.kind))
        keep_all(&a);
    else
        entry->write(&a);
    return BANYAN_OK;
}

banyan_status banyan_algorithm_compile(const char *name, const banyan_algorithm_params *params,
                                       banyan_plan **plan)
{
    banyan_algorithm_params taken = BANYAN_ALGORITHM_PARAMS_INIT;
    const algorithm_entry *entry = NULL;
    RETURN_IF_FAILED(options_take(params, "BANYAN_ALGORITHM_PARAMS_INIT", &taken, sizeof taken));
    RETURN_IF_FAILED(algorithm_find(name, &entry));
    RETURN_IF_FAILED(algorithm_check(entry, &taken));
    arena memory = {0};
    banyan_program *program = NULL;
    banyan_status status = algorithms_write_program(entry, &taken, &memory, &program);
    if (status == BANYAN_OK)
        status = banyan_program_compile(program, plan);
    banyan_program_destroy(program);
    arena_free(&memory);
    return status;
}
