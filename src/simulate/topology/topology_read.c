#include <math.h>
#include <string.h>

#include "core/containers.h"
#include "core/text/json.h"
#include "simulate/topology/repeat.h"
#include "simulate/topology/topology.h"

#define VERTICES_MOST 65536
#define LINKS_MOST 1048576
#define NS_MOST 1e11
#define RATE_MOST 1e18
#define BLOCKS_MOST 1e6
#define OVERHEAD_MOST 1e3
#define FILE_BYTES_MOST (size_t)(64 << 20)

typedef struct topology_reader {
    banyan_topology *topology;
    json_path path;
    hash_map names; /* of vertices */
} topology_reader;

typedef const char *const *key_list; /* ends with NULL */

/* Refuse unknown keys, which are probably misspelt. */
static banyan_status topology_read_check_keys(topology_reader *from, json_t *object, key_list known)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return json_path_fail(&from->path, "is not an object");
    json_object_foreach(object, key, value)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i])
            return json_path_fail(&from->path, "has a key \"%s\" that means nothing here", key);
    }
    return BANYAN_OK;
}

/* Read a number from 0 to `most`; with `above_zero` from 1. */
static banyan_status topology_read_number(topology_reader *from, const json_t *object,
                                          const char *key, bool above_zero, double most,
                                          double *value)
{
    json_t *found = json_object_get(object, key);
    if (!found)
        return json_path_fail(&from->path, "has no \"%s\"", key);
    size_t mark = json_path_key(&from->path, key);
    if (!json_is_number(found))
        return json_path_fail(&from->path, "is not a number");
    double number = json_number_value(found);
    if (!(number >= 0 && number <= most) || (above_zero && number < 1))
        return json_path_fail(&from->path, "is %g: %d to %g are possible", number, (int)above_zero,
                              most);
    json_path_pop(&from->path, mark);
    *value = number;
    return BANYAN_OK;
}

static banyan_status read_rate(topology_reader *from, const json_t *object, const char *key,
                               double *rate)
{
    return topology_read_number(from, object, key, true, RATE_MOST, rate);
}

static banyan_status read_ns(topology_reader *from, const json_t *object, const char *key,
                             uint64_t *ps)
{
    double ns = 0;
    RETURN_IF_FAILED(topology_read_number(from, object, key, false, NS_MOST, &ns));
    *ps = (uint64_t)llround(ns * 1000);
    return BANYAN_OK;
}

static banyan_status topology_read_flag(topology_reader *from, const json_t *entry, const char *key,
                                        bool *flag)
{
    return json_object_get(entry, key) ? json_member_bool(&from->path, entry, key, flag)
                                       : BANYAN_OK;
}

/* Read an optional rate; `otherwise` is the default. */
static banyan_status read_rate_or(topology_reader *from, const json_t *object, const char *key,
                                  double otherwise, double *rate)
{
    *rate = otherwise;
    return json_object_get(object, key) ? read_rate(from, object, key, rate) : BANYAN_OK;
}

/* Read rates; in a list each has a working set. */
static banyan_status read_rates(topology_reader *from, json_t *block, bool listed,
                                block_rates *rates)
{
    static const char *const of_list[] = {
        "working_set_bytes",       "local_bytes_per_s",        "load_bytes_per_s",
        "store_bytes_per_s",       "packet_bytes_per_s",       "reduce_bytes_per_s",
        "reduce_load_bytes_per_s", "reduce_store_bytes_per_s", NULL};
    const char *const *keys = of_list + 1;
    RETURN_IF_FAILED(topology_read_check_keys(from, block, listed ? of_list : keys));
    RETURN_IF_FAILED(read_rate(from, block, keys[0], &rates->local));
    RETURN_IF_FAILED(read_rate(from, block, keys[1], &rates->load));
    RETURN_IF_FAILED(read_rate(from, block, keys[2], &rates->store));
    RETURN_IF_FAILED(read_rate(from, block, keys[3], &rates->packet));
    RETURN_IF_FAILED(read_rate(from, block, keys[4], &rates->reduce));
    RETURN_IF_FAILED(read_rate_or(from, block, keys[5], rates->load, &rates->reduce_load));
    return read_rate_or(from, block, keys[6], rates->store, &rates->reduce_store);
}

static banyan_status topology_read_level(topology_reader *from, json_t *block, size_t i,
                                         cached_rates *made)
{
    RETURN_IF_FAILED(read_rates(from, block, true, &made[i].rates));
    RETURN_IF_FAILED(read_rate(from, block, "working_set_bytes", &made[i].working_set_bytes));
    if (i == 0 || made[i].working_set_bytes > made[i - 1].working_set_bytes)
        return BANYAN_OK;
    return json_path_fail(&from->path,
                          "has a working set of %.0f bytes, and the one before of %.0f:"
                          " they ascend",
                          made[i].working_set_bytes, made[i - 1].working_set_bytes);
}

static banyan_status topology_read_block(topology_reader *from, const json_t *object,
                                         processor_kind *kind)
{
    json_t *block = json_object_get(object, "block");
    bool listed = json_is_array(block);
    if (!listed)
        RETURN_IF_FAILED(json_member(&from->path, object, "block", JSON_OBJECT, &block));
    size_t mark = json_path_key(&from->path, "block");
    kind->rate_count = listed ? json_array_size(block) : 1;
    if (kind->rate_count == 0)
        return json_path_fail(&from->path, "has no rates");
    kind->rates = arena_take(&from->topology->memory, kind->rate_count * sizeof *kind->rates);
    if (!kind->rates)
        return BANYAN_ERR_NO_MEMORY;
    kind->rates[0].working_set_bytes = 0; /* a single entry serves every working set */
    for (json_list list = json_list_of(&from->path, listed ? block : NULL); json_list_next(&list);)
        RETURN_IF_FAILED(topology_read_level(from, list.entry, list.i, kind->rates));
    if (!listed)
        RETURN_IF_FAILED(read_rates(from, block, false, &kind->rates[0].rates));
    json_path_pop(&from->path, mark);
    return BANYAN_OK;
}

static banyan_status read_proxy(topology_reader *from, const json_t *object, processor_kind *kind)
{
    static const char *const keys[] = {"request_ns", "bytes_per_s", "takes_block", NULL};
    json_t *proxy;
    RETURN_IF_FAILED(json_member(&from->path, object, "proxy", JSON_OBJECT, &proxy));
    size_t mark = json_path_key(&from->path, "proxy");
    RETURN_IF_FAILED(topology_read_check_keys(from, proxy, keys));
    RETURN_IF_FAILED(read_ns(from, proxy, "request_ns", &kind->request_ps));
    RETURN_IF_FAILED(read_rate(from, proxy, "bytes_per_s", &kind->port_bytes_per_s));
    RETURN_IF_FAILED(topology_read_flag(from, proxy, "takes_block", &kind->port_takes_block));
    json_path_pop(&from->path, mark);
    return BANYAN_OK;
}

/* Read an overhead; the default 1 means that data takes its own size on links. */
static banyan_status read_overhead(topology_reader *from, const json_t *object, const char *key,
                                   double *overhead)
{
    *overhead = 1;
    return json_object_get(object, key)
               ? topology_read_number(from, object, key, true, OVERHEAD_MOST, overhead)
               : BANYAN_OK;
}

static banyan_status topology_read_kind(topology_reader *from, json_t *object, processor_kind *kind)
{
    static const char *const keys[] = {"memory_bytes_per_s",
                                       "blocks_at_once",
                                       "launch_ns",
                                       "operation_ns",
                                       "sync_ns",
                                       "signal_ns",
                                       "block",
                                       "proxy",
                                       "shared_memory",
                                       "load_overhead",
                                       "store_overhead",
                                       NULL};
    RETURN_IF_FAILED(topology_read_check_keys(from, object, keys));
    RETURN_IF_FAILED(read_rate(from, object, "memory_bytes_per_s", &kind->memory_bytes_per_s));
    RETURN_IF_FAILED(topology_read_number(from, object, "blocks_at_once", true, BLOCKS_MOST,
                                          &kind->blocks_at_once));
    RETURN_IF_FAILED(read_ns(from, object, "launch_ns", &kind->launch_ps));
    RETURN_IF_FAILED(read_ns(from, object, "operation_ns", &kind->operation_ps));
    RETURN_IF_FAILED(read_ns(from, object, "sync_ns", &kind->sync_ps));
    RETURN_IF_FAILED(read_ns(from, object, "signal_ns", &kind->signal_ps));
    RETURN_IF_FAILED(topology_read_flag(from, object, "shared_memory", &kind->shared_memory));
    RETURN_IF_FAILED(read_overhead(from, object, "load_overhead", &kind->load_overhead));
    RETURN_IF_FAILED(read_overhead(from, object, "store_overhead", &kind->store_overhead));
    RETURN_IF_FAILED(topology_read_block(from, object, kind));
    return read_proxy(from, object, kind);
}

static banyan_status read_kinds(topology_reader *from, const json_t *root)
{
    banyan_topology *topology = from->topology;
    json_t *kinds, *object;
    const char *name;
    RETURN_IF_FAILED(json_member(&from->path, root, "kinds", JSON_OBJECT, &kinds));
    topology->kinds =
        arena_take(&topology->memory, json_object_size(kinds) * sizeof *topology->kinds);
    if (!topology->kinds)
        return BANYAN_ERR_NO_MEMORY;
    size_t mark = json_path_key(&from->path, "kinds");
    json_object_foreach(kinds, name, object)
    {
        processor_kind *kind = &topology->kinds[topology->kind_count++];
        RETURN_IF_FAILED(json_path_check_text(&from->path, "kind", name));
        *kind = (processor_kind){.name = name}; /* lives as long as the topology's source */
        size_t inner = json_path_key(&from->path, name);
        RETURN_IF_FAILED(topology_read_kind(from, object, kind));
        json_path_pop(&from->path, inner);
    }
    json_path_pop(&from->path, mark);
    return BANYAN_OK;
}

static banyan_status topology_read_find_kind(topology_reader *from, const json_t *entry,
                                             const processor_kind **kind)
{
    const char *name;
    RETURN_IF_FAILED(json_member_string(&from->path, entry, "kind", &name));
    for (size_t i = 0; i < from->topology->kind_count; i++) {
        *kind = &from->topology->kinds[i];
        if (strcmp((*kind)->name, name) == 0)
            return BANYAN_OK;
    }
    return json_path_fail(&from->path, "is of a kind \"%s\" that \"kinds\" does not have", name);
}

static banyan_status add_vertex(topology_reader *from, const json_t *entry, const repeat *turns,
                                topology_vertex vertex)
{
    banyan_topology *topology = from->topology;
    RETURN_IF_FAILED(
        repeat_text(&from->path, entry, "name", turns, &topology->memory, &vertex.name));
    RETURN_IF_FAILED(json_path_check_text(&from->path, "name", vertex.name));
    uint64_t place = topology->vertices.count, taken;
    if (place == VERTICES_MOST)
        return json_path_fail(&from->path, "makes more than %d processors and switches",
                              VERTICES_MOST);
    if (map_get_string(&from->names, vertex.name, &taken))
        return json_path_fail(&from->path, "is the second one called \"%s\"", vertex.name);
    if (!array_push(&topology->vertices, vertex) ||
        !map_put_string(&from->names, vertex.name, place))
        return BANYAN_ERR_NO_MEMORY;
    return BANYAN_OK;
}

static banyan_status read_processor(topology_reader *from, json_t *entry)
{
    static const char *const keys[] = {"for", "name", "kind", NULL};
    topology_vertex vertex = {0};
    repeat turns;
    RETURN_IF_FAILED(topology_read_check_keys(from, entry, keys));
    RETURN_IF_FAILED(topology_read_find_kind(from, entry, &vertex.kind));
    RETURN_IF_FAILED(repeat_begin(&from->path, entry, &turns));
    do
        RETURN_IF_FAILED(add_vertex(from, entry, &turns, vertex));
    while (repeat_next(&turns));
    from->topology->processor_count = (uint32_t)from->topology->vertices.count;
    return BANYAN_OK;
}

static banyan_status read_switch(topology_reader *from, json_t *entry)
{
    static const char *const keys[] = {"for", "name", "multicast", NULL};
    topology_vertex vertex = {0};
    repeat turns;
    RETURN_IF_FAILED(topology_read_check_keys(from, entry, keys));
    RETURN_IF_FAILED(topology_read_flag(from, entry, "multicast", &vertex.multicast));
    RETURN_IF_FAILED(repeat_begin(&from->path, entry, &turns));
    do
        RETURN_IF_FAILED(add_vertex(from, entry, &turns, vertex));
    while (repeat_next(&turns));
    return BANYAN_OK;
}

static banyan_status topology_read_find_end(topology_reader *from, const json_t *entry,
                                            const char *key, const repeat *turns, uint32_t *vertex)
{
    const char *name;
    uint64_t place;
    RETURN_IF_FAILED(repeat_text(&from->path, entry, key, turns, &from->topology->memory, &name));
    if (!map_get_string(&from->names, name, &place))
        return json_path_fail(&from->path, "leads %s \"%s\", which there is not", key, name);
    *vertex = (uint32_t)place;
    return BANYAN_OK;
}

static banyan_status add_link(topology_reader *from, topology_link link)
{
    if (from->topology->links.count == LINKS_MOST)
        return json_path_fail(&from->path, "makes more than %d links", LINKS_MOST);
    return array_push(&from->topology->links, link) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status add_links(topology_reader *from, const json_t *entry, const repeat *turns,
                               topology_link link, bool both_ways)
{
    RETURN_IF_FAILED(topology_read_find_end(from, entry, "from", turns, &link.from));
    RETURN_IF_FAILED(topology_read_find_end(from, entry, "to", turns, &link.to));
    if (link.from == link.to)
        return json_path_fail(&from->path, "leads back to \"%s\"",
                              from->topology->vertices.data[link.to].name);
    RETURN_IF_FAILED(add_link(from, link));
    if (!both_ways)
        return BANYAN_OK;
    uint32_t to = link.to;
    link.to = link.from;
    link.from = to;
    return add_link(from, link);
}

static banyan_status read_link(topology_reader *from, json_t *entry)
{
    static const char *const keys[] = {"for",         "from",      "to", "latency_ns",
                                       "bytes_per_s", "both_ways", NULL};
    topology_link link = {0};
    bool both_ways = true;
    repeat turns;
    RETURN_IF_FAILED(topology_read_check_keys(from, entry, keys));
    RETURN_IF_FAILED(read_ns(from, entry, "latency_ns", &link.latency_ps));
    RETURN_IF_FAILED(read_rate(from, entry, "bytes_per_s", &link.bytes_per_s));
    RETURN_IF_FAILED(topology_read_flag(from, entry, "both_ways", &both_ways));
    RETURN_IF_FAILED(repeat_begin(&from->path, entry, &turns));
    do
        RETURN_IF_FAILED(add_links(from, entry, &turns, link, both_ways));
    while (repeat_next(&turns));
    return BANYAN_OK;
}

static banyan_status
topology_read_entries(topology_reader *from, const json_t *root, const char *key,
                      banyan_status (*read)(topology_reader *from, json_t *entry))
{
    json_list list;
    RETURN_IF_FAILED(json_list_begin(&from->path, root, key, &list));
    while (json_list_next(&list)) {
        RETURN_IF_FAILED(read(from, list.entry));
    }
    return BANYAN_OK;
}

/* Index links by source vertex. */
static banyan_status index_links(banyan_topology *topology)
{
    size_t vertices = topology->vertices.count, links = topology->links.count;
    topology->first_out = arena_take(&topology->memory, (vertices + 1) * sizeof(uint32_t));
    topology->out = arena_take(&topology->memory, links * sizeof(uint32_t));
    if (!topology->first_out || !topology->out)
        return BANYAN_ERR_NO_MEMORY;
    memset(topology->first_out, 0, (vertices + 1) * sizeof(uint32_t));
    for (size_t i = 0; i < links; i++)
        topology->first_out[topology->links.data[i].from + 1]++;
    for (size_t v = 0; v < vertices; v++)
        topology->first_out[v + 1] += topology->first_out[v];
    for (size_t i = links; i-- > 0;) {
        /* Counts down to the start of the vertex' links. */
        uint32_t from = topology->links.data[i].from;
        topology->out[--topology->first_out[from + 1]] = (uint32_t)i;
    }
    memmove(topology->first_out, topology->first_out + 1, vertices * sizeof(uint32_t));
    topology->first_out[vertices] = (uint32_t)links;
    return BANYAN_OK;
}

static banyan_status read_about(topology_reader *from, const json_t *root)
{
    const char *about;
    if (!json_object_get(root, "about"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member_string(&from->path, root, "about", &about));
    return json_path_check_text(&from->path, "text about it", about);
}

static banyan_status topology_read_topology(topology_reader *from, json_t *root)
{
    static const char *const keys[] = {"name",     "about", "kinds", "processors",
                                       "switches", "links", NULL};
    banyan_topology *topology = from->topology;
    RETURN_IF_FAILED(topology_read_check_keys(from, root, keys));
    RETURN_IF_FAILED(json_member_string(&from->path, root, "name", &topology->name));
    RETURN_IF_FAILED(json_path_check_text(&from->path, "name", topology->name));
    RETURN_IF_FAILED(read_about(from, root));
    RETURN_IF_FAILED(read_kinds(from, root));
    RETURN_IF_FAILED(topology_read_entries(from, root, "processors", read_processor));
    if (topology->processor_count == 0)
        return json_path_fail(&from->path, "has no processors");
    if (json_object_get(root, "switches"))
        RETURN_IF_FAILED(topology_read_entries(from, root, "switches", read_switch));
    RETURN_IF_FAILED(topology_read_entries(from, root, "links", read_link));
    return index_links(topology);
}

banyan_status banyan_topology_parse(const char *text, size_t bytes, const char *name,
                                    banyan_topology **topology)
{
    topology_reader from = {.topology = calloc(1, sizeof **topology), .path.file = name};
    if (!from.topology)
        return error_no_memory(sizeof **topology, name);
    banyan_status status = json_parse_as(JSON_TOPOLOGY, name, text, bytes, &from.topology->source);
    if (status == BANYAN_OK)
        status = topology_read_topology(&from, from.topology->source);
    map_free(&from.names);
    if (status != BANYAN_OK) {
        banyan_topology_destroy(from.topology);
        return status;
    }
    *topology = from.topology;
    return BANYAN_OK;
}

static banyan_status topology_read_file(const char *path, banyan_topology **topology)
{
    char *text;
    size_t bytes;
    RETURN_IF_FAILED(file_read(path, FILE_BYTES_MOST, &text, &bytes));
    banyan_status status = banyan_topology_parse(text, bytes, path, topology);
    free(text);
    return status;
}

/* "h200x4, h200x8, …" */
static void list_shipped(char *names, size_t room)
{
    names[0] = '\0';
    for (size_t i = 0; shipped_topologies[i].name; i++) {
        if (i > 0)
            strncat(names, ", ", room - strlen(names) - 1);
        strncat(names, shipped_topologies[i].name, room - strlen(names) - 1);
    }
}

banyan_status banyan_topology_read(const char *path_or_name, banyan_topology **topology)
{
    for (size_t i = 0; shipped_topologies[i].name; i++) {
        const shipped_topology *shipped = &shipped_topologies[i];
        if (strcmp(shipped->name, path_or_name) == 0)
            return banyan_topology_parse(shipped->text, strlen(shipped->text), shipped->name,
                                         topology);
    }
    banyan_status status = topology_read_file(path_or_name, topology);
    if (status != BANYAN_ERR_NOT_FOUND)
        return status;
    char names[512];
    list_shipped(names, sizeof names);
    return error_set(BANYAN_ERR_NOT_FOUND,
                     "there is no file %s, and no topology of that name: there are %s",
                     path_or_name, names);
}
