/* A publication's description of its model: tensors, configuration and small files. `banyan
 * publish` publishes it beside the weights, so that `banyan subscribe` needs only an address.
 *
 * It is a tensor of bytes, and its size is another tensor, of one element: the size of a
 * description is not known before. The bytes are:
 *
 *     8 bytes, little-endian    the size of the header
 *     the header                {"model": tensors as banyan_model_load reads them,
 *                                "files": [{"name": "config.json", "bytes": 700}, …]}
 *     the files' contents       in the order of the header */
#ifndef TOOLS_DESCRIPTION_H
#define TOOLS_DESCRIPTION_H

#include <banyan/checkpoint.h>
#include <jansson.h>

#define DESCRIPTION_NAME "banyan.description"
#define DESCRIPTION_BYTES_NAME "banyan.description.bytes"
/* The largest description that is taken. */
#define DESCRIPTION_MOST ((uint64_t)1 << 30)

typedef struct description_file {
    const char *name; /* "config.json", "templates/tool.jinja" */
    const void *data;
    size_t bytes;
} description_file;

typedef struct description {
    unsigned char *data; /* as it is published */
    uint64_t bytes;
    json_t *header;
    description_file *files; /* set by description_parse */
    size_t file_count;
} description;

/* Return the type in which a tensor is published: `cast` (NULL: its own) if both are among F32, F16
 * and BF16. */
DLDataType description_dtype(const banyan_local_tensor *tensor, const DLDataType *cast);

/* Describe a checkpoint. `path`: its folder, or file. */
banyan_status description_make(const banyan_checkpoint *checkpoint, const DLDataType *cast,
                               const char *path, description *made);

/* Check a description that has arrived; `data` and `bytes` are set. FORMAT if it is malformed. */
banyan_status description_parse(description *arrived);
void description_free(description *freed);

/* Write the model's part, for banyan_model_load. */
banyan_status description_write_model(const description *of, const char *path);

/* Write the files into a folder, which has none of them. */
banyan_status description_write_files(const description *of, const char *folder);

/* Return an object of names, types and shapes. NULL when out of memory. */
json_t *description_tensors(const banyan_checkpoint *checkpoint, const DLDataType *cast);

/* Compare two such objects. MISMATCH, with the names of tensors that differ. */
banyan_status description_compare(const json_t *before, const json_t *now);

#endif
