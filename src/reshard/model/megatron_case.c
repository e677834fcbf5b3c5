/* Cases for testing planners: Megatron-Core's metadata of all ranks, and its planner's transfers,
 * as JSON. */
#include <stdlib.h>
#include <string.h>

#include "core/containers.h"
#include "core/text/json.h"
#include "reshard/layout/box.h"
#include "reshard/model/model.h"

#define MAX_FILE_BYTES ((size_t)1 << 30)

/* The tensors that one rank holds on one side. */
struct held {
    banyan_megatron_tensor *tensors;
    size_t count;
    hash_map by_name;
};

struct banyan_megatron_case {
    json_t *root; /* owns the strings */
    const char *name;
    int world_size;
    struct held *held; /* [2 × rank + side] */
    banyan_megatron_transfer *transfers;
    size_t transfer_count;
};

static struct held *held_by(const banyan_megatron_case *loaded, int rank, banyan_side side)
{
    return &loaded->held[2 * (size_t)rank + (side == BANYAN_DESTINATION)];
}

static bool is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

/* Read an optional list of ranks. */
static banyan_status megatron_case_read_ranks(json_path *path, const json_t *object,
                                              const char *key, int world_size, const int **ranks,
                                              int *count)
{
    json_t *array = json_object_get(object, key);
    if (is_absent(array))
        return BANYAN_OK;
    size_t mark = json_path_key(path, key), length = json_array_size(array);
    int64_t *values = calloc(length + 1, sizeof *values);
    int *kept = calloc(length + 1, sizeof *kept);
    banyan_status status = BANYAN_OK;
    if (!values || !kept)
        status = error_no_memory(length * sizeof *values, "a list of ranks");
    if (status == BANYAN_OK)
        status = json_ints(path, array, 0, world_size - 1, (size_t)world_size, values, &length);
    if (status == BANYAN_OK) {
        for (size_t i = 0; i < length; i++)
            kept[i] = (int)values[i];
        *ranks = kept;
        *count = (int)length;
        kept = NULL;
    }
    free(values);
    free(kept);
    json_path_pop(path, mark);
    return status;
}

static banyan_status read_partition_sizes(json_path *path, const json_t *object,
                                          banyan_megatron_tensor *tensor)
{
    json_t *array = json_object_get(object, "partition_sizes");
    if (is_absent(array))
        return BANYAN_OK;
    size_t mark = json_path_key(path, "partition_sizes"), length = json_array_size(array);
    int64_t *sizes = alloc_zeroed(length + 1, sizeof *sizes, "partition sizes");
    RETURN_IF_NO_MEMORY(sizes);
    banyan_status status = json_ints(path, array, 0, INT64_MAX, 1 << 20, sizes, &length);
    if (status != BANYAN_OK) {
        free(sizes);
        return status;
    }
    tensor->partition_sizes = sizes;
    tensor->partition_size_count = (int)length;
    json_path_pop(path, mark);
    return BANYAN_OK;
}

static banyan_status megatron_case_read_shape(json_path *path, const json_t *object,
                                              banyan_megatron_tensor *tensor)
{
    json_t *array;
    size_t ndim;
    RETURN_IF_FAILED(json_member(path, object, "shape", JSON_ARRAY, &array));
    size_t mark = json_path_key(path, "shape");
    RETURN_IF_FAILED(json_ints(path, array, 0, INT64_MAX, BANYAN_MAX_DIMS, tensor->shape, &ndim));
    tensor->ndim = (int)ndim;
    uint64_t bytes;
    if (!shape_bytes(tensor->ndim, tensor->shape, banyan_dtype_bytes(tensor->dtype), &bytes))
        return json_path_fail(path, "is larger than any memory");
    json_path_pop(path, mark);
    return BANYAN_OK;
}

static banyan_status megatron_case_read_dtype(json_path *path, const json_t *object,
                                              DLDataType *dtype)
{
    const char *text;
    RETURN_IF_FAILED(json_member_string(path, object, "dtype", &text));
    size_t mark = json_path_key(path, "dtype");
    if (banyan_dtype_parse(text, dtype) != BANYAN_OK)
        return json_path_fail(path, "is \"%s\", which names no element type", text);
    json_path_pop(path, mark);
    return BANYAN_OK;
}

/* Read an optional flag; false when it is missing. */
static banyan_status megatron_case_read_flag(json_path *path, const json_t *object, const char *key,
                                             bool *flag)
{
    *flag = false;
    if (is_absent(json_object_get(object, key)))
        return BANYAN_OK;
    return json_member_bool(path, object, key, flag);
}

static banyan_status megatron_case_read_tensor(json_path *path, const json_t *object,
                                               int world_size, banyan_megatron_tensor *tensor)
{
    if (!json_is_object(object))
        return json_path_fail(path, "is not an object");
    int64_t partition_dim, partition_stride;
    RETURN_IF_FAILED(json_member_string(path, object, "name", &tensor->name));
    RETURN_IF_FAILED(json_member_string(path, object, "resolved_name", &tensor->resolved_name));
    RETURN_IF_FAILED(megatron_case_read_dtype(path, object, &tensor->dtype));
    RETURN_IF_FAILED(megatron_case_read_shape(path, object, tensor));
    RETURN_IF_FAILED(json_member_bool(path, object, "is_tp", &tensor->is_tp));
    RETURN_IF_FAILED(
        json_member_int(path, object, "partition_dim", -1, BANYAN_MAX_DIMS - 1, &partition_dim));
    RETURN_IF_FAILED(
        json_member_int(path, object, "partition_stride", 1, INT32_MAX, &partition_stride));
    tensor->partition_dim = (int)partition_dim;
    tensor->partition_stride = (int)partition_stride;
    RETURN_IF_FAILED(megatron_case_read_flag(path, object, "is_ep", &tensor->is_ep));
    RETURN_IF_FAILED(
        megatron_case_read_flag(path, object, "persistent_buffer", &tensor->persistent_buffer));
    RETURN_IF_FAILED(read_partition_sizes(path, object, tensor));
    RETURN_IF_FAILED(megatron_case_read_ranks(path, object, "tensor_parallel_group_ranks",
                                              world_size, &tensor->tp_ranks,
                                              &tensor->tp_rank_count));
    return megatron_case_read_ranks(path, object, "data_parallel_group_ranks", world_size,
                                    &tensor->dp_ranks, &tensor->dp_rank_count);
}

static banyan_status read_held(json_path *path, const json_t *rank, const char *key, int world_size,
                               struct held *held)
{
    json_list list;
    if (is_absent(json_object_get(rank, key)))
        return BANYAN_OK;
    RETURN_IF_FAILED(json_list_begin(path, rank, key, &list));
    RETURN_IF_NO_MEMORY(
        held->tensors = alloc_zeroed(list.count + 1, sizeof *held->tensors, "a case's tensors"));
    while (json_list_next(&list)) {
        banyan_megatron_tensor *tensor = &held->tensors[held->count++];
        RETURN_IF_FAILED(megatron_case_read_tensor(path, list.entry, world_size, tensor));
        uint64_t other;
        if (map_get_string(&held->by_name, tensor->name, &other))
            return json_path_fail(path, "has the name \"%s\" of entry %zu", tensor->name,
                                  (size_t)other);
        RETURN_IF_NO_MEMORY(map_put_string(&held->by_name, tensor->name, list.i));
    }
    return BANYAN_OK;
}

static banyan_status read_rank(json_path *path, const json_t *rank, banyan_megatron_case *loaded,
                               bool *seen)
{
    if (!json_is_object(rank))
        return json_path_fail(path, "is not an object");
    int64_t number;
    RETURN_IF_FAILED(json_member_int(path, rank, "rank", 0, loaded->world_size - 1, &number));
    if (seen[number])
        return json_path_fail(path, "is rank %d a second time", (int)number);
    seen[number] = true;
    RETURN_IF_FAILED(read_held(path, rank, "src", loaded->world_size,
                               held_by(loaded, (int)number, BANYAN_SOURCE)));
    return read_held(path, rank, "dst", loaded->world_size,
                     held_by(loaded, (int)number, BANYAN_DESTINATION));
}

static banyan_status read_all_ranks(json_path *path, const json_t *root,
                                    banyan_megatron_case *loaded)
{
    json_list ranks;
    RETURN_IF_FAILED(json_list_begin(path, root, "ranks", &ranks));
    if (ranks.count != (size_t)loaded->world_size)
        return json_path_fail(path, "has %zu entries for %d ranks", ranks.count,
                              loaded->world_size);
    RETURN_IF_NO_MEMORY(loaded->held =
                            alloc_zeroed(ranks.count, 2 * sizeof *loaded->held, "a case"));
    bool *seen = alloc_zeroed(ranks.count, sizeof *seen, "a case");
    banyan_status status = seen ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    while (status == BANYAN_OK && json_list_next(&ranks))
        status = read_rank(path, ranks.entry, loaded, seen);
    free(seen);
    return status;
}

/* Read [[start, end], …] of a tensor that `rank` holds. */
static banyan_status read_slice(json_path *path, const json_t *transfer, const char *key,
                                const banyan_megatron_tensor *tensor, banyan_box *slice)
{
    json_list list;
    RETURN_IF_FAILED(json_list_begin(path, transfer, key, &list));
    if (list.count != (size_t)tensor->ndim)
        return json_path_fail(path, "has %zu dimensions, \"%s\" has %d", list.count, tensor->name,
                              tensor->ndim);
    slice->ndim = tensor->ndim;
    while (json_list_next(&list)) {
        int64_t range[2];
        size_t count, d = list.i;
        RETURN_IF_FAILED(json_ints(path, list.entry, 0, tensor->shape[d], 2, range, &count));
        if (count != 2 || range[0] > range[1])
            return json_path_fail(path, "is not a pair of a start and an end");
        slice->start[d] = range[0];
        slice->extent[d] = range[1] - range[0];
    }
    return BANYAN_OK;
}

/* Read one end of a transfer: rank, the tensor's name there, and the slice. */
static banyan_status read_end(json_path *path, const json_t *transfer,
                              const banyan_megatron_case *loaded, banyan_side side, int *rank,
                              const char **name, banyan_box *slice)
{
    static const char *const keys[2][3] = {{"src_rank", "src_name", "src_slice"},
                                           {"dst_rank", "dst_name", "dst_slice"}};
    int64_t number;
    RETURN_IF_FAILED(
        json_member_int(path, transfer, keys[side][0], 0, loaded->world_size - 1, &number));
    RETURN_IF_FAILED(json_member_string(path, transfer, keys[side][1], name));
    const struct held *held = held_by(loaded, (int)number, side);
    uint64_t index;
    if (!map_get_string(&held->by_name, *name, &index))
        return json_path_fail(path, "names \"%s\" (%s), which rank %d does not hold", *name,
                              keys[side][1], (int)number);
    *rank = (int)number;
    return read_slice(path, transfer, keys[side][2], &held->tensors[index], slice);
}

static banyan_status read_transfer(json_path *path, const json_t *object,
                                   const banyan_megatron_case *loaded,
                                   banyan_megatron_transfer *transfer)
{
    if (!json_is_object(object))
        return json_path_fail(path, "is not an object");
    int64_t task_id;
    RETURN_IF_FAILED(json_member_int(path, object, "task_id", 0, INT64_MAX, &task_id));
    transfer->task_id = (uint64_t)task_id;
    RETURN_IF_FAILED(read_end(path, object, loaded, BANYAN_SOURCE, &transfer->source_rank,
                              &transfer->source_name, &transfer->source_slice));
    RETURN_IF_FAILED(read_end(path, object, loaded, BANYAN_DESTINATION, &transfer->destination_rank,
                              &transfer->destination_name, &transfer->destination_slice));
    uint64_t sent = banyan_box_elems(&transfer->source_slice);
    uint64_t received = banyan_box_elems(&transfer->destination_slice);
    if (sent != received)
        return json_path_fail(path, "sends %llu elements and receives %llu",
                              (unsigned long long)sent, (unsigned long long)received);
    return BANYAN_OK;
}

static banyan_status read_transfers(json_path *path, const json_t *root,
                                    banyan_megatron_case *loaded)
{
    json_list list;
    RETURN_IF_FAILED(json_list_begin(path, root, "transfers", &list));
    RETURN_IF_NO_MEMORY(loaded->transfers = alloc_zeroed(list.count + 1, sizeof *loaded->transfers,
                                                         "a case's transfers"));
    while (json_list_next(&list))
        RETURN_IF_FAILED(read_transfer(path, list.entry, loaded, &loaded->transfers[list.i]));
    loaded->transfer_count = list.count;
    return BANYAN_OK;
}

static banyan_status read_case(json_path *path, const json_t *root, banyan_megatron_case *loaded)
{
    if (!json_is_object(root))
        return json_path_fail(path, "is not an object");
    int64_t world_size;
    RETURN_IF_FAILED(json_member_string(path, root, "name", &loaded->name));
    RETURN_IF_FAILED(json_member_int(path, root, "world_size", 1, BANYAN_MAX_RANKS, &world_size));
    loaded->world_size = (int)world_size;
    RETURN_IF_FAILED(read_all_ranks(path, root, loaded));
    return read_transfers(path, root, loaded);
}

banyan_status banyan_megatron_case_load(const char *path, banyan_megatron_case **loaded)
{
    char *text;
    size_t bytes;
    RETURN_IF_FAILED(file_read(path, MAX_FILE_BYTES, &text, &bytes));
    json_t *root;
    banyan_status status = json_parse_as(JSON_CASE, path, text, bytes, &root);
    free(text);
    RETURN_IF_FAILED(status);
    banyan_megatron_case *created = calloc(1, sizeof *created);
    if (!created) {
        json_decref(root);
        return error_no_memory(sizeof *created, "a case");
    }
    created->root = root;
    json_path place = {.file = path};
    status = read_case(&place, root, created);
    if (status != BANYAN_OK) {
        banyan_megatron_case_destroy(created);
        return status;
    }
    *loaded = created;
    return BANYAN_OK;
}

static void held_free(struct held *held)
{
    for (size_t i = 0; i < held->count; i++) {
        free((void *)held->tensors[i].partition_sizes);
        free((void *)held->tensors[i].tp_ranks);
        free((void *)held->tensors[i].dp_ranks);
    }
    free(held->tensors);
    map_free(&held->by_name);
}

void banyan_megatron_case_destroy(banyan_megatron_case *loaded)
{
    if (!loaded)
        return;
    for (size_t i = 0; loaded->held && i < 2 * (size_t)loaded->world_size; i++)
        held_free(&loaded->held[i]);
    free(loaded->held);
    free(loaded->transfers);
    json_decref(loaded->root);
    free(loaded);
}

const char *banyan_megatron_case_name(const banyan_megatron_case *loaded)
{
    return loaded->name;
}

int banyan_megatron_case_world_size(const banyan_megatron_case *loaded)
{
    return loaded->world_size;
}

const banyan_megatron_tensor *banyan_megatron_case_tensors(const banyan_megatron_case *loaded,
                                                           int rank, banyan_side side,
                                                           size_t *count)
{
    const struct held *held = held_by(loaded, rank, side);
    *count = held->count;
    return held->tensors;
}

size_t banyan_megatron_case_transfer_count(const banyan_megatron_case *loaded)
{
    return loaded->transfer_count;
}

const banyan_megatron_transfer *banyan_megatron_case_transfer(const banyan_megatron_case *loaded,
                                                              size_t i)
{
    return &loaded->transfers[i];
}

banyan_status case_add_layout(const banyan_megatron_case *loaded, int rank, banyan_side side,
                              banyan_layout *layout)
{
    size_t count;
    const banyan_megatron_tensor *held = banyan_megatron_case_tensors(loaded, rank, side, &count);
    for (size_t i = 0; i < count; i++)
        banyan_layout_add_megatron(layout, &held[i], rank, 0);
    return banyan_layout_check_as(layout, side);
}
