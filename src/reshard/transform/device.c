#include "reshard/transform/device.h"

#include <string.h>

#include "core/error.h"
#include "reshard/transform/mxfp8_box.h"
#include "reshard/transform/object.h"

/* A tile of swizzled scales: rows are (tile, quarter, row of a quarter), columns (tile, scale). */
#define TILE_ROWS 128
#define TILE_COLS 4
#define QUARTERS 4
#define QUARTER_ROWS 32
#define TILE_BYTES 512

bool transform_runs_on_devices(const banyan_transform *transform)
{
    return transform_is_cast(transform) || transform_is_mxfp8(transform);
}

static banyan_status transform_device_unsupported(const banyan_transform_task *task,
                                                  const char *why)
{
    char box[256];
    return error_set(BANYAN_ERR_UNSUPPORTED,
                     "on a device tensor %s, box %s, local tensor %s: %s; this needs tensors in "
                     "host memory",
                     task->transfer->name, banyan_box_format(&task->transfer->box, box, sizeof box),
                     task->local_name, why);
}

/* Scales as a tensor of bytes, in the order of the box's blocks. */

/* Dimensions are added slowest first. */
typedef struct byte_tensor {
    int ndim;
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    int64_t offset;
} byte_tensor;

static bool add_dim(byte_tensor *made, int64_t extent, int64_t stride)
{
    if (made->ndim == BANYAN_MAX_DIMS)
        return false;
    made->shape[made->ndim] = extent;
    made->strides[made->ndim++] = stride;
    return true;
}

static bool plain_scales(const banyan_transform_task *task, const banyan_box *box,
                         const mxfp8_scales *scales, byte_tensor *made)
{
    int last = box->ndim - 1;
    for (int d = 0; d < last; d++)
        made->offset += box->start[d] * scales->stride[d];
    made->offset += box->start[last] / MXFP8_BLOCK * scales->stride[last];
    bool fits = true;
    for (int g = 0; g < task->local->ndim; g++) {
        int d = task->dim_map[g];
        int64_t extent = task->local->shape[g];
        if (d == BANYAN_NO_DIM)
            continue;
        fits &= add_dim(made, d == last ? extent / MXFP8_BLOCK : extent, scales->stride[d]);
    }
    return fits;
}

/* A view of swizzled scales exists only for whole tiles of a matrix whose rows come right before
 * its columns. */
static bool swizzled_scales(const banyan_transform_task *task, const banyan_box *box,
                            const mxfp8_scales *scales, byte_tensor *made)
{
    int cols = box->ndim - 1, rows = cols - 1, fastest = task->local->ndim - 1;
    if (rows < 0 || fastest < 1 || task->dim_map[fastest - 1] != rows ||
        box->start[rows] % TILE_ROWS != 0 || box->extent[rows] % TILE_ROWS != 0 ||
        box->start[cols] % (TILE_COLS * MXFP8_BLOCK) != 0 ||
        box->extent[cols] % (TILE_COLS * MXFP8_BLOCK) != 0)
        return false;
    int64_t tile_cols = TILE_COLS * MXFP8_BLOCK;
    int64_t matrix_bytes = scales->tile_rows * scales->tile_cols * TILE_BYTES;
    for (int d = 0; d < rows; d++)
        made->offset += box->start[d] * scales->stride[d] * matrix_bytes;
    made->offset +=
        (box->start[rows] / TILE_ROWS * scales->tile_cols + box->start[cols] / tile_cols) *
        TILE_BYTES;
    bool fits = true;
    for (int g = 0; g < fastest - 1; g++)
        if (task->dim_map[g] != BANYAN_NO_DIM)
            fits &= add_dim(made, task->local->shape[g],
                            scales->stride[task->dim_map[g]] * matrix_bytes);
    fits &= add_dim(made, box->extent[rows] / TILE_ROWS, scales->tile_cols * TILE_BYTES);
    fits &= add_dim(made, QUARTERS, TILE_BYTES / TILE_ROWS);
    fits &= add_dim(made, QUARTER_ROWS, TILE_BYTES / QUARTER_ROWS);
    fits &= add_dim(made, box->extent[cols] / tile_cols, TILE_BYTES);
    return fits && add_dim(made, TILE_COLS, 1);
}

static banyan_status scales_tensor(const banyan_transform *transform,
                                   const banyan_transform_task *task, arena *dims, DLTensor *tensor)
{
    mxfp8_scales scales;
    DLDevice device;
    banyan_box box;
    byte_tensor bytes = {0};
    RETURN_IF_FAILED(mxfp8_scales_of_task(transform, task, &scales, &device));
    mxfp8_task_box(task, &box);
    bool fits = scales.layout == BANYAN_MXFP8_PLAIN ? plain_scales(task, &box, &scales, &bytes)
                                                    : swizzled_scales(task, &box, &scales, &bytes);
    if (!fits)
        return transform_device_unsupported(
            task, scales.layout == BANYAN_MXFP8_PLAIN
                      ? "its scales have too many dimensions"
                      : "its swizzled scales are not whole tiles, of 128 × 128 "
                        "elements");
    int64_t *kept = arena_take(dims, sizeof bytes.shape + sizeof bytes.strides);
    RETURN_IF_NO_MEMORY(kept);
    memcpy(kept, bytes.shape, sizeof bytes.shape);
    memcpy(kept + BANYAN_MAX_DIMS, bytes.strides, sizeof bytes.strides);
    *tensor = (DLTensor){.data = scales.data + bytes.offset,
                         .device = device,
                         .ndim = bytes.ndim,
                         .dtype = BANYAN_F8_E8M0,
                         .shape = kept,
                         .strides = kept + BANYAN_MAX_DIMS};
    return BANYAN_OK;
}

/* A rank that passes blocks on in its node has them in a destination of its own. */
static bool transform_device_has_blocks(const banyan_transform_task *task, bool is_send)
{
    return !is_send || task->transfer->stage > 0;
}

static banyan_status transform_device_check_blocks(const banyan_transform_task *task, bool is_send)
{
    const DLTensor *local = task->local;
    int64_t block;
    if (!banyan_dtype_equal(task->transfer->destination_dtype, BANYAN_F8_E4M3))
        return transform_device_unsupported(task, "it is to be read back from MXFP8");
    if (local->ndim == 0 || local->shape[local->ndim - 1] % MXFP8_BLOCK != 0)
        return transform_device_unsupported(task, "its rows are not whole MXFP8 blocks");
    if (!transform_device_has_blocks(task, is_send))
        return BANYAN_OK;
    if (mxfp8_task_cuts_block(task, &block) ||
        task->dim_map[local->ndim - 1] != task->whole->ndim - 1)
        return transform_device_unsupported(task, "it cuts an MXFP8 block");
    return BANYAN_OK;
}

static banyan_status mxfp8_parts(const banyan_transform *transform,
                                 const banyan_transform_task *task, bool is_send, arena *dims,
                                 transform_parts *parts)
{
    RETURN_IF_FAILED(transform_device_check_blocks(task, is_send));
    parts->count = 2;
    parts->flags[0] = parts->flags[1] = 0;
    if (task->transfer->stage == 0) {
        parts->flags[0] = BANYAN_COPY_OP_MXFP8 |
                          (mxfp8_rule_of(transform) == BANYAN_MXFP8_OCP ? BANYAN_COPY_OP_OCP : 0);
        parts->flags[1] = parts->flags[0] | BANYAN_COPY_OP_SCALES;
    }
    parts->tensors[0] = parts->tensors[1] = *task->local;
    if (!transform_device_has_blocks(task, is_send))
        return BANYAN_OK;
    return scales_tensor(transform, task, dims, &parts->tensors[1]);
}

banyan_status transform_parts_on_device(const banyan_transform *transform,
                                        const banyan_transform_task *task, bool is_send,
                                        arena *dims, transform_parts *parts)
{
    if (transform_is_mxfp8(transform))
        return mxfp8_parts(transform, task, is_send, dims, parts);
    parts->count = 1;
    parts->tensors[0] = *task->local;
    parts->flags[0] = BANYAN_COPY_OP_CAST;
    return BANYAN_OK;
}
