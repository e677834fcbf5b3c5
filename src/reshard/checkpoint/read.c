#include "reshard/checkpoint/saved.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file.h"
#include "core/text/json.h"
#include "reshard/checkpoint/safetensors.h"

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define MAX_INDEX_BYTES ((size_t)1 << 30)

struct mapped_tensor {
    banyan_local_tensor tensor;
    DLTensor data;
    size_t file;
};

struct banyan_checkpoint {
    char *path;
    ARRAY(checkpoint_file) files;
    ARRAY(struct mapped_tensor) tensors;
    hash_map by_name;
    names names;
    saved_model saved; /* without files: each tensor is contiguous */
    char *extra;       /* message about a tensor that the index does not place; NULL: none */
    _Atomic uint64_t *bytes_read; /* by loads; a load takes the checkpoint as const */
};

static banyan_status map_open(int fd, const char *path, uint64_t bytes, checkpoint_file *file)
{
    struct stat info;
    if (bytes == 0)
        return error_set(BANYAN_ERR_FORMAT, "%s is empty", path);
    if (fstat(fd, &info) != 0)
        return error_set_errno("looking at %s", path);
    void *base = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED)
        return error_set_errno("mapping the %" PRIu64 " bytes of %s", bytes, path);
    *file = (checkpoint_file){
        .base = base, .bytes = (size_t)bytes, .device = info.st_dev, .inode = info.st_ino};
    return BANYAN_OK;
}

static banyan_status map_file(banyan_checkpoint *checkpoint, const char *path,
                              checkpoint_file *file)
{
    int fd;
    uint64_t bytes;
    const char *kept = names_keep(&checkpoint->names, path);
    RETURN_IF_NO_MEMORY(kept && array_reserve(&checkpoint->files, 1));
    RETURN_IF_FAILED(file_open(path, &fd, &bytes));
    banyan_status status = map_open(fd, path, bytes, file);
    close(fd);
    if (status != BANYAN_OK)
        return status;
    file->path = kept;
    checkpoint->files.data[checkpoint->files.count++] = *file;
    return BANYAN_OK;
}

static banyan_status checkpoint_read_add_tensor(banyan_checkpoint *checkpoint,
                                                const safetensors_entry *entry,
                                                const checkpoint_file *file)
{
    struct mapped_tensor added = {.tensor = entry->tensor, .file = checkpoint->files.count - 1};
    added.tensor.name = names_keep(&checkpoint->names, entry->tensor.name);
    RETURN_IF_NO_MEMORY(
        added.tensor.name && array_reserve(&checkpoint->tensors, 1) &&
        map_put_string(&checkpoint->by_name, added.tensor.name, checkpoint->tensors.count));
    added.data = (DLTensor){.data = (char *)file->base + entry->offset,
                            .device = {kDLCPU, 0},
                            .ndim = entry->tensor.ndim,
                            .dtype = entry->tensor.dtype};
    checkpoint->tensors.data[checkpoint->tensors.count++] = added;
    return BANYAN_OK;
}

/* Keep the message about a shard's tensor that the index does not place there. Other readers take
 * every tensor of every shard, and of two with one name the last. */
static banyan_status keep_extra(banyan_checkpoint *checkpoint, const char *path, const char *tensor,
                                const char *listed)
{
    int written = listed ? asprintf(&checkpoint->extra,
                                    "%s: tensor %s is in %s too, where " INDEX_NAME
                                    " places it: remove one of the two",
                                    path, tensor, listed)
                         : asprintf(&checkpoint->extra,
                                    "%s: tensor %s is not in the weight_map of " INDEX_NAME
                                    ": list it there, or remove it from the file",
                                    path, tensor);
    if (written >= 0)
        return BANYAN_OK;
    checkpoint->extra = NULL;
    return error_no_memory(strlen(path) + strlen(tensor), "a message");
}

/* Add the tensors of a file. `weight_map`: the index that names it as a shard; or NULL. */
static banyan_status checkpoint_read_add_file(banyan_checkpoint *checkpoint, const char *path,
                                              const json_t *weight_map, const char *shard)
{
    checkpoint_file file;
    safetensors_header header;
    RETURN_IF_FAILED(map_file(checkpoint, path, &file));
    RETURN_IF_FAILED(safetensors_parse(path, file.base, file.bytes, file.bytes, &header));
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < header.entries.count && status == BANYAN_OK; i++) {
        const safetensors_entry *entry = &header.entries.data[i];
        const char *listed = json_string_value(json_object_get(weight_map, entry->tensor.name));
        if (!weight_map || (listed && strcmp(listed, shard) == 0))
            status = checkpoint_read_add_tensor(checkpoint, entry, &file);
        else if (!checkpoint->extra)
            status = keep_extra(checkpoint, path, entry->tensor.name, listed);
    }
    safetensors_header_free(&header);
    return status;
}

/* Check that a shard lies in the index's own folder. */
static banyan_status check_shard_name(const json_path *place, const json_t *value)
{
    const char *name = json_string_value(value);
    if (!name)
        return json_path_fail(place, "is not a file's name");
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strchr(name, '/'))
        return json_path_fail(place, "is \"%s\", not the name of a file in this folder", name);
    return BANYAN_OK;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* List the shards' names, sorted, without repeats. */
static banyan_status list_shards(json_path *place, json_t *weight_map, const char ***shards,
                                 size_t *count)
{
    const char **list = calloc(json_object_size(weight_map) + 1, sizeof *list), *tensor;
    size_t all = 0, unique = 0;
    json_t *value;
    if (!list)
        return error_no_memory(json_object_size(weight_map) * sizeof *list, "a list of shards");
    json_object_foreach(weight_map, tensor, value)
    {
        size_t mark = json_path_key(place, tensor);
        banyan_status status = check_shard_name(place, value);
        if (status != BANYAN_OK) {
            free(list);
            return status;
        }
        json_path_pop(place, mark);
        list[all++] = json_string_value(value);
    }
    qsort(list, all, sizeof *list, compare_strings);
    for (size_t i = 0; i < all; i++) {
        if (unique == 0 || strcmp(list[unique - 1], list[i]) != 0)
            list[unique++] = list[i];
    }
    *shards = list;
    *count = unique;
    return BANYAN_OK;
}

static banyan_status add_shards(banyan_checkpoint *checkpoint, const char *index, json_path *place,
                                json_t *weight_map)
{
    const char **shards = NULL, *tensor;
    size_t count = 0, found;
    json_t *value;
    RETURN_IF_FAILED(list_shards(place, weight_map, &shards, &count));
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        char *path = path_join(checkpoint->path, shards[i]);
        status = path ? checkpoint_read_add_file(checkpoint, path, weight_map, shards[i])
                      : BANYAN_ERR_NO_MEMORY;
        free(path);
    }
    free(shards);
    if (status != BANYAN_OK)
        return status;
    json_object_foreach(weight_map, tensor, value)
    {
        if (banyan_checkpoint_find(checkpoint, tensor, &found) != BANYAN_OK)
            return error_set(BANYAN_ERR_FORMAT,
                             "%s: tensor %s is listed in %s, which does not have it", index, tensor,
                             json_string_value(value));
    }
    return checkpoint->extra ? error_set(BANYAN_ERR_FORMAT, "%s", checkpoint->extra) : BANYAN_OK;
}

static bool names_single(json_t *weight_map)
{
    const char *tensor;
    json_t *shard;
    json_object_foreach(weight_map, tensor, shard)
    {
        if (strcmp(json_string_value(shard), SINGLE_NAME) == 0)
            return true;
    }
    return false;
}

static banyan_status fail_two_models(const banyan_checkpoint *checkpoint, const char *one,
                                     const char *other)
{
    return error_set(BANYAN_ERR_FORMAT, "%s holds two models, in %s and in %s: remove one of them",
                     checkpoint->path, one, other);
}

static banyan_status open_index(banyan_checkpoint *checkpoint, const char *index, bool has_single)
{
    char *text;
    size_t bytes;
    json_t *root, *weight_map;
    json_path place = {.file = index};
    RETURN_IF_FAILED(file_read(index, MAX_INDEX_BYTES, &text, &bytes));
    banyan_status status = json_parse(index, text, bytes, &root);
    free(text);
    if (status != BANYAN_OK)
        return status;
    status = json_member(&place, root, "weight_map", JSON_OBJECT, &weight_map);
    json_path_key(&place, "weight_map");
    if (status == BANYAN_OK)
        status = add_shards(checkpoint, index, &place, weight_map);
    if (status == BANYAN_OK && has_single && !names_single(weight_map))
        status = fail_two_models(checkpoint, INDEX_NAME, SINGLE_NAME);
    json_decref(root);
    return status;
}

static banyan_status open_saved(banyan_checkpoint *checkpoint)
{
    RETURN_IF_FAILED(saved_model_open(checkpoint->path, &checkpoint->saved));
    const checkpoint_index *index = &checkpoint->saved.index;
    for (size_t t = 0; t < index->tensors.count; t++) {
        struct mapped_tensor added = {.tensor = index->tensors.data[t]};
        RETURN_IF_NO_MEMORY(map_put_string(&checkpoint->by_name, added.tensor.name, t) &&
                            array_push(&checkpoint->tensors, added));
    }
    return BANYAN_OK;
}

const saved_model *checkpoint_saved(const banyan_checkpoint *checkpoint)
{
    return checkpoint->saved.files ? &checkpoint->saved : NULL;
}

const checkpoint_file *checkpoint_file_of(const banyan_checkpoint *checkpoint, size_t i)
{
    return &checkpoint->files.data[checkpoint->tensors.data[i].file];
}

_Atomic uint64_t *checkpoint_bytes_read(const banyan_checkpoint *checkpoint)
{
    return checkpoint->bytes_read;
}

uint64_t banyan_checkpoint_bytes_read(const banyan_checkpoint *checkpoint)
{
    return atomic_load(checkpoint->bytes_read);
}

int banyan_checkpoint_rank_count(const banyan_checkpoint *checkpoint)
{
    return checkpoint->saved.files ? (int)checkpoint->saved.index.files.count : 0;
}

void banyan_checkpoint_add_layout(const banyan_checkpoint *checkpoint, int rank,
                                  banyan_layout *layout)
{
    if (rank >= 0 && rank < banyan_checkpoint_rank_count(checkpoint))
        saved_model_add_layout(&checkpoint->saved, (size_t)rank, layout);
}

static banyan_status open_folder(banyan_checkpoint *checkpoint)
{
    char *index = path_join(checkpoint->path, INDEX_NAME);
    char *single = path_join(checkpoint->path, SINGLE_NAME);
    char *saved = path_join(checkpoint->path, CHECKPOINT_INDEX_NAME);
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    if (!index || !single || !saved)
        goto free_paths;
    bool has_index = access(index, F_OK) == 0, has_single = access(single, F_OK) == 0;
    bool has_saved = access(saved, F_OK) == 0;
    if (has_saved && (has_index || has_single))
        status = fail_two_models(checkpoint, has_index ? INDEX_NAME : SINGLE_NAME,
                                 CHECKPOINT_INDEX_NAME);
    else if (has_index)
        status = open_index(checkpoint, index, has_single);
    else if (has_single)
        status = checkpoint_read_add_file(checkpoint, single, NULL, NULL);
    else if (has_saved)
        status = open_saved(checkpoint);
    else
        status = error_set(BANYAN_ERR_NOT_FOUND, "%s has no %s, %s or %s", checkpoint->path,
                           INDEX_NAME, SINGLE_NAME, CHECKPOINT_INDEX_NAME);
free_paths:
    free(index);
    free(single);
    free(saved);
    return status;
}

static banyan_status checkpoint_read_open_file(banyan_checkpoint *checkpoint)
{
    return checkpoint_read_add_file(checkpoint, checkpoint->path, NULL, NULL);
}

static banyan_status open_path(banyan_checkpoint *checkpoint)
{
    struct stat info;
    if (stat(checkpoint->path, &info) != 0 && errno == ENOENT)
        return error_set(BANYAN_ERR_NOT_FOUND, "there is no %s", checkpoint->path);
    if (stat(checkpoint->path, &info) != 0)
        return error_set_errno("looking at %s", checkpoint->path);
    return S_ISDIR(info.st_mode) ? open_folder(checkpoint) : checkpoint_read_open_file(checkpoint);
}

static banyan_status open_with(banyan_status (*open)(banyan_checkpoint *checkpoint),
                               const char *path, banyan_checkpoint **checkpoint)
{
    banyan_checkpoint *opened = calloc(1, sizeof *opened);
    char *copy = strdup(path);
    _Atomic uint64_t *bytes_read = calloc(1, sizeof *bytes_read);
    if (!opened || !copy || !bytes_read) {
        free(opened);
        free(copy);
        free(bytes_read);
        return error_no_memory(sizeof *opened + strlen(path), "a checkpoint");
    }
    opened->path = copy;
    opened->bytes_read = bytes_read;
    banyan_status status = open(opened);
    if (status != BANYAN_OK) {
        banyan_checkpoint_close(opened);
        return status;
    }
    for (size_t i = 0; i < opened->tensors.count; i++)
        opened->tensors.data[i].data.shape = opened->tensors.data[i].tensor.shape;
    *checkpoint = opened;
    return BANYAN_OK;
}

banyan_status banyan_checkpoint_open(const char *path, banyan_checkpoint **checkpoint)
{
    return open_with(open_path, path, checkpoint);
}

banyan_status checkpoint_open_file(const char *path, banyan_checkpoint **checkpoint)
{
    return open_with(checkpoint_read_open_file, path, checkpoint);
}

void banyan_checkpoint_close(banyan_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->files.count; i++)
        munmap(checkpoint->files.data[i].base, checkpoint->files.data[i].bytes);
    saved_model_close(&checkpoint->saved);
    array_free(&checkpoint->files);
    array_free(&checkpoint->tensors);
    map_free(&checkpoint->by_name);
    names_free(&checkpoint->names);
    free(checkpoint->extra);
    free(checkpoint->bytes_read);
    free(checkpoint->path);
    free(checkpoint);
}

size_t banyan_checkpoint_tensor_count(const banyan_checkpoint *checkpoint)
{
    return checkpoint->tensors.count;
}

const banyan_local_tensor *banyan_checkpoint_tensor(const banyan_checkpoint *checkpoint, size_t i)
{
    return &checkpoint->tensors.data[i].tensor;
}

const DLTensor *banyan_checkpoint_data(const banyan_checkpoint *checkpoint, size_t i)
{
    return checkpoint_saved(checkpoint) ? NULL : &checkpoint->tensors.data[i].data;
}

banyan_status banyan_checkpoint_find(const banyan_checkpoint *checkpoint, const char *name,
                                     size_t *i)
{
    uint64_t found;
    if (!map_get_string(&checkpoint->by_name, name, &found))
        return error_set(BANYAN_ERR_NOT_FOUND, "%s has no tensor %s", checkpoint->path, name);
    *i = (size_t)found;
    return BANYAN_OK;
}
