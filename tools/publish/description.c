#include "publish/description.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/files.h"
#include "core/status.h"

#define HEAD_BYTES 8
#define CONFIG_NAME "config.json"

static banyan_status description_no_memory(void)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for a description of a model");
}

/* ---- tensors ---- */

DLDataType description_dtype(const banyan_local_tensor *tensor, const DLDataType *cast)
{
    bool casts = cast && (banyan_dtype_equal(tensor->dtype, BANYAN_F32) ||
                          banyan_dtype_equal(tensor->dtype, BANYAN_F16) ||
                          banyan_dtype_equal(tensor->dtype, BANYAN_BF16));
    return casts ? *cast : tensor->dtype;
}

json_t *description_tensors(const banyan_checkpoint *checkpoint, const DLDataType *cast)
{
    json_t *tensors = json_object();
    for (size_t i = 0; i < banyan_checkpoint_tensor_count(checkpoint); i++) {
        const banyan_local_tensor *tensor = banyan_checkpoint_tensor(checkpoint, i);
        json_t *shape = json_array();
        for (int d = 0; d < tensor->ndim; d++)
            json_array_append_new(shape, json_integer(tensor->shape[d]));
        json_t *object =
            json_pack("{s:s, s:o}", "dtype", banyan_dtype_name(description_dtype(tensor, cast)),
                      "shape", shape);
        if (json_object_set_new(tensors, tensor->name, object) != 0) {
            json_decref(tensors);
            return NULL;
        }
    }
    return tensors;
}

/* Write "F32 [4, 16]". */
static void describe_one(const json_t *tensor, char *text, size_t bytes)
{
    const json_t *shape = json_object_get(tensor, "shape");
    char *dims = json_dumps(shape, 0);
    snprintf(text, bytes, "%s %s", json_string_value(json_object_get(tensor, "dtype")),
             dims ? dims : "?");
    free(dims);
}

/* The differences that a message names. */
#define NAMED 3

struct differences {
    char text[1536];
    size_t used, count;
};

static void note_difference(struct differences *noted, const char *name, const json_t *before,
                            const json_t *now)
{
    char was[128] = "", is[128] = "";
    if (noted->count++ >= NAMED)
        return;
    if (before)
        describe_one(before, was, sizeof was);
    if (now)
        describe_one(now, is, sizeof is);
    int bytes = snprintf(noted->text + noted->used, sizeof noted->text - noted->used,
                         "%s%.200s %s%s%s%s", noted->count > 1 ? "; " : "", name,
                         now && before ? "is "
                         : now         ? "is new: "
                                       : "is missing",
                         is, now && before ? ", and was " : "", now && before ? was : "");
    noted->used += bytes > 0 ? (size_t)bytes : 0;
}

banyan_status description_compare(const json_t *before, const json_t *now)
{
    struct differences noted = {.count = 0};
    const char *name;
    json_t *tensor;
    json_object_foreach((json_t *)before, name, tensor)
    {
        const json_t *other = json_object_get(now, name);
        if (!other || !json_equal(tensor, other))
            note_difference(&noted, name, tensor, other);
    }
    json_object_foreach((json_t *)now, name, tensor)
    {
        if (!json_object_get(before, name))
            note_difference(&noted, name, NULL, tensor);
    }
    if (noted.count == 0)
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_MISMATCH,
                            "%zu tensor%s of it %s not as in the version before: %s%s", noted.count,
                            noted.count == 1 ? "" : "s", noted.count == 1 ? "is" : "are",
                            noted.text, noted.count > NAMED ? "; …" : "");
}

/* ---- making ---- */

static bool description_append(description *to, const void *data, size_t bytes)
{
    unsigned char *grown = realloc(to->data, to->bytes + bytes + 1);
    if (!grown)
        return false;
    memcpy(grown + to->bytes, data, bytes);
    to->data = grown;
    to->bytes += bytes;
    return true;
}

/* Files are gathered in `data`; the header goes in front of them at the end. */
static banyan_status description_take_file(void *context, const char *name, const void *data,
                                           size_t bytes)
{
    description *made = context;
    json_t *file = json_pack("{s:s, s:I}", "name", name, "bytes", (json_int_t)bytes);
    if (!file)
        return BANYAN_OK; /* the name is not UTF-8 */
    if (strcmp(name, CONFIG_NAME) == 0) {
        json_t *config = json_loadb(data, bytes, 0, NULL);
        if (config)
            json_object_set_new(json_object_get(made->header, "model"), CONFIG_NAME, config);
    }
    if (json_array_append_new(json_object_get(made->header, "files"), file) != 0 ||
        !description_append(made, data, bytes))
        return description_no_memory();
    return BANYAN_OK;
}

static banyan_status put_header_in_front(description *made)
{
    char *text = json_dumps(made->header, JSON_COMPACT);
    description whole = {.header = made->header};
    uint64_t length = htole64(text ? strlen(text) : 0);
    bool done =
        text && description_append(&whole, &length, sizeof length) &&
        description_append(&whole, text, strlen(text)) &&
        description_append(&whole, made->data ? made->data : (unsigned char *)"", made->bytes);
    free(text);
    free(made->data);
    *made = whole;
    return done ? BANYAN_OK : description_no_memory();
}

banyan_status description_make(const banyan_checkpoint *checkpoint, const DLDataType *cast,
                               const char *path, description *made)
{
    struct stat info;
    *made = (description){0};
    json_t *tensors = description_tensors(checkpoint, cast);
    made->header = tensors ? json_pack("{s:o, s:[]}", "model", tensors, "files") : NULL;
    banyan_status status = made->header ? BANYAN_OK : description_no_memory();
    if (status == BANYAN_OK && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        status = banyan_checkpoint_read_small_files(path, description_take_file, made);
    if (status == BANYAN_OK)
        status = put_header_in_front(made);
    if (status != BANYAN_OK)
        description_free(made);
    return status;
}

void description_free(description *freed)
{
    json_decref(freed->header);
    free(freed->files);
    free(freed->data);
    *freed = (description){0};
}

/* ---- parsing ---- */

/* True for "file" and "folder/file", of which no part is hidden or leads elsewhere. */
static bool is_safe_name(const char *name)
{
    const char *slash = strchr(name, '/');
    return name[0] != '\0' && name[0] != '.' && strlen(name) < 512 &&
           (!slash ||
            (slash != name && slash[1] != '\0' && slash[1] != '.' && !strchr(slash + 1, '/')));
}

static banyan_status description_malformed(const char *what)
{
    return banyan_error_set(BANYAN_ERR_FORMAT, "the publication's description of its model %s",
                            what);
}

banyan_status description_parse(description *arrived)
{
    uint64_t length, at;
    if (arrived->bytes < HEAD_BYTES)
        return description_malformed("is too short");
    memcpy(&length, arrived->data, sizeof length);
    length = le64toh(length);
    if (length > arrived->bytes - HEAD_BYTES)
        return description_malformed("is shorter than its header");
    arrived->header = json_loadb((const char *)arrived->data + HEAD_BYTES, (size_t)length, 0, NULL);
    const json_t *files = json_object_get(arrived->header, "files");
    if (!json_is_object(json_object_get(arrived->header, "model")) || !json_is_array(files))
        return description_malformed("has no list of tensors, or none of files");
    arrived->files = calloc(json_array_size(files) + 1, sizeof *arrived->files);
    if (!arrived->files)
        return description_no_memory();
    at = HEAD_BYTES + length;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *entry = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *bytes = json_object_get(entry, "bytes");
        if (!name || !is_safe_name(name) || !json_is_integer(bytes) ||
            json_integer_value(bytes) < 0 ||
            (uint64_t)json_integer_value(bytes) > arrived->bytes - at)
            return description_malformed("has a file with an invalid name or size");
        arrived->files[arrived->file_count++] =
            (description_file){name, arrived->data + at, (size_t)json_integer_value(bytes)};
        at += (uint64_t)json_integer_value(bytes);
    }
    return at == arrived->bytes ? BANYAN_OK : description_malformed("is longer than its files");
}

/* ---- writing ---- */

static banyan_status description_write_file(const char *path, const void *data, size_t bytes)
{
    out_file file;
    bool written = out_file_open(&file, path);
    if (written) {
        fwrite(data, 1, bytes, file.file);
        written = out_file_finish(&file);
    }
    return written
               ? BANYAN_OK
               : banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
}

banyan_status description_write_model(const description *of, const char *path)
{
    char *text = json_dumps(json_object_get(of->header, "model"), JSON_COMPACT);
    banyan_status status =
        text ? description_write_file(path, text, strlen(text)) : description_no_memory();
    free(text);
    return status;
}

banyan_status description_write_files(const description *of, const char *folder)
{
    for (size_t i = 0; i < of->file_count; i++) {
        const description_file *file = &of->files[i];
        char path[PATH_MAX];
        int bytes = snprintf(path, sizeof path, "%s/%s", folder, file->name);
        if (bytes >= (int)sizeof path)
            return banyan_error_set(BANYAN_ERR_INVALID, "a path in %s is too long", folder);
        char *slash = strrchr(path, '/');
        *slash = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot make %s: %s", path, strerror(errno));
        *slash = '/';
        if (access(path, F_OK) == 0)
            return description_malformed("has a file with the name of weights");
        RETURN_IF_FAILED(description_write_file(path, file->data, file->bytes));
    }
    return BANYAN_OK;
}
