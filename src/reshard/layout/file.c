#include "reshard/layout/file.h"

#include <stdlib.h>
#include <string.h>

#include "core/files/new_file.h"
#include "core/text/json.h"
#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"

#define MAX_FILE_BYTES ((size_t)4 << 30)

banyan_status banyan_layout_file_create(banyan_layout_file **file)
{
    RETURN_IF_NULL(file);
    banyan_layout_file *made = alloc_zeroed(1, sizeof *made, "a layout file");
    RETURN_IF_NO_MEMORY(made);
    *file = made;
    return BANYAN_OK;
}

void banyan_layout_file_destroy(banyan_layout_file *file)
{
    if (!file)
        return;
    for (size_t g = 0; g < file->groups.count; g++) {
        banyan_layout_destroy(file->groups.data[g].layout);
        array_free(&file->groups.data[g].ranks);
        free(file->groups.data[g].text);
    }
    array_free(&file->groups);
    array_free(&file->group_of);
    map_free(&file->by_text);
    free(file);
}

layout_group *layout_file_new_group(banyan_layout_file *file)
{
    layout_group group = {0};
    if (banyan_layout_create(&group.layout) != BANYAN_OK)
        return NULL;
    if (!array_push(&file->groups, group)) {
        banyan_layout_destroy(group.layout);
        return NULL;
    }
    return &file->groups.data[file->groups.count - 1];
}

static bool has_rank(const banyan_layout_file *file, int rank)
{
    return (size_t)rank < file->group_of.count && file->group_of.data[rank] >= 0;
}

bool layout_file_put_rank(banyan_layout_file *file, size_t group, int rank)
{
    while (file->group_of.count <= (size_t)rank)
        if (!array_push(&file->group_of, -1))
            return false;
    if (!array_push(&file->groups.data[group].ranks, rank))
        return false;
    file->group_of.data[rank] = (int)group;
    return true;
}

static int layout_file_compare_ranks(const void *left, const void *right)
{
    int a = *(const int *)left, b = *(const int *)right;
    return COMPARE(a, b);
}

void layout_file_sort_ranks(layout_group *group)
{
    array_sort(&group->ranks, layout_file_compare_ranks);
}

/* Write the text of groups that were loaded without one. */
static banyan_status write_texts(banyan_layout_file *file)
{
    for (size_t g = 0; g < file->groups.count; g++) {
        layout_group *group = &file->groups.data[g];
        uint64_t known;
        if (group->text)
            continue;
        RETURN_IF_FAILED(layout_file_write_layout(group->layout, &group->text));
        if (!map_get_string(&file->by_text, group->text, &known) &&
            !map_put_string(&file->by_text, group->text, g))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

/* Add a group that holds what the layout does; it takes over `text`. */
static banyan_status layout_file_add_group(banyan_layout_file *file, const banyan_layout *layout,
                                           char *text)
{
    layout_group *group = layout_file_new_group(file);
    if (!group) {
        free(text);
        return BANYAN_ERR_NO_MEMORY;
    }
    group->text = text;
    layout_add_layout(group->layout, layout, 0);
    RETURN_IF_FAILED(banyan_layout_status(group->layout));
    return map_put_string(&file->by_text, text, file->groups.count - 1) ? BANYAN_OK
                                                                        : BANYAN_ERR_NO_MEMORY;
}

banyan_status banyan_layout_file_add(banyan_layout_file *file, int rank,
                                     const banyan_layout *layout)
{
    RETURN_IF_NULL(file);
    RETURN_IF_NULL(layout);
    char *text;
    uint64_t group;
    if (rank < 0 || rank >= BANYAN_MAX_RANKS)
        return error_set(BANYAN_ERR_INVALID, "rank %d is not one of the %d that a world can have",
                         rank, BANYAN_MAX_RANKS);
    if (has_rank(file, rank))
        return error_set(BANYAN_ERR_INVALID, "the file has a layout of rank %d already", rank);
    RETURN_IF_FAILED(banyan_layout_status(layout));
    RETURN_IF_FAILED(write_texts(file));
    RETURN_IF_FAILED(layout_file_write_layout(layout, &text));
    if (map_get_string(&file->by_text, text, &group)) {
        free(text);
    } else {
        group = file->groups.count;
        RETURN_IF_FAILED(layout_file_add_group(file, layout, text));
    }
    RETURN_IF_NO_MEMORY(layout_file_put_rank(file, (size_t)group, rank));
    const layout_group *of = &file->groups.data[group];
    if (of->ranks.count > 1 && of->ranks.data[of->ranks.count - 2] > rank)
        layout_file_sort_ranks(&file->groups.data[group]);
    return BANYAN_OK;
}

banyan_status banyan_layout_file_load(const char *path, banyan_layout_file **file)
{
    RETURN_IF_NULL(path);
    RETURN_IF_NULL(file);
    char *text;
    size_t bytes;
    banyan_layout_file *made;
    RETURN_IF_FAILED(banyan_layout_file_create(&made));
    banyan_status status = file_read(path, MAX_FILE_BYTES, &text, &bytes);
    if (status == BANYAN_OK) {
        status = layout_file_parse(path, text, bytes, made);
        free(text);
    }
    if (status != BANYAN_OK) {
        banyan_layout_file_destroy(made);
        return status;
    }
    *file = made;
    return BANYAN_OK;
}

static banyan_status layout_file_write_all(const banyan_layout_file *file, FILE *out,
                                           const char *path)
{
    fputs("{\n  \"format\": \"banyan.layout\",\n  \"version\": 1,\n  \"ranks\": [", out);
    const char *before = "\n";
    for (size_t g = 0; g < file->groups.count; g++) {
        const layout_group *group = &file->groups.data[g];
        if (group->ranks.count == 0)
            continue;
        fprintf(out, "%s    {\"ranks\": [", before);
        for (size_t i = 0; i < group->ranks.count; i++)
            fprintf(out, "%s%d", i > 0 ? ", " : "", group->ranks.data[i]);
        fprintf(out, "],\n     %s}", group->text);
        before = ",\n";
    }
    fputs("\n  ]\n}\n", out);
    return ferror(out) ? error_set_errno("writing %s", path) : BANYAN_OK;
}

banyan_status banyan_layout_file_save(const banyan_layout_file *file, const char *path)
{
    RETURN_IF_NULL(file);
    RETURN_IF_NULL(path);
    new_file to;
    /* The texts are a cache: writing them into a const file changes nothing visible. */
    RETURN_IF_FAILED(write_texts((banyan_layout_file *)file));
    RETURN_IF_FAILED(new_file_open_for(path, &to));
    FILE *out = new_file_stream(&to);
    banyan_status status =
        out ? layout_file_write_all(file, out, path) : error_set_errno("writing %s", path);
    if (out && fclose(out) != 0 && status == BANYAN_OK)
        status = error_set_errno("writing %s", path);
    if (status == BANYAN_OK)
        status = new_file_publish(&to, path);
    new_file_close(&to);
    return status;
}

int banyan_layout_file_rank_count(const banyan_layout_file *file)
{
    return (int)file->group_of.count;
}

size_t banyan_layout_file_group_count(const banyan_layout_file *file)
{
    return file->groups.count;
}

const int *banyan_layout_file_group_ranks(const banyan_layout_file *file, size_t i, size_t *count)
{
    *count = file->groups.data[i].ranks.count;
    return file->groups.data[i].ranks.data;
}

const banyan_layout *banyan_layout_file_group_layout(const banyan_layout_file *file, size_t i)
{
    return file->groups.data[i].layout;
}

void banyan_layout_add_file(banyan_layout *layout, const banyan_layout_file *file, int rank,
                            int rank_offset)
{
    if (rank >= 0 && has_rank(file, rank))
        layout_add_layout(layout, file->groups.data[file->group_of.data[rank]].layout, rank_offset);
}

/* A global tensor, as its first piece describes it. */
struct known {
    const banyan_piece *piece;
    DLDataType dtype;
    int rank;
};

struct check {
    banyan_side side;
    hash_map by_name;
    ARRAY(struct known) known;
};

static const char *map_or_none(const banyan_piece *piece)
{
    const char *name = value_map_name(piece->flags);
    return name ? name : "none";
}

/* Compare a piece's description of its global tensor with that of the first piece. */
static banyan_status check_global(struct check *check, const banyan_piece *piece, DLDataType dtype,
                                  int rank)
{
    uint64_t at;
    if (!map_get_string(&check->by_name, piece->name, &at)) {
        bool kept = map_put_string(&check->by_name, piece->name, check->known.count) &&
                    array_push(&check->known, (struct known){piece, dtype, rank});
        return kept ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    }
    const struct known *first = &check->known.data[at];
    char a[BOX_TEXT_BYTES], b[BOX_TEXT_BYTES];
    if (!shape_equal(piece->ndim, piece->shape, first->piece->ndim, first->piece->shape))
        return error_set(BANYAN_ERR_MISMATCH,
                         "tensor \"%s\" has the shape %s at rank %d and %s at rank %d", piece->name,
                         shape_format(first->piece->ndim, first->piece->shape, a, sizeof a),
                         first->rank, shape_format(piece->ndim, piece->shape, b, sizeof b), rank);
    if (check->side == BANYAN_SOURCE && !banyan_dtype_equal(dtype, first->dtype))
        return error_set(BANYAN_ERR_MISMATCH,
                         "the source has tensor \"%s\" in %s at rank %d and in %s at rank %d",
                         piece->name, banyan_dtype_name(first->dtype), first->rank,
                         banyan_dtype_name(dtype), rank);
    if (check->side == BANYAN_SOURCE && (piece->flags ^ first->piece->flags) & VALUE_MAPS)
        return error_set(BANYAN_ERR_MISMATCH,
                         "the source has tensor \"%s\" under the map %s at rank %d and under %s at "
                         "rank %d: all pieces of a tensor have one",
                         piece->name, map_or_none(first->piece), first->rank, map_or_none(piece),
                         rank);
    return BANYAN_OK;
}

static banyan_status layout_file_check_replicas(const layout_group *group,
                                                const banyan_piece *piece)
{
    if (banyan_rank_set_size(&piece->replicas) == 0)
        return BANYAN_OK;
    char text[BOX_TEXT_BYTES];
    for (size_t i = 0; i < group->ranks.count; i++)
        if (banyan_rank_set_find(&piece->replicas, group->ranks.data[i]) < 0)
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d holds %s of \"%s\", but the replicas that its layout names "
                             "(from rank %d on) do not include it",
                             group->ranks.data[i],
                             banyan_box_format(&piece->box, text, sizeof text), piece->name,
                             piece->replicas.first);
    return BANYAN_OK;
}

static banyan_status layout_file_check_group(struct check *check, const layout_group *group)
{
    if (group->ranks.count == 0)
        return BANYAN_OK;
    int rank = group->ranks.data[0];
    banyan_status status = banyan_layout_check_as(group->layout, check->side);
    if (status != BANYAN_OK) {
        char *message = strdup(banyan_last_error());
        status = error_set(status, "rank %d: %s", rank, message ? message : "");
        free(message);
        return status;
    }
    for (size_t i = 0; i < banyan_layout_piece_count(group->layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(group->layout, i);
        DLDataType dtype = banyan_layout_tensor(group->layout, (size_t)piece->tensor)->dtype;
        RETURN_IF_FAILED(check_global(check, piece, dtype, rank));
        RETURN_IF_FAILED(layout_file_check_replicas(group, piece));
    }
    return BANYAN_OK;
}

banyan_status banyan_layout_file_check(const banyan_layout_file *file, banyan_side side)
{
    RETURN_IF_NULL(file);
    struct check check = {.side = side};
    banyan_status status = BANYAN_OK;
    for (size_t g = 0; g < file->groups.count && status == BANYAN_OK; g++)
        status = layout_file_check_group(&check, &file->groups.data[g]);
    map_free(&check.by_name);
    array_free(&check.known);
    return status;
}
