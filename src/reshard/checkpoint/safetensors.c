#include "reshard/checkpoint/safetensors.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/text/json.h"

#define LENGTH_BYTES 8
#define METADATA "__metadata__"

bool safetensors_tensor_bytes(const banyan_local_tensor *tensor, uint64_t *bytes)
{
    int64_t product = (int64_t)banyan_dtype_bytes(tensor->dtype);
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->shape[d] < 0 || __builtin_mul_overflow(product, tensor->shape[d], &product))
            return false;
    }
    *bytes = (uint64_t)product;
    return true;
}

/* Read a type; it must be spelled as in the format. */
static banyan_status safetensors_read_dtype(json_path *path, const json_t *member,
                                            DLDataType *dtype)
{
    const char *name;
    DLDataType known;
    RETURN_IF_FAILED(json_member_string(path, member, "dtype", &name));
    if (banyan_dtype_parse(name, &known) != BANYAN_OK ||
        strcmp(banyan_dtype_name(known), name) != 0)
        return json_path_fail(path, "has unknown type \"%s\"", name);
    *dtype = known;
    return BANYAN_OK;
}

static banyan_status safetensors_read_shape(json_path *path, const json_t *member,
                                            banyan_local_tensor *tensor)
{
    json_t *shape;
    size_t ndim;
    RETURN_IF_FAILED(json_member(path, member, "shape", JSON_ARRAY, &shape));
    size_t dims = json_array_size(shape);
    if (dims > BANYAN_MAX_DIMS)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "%s: tensor %s has %zu dimensions: at most %d are read", path->file,
                         path->text, dims, BANYAN_MAX_DIMS);
    RETURN_IF_FAILED(json_member_ints(path, member, "shape", 0, INT64_MAX, BANYAN_MAX_DIMS,
                                      tensor->shape, &ndim));
    tensor->ndim = (int)ndim;
    return BANYAN_OK;
}

/* Read offsets, which count from the start of the `room` bytes of data. */
static banyan_status read_offsets(json_path *path, const json_t *member, uint64_t room,
                                  safetensors_entry *entry)
{
    size_t count;
    int64_t offsets[2];
    RETURN_IF_FAILED(
        json_member_ints(path, member, "data_offsets", 0, INT64_MAX, 2, offsets, &count));
    if (count != 2 || offsets[0] > offsets[1])
        return json_path_fail(path, "has data_offsets that are not a range");
    uint64_t need;
    if (!safetensors_tensor_bytes(&entry->tensor, &need))
        return json_path_fail(path, "has a shape of more than 2^63 bytes");
    entry->offset = (uint64_t)offsets[0];
    entry->bytes = (uint64_t)(offsets[1] - offsets[0]);
    if (entry->bytes != need)
        return json_path_fail(path,
                              "has data from %" PRId64 " to %" PRId64 ", %" PRIu64
                              " bytes, but type and shape make %" PRIu64,
                              offsets[0], offsets[1], entry->bytes, need);
    if ((uint64_t)offsets[1] > room)
        return json_path_fail(path,
                              "has data from %" PRId64 " to %" PRId64
                              ", but the file ends after %" PRIu64 " bytes of data",
                              offsets[0], offsets[1], room);
    return BANYAN_OK;
}

static banyan_status read_entry(json_path *path, const json_t *member, uint64_t room,
                                safetensors_entry *entry)
{
    if (!json_is_object(member))
        return json_path_fail(path, "is not an object");
    RETURN_IF_FAILED(safetensors_read_dtype(path, member, &entry->tensor.dtype));
    RETURN_IF_FAILED(safetensors_read_shape(path, member, &entry->tensor));
    return read_offsets(path, member, room, entry);
}

static banyan_status check_metadata(json_path *path, const json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return json_path_fail(path, "is not an object");
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return json_path_fail(path, "has a value that is not a string: \"%s\"", key);
    }
    return BANYAN_OK;
}

static int safetensors_compare_places(const void *a, const void *b)
{
    const safetensors_entry *x = a, *y = b;
    RETURN_IF_UNEQUAL(x->offset, y->offset);
    RETURN_IF_UNEQUAL(x->bytes, y->bytes);
    return strcmp(x->tensor.name, y->tensor.name);
}

/* Check that the file holds all data, and that each byte belongs to exactly one tensor. */
static banyan_status safetensors_check_places(const char *path, const safetensors_header *header,
                                              uint64_t room)
{
    uint64_t end = 0;
    const char *before = NULL;
    for (size_t i = 0; i < header->entries.count; i++) {
        const safetensors_entry *entry = &header->entries.data[i];
        if (entry->offset < end)
            return error_set(BANYAN_ERR_FORMAT,
                             "%s: tensor %s begins at byte %" PRIu64
                             " of the data, inside tensor %s, which ends at %" PRIu64,
                             path, entry->tensor.name, entry->offset, before, end);
        if (entry->offset > end)
            return error_set(BANYAN_ERR_FORMAT,
                             "%s: bytes %" PRIu64 " to %" PRIu64
                             " of the data, before tensor %s, belong to no tensor",
                             path, end, entry->offset, entry->tensor.name);
        end = entry->offset + entry->bytes;
        before = entry->tensor.name;
    }
    if (end != room)
        return error_set(BANYAN_ERR_FORMAT,
                         "%s: the tensors end at byte %" PRIu64 " of the data, which has %" PRIu64,
                         path, end, room);
    return BANYAN_OK;
}

static banyan_status safetensors_read_entries(const char *path, json_t *root, uint64_t room,
                                              safetensors_header *header)
{
    const char *name;
    json_t *member;
    if (!json_is_object(root))
        return error_set(BANYAN_ERR_FORMAT, "%s: the header is not a JSON object", path);
    json_object_foreach(root, name, member)
    {
        json_path place = {.file = path};
        json_path_key(&place, name);
        if (strcmp(name, METADATA) == 0) {
            RETURN_IF_FAILED(check_metadata(&place, member));
            continue;
        }
        safetensors_entry entry = {.tensor.name = names_keep(&header->names, name)};
        RETURN_IF_NO_MEMORY(entry.tensor.name && array_reserve(&header->entries, 1));
        RETURN_IF_FAILED(read_entry(&place, member, room, &entry));
        header->entries.data[header->entries.count++] = entry;
    }
    array_sort(&header->entries, safetensors_compare_places);
    RETURN_IF_FAILED(safetensors_check_places(path, header, room));
    for (size_t i = 0; i < header->entries.count; i++)
        header->entries.data[i].offset += header->data_offset;
    return BANYAN_OK;
}

static banyan_status read_length(const char *path, const void *head, size_t head_bytes,
                                 uint64_t file_bytes, uint64_t *length)
{
    uint64_t little_endian;
    if (head_bytes < LENGTH_BYTES || file_bytes < LENGTH_BYTES)
        return error_set(BANYAN_ERR_FORMAT,
                         "%s has %" PRIu64 " bytes: too short for a safetensors file", path,
                         file_bytes);
    memcpy(&little_endian, head, LENGTH_BYTES);
    uint64_t value = le64toh(little_endian);
    if (value > SAFETENSORS_MAX_HEADER)
        return error_set(BANYAN_ERR_FORMAT,
                         "%s: the header's length, bytes 0 to 8, says %" PRIu64
                         ", above the limit of %" PRIu64,
                         path, value, SAFETENSORS_MAX_HEADER);
    if (value > file_bytes - LENGTH_BYTES || value > head_bytes - LENGTH_BYTES)
        return error_set(BANYAN_ERR_FORMAT,
                         "%s: the header's length, bytes 0 to 8, says %" PRIu64
                         ", but the file has %" PRIu64 " bytes",
                         path, value, file_bytes);
    *length = value;
    return BANYAN_OK;
}

banyan_status safetensors_parse(const char *path, const void *head, size_t head_bytes,
                                uint64_t file_bytes, safetensors_header *header)
{
    uint64_t length = 0;
    json_t *root;
    RETURN_IF_FAILED(read_length(path, head, head_bytes, file_bytes, &length));
    const char *text = (const char *)head + LENGTH_BYTES;
    if (length == 0 || text[0] != '{')
        return error_set(BANYAN_ERR_FORMAT, "%s: the header, at byte 8, does not begin with {",
                         path);
    RETURN_IF_FAILED(json_parse(path, text, (size_t)length, &root));
    safetensors_header made = {.data_offset = LENGTH_BYTES + length, .file_bytes = file_bytes};
    banyan_status status =
        safetensors_read_entries(path, root, file_bytes - made.data_offset, &made);
    json_decref(root);
    if (status != BANYAN_OK) {
        safetensors_header_free(&made);
        return status;
    }
    *header = made;
    return BANYAN_OK;
}

void safetensors_header_free(safetensors_header *header)
{
    array_free(&header->entries);
    names_free(&header->names);
}

static json_t *entry_to_json(const safetensors_entry *entry, uint64_t begin)
{
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", banyan_dtype_name(entry->tensor.dtype),
                     "shape", json_of_ints(entry->tensor.shape, entry->tensor.ndim), "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + entry->bytes));
}

static banyan_status entries_to_json(safetensors_entry *entries, size_t count, json_t *root)
{
    uint64_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        safetensors_entry *entry = &entries[i];
        if (!safetensors_tensor_bytes(&entry->tensor, &entry->bytes) ||
            entry->bytes > (uint64_t)INT64_MAX - begin)
            return error_set(BANYAN_ERR_INVALID, "tensor %s does not fit a file",
                             entry->tensor.name);
        if (strcmp(banyan_dtype_name(entry->tensor.dtype), "?") == 0)
            return error_set(BANYAN_ERR_INVALID,
                             "tensor %s has a type that safetensors cannot name (code %d, %d bits)",
                             entry->tensor.name, entry->tensor.dtype.code,
                             entry->tensor.dtype.bits);
        if (json_object_get(root, entry->tensor.name))
            return error_set(BANYAN_ERR_INVALID, "two tensors are named %s", entry->tensor.name);
        if (json_object_set_new(root, entry->tensor.name, entry_to_json(entry, begin)) != 0)
            return error_set(BANYAN_ERR_INVALID, "tensor %s cannot be named in JSON",
                             entry->tensor.name);
        entry->offset = begin;
        begin += entry->bytes;
    }
    return BANYAN_OK;
}

/* Pad the header with spaces, to align the data for any use. */
static banyan_status json_to_head(const json_t *root, void **head, size_t *head_bytes)
{
    enum { ALIGNMENT = 64 };
    size_t length = json_dumpb(root, NULL, 0, JSON_COMPACT);
    size_t bytes = (LENGTH_BYTES + length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (bytes - LENGTH_BYTES > SAFETENSORS_MAX_HEADER)
        return error_set(BANYAN_ERR_INVALID,
                         "a safetensors header of %zu bytes is above the limit of %" PRIu64,
                         bytes - LENGTH_BYTES, SAFETENSORS_MAX_HEADER);
    char *made = malloc(bytes);
    if (!made)
        return error_no_memory(bytes, "a safetensors header");
    memset(made, ' ', bytes);
    uint64_t little_endian = htole64(bytes - LENGTH_BYTES);
    memcpy(made, &little_endian, LENGTH_BYTES);
    json_dumpb(root, made + LENGTH_BYTES, length, JSON_COMPACT);
    *head = made;
    *head_bytes = bytes;
    return BANYAN_OK;
}

banyan_status safetensors_format(safetensors_entry *entries, size_t count, const char *format,
                                 void **head, size_t *head_bytes)
{
    json_t *root = json_pack("{s:{s:s}}", METADATA, "format", format);
    if (!root)
        return error_no_memory(sizeof *entries * count, "a safetensors header");
    size_t bytes = 0;
    banyan_status status = entries_to_json(entries, count, root);
    if (status == BANYAN_OK)
        status = json_to_head(root, head, &bytes);
    json_decref(root);
    if (status != BANYAN_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        entries[i].offset += bytes;
    *head_bytes = bytes;
    return BANYAN_OK;
}
