#include "reshard/checkpoint/write.h"

#include <stdlib.h>
#include <string.h>

#include "copy/strided/strided.h"
#include "core/error.h"
#include "core/files/file.h"
#include "memory/device.h"

void progress_add(progress_state *progress, uint64_t bytes)
{
    const banyan_checkpoint_options *options = progress->options;
    progress->done += bytes;
    if (options->progress)
        options->progress(options->progress_context, progress->done, progress->total);
}

banyan_status checkpoint_options_take(const banyan_checkpoint_options *options,
                                      banyan_checkpoint_options *taken)
{
    *taken = (banyan_checkpoint_options)BANYAN_CHECKPOINT_OPTIONS_INIT;
    return options_take(options, "BANYAN_CHECKPOINT_OPTIONS_INIT", taken, sizeof *taken);
}

uint64_t checkpoint_tensors_bytes(const DLTensor *tensors, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t tensor = banyan_dtype_bytes(tensors[i].dtype);
        for (int d = 0; d < tensors[i].ndim; d++)
            tensor *= (uint64_t)tensors[i].shape[d];
        bytes += tensor;
    }
    return bytes;
}

/* A tensor and its place in the file. */
struct placed {
    safetensors_entry *entries; /* in the order of their data */
    size_t *tensor;             /* of each entry */
    size_t count;
};

static void placed_free(struct placed *placed)
{
    free(placed->entries);
    free(placed->tensor);
}

static banyan_status checkpoint_write_check_tensor(const char *name, const DLTensor *tensor)
{
    strided_view view;
    char place[DEVICE_TEXT_BYTES];
    DLDevice lies;
    bool on_host;
    RETURN_IF_FAILED(tensor_lies_on_host(tensor, &on_host, &lies));
    if (!on_host)
        return error_set(
            BANYAN_ERR_INVALID,
            "tensor %s lies in %s, and checkpoints are saved from host memory: move it "
            "to tensors of banyan_tensors_alloc first",
            name, device_format(lies, place));
    if (strided_view_of(tensor, &view) != BANYAN_OK)
        return error_set(BANYAN_ERR_INVALID, "tensor %s cannot be written: %s", name,
                         banyan_last_error());
    return BANYAN_OK;
}

/* Larger elements first, so that all data is aligned as in memory. */
static banyan_status place_tensors(const char *const *tensor_names, const DLTensor *tensors,
                                   size_t count, struct placed *placed)
{
    struct placed made = {calloc(count + 1, sizeof *made.entries),
                          calloc(count + 1, sizeof *made.tensor), 0};
    banyan_status status = BANYAN_OK;
    if (!made.entries || !made.tensor)
        status = error_no_memory(count * sizeof *made.entries, "a file's tensors");
    for (size_t i = 0; i < count && status == BANYAN_OK; i++)
        status = checkpoint_write_check_tensor(tensor_names[i], &tensors[i]);
    for (size_t elem_bytes = 16; elem_bytes > 0 && status == BANYAN_OK; elem_bytes /= 2) {
        for (size_t i = 0; i < count; i++) {
            if (banyan_dtype_bytes(tensors[i].dtype) != elem_bytes)
                continue;
            banyan_local_tensor *tensor = &made.entries[made.count].tensor;
            tensor->name = tensor_names[i];
            tensor->dtype = tensors[i].dtype;
            tensor->ndim = tensors[i].ndim;
            for (int d = 0; d < tensor->ndim; d++)
                tensor->shape[d] = tensors[i].shape[d];
            made.tensor[made.count++] = i;
        }
    }
    if (status == BANYAN_OK && made.count != count)
        status = error_set(BANYAN_ERR_INVALID,
                           "a tensor to be written has a type of no whole number of bytes");
    if (status != BANYAN_OK) {
        placed_free(&made);
        return status;
    }
    *placed = made;
    return BANYAN_OK;
}

static banyan_status checkpoint_write_tensor(const new_file *file, const char *what,
                                             const safetensors_entry *entry, const DLTensor *tensor,
                                             void *buffer, progress_state *progress)
{
    strided_view view;
    RETURN_IF_FAILED(strided_view_of(tensor, &view));
    bool dense = strided_view_is_dense(&view);
    uint64_t chunk = CHECKPOINT_BUFFER_BYTES / view.elem_bytes;
    for (uint64_t i = 0; i < view.elems; i += chunk) {
        uint64_t some = view.elems - i < chunk ? view.elems - i : chunk;
        const void *data = dense ? view.data + i * view.elem_bytes : buffer;
        if (!dense)
            strided_pack(buffer, &view, i, some);
        RETURN_IF_FAILED(new_file_write(file, what, entry->offset + i * view.elem_bytes, data,
                                        (size_t)(some * view.elem_bytes)));
        progress_add(progress, some * view.elem_bytes);
    }
    return BANYAN_OK;
}

static banyan_status checkpoint_write_all(const new_file *file, const char *what, const void *head,
                                          size_t head_bytes, const struct placed *placed,
                                          const DLTensor *tensors, progress_state *progress)
{
    void *buffer = malloc(CHECKPOINT_BUFFER_BYTES);
    if (!buffer)
        return error_no_memory(CHECKPOINT_BUFFER_BYTES, "a buffer");
    banyan_status status = new_file_write(file, what, 0, head, head_bytes);
    for (size_t i = 0; i < placed->count && status == BANYAN_OK; i++)
        status = checkpoint_write_tensor(file, what, &placed->entries[i],
                                         &tensors[placed->tensor[i]], buffer, progress);
    free(buffer);
    return status == BANYAN_OK ? new_file_sync(file, what) : status;
}

static banyan_status write_placed(const char *folder, const char *what, struct placed *placed,
                                  const DLTensor *tensors, progress_state *progress, new_file *file)
{
    void *head;
    size_t head_bytes = 0;
    new_file made;
    RETURN_IF_FAILED(safetensors_format(placed->entries, placed->count, "pt", &head, &head_bytes));
    uint64_t end = head_bytes;
    for (size_t i = 0; i < placed->count; i++)
        end += placed->entries[i].bytes;
    banyan_status status = new_file_open(folder, what, end, &made);
    if (status == BANYAN_OK) {
        status = checkpoint_write_all(&made, what, head, head_bytes, placed, tensors, progress);
        if (status != BANYAN_OK)
            new_file_close(&made);
    }
    free(head);
    if (status == BANYAN_OK)
        *file = made;
    return status;
}

banyan_status checkpoint_write_tensors(const char *folder, const char *what,
                                       const char *const *tensor_names, const DLTensor *tensors,
                                       size_t count, progress_state *progress, new_file *file)
{
    struct placed placed;
    RETURN_IF_FAILED(place_tensors(tensor_names, tensors, count, &placed));
    banyan_status status = write_placed(folder, what, &placed, tensors, progress, file);
    placed_free(&placed);
    return status;
}

banyan_status banyan_checkpoint_write(const char *path, const char *const *tensor_names,
                                      const DLTensor *tensors, size_t count,
                                      const banyan_checkpoint_options *options)
{
    banyan_checkpoint_options taken;
    RETURN_IF_FAILED(checkpoint_options_take(options, &taken));
    progress_state progress = {&taken, 0, checkpoint_tensors_bytes(tensors, count)};
    char *folder = path_parent(path);
    new_file file;
    RETURN_IF_NO_MEMORY(folder);
    banyan_status status =
        checkpoint_write_tensors(folder, path, tensor_names, tensors, count, &progress, &file);
    if (status == BANYAN_OK) {
        status = new_file_publish(&file, path);
        new_file_close(&file);
    }
    if (status == BANYAN_OK)
        status = folder_sync(folder);
    free(folder);
    return status;
}
