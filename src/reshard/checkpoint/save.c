/* Save the tensors of a layout's ranks: first files without names, then one hidden folder, which is
 * renamed last. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file.h"
#include "reshard/checkpoint/index.h"
#include "reshard/checkpoint/write.h"
#include "world/control.h"

#define FILE_NAME "model.safetensors"

struct save {
    const char *folder;
    const banyan_layout *layout;
    const banyan_tensors *tensors;
    banyan_world *world;
    banyan_checkpoint_options options;
    size_t count;          /* of tensors; 0: this rank has no file */
    int file_count;        /* of all ranks */
    uint64_t all_bytes;    /* of all ranks' tensors */
    new_file file;         /* -1 when there is none */
    char rank_name[32];    /* "rank-00000": the number counts ranks with a file */
    char hidden[PATH_MAX]; /* the folder's name until it is complete */
    int lock;              /* of the hidden folder; -1: none */
};

static bool save_is_first(const struct save *save)
{
    return banyan_world_rank(save->world) == 0;
}

static uint64_t save_set_bytes(const struct save *save)
{
    return checkpoint_tensors_bytes(banyan_tensors_get(save->tensors, 0), save->count);
}

static banyan_status write_tensors(struct save *save, const char *parent)
{
    const char **tensor_names = alloc_zeroed(save->count, sizeof *tensor_names, "tensors' names");
    RETURN_IF_NO_MEMORY(tensor_names);
    for (size_t i = 0; i < save->count; i++)
        tensor_names[i] = banyan_layout_tensor(save->layout, i)->name;
    progress_state progress = {&save->options, 0, save_set_bytes(save)};
    char what[PATH_MAX + 96];
    int used = snprintf(what, PATH_MAX, "%s/%s/" FILE_NAME, save->folder, save->rank_name);
    if (save->file_count > 1 && used < PATH_MAX)
        snprintf(what + used, sizeof what - (size_t)used,
                 " (one of %d files with %" PRIu64 " bytes of tensors together)", save->file_count,
                 save->all_bytes);
    banyan_status status =
        checkpoint_write_tensors(parent, what, tensor_names, banyan_tensors_get(save->tensors, 0),
                                 save->count, &progress, &save->file);
    free(tensor_names);
    return status;
}

static banyan_status save_check_arguments(struct save *save)
{
    if (!save->layout != !save->tensors)
        return error_set(BANYAN_ERR_INVALID, "a layout is saved together with its tensors");
    size_t count = save->layout ? banyan_layout_tensor_count(save->layout) : 0;
    if (save->layout)
        RETURN_IF_FAILED(banyan_layout_check(save->layout));
    if (save->layout && banyan_tensors_count(save->tensors) != count)
        return error_set(BANYAN_ERR_INVALID, "the layout has %zu tensors and the set %zu", count,
                         banyan_tensors_count(save->tensors));
    save->count = count;
    if (save_is_first(save))
        RETURN_IF_FAILED(small_files_check(save->options.small_files_from));
    return new_folder_check(save->folder);
}

static banyan_status save_write_file(struct save *save)
{
    char *parent = path_parent(save->folder);
    RETURN_IF_NO_MEMORY(parent);
    banyan_status status = save->count > 0 ? write_tensors(save, parent) : BANYAN_OK;
    free(parent);
    return status;
}

/* A rank's file as the other ranks need to know it. */
struct holding {
    uint64_t files, bytes; /* 0 or 1 */
};

/* Number the ranks with a file from 0, if all have succeeded so far. Collective. */
static banyan_status number_file(struct save *save, banyan_status status)
{
    struct holding mine = {save->count > 0, save->count > 0 ? save_set_bytes(save) : 0};
    void *gathered;
    int before = 0;
    RETURN_IF_FAILED(
        control_gather(save->world, status, &mine, sizeof mine, "a list of ranks", &gathered));
    const struct holding *all = gathered;
    for (int rank = 0; rank < banyan_world_size(save->world); rank++) {
        before += rank < banyan_world_rank(save->world) ? (int)all[rank].files : 0;
        save->file_count += (int)all[rank].files;
        save->all_bytes += all[rank].bytes;
    }
    snprintf(save->rank_name, sizeof save->rank_name, "rank-%05d", before);
    free(gathered);
    return BANYAN_OK;
}

/* Make the folder at rank 0 and send its name to all. Collective. */
static banyan_status make_folder(struct save *save)
{
    banyan_status mine = BANYAN_OK;
    char *made = NULL;
    if (save_is_first(save))
        mine = new_folder_make(save->folder, &made, &save->lock);
    if (made)
        snprintf(save->hidden, sizeof save->hidden, "%s", made);
    free(made);
    RETURN_IF_FAILED(control_agree(save->world, mine));
    RETURN_IF_FAILED(banyan_world_broadcast(save->world, save->hidden, sizeof save->hidden, 0));
    if (!save_is_first(save))
        save->lock = new_folder_lock(save->hidden);
    return BANYAN_OK;
}

static banyan_status place_file(struct save *save)
{
    if (save->count == 0)
        return BANYAN_OK;
    char *folder = path_join(save->hidden, save->rank_name);
    char *path = folder ? path_join(folder, FILE_NAME) : NULL;
    banyan_status status = path ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    if (path && mkdir(folder, 0777) != 0)
        status = error_set_errno("making %s", folder);
    if (status == BANYAN_OK)
        status = new_file_publish(&save->file, path);
    if (status == BANYAN_OK)
        status = folder_sync(folder);
    free(folder);
    free(path);
    return status;
}

/* Remove this rank's files from the hidden folder. The last rank to do so removes the folder. */
static void save_withdraw(const struct save *save)
{
    if (save->hidden[0] == '\0')
        return;
    char *folder = path_join(save->hidden, save->rank_name);
    if (folder && save->count > 0)
        new_folder_remove(folder);
    free(folder);
    if (save_is_first(save))
        new_folder_remove(save->hidden);
    rmdir(save->hidden);
}

static banyan_status my_part(const struct save *save, char **text)
{
    char file[64];
    *text = NULL;
    if (save->count == 0)
        return BANYAN_OK;
    snprintf(file, sizeof file, "%s/" FILE_NAME, save->rank_name);
    json_t *part = checkpoint_index_part(file, save->layout, save->tensors);
    RETURN_IF_NO_MEMORY(part);
    *text = json_dumps(part, JSON_COMPACT);
    json_decref(part);
    return *text ? BANYAN_OK : error_no_memory(1, "an index");
}

static banyan_status write_index(const struct save *save, const control_message *parts,
                                 size_t count)
{
    json_t *whole = checkpoint_index_begin();
    RETURN_IF_NO_MEMORY(whole);
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++)
        status = checkpoint_index_merge(whole, parts[i].data, parts[i].bytes);
    char *text = status == BANYAN_OK ? json_dumps(whole, JSON_COMPACT) : NULL;
    json_decref(whole);
    if (status == BANYAN_OK)
        status = text ? new_file_write_text(save->hidden, CHECKPOINT_INDEX_NAME, text)
                      : error_no_memory(1, "an index");
    free(text);
    return status;
}

/* Gather all parts at rank 0, which writes the index and renames the folder. Collective. */
static banyan_status finish_folder(struct save *save)
{
    char *text;
    banyan_status status = control_agree(save->world, my_part(save, &text));
    control_message mine = {0, text, text ? strlen(text) : 0}, *parts;
    size_t count;
    if (status == BANYAN_OK)
        status = control_exchange(save->world, &mine, text ? 1 : 0, "the index of a checkpoint",
                                  &parts, &count);
    free(text);
    RETURN_IF_FAILED(status);
    if (save_is_first(save))
        status = write_index(save, parts, count);
    control_messages_free(parts, count);
    if (save_is_first(save) && status == BANYAN_OK)
        status = small_files_copy(save->options.small_files_from, save->hidden);
    if (save_is_first(save) && status == BANYAN_OK)
        status = new_folder_publish(save->hidden, save->folder);
    return control_agree(save->world, status);
}

static banyan_status save_all(struct save *save, banyan_status options)
{
    RETURN_IF_FAILED(
        number_file(save, options == BANYAN_OK ? save_check_arguments(save) : options));
    RETURN_IF_FAILED(control_agree(save->world, save_write_file(save)));
    banyan_status status = make_folder(save);
    if (status == BANYAN_OK)
        status = control_agree(save->world, place_file(save));
    bool is_placed = status == BANYAN_OK;
    if (is_placed)
        status = finish_folder(save);
    /* Rank 0 may be renaming a folder whose files are all in place: it alone removes them then. */
    if (status != BANYAN_OK && (!is_placed || save_is_first(save)))
        save_withdraw(save);
    return status;
}

banyan_status banyan_checkpoint_save(const char *folder, const banyan_layout *layout,
                                     const banyan_tensors *tensors, banyan_world *world,
                                     const banyan_checkpoint_options *options)
{
    CONTROL_ENTER_WITHIN(world, CONTROL_TIMEOUT(options, banyan_checkpoint_options));
    struct save save = {.folder = folder,
                        .layout = layout,
                        .tensors = tensors,
                        .world = world,
                        .file.fd = -1,
                        .lock = -1};
    banyan_status taken = checkpoint_options_take(options, &save.options);
    banyan_status status = save_all(&save, taken);
    if (save.lock >= 0)
        close(save.lock);
    new_file_close(&save.file);
    return status;
}
