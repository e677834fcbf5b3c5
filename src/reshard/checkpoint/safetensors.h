/* The safetensors format: eight bytes of header length (little endian), the header (JSON: names to
 * type, shape and place), the tensors' data. */
#ifndef RESHARD_CHECKPOINT_SAFETENSORS_H
#define RESHARD_CHECKPOINT_SAFETENSORS_H

#include <banyan/layout.h>

#include "core/containers.h"
#include "reshard/layout/names.h"

/* The format's own limit is 100 million bytes. */
#define SAFETENSORS_MAX_HEADER ((uint64_t)100 << 20)

typedef struct safetensors_entry {
    banyan_local_tensor tensor;
    uint64_t offset; /* of its data, from the file's start */
    uint64_t bytes;
} safetensors_entry;

typedef struct safetensors_header {
    ARRAY(safetensors_entry) entries; /* in the order of their data */
    uint64_t data_offset;             /* start of the data: length field and header */
    uint64_t file_bytes;
    names names;
} safetensors_header;

/* Parse the header of a file whose first `head_bytes` bytes, with all of the header, are at `head`.
 * FORMAT has file, tensor and position of an error: JSON, a name twice, an unknown type, a size
 * that contradicts the shape, data that overlaps, leaves a gap, or does not end with the file.
 * UNSUPPORTED for more than BANYAN_MAX_DIMS dimensions. */
banyan_status safetensors_parse(const char *path, const void *head, size_t head_bytes,
                                uint64_t file_bytes, safetensors_header *header);
void safetensors_header_free(safetensors_header *header);

/* Write the first `8 + header` bytes of a new file with these tensors, in this order; `format` goes
 * into the metadata ("pt"). Sets offsets and sizes in the entries. To be freed with free(). */
banyan_status safetensors_format(safetensors_entry *entries, size_t count, const char *format,
                                 void **head, size_t *head_bytes);

/* Compute the bytes of a dense tensor; false when they do not fit 63 bits or a dimension is
 * negative. */
bool safetensors_tensor_bytes(const banyan_local_tensor *tensor, uint64_t *bytes);

#endif
