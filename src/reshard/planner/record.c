#include "reshard/planner/record.h"

#include <inttypes.h>
#include <stdio.h>

#include "reshard/layout/box.h"

/* Finer slabs do not pay: reading one record more costs less than asking for one key more. */
#define MAX_LEVEL 40

void planner_record_write(bytes_writer *writer, const planner_record *record)
{
    bytes_write_u32(writer, (uint32_t)record->side | (uint32_t)record->is_note << 1 |
                                (uint32_t)record->is_skip << 2 |
                                (uint32_t)record->whole_blocks << 3 | (uint32_t)record->ndim << 8);
    bytes_write_u32(writer, (uint32_t)record->dtype.code | (uint32_t)record->dtype.bits << 8 |
                                (uint32_t)record->dtype.lanes << 16);
    bytes_write_u32(writer, record->flags);
    bytes_write(writer, record->shape, (size_t)record->ndim * sizeof record->shape[0]);
    if (record->is_note) {
        bytes_write_u32(writer, (uint32_t)record->dim);
        bytes_write_u32(writer, (uint32_t)record->level);
    } else {
        bytes_write_u32(writer, record->ordinal);
        bytes_write(writer, record->box.start, (size_t)record->ndim * sizeof record->box.start[0]);
        bytes_write(writer, record->box.extent,
                    (size_t)record->ndim * sizeof record->box.extent[0]);
    }
    size_t wanted_bytes = record->wanted ? strlen(record->wanted) + 1 : 0;
    bytes_write_blob(writer, record->wanted, wanted_bytes);
}

static void read_place(bytes_reader *reader, planner_record *record)
{
    size_t dims = (size_t)record->ndim;
    if (record->is_note) {
        record->dim = (int)bytes_read_u32(reader);
        record->level = (int)bytes_read_u32(reader);
        return;
    }
    record->ordinal = bytes_read_u32(reader);
    record->box.ndim = record->ndim;
    bytes_read(reader, record->box.start, dims * sizeof record->box.start[0]);
    bytes_read(reader, record->box.extent, dims * sizeof record->box.extent[0]);
}

static bool record_is_sane(const planner_record *record)
{
    uint64_t bytes;
    size_t elem_bytes = banyan_dtype_bytes(record->dtype);
    if (record->is_skip)
        return !record->is_note && record->ndim == 0 && !record->wanted;
    if (elem_bytes == 0 || !shape_bytes(record->ndim, record->shape, elem_bytes, &bytes))
        return false;
    if (record->is_note)
        return record->dim >= 0 && record->dim < record->ndim && record->level > 0 &&
               record->level <= MAX_LEVEL;
    return box_fits(&record->box, record->ndim, record->shape) &&
           banyan_box_elems(&record->box) > 0;
}

banyan_status planner_record_read(const char *key, const void *data, size_t bytes,
                                  planner_record *record)
{
    bytes_reader reader = bytes_reader_of(data, bytes);
    uint32_t kind = bytes_read_u32(&reader), dtype = bytes_read_u32(&reader);
    planner_record read = {
        .side = kind & 1 ? PLAN_DESTINATION : PLAN_SOURCE,
        .is_note = kind >> 1 & 1,
        .is_skip = kind >> 2 & 1,
        .whole_blocks = kind >> 3 & 1,
        .ndim = (int)(kind >> 8),
        .dtype = {(uint8_t)dtype, (uint8_t)(dtype >> 8), (uint16_t)(dtype >> 16)},
        .flags = bytes_read_u32(&reader),
    };
    bool sane = read.ndim <= BANYAN_MAX_DIMS;
    if (sane) {
        bytes_read(&reader, read.shape, (size_t)read.ndim * sizeof read.shape[0]);
        read_place(&reader, &read);
        size_t wanted_bytes;
        read.wanted = bytes_read_blob(&reader, &wanted_bytes);
        if (wanted_bytes == 0)
            read.wanted = NULL;
        else
            sane = memchr(read.wanted, 0, wanted_bytes) == read.wanted + wanted_bytes - 1;
    }
    if (!sane || reader.failed || reader.left != 0 || !record_is_sane(&read))
        return error_set(BANYAN_ERR_FORMAT,
                         "the directory holds %zu bytes under \"%.*s\" that describe no piece",
                         bytes, (int)strcspn(key, "\n"), key);
    *record = read;
    return BANYAN_OK;
}

planner_cells planner_cells_intersecting(const banyan_box *box, const int64_t *shape, int dim,
                                         int level)
{
    int64_t slabs = INT64_C(1) << level;
    int64_t thickness = shape[dim] / slabs + (shape[dim] % slabs != 0);
    return (planner_cells){
        .dim = dim,
        .level = level,
        .first = box->start[dim] / thickness,
        .last = (box->start[dim] + box->extent[dim] - 1) / thickness,
    };
}

/* Cut the dimension in which the tensor has the most boxes of this size; a slab is at least as
 * thick as the box. */
planner_cells planner_cells_of(const banyan_box *box, const int64_t *shape)
{
    int dim = 0;
    int64_t most = 1;
    for (int d = 0; d < box->ndim; d++) {
        if (shape[d] / box->extent[d] > most) {
            most = shape[d] / box->extent[d];
            dim = d;
        }
    }
    int level = 63 - __builtin_clzll((unsigned long long)most);
    if (level == 0)
        return (planner_cells){.level = 0};
    return planner_cells_intersecting(box, shape, dim, level < MAX_LEVEL ? level : MAX_LEVEL);
}

/* The final line feed ends the name, so that no name can be mistaken for another's key. */
void planner_key_write_root(bytes_writer *writer, const char *name)
{
    bytes_write(writer, name, strlen(name));
    bytes_write(writer, "\n", 2);
}

void planner_key_write_cell(bytes_writer *writer, const char *name, int dim, int level,
                            int64_t cell)
{
    char suffix[64];
    int length = snprintf(suffix, sizeof suffix, "\n%d.%d.%" PRId64, dim, level, cell);
    bytes_write(writer, name, strlen(name));
    bytes_write(writer, suffix, (size_t)length + 1);
}
