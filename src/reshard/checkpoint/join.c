/* Make one Hugging Face folder of a layout that ranks have saved, one buffer at a time. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file.h"
#include "core/text/json.h"
#include "reshard/checkpoint/saved.h"
#include "reshard/checkpoint/write.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"
#include "reshard/run/convert.h"

#define DEFAULT_SHARD_BYTES UINT64_C(5000000000)

/* One file of the result: tensors first … first + count - 1 of the index. */
struct join_shard {
    size_t first, count;
    char name[64];
    new_file file;
};

struct join {
    const char *saved, *folder;
    banyan_checkpoint_options options;
    saved_model model;
    ARRAY(struct join_shard) shards;
    progress_state progress;
    char *buffer;
};

static uint64_t tensor_bytes(const banyan_local_tensor *tensor)
{
    uint64_t bytes = 0;
    shape_bytes(tensor->ndim, tensor->shape, banyan_dtype_bytes(tensor->dtype), &bytes);
    return bytes;
}

/* Read the slab as a piece of its tensor, dense in the buffer. */
static banyan_status fill_buffer(const struct join *join, size_t t, const banyan_box *slab)
{
    banyan_piece piece = {.ndim = slab->ndim, .box = *slab};
    int64_t extent[BANYAN_MAX_DIMS];
    for (int d = 0; d < slab->ndim; d++) {
        piece.dim_map[d] = d;
        extent[d] = slab->extent[d];
    }
    DLTensor buffer = {.data = join->buffer,
                       .device = {kDLCPU, 0},
                       .ndim = slab->ndim,
                       .dtype = join->model.index.tensors.data[t].dtype,
                       .shape = extent};
    banyan_checkpoint_options silent = BANYAN_CHECKPOINT_OPTIONS_INIT;
    progress_state progress = {.options = &silent};
    fetch_parts parts = {0};
    fetch_part part = {.to = &piece, .local = &buffer, .box = *slab};
    _Atomic uint64_t bytes_read = 0;
    banyan_status status = saved_model_add_parts(&join->model, t, &part, &parts);
    if (status == BANYAN_OK)
        status = fetch_run(&parts, 1, &progress, &bytes_read);
    array_free(&parts);
    return status;
}

static banyan_status write_slab(struct join *join, const struct join_shard *shard, size_t t,
                                const banyan_box *slab, uint64_t offset)
{
    RETURN_IF_FAILED(fill_buffer(join, t, slab));
    DLDataType dtype = join->model.index.tensors.data[t].dtype;
    uint64_t bytes = banyan_box_elems(slab) * banyan_dtype_bytes(dtype);
    RETURN_IF_FAILED(new_file_write(&shard->file, shard->name, offset, join->buffer, bytes));
    progress_add(&join->progress, bytes);
    return BANYAN_OK;
}

/* Write the tensor in slabs that fit the buffer; each is contiguous in the file. */
static banyan_status checkpoint_join_write_tensor(struct join *join, const struct join_shard *shard,
                                                  const safetensors_entry *entry, size_t t)
{
    const banyan_local_tensor *tensor = &join->model.index.tensors.data[t];
    banyan_box whole = box_whole(tensor->ndim, tensor->shape);
    size_t elem_bytes = banyan_dtype_bytes(tensor->dtype);
    if (banyan_box_elems(&whole) == 0)
        return BANYAN_OK;
    execution_blocks slabs = execution_blocks_of(&whole, elem_bytes, CHECKPOINT_BUFFER_BYTES);
    uint64_t offset = entry->offset;
    for (uint64_t number = 0; number < slabs.count; number++) {
        banyan_box slab = execution_block_at(&slabs, &whole, number);
        RETURN_IF_FAILED(write_slab(join, shard, t, &slab, offset));
        offset += banyan_box_elems(&slab) * elem_bytes;
    }
    return BANYAN_OK;
}

/* Put as many consecutive tensors into a shard as fit, at least one. */
static banyan_status cut_shards(struct join *join)
{
    uint64_t most = join->options.max_shard_bytes, used = 0;
    if (most == 0)
        most = DEFAULT_SHARD_BYTES;
    for (size_t t = 0; t < join->model.index.tensors.count; t++) {
        uint64_t bytes = tensor_bytes(&join->model.index.tensors.data[t]);
        join->progress.total += bytes;
        if (join->shards.count == 0 || bytes > most - used) {
            struct join_shard shard = {.first = t, .file.fd = -1};
            RETURN_IF_NO_MEMORY(array_push(&join->shards, shard));
            used = 0;
        }
        join->shards.data[join->shards.count - 1].count++;
        used = bytes > most ? most : used + bytes;
    }
    for (size_t i = 0; i < join->shards.count; i++) {
        struct join_shard *shard = &join->shards.data[i];
        if (join->shards.count == 1)
            snprintf(shard->name, sizeof shard->name, "model.safetensors");
        else
            snprintf(shard->name, sizeof shard->name, "model-%05zu-of-%05zu.safetensors", i + 1,
                     join->shards.count);
    }
    return BANYAN_OK;
}

/* Order tensors by element size, larger first, so that all data is aligned. */
static void order_tensors(const struct join *join, const struct join_shard *shard, size_t *order,
                          safetensors_entry *entries)
{
    size_t count = 0;
    for (size_t elem_bytes = 16; elem_bytes > 0; elem_bytes /= 2) {
        for (size_t t = shard->first; t < shard->first + shard->count; t++) {
            const banyan_local_tensor *tensor = &join->model.index.tensors.data[t];
            if (banyan_dtype_bytes(tensor->dtype) != elem_bytes)
                continue;
            entries[count].tensor = *tensor;
            order[count++] = t;
        }
    }
}

static banyan_status write_entries(struct join *join, struct join_shard *shard, const char *parent,
                                   safetensors_entry *entries, const size_t *order)
{
    void *head;
    size_t head_bytes = 0;
    RETURN_IF_FAILED(safetensors_format(entries, shard->count, "pt", &head, &head_bytes));
    const safetensors_entry *last = &entries[shard->count - 1];
    uint64_t end = last->offset + last->bytes;
    banyan_status status = new_file_open(parent, shard->name, end, &shard->file);
    if (status == BANYAN_OK)
        status = new_file_write(&shard->file, shard->name, 0, head, head_bytes);
    for (size_t i = 0; i < shard->count && status == BANYAN_OK; i++)
        status = checkpoint_join_write_tensor(join, shard, &entries[i], order[i]);
    free(head);
    return status == BANYAN_OK ? new_file_sync(&shard->file, shard->name) : status;
}

static banyan_status write_shard(struct join *join, struct join_shard *shard, const char *parent)
{
    safetensors_entry *entries = calloc(shard->count, sizeof *entries);
    size_t *order = calloc(shard->count, sizeof *order);
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    if (!entries || !order) {
        error_no_memory(shard->count * sizeof *entries, "a shard's tensors");
        goto free_lists;
    }
    order_tensors(join, shard, order, entries);
    status = write_entries(join, shard, parent, entries, order);
free_lists:
    free(entries);
    free(order);
    return status;
}

static banyan_status write_shards(struct join *join)
{
    char *parent = path_parent(join->folder);
    join->buffer = malloc(CHECKPOINT_BUFFER_BYTES);
    banyan_status status = BANYAN_OK;
    if (!parent || !join->buffer)
        status = error_no_memory(CHECKPOINT_BUFFER_BYTES, "a buffer");
    for (size_t i = 0; i < join->shards.count && status == BANYAN_OK; i++)
        status = write_shard(join, &join->shards.data[i], parent);
    free(parent);
    return status;
}

static json_t *weight_map(const struct join *join)
{
    json_t *shards = json_object();
    for (size_t i = 0; i < join->shards.count; i++) {
        const struct join_shard *shard = &join->shards.data[i];
        for (size_t t = shard->first; t < shard->first + shard->count; t++)
            json_object_set_new(shards, join->model.index.tensors.data[t].name,
                                json_string(shard->name));
    }
    return json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)join->progress.total,
                     "weight_map", shards);
}

static banyan_status place_shards(struct join *join, const char *hidden)
{
    for (size_t i = 0; i < join->shards.count; i++) {
        char *path = path_join(hidden, join->shards.data[i].name);
        RETURN_IF_NO_MEMORY(path);
        banyan_status status = new_file_publish(&join->shards.data[i].file, path);
        free(path);
        RETURN_IF_FAILED(status);
    }
    if (join->shards.count == 1)
        return BANYAN_OK;
    json_t *index = weight_map(join);
    char *text = index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    json_decref(index);
    if (!text)
        return error_no_memory(join->model.index.tensors.count, "an index");
    banyan_status status = new_file_write_text(hidden, "model.safetensors.index.json", text);
    free(text);
    return status;
}

static const char *small_files_from(const struct join *join)
{
    return join->options.small_files_from ? join->options.small_files_from : join->saved;
}

static banyan_status name_folder(struct join *join)
{
    char *hidden;
    int lock;
    RETURN_IF_FAILED(new_folder_make(join->folder, &hidden, &lock));
    banyan_status status = place_shards(join, hidden);
    if (status == BANYAN_OK)
        status = small_files_copy(small_files_from(join), hidden);
    if (status == BANYAN_OK)
        status = new_folder_publish(hidden, join->folder);
    if (status != BANYAN_OK)
        new_folder_remove(hidden);
    if (lock >= 0)
        close(lock);
    free(hidden);
    return status;
}

/* Refuse value maps: a joined folder holds the model's own values. */
static banyan_status checkpoint_join_check_maps(const saved_model *model)
{
    for (size_t t = 0; t < model->index.tensors.count; t++) {
        const char *name = value_map_name(saved_model_map(model, t));
        if (name)
            return error_set(BANYAN_ERR_MISMATCH,
                             "%s: tensor %s is saved as its %s, and a value map cannot be undone: "
                             "the folder cannot be joined",
                             model->index_path, model->index.tensors.data[t].name, name);
    }
    return BANYAN_OK;
}

static banyan_status join_all(struct join *join)
{
    RETURN_IF_FAILED(new_folder_check(join->folder));
    RETURN_IF_FAILED(small_files_check(join->options.small_files_from));
    RETURN_IF_FAILED(saved_model_open(join->saved, &join->model));
    RETURN_IF_FAILED(checkpoint_join_check_maps(&join->model));
    RETURN_IF_FAILED(cut_shards(join));
    RETURN_IF_FAILED(write_shards(join));
    return name_folder(join);
}

static void join_free(struct join *join)
{
    for (size_t i = 0; i < join->shards.count; i++)
        new_file_close(&join->shards.data[i].file);
    array_free(&join->shards);
    free(join->buffer);
    saved_model_close(&join->model);
}

banyan_status banyan_checkpoint_join(const char *saved, const char *folder,
                                     const banyan_checkpoint_options *options)
{
    struct join join = {.saved = saved, .folder = folder};
    RETURN_IF_FAILED(checkpoint_options_take(options, &join.options));
    join.progress.options = &join.options;
    banyan_status status = join_all(&join);
    join_free(&join);
    return status;
}
