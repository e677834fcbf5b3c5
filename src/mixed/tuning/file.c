/* The file of an autotuned table. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/files/new_file.h"
#include "core/text/json.h"
#include "mixed/grid.h"
#include "mixed/tuning/autotune.h"
#include "world/control.h"

#define FORMAT_NAME "banyan mixed tuning"
#define FORMAT_VERSION 1
#define FILE_BYTES_MOST (16 << 20)

static const char *device_name(const banyan_mixed *mixed)
{
    return mixed->ops->name;
}

static json_t *timing_json(const banyan_mixed_timing *one)
{
    return json_pack("{s:s, s:I, s:s, s:I}", "op", banyan_mixed_op_name(one->op), "bytes",
                     (json_int_t)one->bytes, "mode", banyan_mixed_mode_name(one->mode), "ns",
                     (json_int_t)one->ns);
}

static json_t *table_json(const banyan_mixed *mixed)
{
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    json_t *rows = json_array();
    for (size_t i = 0; i < mixed->timings.count; i++) {
        if (json_array_append_new(rows, timing_json(&mixed->timings.data[i])) != 0) {
            json_decref(rows);
            return NULL;
        }
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:o}", "format", FORMAT_NAME,
                     "version", FORMAT_VERSION, "local_tp", grid->local_tp, "local_dp",
                     grid->local_dp, "inter_tp", grid->inter_tp, "inter_dp", grid->inter_dp,
                     "dtype", banyan_dtype_name(mixed->setup.dtype), "device", device_name(mixed),
                     "rows", rows);
}

static banyan_status tuning_file_write_table(const banyan_mixed *mixed, const char *path)
{
    json_t *root = table_json(mixed);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text)
        return error_no_memory(mixed->timings.count * sizeof(banyan_mixed_timing),
                               "an autotuned table as text");
    banyan_status status = new_file_write_at(path, text);
    free(text);
    return status;
}

banyan_status banyan_mixed_save_autotune(banyan_mixed *mixed, const char *path)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_ENTER_WITHIN(mixed->world, mixed->timeout);
    banyan_status status = path ? BANYAN_OK : error_null(__func__, "path");
    if (status == BANYAN_OK && mixed->timings.count == 0)
        status = error_set(BANYAN_ERR_INVALID,
                           "rank %d: there is no autotuned table to save in %s: nothing was "
                           "measured",
                           mixed->rank, path);
    if (status == BANYAN_OK && mixed->rank == 0)
        status = tuning_file_write_table(mixed, path);
    return control_agree(mixed->world, status);
}

static banyan_status check_number(json_path *path, const json_t *root, const char *key, int mine)
{
    int64_t number;
    RETURN_IF_FAILED(json_member_int(path, root, key, 1, BANYAN_MAX_RANKS, &number));
    if (number == mine)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_MISMATCH,
                     "%s: the table is for %s %" PRId64 ", and the grid has %d", path->file, key,
                     number, mine);
}

static banyan_status tuning_file_check_name(json_path *path, const json_t *root, const char *key,
                                            const char *mine)
{
    const char *name;
    RETURN_IF_FAILED(json_member_string(path, root, key, &name));
    if (strcmp(name, mine) == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(json_path_check_text(path, key, name));
    return error_set(BANYAN_ERR_MISMATCH, "%s: the table is for %s %s, and the context has %s",
                     path->file, key, name, mine);
}

static banyan_status tuning_file_check_head(const banyan_mixed *mixed, json_path *path,
                                            const json_t *root)
{
    const banyan_mixed_grid *grid = &mixed->setup.grid;
    const char *format;
    int64_t version;
    RETURN_IF_FAILED(json_member_string(path, root, "format", &format));
    if (strcmp(format, FORMAT_NAME) != 0)
        return json_path_fail(path, "format is not \"" FORMAT_NAME "\"");
    RETURN_IF_FAILED(
        json_member_int(path, root, "version", FORMAT_VERSION, FORMAT_VERSION, &version));
    RETURN_IF_FAILED(check_number(path, root, "local_tp", grid->local_tp));
    RETURN_IF_FAILED(check_number(path, root, "local_dp", grid->local_dp));
    RETURN_IF_FAILED(check_number(path, root, "inter_tp", grid->inter_tp));
    RETURN_IF_FAILED(check_number(path, root, "inter_dp", grid->inter_dp));
    RETURN_IF_FAILED(
        tuning_file_check_name(path, root, "dtype", banyan_dtype_name(mixed->setup.dtype)));
    return tuning_file_check_name(path, root, "device", device_name(mixed));
}

static banyan_status read_row(const banyan_mixed *mixed, json_path *path, const json_t *object,
                              banyan_mixed_timing *row)
{
    const char *op, *mode;
    int64_t bytes, ns;
    memset(row, 0, sizeof *row);
    RETURN_IF_FAILED(json_member_string(path, object, "op", &op));
    RETURN_IF_FAILED(json_member_string(path, object, "mode", &mode));
    RETURN_IF_FAILED(json_member_int(path, object, "bytes", 1, INT64_MAX, &bytes));
    RETURN_IF_FAILED(json_member_int(path, object, "ns", 1, INT64_MAX, &ns));
    RETURN_IF_FAILED(json_path_check_text(path, "op", op));
    RETURN_IF_FAILED(json_path_check_text(path, "mode", mode));
    if (banyan_mixed_op_parse(op, &row->op) != BANYAN_OK ||
        !grid_allows(&mixed->setup.grid, row->op))
        return json_path_fail(path, "op is \"%s\", which the grid does not allow", op);
    if (banyan_mixed_mode_parse(mode, &row->mode) != BANYAN_OK || row->mode == BANYAN_MIXED_AUTO)
        return json_path_fail(path, "mode is \"%s\", which is not a mode", mode);
    row->bytes = (uint64_t)bytes;
    row->ns = (uint64_t)ns;
    return BANYAN_OK;
}

/* Compare by operation, size and mode. */
static int tuning_file_compare(const banyan_mixed_timing *a, const banyan_mixed_timing *b)
{
    if (a->op != b->op)
        return a->op < b->op ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return (a->mode > b->mode) - (a->mode < b->mode);
}

typedef ARRAY(banyan_mixed_timing) timings;

static banyan_status tuning_file_read_rows(const banyan_mixed *mixed, json_path *path,
                                           const json_t *array, timings *rows)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        size_t mark = json_path_index(path, i);
        banyan_mixed_timing row;
        RETURN_IF_FAILED(read_row(mixed, path, json_array_get(array, i), &row));
        if (rows->count > 0 && tuning_file_compare(&rows->data[rows->count - 1], &row) >= 0)
            return json_path_fail(path, "the row does not come after the one before it by "
                                        "operation, bytes and mode");
        if (!array_push(rows, row))
            return BANYAN_ERR_NO_MEMORY;
        json_path_pop(path, mark);
    }
    return BANYAN_OK;
}

static banyan_status read_table(const banyan_mixed *mixed, const char *name, timings *rows)
{
    char *text;
    size_t bytes;
    json_t *root = NULL, *array;
    json_path path = {.file = name};
    RETURN_IF_FAILED(file_read(name, FILE_BYTES_MOST, &text, &bytes));
    banyan_status status = json_parse_as(JSON_MIXED_TUNING, name, text, bytes, &root);
    if (status == BANYAN_OK)
        status = tuning_file_check_head(mixed, &path, root);
    if (status == BANYAN_OK)
        status = json_member(&path, root, "rows", JSON_ARRAY, &array);
    if (status == BANYAN_OK) {
        json_path_key(&path, "rows");
        status = tuning_file_read_rows(mixed, &path, array, rows);
    }
    json_decref(root);
    free(text);
    return status;
}

/* Send rank 0's rows to all ranks. */
static banyan_status tuning_file_share(const banyan_mixed *mixed, timings *rows)
{
    uint64_t count = rows->count;
    RETURN_IF_FAILED(banyan_world_broadcast(mixed->world, &count, sizeof count, 0));
    banyan_status status =
        rows->count == 0 && !array_reserve(rows, count) ? BANYAN_ERR_NO_MEMORY : BANYAN_OK;
    RETURN_IF_FAILED(control_agree(mixed->world, status));
    rows->count = count;
    if (count == 0)
        return BANYAN_OK;
    return banyan_world_broadcast(mixed->world, rows->data, count * sizeof *rows->data, 0);
}

banyan_status banyan_mixed_load_autotune(banyan_mixed *mixed, const char *path)
{
    RETURN_IF_NULL(mixed);
    RETURN_IF_FAILED(mixed_check_awake(mixed));
    CONTROL_ENTER_WITHIN(mixed->world, mixed->timeout);
    timings rows = {0};
    banyan_status status = path ? BANYAN_OK : error_null(__func__, "path");
    if (status == BANYAN_OK && mixed->rank == 0)
        status = read_table(mixed, path, &rows);
    status = control_agree(mixed->world, status);
    if (status == BANYAN_OK)
        status = tuning_file_share(mixed, &rows);
    if (status == BANYAN_OK)
        status = autotune_take(mixed, rows.data, rows.count);
    array_free(&rows);
    return status;
}
