#include "reshard/checkpoint/fetch.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copy/strided/strided.h"
#include "core/error.h"
#include "core/files/file.h"
#include "core/interrupt.h"
#include "core/threads/thread.h"
#include "memory/device.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"
#include "reshard/run/convert.h"

#define MAX_THREADS 8

/* Runs with smaller gaps are read together. Such a gap holds no whole page, so no page is read that
 * has nothing of the box. */
#define GAP_BYTES 4096
#define SPAN_BYTES ((size_t)256 << 10) /* of runs that are read together */
#define SPAN_RUNS 1024

/* Strided places get runs of at least this size directly, and shorter ones by a dense copy. */
#define DIRECT_BYTES 512

/* A box in its file, and in its place. */
typedef struct fetch_views {
    int64_t from_shape[BANYAN_MAX_DIMS], from_strides[BANYAN_MAX_DIMS];
    int64_t to_shape[BANYAN_MAX_DIMS], to_strides[BANYAN_MAX_DIMS];
    DLTensor from, to;
} fetch_views;

static void fetch_view(const fetch_part *part, fetch_views *views)
{
    banyan_piece whole = {.ndim = part->to->ndim,
                          .box = box_whole(part->to->ndim, part->to->shape)};
    for (int d = 0; d < whole.ndim; d++)
        whole.dim_map[d] = d;
    piece_view(part->from ? part->from : &whole, &part->box, part->data, views->from_shape,
               views->from_strides, &views->from);
    piece_view(part->to, &part->box, part->local, views->to_shape, views->to_strides, &views->to);
}

static uint64_t view_offset(const fetch_part *part, const fetch_views *views)
{
    const char *first = (const char *)views->from.data + views->from.byte_offset;
    return (uint64_t)(first - (const char *)part->file->base);
}

banyan_status fetch_add(fetch_parts *parts, const fetch_part *part)
{
    if (banyan_box_elems(&part->box) == 0)
        return BANYAN_OK;
    execution_blocks cut = execution_blocks_of(&part->box, banyan_dtype_bytes(part->data->dtype),
                                               CHECKPOINT_BUFFER_BYTES);
    RETURN_IF_NO_MEMORY(array_reserve(parts, cut.count));
    for (uint64_t i = 0; i < cut.count; i++) {
        fetch_views views;
        fetch_part one = *part;
        one.box = execution_block_at(&cut, &part->box, i);
        fetch_view(&one, &views);
        one.offset = view_offset(&one, &views);
        parts->data[parts->count++] = one;
    }
    return BANYAN_OK;
}

/* ---- reading runs of a file ---- */

typedef struct fetch_run_of {
    uint64_t offset;
    char *to;
} fetch_run_of;

/* One thread's open file and buffers. */
typedef struct fetch_reader {
    const checkpoint_file *file; /* NULL: none is open */
    int fd;
    char *span;  /* SPAN_BYTES */
    char *dense; /* a part, in the file's type */
    char *cast;  /* a part, in the place's type; NULL until it is needed */
    size_t cast_bytes;
    uint64_t read; /* bytes */
    /* Runs that are not read yet, of `run_bytes` each. */
    fetch_run_of runs[SPAN_RUNS];
    size_t run_count, run_bytes;
} fetch_reader;

static banyan_status reader_open(fetch_reader *reader, const checkpoint_file *file)
{
    struct stat now;
    uint64_t bytes;
    if (reader->file == file)
        return BANYAN_OK;
    if (reader->file)
        close(reader->fd);
    reader->file = NULL;
    RETURN_IF_FAILED(file_open(file->path, &reader->fd, &bytes));
    reader->file = file;
    if (fstat(reader->fd, &now) != 0)
        return error_set_errno("looking at %s", file->path);
    if (now.st_ino != file->inode || now.st_dev != file->device || bytes != file->bytes)
        return error_set(BANYAN_ERR_FORMAT,
                         "%s has changed since it was opened: it had %zu bytes, and has %" PRIu64,
                         file->path, file->bytes, bytes);
    return BANYAN_OK;
}

static banyan_status reader_read(fetch_reader *reader, uint64_t offset, char *to, size_t bytes)
{
    reader->read += bytes;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(reader->fd, to + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno("reading %zu bytes from byte %" PRIu64 " of %s", bytes, offset,
                                   reader->file->path);
        if (got == 0)
            return error_set(BANYAN_ERR_FORMAT,
                             "%s ends at byte %" PRIu64 " and had %zu bytes when it was opened",
                             reader->file->path, offset + done, reader->file->bytes);
        done += (size_t)got;
    }
    return BANYAN_OK;
}

/* Read the runs that wait. */
static banyan_status reader_flush(fetch_reader *reader)
{
    size_t count = reader->run_count;
    reader->run_count = 0;
    if (count == 1)
        return reader_read(reader, reader->runs[0].offset, reader->runs[0].to, reader->run_bytes);
    if (count == 0)
        return BANYAN_OK;
    uint64_t first = reader->runs[0].offset;
    size_t bytes = (size_t)(reader->runs[count - 1].offset - first) + reader->run_bytes;
    RETURN_IF_FAILED(reader_read(reader, first, reader->span, bytes));
    for (size_t i = 0; i < count; i++)
        memcpy(reader->runs[i].to, reader->span + (reader->runs[i].offset - first),
               reader->run_bytes);
    return BANYAN_OK;
}

static banyan_status reader_add_run(fetch_reader *reader, uint64_t offset, char *to)
{
    if (reader->run_count > 0) {
        uint64_t first = reader->runs[0].offset;
        uint64_t end = reader->runs[reader->run_count - 1].offset + reader->run_bytes;
        bool joins = offset >= end && offset - end < GAP_BYTES &&
                     offset + reader->run_bytes - first <= SPAN_BYTES &&
                     reader->run_count < SPAN_RUNS;
        if (!joins)
            RETURN_IF_FAILED(reader_flush(reader));
    }
    reader->runs[reader->run_count++] = (fetch_run_of){offset, to};
    return BANYAN_OK;
}

/* Return the first of the trailing dimensions along which both strides are dense. `*elems`: their
 * elements. */
static int run_dims(const DLTensor *tensor, const int64_t *strides, const int64_t *other,
                    int64_t *elems)
{
    int d = tensor->ndim;
    *elems = 1;
    while (d > 0 && (tensor->shape[d - 1] == 1 ||
                     (strides[d - 1] == *elems && (!other || other[d - 1] == *elems))))
        *elems *= tensor->shape[--d];
    return d;
}

/* Read a box, whose runs are the dimensions from `dims` on, into memory with these strides. */
static banyan_status reader_read_box(fetch_reader *reader, const DLTensor *from, uint64_t offset,
                                     int dims, int64_t run_elems, char *to,
                                     const int64_t *to_strides)
{
    int64_t at[BANYAN_MAX_DIMS] = {0}, bytes = (int64_t)banyan_dtype_bytes(from->dtype);
    reader->run_bytes = (size_t)(run_elems * bytes);
    for (;;) {
        RETURN_IF_FAILED(reader_add_run(reader, offset, to));
        int d = dims - 1;
        for (; d >= 0; d--) {
            offset += (uint64_t)(from->strides[d] * bytes);
            to += to_strides[d] * bytes;
            if (++at[d] < from->shape[d])
                break;
            offset -= (uint64_t)(at[d] * from->strides[d] * bytes);
            to -= at[d] * to_strides[d] * bytes;
            at[d] = 0;
        }
        if (d < 0)
            return reader_flush(reader);
    }
}

/* ---- places ---- */

banyan_status fetch_upload(const DLTensor *to, const void *dense)
{
    const memory_device_ops *ops;
    strided_view view;
    RETURN_IF_FAILED(memory_device_find(kDLCUDA, &ops));
    RETURN_IF_FAILED(strided_view_anywhere(to, &view));
    if (strided_view_is_dense(&view))
        return ops->copy(view.data, dense, view.elems * view.elem_bytes);
    /* The last loop of a view is its longest run, if its elements are contiguous. */
    int loops = view.ndim - (view.stride[view.ndim - 1] == (int64_t)view.elem_bytes);
    size_t run = view.elem_bytes * (size_t)(loops < view.ndim ? view.extent[loops] : 1);
    int64_t at[BANYAN_MAX_DIMS] = {0};
    char *place = view.data;
    for (const char *from = dense;; from += run) {
        RETURN_IF_FAILED(ops->copy(place, from, run));
        int d = loops - 1;
        for (; d >= 0; d--) {
            place += view.stride[d];
            if (++at[d] < view.extent[d])
                break;
            place -= at[d] * view.stride[d];
            at[d] = 0;
        }
        if (d < 0)
            return BANYAN_OK;
    }
}

/* Return a dense tensor like `to` in the reader's own memory. */
static banyan_status reader_cast_tensor(fetch_reader *reader, const DLTensor *to, DLTensor *host)
{
    size_t bytes = banyan_dtype_bytes(to->dtype);
    for (int d = 0; d < to->ndim; d++)
        bytes *= (size_t)to->shape[d];
    if (reader->cast_bytes < bytes) {
        free(reader->cast);
        reader->cast = malloc(bytes);
        reader->cast_bytes = reader->cast ? bytes : 0;
        if (!reader->cast)
            return error_no_memory(bytes, "a converted part of a tensor");
    }
    host->data = reader->cast;
    host->byte_offset = 0;
    host->strides = NULL;
    return BANYAN_OK;
}

/* Bring a dense part, in the file's type, to its place. */
static banyan_status reader_place(fetch_reader *reader, const fetch_part *part, const DLTensor *to,
                                  const DLTensor *dense)
{
    bool same = !part->map && banyan_dtype_equal(to->dtype, dense->dtype);
    DLTensor host = *to;
    host.device = BANYAN_HOST;
    if (part->on_device && same)
        return fetch_upload(to, dense->data);
    if (part->on_device)
        RETURN_IF_FAILED(reader_cast_tensor(reader, to, &host));
    if (same)
        return banyan_tensor_copy(&host, dense);
    RETURN_IF_FAILED(part->map ? value_map_apply(part->map, &host, dense)
                               : convert_tensor(&host, dense));
    return part->on_device ? fetch_upload(to, host.data) : BANYAN_OK;
}

static banyan_status reader_fetch(fetch_reader *reader, const fetch_part *part)
{
    fetch_views views;
    int64_t own_elems, elems, dense_strides[BANYAN_MAX_DIMS];
    fetch_view(part, &views);
    const DLTensor *from = &views.from, *to = &views.to;
    RETURN_IF_FAILED(reader_open(reader, part->file));
    int own = run_dims(from, from->strides, NULL, &own_elems);
    int dims = run_dims(from, from->strides, to->strides, &elems);
    size_t elem_bytes = banyan_dtype_bytes(from->dtype);
    if (!part->map && banyan_dtype_equal(from->dtype, to->dtype) && !part->on_device &&
        (elems == own_elems || (size_t)elems * elem_bytes >= DIRECT_BYTES))
        return reader_read_box(reader, from, part->offset, dims, elems,
                               (char *)to->data + to->byte_offset, to->strides);
    DLTensor dense = {.data = reader->dense,
                      .device = {kDLCPU, 0},
                      .ndim = from->ndim,
                      .dtype = from->dtype,
                      .shape = from->shape,
                      .strides = dense_strides};
    int64_t stride = 1;
    for (int d = from->ndim - 1; d >= 0; d--) {
        dense_strides[d] = stride;
        stride *= from->shape[d];
    }
    RETURN_IF_FAILED(
        reader_read_box(reader, from, part->offset, own, own_elems, reader->dense, dense_strides));
    return reader_place(reader, part, to, &dense);
}

/* ---- threads ---- */

typedef struct fetch_job {
    const fetch_parts *parts;
    progress_state *progress;
    _Atomic uint64_t *bytes_read;
    _Atomic size_t next;
    _Atomic uint64_t done;
    _Atomic bool failed;
    pthread_mutex_t lock; /* of `error` */
    error_kept error;     /* the first one */
} fetch_job;

static uint64_t part_bytes(const fetch_part *part)
{
    return banyan_box_elems(&part->box) * banyan_dtype_bytes(part->local->dtype);
}

static void fetch_fail(fetch_job *job, banyan_status status)
{
    pthread_mutex_lock(&job->lock);
    if (!atomic_exchange(&job->failed, true))
        job->error = error_keep(status);
    pthread_mutex_unlock(&job->lock);
}

static void fetch_work(fetch_job *job, bool is_caller)
{
    fetch_reader *reader = alloc_zeroed(1, sizeof *reader, "a reader of files");
    char *buffers = malloc(SPAN_BYTES + CHECKPOINT_BUFFER_BYTES);
    banyan_status status = BANYAN_OK;
    if (!reader || !buffers)
        status = error_no_memory(SPAN_BYTES + CHECKPOINT_BUFFER_BYTES, "the buffers of a reader");
    else {
        reader->span = buffers;
        reader->dense = buffers + SPAN_BYTES;
    }
    while (status == BANYAN_OK && !atomic_load(&job->failed)) {
        size_t i = atomic_fetch_add(&job->next, 1);
        if (i >= job->parts->count)
            break;
        const fetch_part *part = &job->parts->data[i];
        status = is_caller && interrupt_requested()
                     ? error_set(BANYAN_ERR_ABORTED, "the program interrupted the reading of %s",
                                 part->file->path)
                     : reader_fetch(reader, part);
        if (status == BANYAN_OK)
            atomic_fetch_add(&job->done, part_bytes(part));
        if (is_caller && status == BANYAN_OK)
            progress_add(job->progress, atomic_load(&job->done) - job->progress->done);
    }
    if (status != BANYAN_OK)
        fetch_fail(job, status);
    if (reader) {
        atomic_fetch_add(job->bytes_read, reader->read);
        if (reader->file)
            close(reader->fd);
        free(reader->cast);
    }
    free(buffers);
    free(reader);
}

static void *fetch_thread(void *job)
{
    fetch_work(job, false);
    return NULL;
}

static int compare_parts(const void *a, const void *b)
{
    const fetch_part *one = a, *other = b;
    RETURN_IF_UNEQUAL((uintptr_t)one->file, (uintptr_t)other->file);
    return COMPARE(one->offset, other->offset);
}

static int processors(void)
{
    cpu_set_t mine;
    return sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
}

banyan_status fetch_run(fetch_parts *parts, int thread_count, progress_state *progress,
                        _Atomic uint64_t *bytes_read)
{
    pthread_t threads[MAX_THREADS];
    fetch_job job = {.parts = parts,
                     .progress = progress,
                     .bytes_read = bytes_read,
                     .lock = PTHREAD_MUTEX_INITIALIZER};
    int count = thread_count > 0 ? thread_count : processors(), started = 0;
    array_sort(parts, compare_parts);
    if (parts->count == 0)
        return BANYAN_OK;
    /* The caller is one of them. Fewer threads are slower, and no error. */
    while (started + 1 < count && started < MAX_THREADS - 1 && (size_t)started + 1 < parts->count &&
           thread_start(&threads[started], fetch_thread, &job, false) == BANYAN_OK)
        started++;
    fetch_work(&job, true);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (atomic_load(&job.failed))
        return error_again(&job.error);
    progress_add(progress, job.done - progress->done);
    return BANYAN_OK;
}
