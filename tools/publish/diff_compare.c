/* Two checkpoints, compared by several threads without memory for either. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/progress.h"
#include "core/status.h"
#include "publish/diff.h"
#include "publish/whole_tensor.h"

#define MAX_THREADS 8
/* Elements that a thread takes at once: a multiple of a part of what travels (delta/stream.h). */
#define SLICE_ELEMS ((uint64_t)4 << 20)

/* A range of a tensor's elements. */
struct slice {
    size_t tensor;
    uint64_t first, elems;
};

struct comparing {
    diff *of;
    struct slice *slices;
    size_t count;
    atomic_size_t next;
    pthread_mutex_t lock; /* of the sums, the bar and the error */
    progress bar;
    error_kept failed;
};

static bool diff_compare_equal_types(const banyan_local_tensor *a, const banyan_local_tensor *b)
{
    bool equal = a->ndim == b->ndim && banyan_dtype_equal(a->dtype, b->dtype);
    for (int d = 0; d < a->ndim && equal; d++)
        equal = a->shape[d] == b->shape[d];
    return equal;
}

double diff_share(const banyan_delta_size *size)
{
    return size->elems > 0 ? (double)size->changed / (double)size->elems : 0;
}

const char *diff_type(const banyan_local_tensor *tensor, char text[DIFF_TYPE_BYTES])
{
    int used = snprintf(text, DIFF_TYPE_BYTES, "%s [", banyan_dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->ndim && used < DIFF_TYPE_BYTES - 32; d++)
        used += snprintf(text + used, DIFF_TYPE_BYTES - (size_t)used, "%s%" PRId64,
                         d > 0 ? ", " : "", tensor->shape[d]);
    snprintf(text + used, DIFF_TYPE_BYTES - (size_t)used, "]");
    return text;
}

/* ---- a slice ---- */

/* A tensor in memory of its own, read from a saved folder. */
struct loaded {
    banyan_layout *layout;
    banyan_tensors *tensors;
};

static void loaded_free(struct loaded *from)
{
    banyan_tensors_destroy(from->tensors);
    banyan_layout_destroy(from->layout);
}

/* Ranks saved the tensor in several parts. */
static banyan_status load_tensor(const banyan_checkpoint *checkpoint,
                                 const banyan_local_tensor *tensor, struct loaded *to)
{
    banyan_checkpoint_options options = BANYAN_CHECKPOINT_OPTIONS_INIT;
    options.thread_count = 1;
    RETURN_IF_FAILED(banyan_layout_create(&to->layout));
    whole_tensor_add(to->layout, tensor);
    RETURN_IF_FAILED(banyan_tensors_alloc(to->layout, NULL, &to->tensors));
    return banyan_checkpoint_load(checkpoint, to->layout, to->tensors, &options);
}

/* Find a tensor's data, in the mapped file or in `to`. */
static banyan_status find_data(const banyan_checkpoint *checkpoint,
                               const banyan_local_tensor *tensor, size_t index, struct loaded *to,
                               DLTensor *data)
{
    const DLTensor *mapped = banyan_checkpoint_data(checkpoint, index);
    if (!mapped)
        RETURN_IF_FAILED(load_tensor(checkpoint, tensor, to));
    *data = mapped ? *mapped : *banyan_tensors_get(to->tensors, 0);
    return BANYAN_OK;
}

/* Narrow a dense tensor to a range of its elements. */
static void narrow(DLTensor *data, const struct slice *slice, int64_t *elems)
{
    data->data =
        (char *)data->data + data->byte_offset + slice->first * banyan_dtype_bytes(data->dtype);
    data->byte_offset = 0;
    *elems = (int64_t)slice->elems;
    data->ndim = 1;
    data->shape = elems;
    data->strides = NULL;
}

static banyan_status compare_slice(const diff *of, const struct slice *slice,
                                   banyan_delta_size *size)
{
    const diff_tensor *tensor = &of->tensors[slice->tensor];
    struct loaded old = {0}, new = {0};
    DLTensor before, after;
    int64_t elems;
    banyan_status status =
        find_data(of->before, tensor->before, tensor->before_index, &old, &before);
    if (status == BANYAN_OK)
        status = find_data(of->after, tensor->after, tensor->after_index, &new, &after);
    if (status == BANYAN_OK) {
        narrow(&before, slice, &elems);
        narrow(&after, slice, &elems);
        status = banyan_delta_measure(&before, &after, size);
    }
    loaded_free(&old);
    loaded_free(&new);
    return status;
}

static void *compare_slices(void *argument)
{
    struct comparing *all = argument;
    for (;;) {
        size_t i = atomic_fetch_add(&all->next, 1);
        if (i >= all->count)
            return NULL;
        const struct slice *slice = &all->slices[i];
        diff_tensor *tensor = &all->of->tensors[slice->tensor];
        banyan_delta_size found;
        banyan_status status = compare_slice(all->of, slice, &found);
        pthread_mutex_lock(&all->lock);
        if (status == BANYAN_OK) {
            tensor->size.changed += found.changed;
            tensor->size.bytes += found.bytes;
            progress_add(&all->bar, slice->elems * banyan_dtype_bytes(tensor->after->dtype));
        } else if (all->failed.status == BANYAN_OK) {
            all->failed = error_keep(status);
            atomic_store(&all->next, all->count);
        }
        pthread_mutex_unlock(&all->lock);
    }
}

/* ---- all tensors ---- */

/* Cut the tensors of mapped files. Those of saved folders stay whole: each is read once. */
static banyan_status cut(struct comparing *all)
{
    const diff *of = all->of;
    bool whole =
        banyan_checkpoint_rank_count(of->before) > 0 || banyan_checkpoint_rank_count(of->after) > 0;
    uint64_t most = whole ? UINT64_MAX : SLICE_ELEMS;
    size_t slices = 0;
    for (size_t i = 0; i < of->count; i++)
        slices += of->tensors[i].comparable ? 1 + of->tensors[i].size.elems / most : 0;
    all->slices = calloc(slices + 1, sizeof *all->slices);
    if (!all->slices)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu tensors", of->count);
    for (size_t i = 0; i < of->count; i++) {
        uint64_t left = of->tensors[i].comparable ? of->tensors[i].size.elems : 0;
        for (uint64_t first = 0, some; left > 0; first += some, left -= some) {
            some = left < most ? left : most;
            all->slices[all->count++] = (struct slice){i, first, some};
        }
    }
    return BANYAN_OK;
}

static int count_threads(size_t work)
{
    cpu_set_t mine;
    int threads = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    return work < (size_t)threads ? (int)work : threads;
}

static banyan_status diff_compare_all(diff *of)
{
    struct comparing all = {.of = of, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[MAX_THREADS];
    int started = 0;
    uint64_t bytes = 0;
    RETURN_IF_FAILED(cut(&all));
    for (size_t i = 0; i < of->count; i++)
        bytes += of->tensors[i].comparable ? of->tensors[i].bytes : 0;
    progress_begin(&all.bar, true, "comparing", bytes, true);
    for (int i = count_threads(all.count); i > 1; i--)
        started += pthread_create(&threads[started], NULL, compare_slices, &all) == 0;
    compare_slices(&all);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    progress_end(&all.bar);
    free(all.slices);
    return all.failed.status == BANYAN_OK
               ? BANYAN_OK
               : banyan_error_set(all.failed.status, "%s", all.failed.message);
}

/* List the tensors of both. */
static banyan_status list_tensors(diff *made)
{
    size_t before = banyan_checkpoint_tensor_count(made->before);
    size_t after = banyan_checkpoint_tensor_count(made->after), index;
    made->tensors = calloc(before + after + 1, sizeof *made->tensors);
    if (!made->tensors)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu tensors",
                                before + after);
    for (size_t i = 0; i < before; i++) {
        const banyan_local_tensor *old = banyan_checkpoint_tensor(made->before, i);
        diff_tensor *tensor = &made->tensors[made->count++];
        *tensor =
            (diff_tensor){.before = old, .before_index = i, .size.elems = whole_tensor_elems(old)};
        tensor->bytes = whole_tensor_bytes(old);
        if (banyan_checkpoint_find(made->after, old->name, &index) != BANYAN_OK)
            continue;
        const banyan_local_tensor *new = banyan_checkpoint_tensor(made->after, index);
        tensor->after = new;
        tensor->after_index = index;
        tensor->comparable = diff_compare_equal_types(old, new);
        tensor->bytes = whole_tensor_bytes(new);
    }
    for (size_t i = 0; i < after; i++) {
        const banyan_local_tensor *new = banyan_checkpoint_tensor(made->after, i);
        if (banyan_checkpoint_find(made->before, new->name, &index) == BANYAN_OK)
            continue;
        made->tensors[made->count++] =
            (diff_tensor){.after = new, .after_index = i, .bytes = whole_tensor_bytes(new)};
    }
    return BANYAN_OK;
}

banyan_status diff_make(diff *made, const char *before, const char *after)
{
    *made = (diff){.before_path = before, .after_path = after};
    RETURN_IF_FAILED(banyan_checkpoint_open(before, &made->before));
    RETURN_IF_FAILED(banyan_checkpoint_open(after, &made->after));
    RETURN_IF_FAILED(list_tensors(made));
    return diff_compare_all(made);
}

void diff_free(diff *made)
{
    free(made->tensors);
    banyan_checkpoint_close(made->after);
    banyan_checkpoint_close(made->before);
}

diff_total diff_sum(const diff *made)
{
    diff_total total = {0};
    for (size_t i = 0; i < made->count; i++) {
        const diff_tensor *tensor = &made->tensors[i];
        if (!tensor->comparable) {
            total.only_before += !tensor->after;
            total.only_after += !tensor->before;
            total.different += tensor->before && tensor->after;
            continue;
        }
        total.compared++;
        total.changed += tensor->size.changed > 0;
        total.size.elems += tensor->size.elems;
        total.size.changed += tensor->size.changed;
        total.size.bytes += tensor->size.bytes;
        total.bytes += tensor->bytes;
    }
    return total;
}
