#include "collective/tuning.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "collective/algorithms/algorithms.h"
#include "core/error.h"
#include "core/text/json.h"

#define FORMAT_NAME "banyan tuning"
#define FORMAT_VERSION 1

void tuning_free(tuning *table)
{
    array_free(&table->rows);
}

static bool same_group(const tuning_row *a, const tuning_row *b)
{
    return a->kind == b->kind && a->on_gpu == b->on_gpu && a->ranks == b->ranks &&
           a->ranks_per_node == b->ranks_per_node && a->several_nodes == b->several_nodes &&
           a->registered == b->registered && banyan_dtype_equal(a->dtype, b->dtype);
}

banyan_status tuning_replace(tuning *table, const tuning_row *rows, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < table->rows.count; i++) {
        if (!same_group(&table->rows.data[i], rows))
            table->rows.data[kept++] = table->rows.data[i];
    }
    if (!array_reserve(&table->rows, count))
        return BANYAN_ERR_NO_MEMORY;
    memcpy(&table->rows.data[kept], rows, count * sizeof *rows);
    table->rows.count = kept + count;
    return BANYAN_OK;
}

/* True if `row` matches the call better than `other`, or equally well with shorter messages. */
static bool comes_before(const tuning_row *row, const tuning_row *other)
{
    if (row->ranks != other->ranks)
        return row->ranks > other->ranks;
    if (row->ranks_per_node != other->ranks_per_node)
        return row->ranks_per_node > other->ranks_per_node;
    if (row->dtype.bits != other->dtype.bits)
        return row->dtype.bits > other->dtype.bits;
    return row->up_to_bytes < other->up_to_bytes;
}

static bool serves_nodes(const tuning_row *row, const tuning_row *wanted)
{
    if (row->ranks_per_node)
        return row->ranks_per_node == wanted->ranks_per_node;
    bool several = wanted->ranks_per_node && wanted->ranks_per_node < wanted->ranks;
    return row->several_nodes == several;
}

static bool tuning_serves(const tuning_row *row, const tuning_row *wanted)
{
    return row->kind == wanted->kind && row->on_gpu == wanted->on_gpu &&
           row->registered == wanted->registered && row->up_to_bytes >= wanted->up_to_bytes &&
           (!row->ranks || row->ranks == wanted->ranks) &&
           (!row->dtype.bits || banyan_dtype_equal(row->dtype, wanted->dtype)) &&
           serves_nodes(row, wanted);
}

const tuning_row *tuning_find(const tuning *table, const tuning_row *wanted)
{
    const tuning_row *best = NULL;
    for (size_t i = 0; i < table->rows.count; i++) {
        const tuning_row *row = &table->rows.data[i];
        if (tuning_serves(row, wanted) && (!best || comes_before(row, best)))
            best = row;
    }
    return best;
}

const tuning_row *tuning_find_algorithm(const tuning *table, const tuning_row *wanted,
                                        int any_ranks_most)
{
    const tuning_row *best = NULL;
    tuning_row any_size = *wanted;
    any_size.up_to_bytes = 0;
    for (size_t i = 0; i < table->rows.count; i++) {
        const tuning_row *row = &table->rows.data[i];
        bool longer = row->up_to_bytes >= wanted->up_to_bytes;
        bool best_longer = best && best->up_to_bytes >= wanted->up_to_bytes;
        if (!tuning_serves(row, &any_size) || strcmp(row->algorithm, wanted->algorithm) != 0 ||
            (row->ranks == 0 && wanted->ranks > any_ranks_most))
            continue;
        if (!best || (longer && !best_longer) ||
            (longer == best_longer &&
             (longer ? comes_before(row, best) : row->up_to_bytes > best->up_to_bytes)))
            best = row;
    }
    return best;
}

static json_t *row_json(const tuning_row *row)
{
    return json_pack(
        "{s:s, s:s, s:i, s:i, s:s?, s:b, s:o, s:s, s:i, s:o}", "collective",
        banyan_collective_kind_name(row->kind), "device", row->on_gpu ? "cuda" : "host", "ranks",
        row->ranks, "ranks_per_node", row->ranks_per_node, "dtype",
        row->dtype.bits ? banyan_dtype_name(row->dtype) : NULL, "registered", (int)row->registered,
        "up_to_bytes",
        row->up_to_bytes > INT64_MAX ? json_null() : json_integer((json_int_t)row->up_to_bytes),
        "algorithm", row->algorithm, "instances", row->instances, "unit_bytes",
        json_integer((json_int_t)row->unit_bytes));
}

banyan_status tuning_print(const tuning *table, char **text)
{
    json_t *rows = json_array();
    bool whole = rows != NULL;
    for (size_t i = 0; i < table->rows.count && whole; i++)
        whole = json_array_append_new(rows, row_json(&table->rows.data[i])) == 0;
    json_t *root = json_pack("{s:s, s:i, s:o}", "format", FORMAT_NAME, "version", FORMAT_VERSION,
                             "rows", rows);
    char *made = whole && root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!made)
        return error_no_memory(table->rows.count * sizeof(tuning_row), "a tuning table as text");
    *text = made;
    return BANYAN_OK;
}

static banyan_status algorithm_parse(json_path *path, const json_t *object, tuning_row *row)
{
    const char *collective, *name;
    const algorithm_entry *entry = NULL;
    RETURN_IF_FAILED(json_member_string(path, object, "collective", &collective));
    if (banyan_collective_kind_parse(collective, &row->kind) != BANYAN_OK ||
        row->kind == BANYAN_CUSTOM)
        return json_path_fail(path, "\"%s\" is not a collective", collective);
    RETURN_IF_FAILED(json_member_string(path, object, "algorithm", &name));
    if (strlen(name) >= sizeof row->algorithm)
        return json_path_fail(path, "algorithm has a name of %zu bytes, more than %zu",
                              strlen(name), sizeof row->algorithm - 1);
    if (algorithm_find(name, &entry) != BANYAN_OK || entry->info.collective != row->kind)
        return json_path_fail(path, "algorithm \"%s\" is not for %s", name, collective);
    if (row->ranks_per_node && row->ranks_per_node < row->ranks && !entry->over_nodes)
        return json_path_fail(path, "algorithm \"%s\" is for ranks of one node", name);
    strcpy(row->algorithm, name);
    row->several_nodes = !row->ranks_per_node && entry->by_nodes;
    return BANYAN_OK;
}

static bool is_given(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value);
}

static banyan_status dtype_parse(json_path *path, const json_t *object, tuning_row *row)
{
    const char *name;
    if (!is_given(object, "dtype"))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_member_string(path, object, "dtype", &name));
    if (banyan_dtype_parse(name, &row->dtype) != BANYAN_OK)
        return json_path_fail(path, "dtype is \"%s\", which names no element type", name);
    return BANYAN_OK;
}

/* "host" (the default, for tables of earlier versions) or "cuda". */
static banyan_status device_parse(json_path *path, const json_t *object, tuning_row *row)
{
    const char *name = "host";
    if (is_given(object, "device"))
        RETURN_IF_FAILED(json_member_string(path, object, "device", &name));
    row->on_gpu = strcmp(name, "cuda") == 0;
    if (!row->on_gpu && strcmp(name, "host") != 0)
        return json_path_fail(path, "device is \"%s\", neither \"host\" nor \"cuda\"", name);
    return BANYAN_OK;
}

static banyan_status row_parse(json_path *path, const json_t *object, tuning_row *row)
{
    int64_t ranks = 0, per_node = 0, up_to = 0, instances = 0, unit = 0;
    *row = (tuning_row){.up_to_bytes = UINT64_MAX};
    RETURN_IF_FAILED(device_parse(path, object, row));
    RETURN_IF_FAILED(dtype_parse(path, object, row));
    RETURN_IF_FAILED(json_member_int(path, object, "ranks", 0, BANYAN_MAX_RANKS, &ranks));
    if (is_given(object, "ranks_per_node"))
        RETURN_IF_FAILED(
            json_member_int(path, object, "ranks_per_node", 0, BANYAN_MAX_RANKS, &per_node));
    RETURN_IF_FAILED(json_member_bool(path, object, "registered", &row->registered));
    if (is_given(object, "up_to_bytes")) {
        RETURN_IF_FAILED(json_member_int(path, object, "up_to_bytes", 0, INT64_MAX, &up_to));
        row->up_to_bytes = (uint64_t)up_to;
    }
    RETURN_IF_FAILED(json_member_int(path, object, "instances", 0, 1024, &instances));
    RETURN_IF_FAILED(json_member_int(path, object, "unit_bytes", 0, INT64_MAX, &unit));
    row->ranks = (int)ranks;
    row->ranks_per_node = (int)per_node;
    row->instances = (int)instances;
    row->unit_bytes = (uint64_t)unit;
    return algorithm_parse(path, object, row);
}

/* The rows of a group are adjacent, in ascending order. */
static banyan_status rows_parse(json_path *path, const json_t *array, tuning *parsed)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        size_t mark = json_path_index(path, i);
        tuning_row row;
        RETURN_IF_FAILED(row_parse(path, json_array_get(array, i), &row));
        if (parsed->rows.count > 0) {
            const tuning_row *last = &parsed->rows.data[parsed->rows.count - 1];
            if (same_group(last, &row) && row.up_to_bytes <= last->up_to_bytes)
                return json_path_fail(path,
                                      "up_to_bytes is not above the %" PRIu64 " of the row before",
                                      last->up_to_bytes);
        }
        if (!array_push(&parsed->rows, row))
            return BANYAN_ERR_NO_MEMORY;
        json_path_pop(path, mark);
    }
    return BANYAN_OK;
}

static banyan_status root_parse(const char *name, const json_t *root, tuning *parsed)
{
    json_path path = {.file = name};
    const char *format;
    int64_t version;
    json_t *rows;
    RETURN_IF_FAILED(json_member_string(&path, root, "format", &format));
    if (strcmp(format, FORMAT_NAME) != 0)
        return json_path_fail(&path, "format is \"%s\", not \"" FORMAT_NAME "\"", format);
    RETURN_IF_FAILED(
        json_member_int(&path, root, "version", FORMAT_VERSION, FORMAT_VERSION, &version));
    RETURN_IF_FAILED(json_member(&path, root, "rows", JSON_ARRAY, &rows));
    json_path_key(&path, "rows");
    return rows_parse(&path, rows, parsed);
}

banyan_status tuning_parse(tuning *table, const char *name, const char *text, size_t bytes)
{
    json_t *root = NULL;
    tuning parsed = {0};
    RETURN_IF_FAILED(json_parse_as(JSON_TUNING, name, text, bytes, &root));
    banyan_status status = root_parse(name, root, &parsed);
    for (size_t i = 0, next; i < parsed.rows.count && status == BANYAN_OK; i = next) {
        for (next = i + 1;
             next < parsed.rows.count && same_group(&parsed.rows.data[next], &parsed.rows.data[i]);)
            next++;
        status = tuning_replace(table, &parsed.rows.data[i], next - i);
    }
    json_decref(root);
    tuning_free(&parsed);
    return status;
}
