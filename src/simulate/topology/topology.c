#include "simulate/topology/topology.h"

#include <math.h>
#include <string.h>

/* Return the length of a processor's name up to its last dot. */
static size_t node_length(const banyan_topology *topology, uint32_t processor)
{
    const char *name = topology->vertices.data[processor].name, *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

static bool same_node(const banyan_topology *topology, uint32_t a, uint32_t b)
{
    size_t length = node_length(topology, a);
    return node_length(topology, b) == length &&
           strncmp(topology->vertices.data[a].name, topology->vertices.data[b].name, length) == 0;
}

static int processors_per_node(const banyan_topology *topology)
{
    uint32_t count = topology->processor_count, each = 1;
    while (each < count && same_node(topology, 0, each))
        each++;
    for (uint32_t p = 1; p < count; p++)
        if (same_node(topology, p - 1, p) != (p % each != 0))
            return (int)count;
    return (int)each;
}

banyan_topology_info banyan_topology_describe(const banyan_topology *topology)
{
    uint32_t processors = topology->processor_count;
    const char *about = json_string_value(json_object_get(topology->source, "about"));
    return (banyan_topology_info){.name = topology->name,
                                  .about = about ? about : "",
                                  .processors = (int)processors,
                                  .switches = (int)(topology->vertices.count - processors),
                                  .links = topology->links.count,
                                  .processors_per_node = processors_per_node(topology),
                                  .thread_blocks =
                                      (int)topology->vertices.data[0].kind->blocks_at_once};
}

banyan_status banyan_topology_print(const banyan_topology *topology, char **text)
{
    char *printed = json_dumps(topology->source, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    if (!printed)
        return error_no_memory(0, "a topology's text");
    *text = printed;
    return BANYAN_OK;
}

static double topology_between(double first, double second, double fraction)
{
    return 1 / ((1 - fraction) / first + fraction / second);
}

block_rates rates_for(const processor_kind *kind, double working_set_bytes)
{
    const cached_rates *all = kind->rates;
    size_t last = kind->rate_count - 1, at = 0;
    if (working_set_bytes >= all[last].working_set_bytes)
        return all[last].rates;
    while (working_set_bytes >= all[at].working_set_bytes)
        at++;
    if (at == 0)
        return all[0].rates;
    const block_rates *low = &all[at - 1].rates, *high = &all[at].rates;
    double fraction = log(working_set_bytes / all[at - 1].working_set_bytes) /
                      log(all[at].working_set_bytes / all[at - 1].working_set_bytes);
    return (block_rates){topology_between(low->local, high->local, fraction),
                         topology_between(low->load, high->load, fraction),
                         topology_between(low->store, high->store, fraction),
                         topology_between(low->packet, high->packet, fraction),
                         topology_between(low->reduce, high->reduce, fraction),
                         topology_between(low->reduce_load, high->reduce_load, fraction),
                         topology_between(low->reduce_store, high->reduce_store, fraction)};
}

const char *banyan_topology_shipped(size_t index)
{
    size_t count = 0;
    while (shipped_topologies[count].name)
        count++;
    return index < count ? shipped_topologies[index].name : NULL;
}

void banyan_topology_destroy(banyan_topology *topology)
{
    if (!topology)
        return;
    json_decref(topology->source);
    array_free(&topology->vertices);
    array_free(&topology->links);
    arena_free(&topology->memory);
    free(topology);
}
