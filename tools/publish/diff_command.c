/* `banyan diff`: what changed between two checkpoints. */
#include "cli/commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/files.h"
#include "cli/options.h"
#include "cli/text.h"
#include "core/status.h"
#include "core/text/escape.h"
#include "publish/diff.h"

#define WHO "banyan diff"
/* Tensors that are listed one by one. */
#define LISTED 20

static int more_changes_first(const void *a, const void *b)
{
    const diff_tensor *x = *(diff_tensor *const *)a, *y = *(diff_tensor *const *)b;
    if (x->size.changed != y->size.changed)
        return x->size.changed > y->size.changed ? -1 : 1;
    return (x > y) - (x < y);
}

static void print_changed(diff *made, const diff_total *total, size_t most)
{
    char changed[TEXT_NUMBER_BYTES], bytes[TEXT_NUMBER_BYTES], cell[2][TEXT_NUMBER_BYTES];
    char type[DIFF_TYPE_BYTES], name[1024 * ESCAPE_GROWTH];
    const diff_tensor **sorted = calloc(total->changed + 1, sizeof *sorted);
    size_t count = 0;
    for (size_t i = 0; i < made->count && sorted; i++) {
        if (made->tensors[i].size.changed > 0)
            sorted[count++] = &made->tensors[i];
    }
    if (count > 0) {
        qsort(sorted, count, sizeof *sorted, more_changes_first);
        printf("\n%16s%11s%12s  %s\n", "changed", "share", "delta", "tensor");
    }
    for (size_t i = 0; i < count && i < most; i++) {
        const diff_tensor *tensor = sorted[i];
        printf("%s%9.3g %%%s  %s %s\n",
               text_right(text_count(tensor->size.changed, changed), 16, cell[0]),
               100 * diff_share(&tensor->size),
               text_right(text_bytes(tensor->size.bytes, bytes), 12, cell[1]),
               escape_controls(tensor->after->name, name, sizeof name),
               diff_type(tensor->after, type));
    }
    if (count > most)
        printf("and %s more tensors with changes (--all)\n", text_count(count - most, changed));
    free(sorted);
}

/* Print tensors that cannot be compared: those that one side lacks, or that have two types. */
static void print_others(const diff *made, size_t count, const char *what,
                         bool (*is_one)(const diff_tensor *tensor), size_t most)
{
    char name[1024 * ESCAPE_GROWTH], types[2][DIFF_TYPE_BYTES], text[TEXT_NUMBER_BYTES];
    size_t listed = 0;
    if (count == 0)
        return;
    printf("\n%s tensor%s %s:\n", text_count(count, text), count == 1 ? "" : "s", what);
    for (size_t i = 0; i < made->count && listed < most; i++) {
        const diff_tensor *tensor = &made->tensors[i];
        const banyan_local_tensor *one = tensor->before ? tensor->before : tensor->after;
        if (!is_one(tensor))
            continue;
        listed++;
        printf("  %s %s", escape_controls(one->name, name, sizeof name), diff_type(one, types[0]));
        if (tensor->before && tensor->after)
            printf(", then %s", diff_type(tensor->after, types[1]));
        putchar('\n');
    }
    if (count > listed)
        printf("  and %s more (--all)\n", text_count(count - listed, text));
}

static bool is_only_before(const diff_tensor *tensor)
{
    return !tensor->after;
}

static bool is_only_after(const diff_tensor *tensor)
{
    return !tensor->before;
}

static bool is_different(const diff_tensor *tensor)
{
    return tensor->before && tensor->after && !tensor->comparable;
}

static void diff_print(diff *made, const diff_total *total, bool all)
{
    char text[4][TEXT_NUMBER_BYTES];
    size_t most = all ? SIZE_MAX : LISTED;
    const banyan_delta_size *size = &total->size;
    printf("%s of %s elements changed (%.3g %%), in %s of %zu tensors\n",
           text_count(size->changed, text[0]), text_count(size->elems, text[1]),
           100 * diff_share(size), text_count(total->changed, text[2]), total->compared);
    printf("a publication sends %s of %s (%.3g %%)\n", text_bytes(size->bytes, text[0]),
           text_bytes(total->bytes, text[1]),
           total->bytes > 0 ? 100 * (double)size->bytes / (double)total->bytes : 0);
    print_changed(made, total, most);
    print_others(made, total->only_before, "only in the first", is_only_before, most);
    print_others(made, total->only_after, "only in the second", is_only_after, most);
    print_others(made, total->different, "with another type or shape", is_different, most);
}

static json_t *json_of_type(const banyan_local_tensor *tensor)
{
    json_t *shape = json_array();
    for (int d = 0; d < tensor->ndim; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    return json_pack("{s:s, s:s, s:o}", "name", tensor->name, "dtype",
                     banyan_dtype_name(tensor->dtype), "shape", shape);
}

static json_t *json_of_pair(const diff_tensor *tensor)
{
    json_t *both = json_pack("{s:s, s:o, s:o}", "name", tensor->before->name, "before",
                             json_of_type(tensor->before), "after", json_of_type(tensor->after));
    json_object_del(json_object_get(both, "before"), "name");
    json_object_del(json_object_get(both, "after"), "name");
    return both;
}

static json_t *json_of_compared(const diff_tensor *tensor)
{
    json_t *object = json_of_type(tensor->after);
    json_object_set_new(object, "elements", json_integer((json_int_t)tensor->size.elems));
    json_object_set_new(object, "changed", json_integer((json_int_t)tensor->size.changed));
    json_object_set_new(object, "bytes", json_integer((json_int_t)tensor->bytes));
    json_object_set_new(object, "delta_bytes", json_integer((json_int_t)tensor->size.bytes));
    return object;
}

static banyan_status diff_print_json(const diff *made, const diff_total *total)
{
    json_t *compared = json_array(), *before = json_array(), *after = json_array();
    json_t *different = json_array();
    for (size_t i = 0; i < made->count; i++) {
        const diff_tensor *tensor = &made->tensors[i];
        if (tensor->comparable)
            json_array_append_new(compared, json_of_compared(tensor));
        else if (is_different(tensor))
            json_array_append_new(different, json_of_pair(tensor));
        else if (tensor->before)
            json_array_append_new(before, json_of_type(tensor->before));
        else
            json_array_append_new(after, json_of_type(tensor->after));
    }
    return json_print(
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "before", made->before_path,
                  "after", made->after_path, "elements", (json_int_t)total->size.elems, "changed",
                  (json_int_t)total->size.changed, "bytes", (json_int_t)total->bytes, "delta_bytes",
                  (json_int_t)total->size.bytes, "tensors", compared, "only_before", before,
                  "only_after", after, "different", different));
}

struct diff_options {
    bool json, all;
    const char *svg_path;
};

static banyan_status diff_print_report(diff *made, const diff_total *total,
                                       const struct diff_options *how)
{
    if (how->svg_path && !diff_draw(made, how->svg_path))
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write %s: %s", how->svg_path,
                                strerror(errno));
    if (how->json)
        return diff_print_json(made, total);
    diff_print(made, total, how->all);
    return BANYAN_OK;
}

static int diff_run(char **paths, const struct diff_options *how)
{
    diff made;
    int code = EXIT_USAGE;
    if (how->svg_path && !out_file_possible(how->svg_path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", how->svg_path, strerror(errno));
        return code;
    }
    banyan_status status = diff_make(&made, paths[0], paths[1]);
    diff_total total = diff_sum(&made);
    if (status == BANYAN_OK)
        status = diff_print_report(&made, &total, how);
    if (status == BANYAN_OK)
        code = total.size.changed > 0 || total.compared < made.count;
    else
        text_fail(WHO);
    diff_free(&made);
    return code;
}

int diff_command(int argc, char **argv)
{
    struct diff_options how = {0};
    const option_entry entries[] = {
        {"all", '\0', OPTION_FLAG, &how.all, NULL, "list every tensor with changes (20)", 0, 0},
        {"json", '\0', OPTION_FLAG, &how.json, NULL, "print one JSON object instead of text", 0, 0},
        {"svg", '\0', OPTION_FILE, &how.svg_path, "FILE",
         "draw the share of changed elements by kind of tensor and layer", 0, 0},
    };
    const option_table table = {
        WHO, "FILE FILE [--all] [--json] [--svg FILE]",
        "List what changed from one checkpoint to another, bit by bit: the elements that differ,\n"
        "their share, and the bytes that a publication sends for them to an engine's rank that\n"
        "holds whole tensors. Each is a Hugging Face folder, a folder of banyan reshard --out, or\n"
        "a safetensors file. Exit code: 0 if the checkpoints are equal, 1 if they differ, 2 if\n"
        "one cannot be read. docs/publish.md.\n",
        entries, sizeof entries / sizeof entries[0]};
    int rest;
    RETURN_UNLESS_PARSED(options_parse_anywhere(&table, argc, argv, &rest));
    if (argc - rest != 2)
        return options_refuse(&table, "wants 2 checkpoints, %d given", argc - rest);
    return diff_run(argv + rest, &how);
}
