#include "cli/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <banyan/checkpoint.h>

#include "cli/options.h"
#include "cli/python.h"
#include "cli/text.h"
#include "core/status.h"
#include "layout/job_spec.h"

#define WHICH_FILE "which layout file: FILE.json"

struct save {
    const char *model_path, *config_path, *skip, *spec_text, *rules_path, *out;
    banyan_checkpoint *saved; /* in place of a spec */
    banyan_model *model;
    banyan_rules *rules;
    banyan_spec spec;
    int ranks;
};

static banyan_status layout_command_prepare(struct save *save)
{
    struct stat info;
    if (!save->spec_text) {
        if (stat(save->model_path, &info) == 0 && S_ISDIR(info.st_mode))
            RETURN_IF_FAILED(banyan_checkpoint_open(save->model_path, &save->saved));
        save->ranks = save->saved ? banyan_checkpoint_rank_count(save->saved) : 0;
        if (save->ranks == 0)
            return banyan_error_set(BANYAN_ERR_INVALID,
                                    "%s is not a folder that ranks saved, and needs a --spec",
                                    save->model_path);
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(banyan_spec_parse(save->spec_text, &save->spec));
    RETURN_IF_FAILED(banyan_model_load(save->model_path, &save->model));
    if (save->config_path)
        RETURN_IF_FAILED(banyan_model_add_config(save->model, save->config_path));
    if (save->skip)
        RETURN_IF_FAILED(skip_tensors(save->model, save->skip));
    save->ranks = banyan_spec_world_size(&save->spec);
    return banyan_rules_load(save->rules_path, &save->rules);
}

static banyan_status layout_command_add_rank(const struct save *save, int rank,
                                             banyan_layout_file *file)
{
    banyan_layout *layout;
    RETURN_IF_FAILED(banyan_layout_create(&layout));
    if (save->saved)
        banyan_checkpoint_add_layout(save->saved, rank, layout);
    else
        banyan_layout_add_model(layout, save->model, save->rules, &save->spec, rank, 0);
    banyan_status status = banyan_layout_check(layout);
    if (status == BANYAN_OK)
        status = banyan_layout_file_add(file, rank, layout);
    banyan_layout_destroy(layout);
    return status;
}

static banyan_status layout_command_save_all(const struct save *save)
{
    banyan_layout_file *file;
    RETURN_IF_FAILED(banyan_layout_file_create(&file));
    banyan_status status = BANYAN_OK;
    for (int rank = 0; rank < save->ranks && status == BANYAN_OK; rank++)
        status = layout_command_add_rank(save, rank, file);
    if (status == BANYAN_OK)
        status =
            banyan_layout_file_save(file, strcmp(save->out, "-") == 0 ? "/dev/stdout" : save->out);
    banyan_layout_file_destroy(file);
    return status;
}

static int save_command(int argc, char **argv)
{
    struct save save = {0};
    const option_entry entries[] = {
        {"model", 'm', OPTION_TEXT, &save.model_path, "FILE",
         "tensor list (JSON), Hugging Face folder, safetensors file or saved folder", 0, 0},
        {"spec", '\0', OPTION_TEXT, &save.spec_text, "SPEC",
         "layout: tp=4,packing=vllm (for a saved folder: as saved)", 0, 0},
        {"config", '\0', OPTION_TEXT, &save.config_path, "FILE",
         "config.json of the model, if it is not beside the weights", 0, 0},
        {"skip", '\0', OPTION_TEXT, &save.skip, "GLOB[,…]", "omit these tensors: **.inv_freq", 0,
         0},
        {"rules", '\0', OPTION_TEXT, &save.rules_path, "FILE",
         "rules that split the tensors (built in)", 0, 0},
        {"out", 'o', OPTION_TEXT, &save.out, "FILE.json", "output file (-: stdout)", 0, 0},
    };
    const option_table table = {
        "banyan layout save", "--model FILE --spec SPEC -o FILE.json [options]",
        "Write the layouts of all ranks of a model to a file: the tensors in the memory of each\n"
        "rank, and the pieces of the model's tensors in them. Equal layouts are written once.\n"
        "--from and --to of banyan reshard accept the file.\n",
        entries, sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(options_parse_only(&table, argc, argv));
    if (!save.model_path)
        return options_refuse(&table, "--model FILE is missing");
    if (!save.out)
        return options_refuse(&table, "--out FILE.json is missing");
    banyan_status status = layout_command_prepare(&save);
    if (status == BANYAN_OK)
        status = layout_command_save_all(&save);
    int code = status == BANYAN_OK ? 0 : text_fail(table.command);
    banyan_rules_destroy(save.rules);
    banyan_model_destroy(save.model);
    banyan_checkpoint_close(save.saved);
    return code;
}

static int check_file(const char *who, const char *path, banyan_side side)
{
    banyan_layout_file *file;
    if (banyan_layout_file_load(path, &file) != BANYAN_OK)
        return text_fail(who);
    int code = 0;
    if (banyan_layout_file_check(file, side) != BANYAN_OK) {
        fprintf(stderr, "%s: %s: %s\n", who, path, banyan_last_error());
        code = 1;
    } else {
        char ranks[TEXT_NUMBER_BYTES], layouts[TEXT_NUMBER_BYTES];
        printf("%s: sound as a %s: %s ranks, %s different layouts\n", path,
               side == BANYAN_SOURCE ? "source" : "destination",
               text_count((uint64_t)banyan_layout_file_rank_count(file), ranks),
               text_count(banyan_layout_file_group_count(file), layouts));
    }
    banyan_layout_file_destroy(file);
    return code;
}

static int check_layout_command(int argc, char **argv)
{
    const char *as = "destination", *path;
    const option_entry entries[] = {
        {"as", '\0', OPTION_CHOICE, &as, "source|destination",
         "side of the reshard to check for (destination)", 0, 0},
    };
    const option_table table = {
        "banyan layout check", "FILE.json [--as source|destination]",
        "Check a layout file. No two pieces may share memory, and all ranks must give a tensor\n"
        "the same shape. In a destination, every element must belong to a piece, be padding or\n"
        "be left alone.\n",
        entries, sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(options_parse_one(&table, argc, argv, WHICH_FILE, &path));
    return check_file(table.command, path,
                      strcmp(as, "source") == 0 ? BANYAN_SOURCE : BANYAN_DESTINATION);
}

/* "0-3, 8, 9" */
static void layout_command_print_ranks(const int *ranks, size_t count)
{
    printf(count == 1 ? "rank " : "ranks ");
    for (size_t i = 0; i < count;) {
        size_t last = i;
        while (last + 1 < count && ranks[last + 1] == ranks[last] + 1)
            last++;
        printf(last > i + 1 ? "%s%d-%d" : "%s%d", i > 0 ? ", " : "", ranks[i], ranks[last]);
        i = last > i + 1 ? last + 1 : i + 1;
    }
}

static void print_shape(int ndim, const int64_t *shape)
{
    printf(" [");
    for (int d = 0; d < ndim; d++)
        printf("%s%" PRId64, d > 0 ? ", " : "", shape[d]);
    printf("]");
}

static void print_fill(const banyan_layout *layout, size_t padding, size_t elem_bytes)
{
    const unsigned char *fill = banyan_layout_padding_fill(layout, padding);
    if (!fill) {
        printf(" of zeros\n");
        return;
    }
    printf(" of 0x");
    for (size_t i = elem_bytes; i-- > 0;)
        printf("%02x", fill[i]);
    printf("\n");
}

static void print_piece(const banyan_piece *piece)
{
    char text[512];
    printf("    %s %s of", banyan_box_format(&piece->box, text, sizeof text), piece->name);
    print_shape(piece->ndim, piece->shape);
    if (piece->fallback_name)
        printf(", else of %s", piece->fallback_name);
    if (piece->flags & BANYAN_PIECE_PERSISTENT_BUFFER)
        printf(", a buffer");
    if (piece->flags & BANYAN_PIECE_NEGATIVE_EXP)
        printf(", as its negative_exp");
    printf("\n");
}

/* Position in a list of all tensors' pieces, padding or boxes: a file has them by tensor. */
struct cursor {
    size_t piece, padding, left_alone;
};

static void print_tensor(const banyan_layout *layout, size_t t, struct cursor *at)
{
    const banyan_local_tensor *local = banyan_layout_tensor(layout, t);
    const banyan_box *box;
    char text[512];
    int tensor;
    printf("  %s %s", local->name, banyan_dtype_name(local->dtype));
    print_shape(local->ndim, local->shape);
    printf("\n");
    for (; at->piece < banyan_layout_piece_count(layout); at->piece++) {
        const banyan_piece *piece = banyan_layout_piece(layout, at->piece);
        if ((size_t)piece->tensor != t)
            break;
        print_piece(piece);
    }
    for (; at->padding < banyan_layout_padding_count(layout); at->padding++) {
        box = banyan_layout_padding(layout, at->padding, &tensor);
        if ((size_t)tensor != t)
            break;
        printf("    padding at %s", banyan_box_format(box, text, sizeof text));
        print_fill(layout, at->padding, banyan_dtype_bytes(local->dtype));
    }
    for (; at->left_alone < banyan_layout_left_alone_count(layout); at->left_alone++) {
        box = banyan_layout_left_alone(layout, at->left_alone, &tensor);
        if ((size_t)tensor != t)
            break;
        printf("    left alone: %s\n", banyan_box_format(box, text, sizeof text));
    }
}

static void print_group(const banyan_layout_file *file, size_t g, bool brief)
{
    size_t count;
    const int *ranks = banyan_layout_file_group_ranks(file, g, &count);
    const banyan_layout *layout = banyan_layout_file_group_layout(file, g);
    char tensors[TEXT_NUMBER_BYTES], pieces[TEXT_NUMBER_BYTES], bytes[TEXT_NUMBER_BYTES];
    struct cursor at = {0};
    if (count == 0)
        return;
    layout_command_print_ranks(ranks, count);
    printf(": %s tensors, %s pieces, %s\n", text_count(banyan_layout_tensor_count(layout), tensors),
           text_count(banyan_layout_piece_count(layout), pieces),
           text_bytes(banyan_layout_bytes(layout), bytes));
    for (size_t t = 0; t < banyan_layout_tensor_count(layout) && !brief; t++)
        print_tensor(layout, t, &at);
}

static bool group_has(const banyan_layout_file *file, size_t g, int rank)
{
    size_t count;
    const int *ranks = banyan_layout_file_group_ranks(file, g, &count);
    for (size_t i = 0; i < count; i++)
        if (ranks[i] == rank)
            return true;
    return false;
}

static int layout_command_show(const char *who, const char *path, int rank, bool brief)
{
    banyan_layout_file *file;
    if (banyan_layout_file_load(path, &file) != BANYAN_OK)
        return text_fail(who);
    for (size_t g = 0; g < banyan_layout_file_group_count(file); g++)
        if (rank < 0 || group_has(file, g, rank))
            print_group(file, g, brief);
    banyan_layout_file_destroy(file);
    return 0;
}

static int layout_command_show_command(int argc, char **argv)
{
    int rank = -1;
    bool brief = false;
    const option_entry entries[] = {
        {"rank", 'r', OPTION_COUNT, &rank, "N", "list this rank alone (all)", 0,
         BANYAN_MAX_RANKS - 1},
        {"brief", 'b', OPTION_FLAG, &brief, NULL,
         "print one line for each group of ranks with equal layouts", 0, 0},
    };
    const option_table table = {
        "banyan layout show", "FILE.json [--rank N] [--brief]",
        "List the layouts of the ranks in a layout file: the tensors in their memory, and the\n"
        "pieces, padding and elements left alone in each tensor.\n",
        entries, sizeof entries / sizeof entries[0]};
    const char *path;
    RETURN_UNLESS_PARSED(options_parse_one(&table, argc, argv, WHICH_FILE, &path));
    return layout_command_show(table.command, path, rank, brief);
}

static int learn_command(int argc, char **argv)
{
    const char *engine = NULL, *model = NULL, *holes = NULL, *replaced = NULL, *out = NULL;
    int tp = 1, pp = 1;
    bool expert_parallel = false, unverified = false;
    const option_entry entries[] = {
        {"engine", 'e', OPTION_CHOICE, &engine, "vllm", "engine whose loader is asked", 0, 0},
        {"model", 'm', OPTION_TEXT, &model, "FOLDER", "Hugging Face folder", 0, 0},
        {"tp", '\0', OPTION_COUNT, &tp, "N", "tensor-parallel ranks (1)", 1, BANYAN_MAX_RANKS},
        {"pp", '\0', OPTION_COUNT, &pp, "N", "pipeline stages (1)", 1, BANYAN_MAX_RANKS},
        {"expert-parallel", '\0', OPTION_FLAG, &expert_parallel, NULL,
         "experts are spread over the ranks, as the engine's own option does", 0, 0},
        {"holes", '\0', OPTION_TEXT, &holes, "GLOB[,…]",
         "parameters that may be filled in part; the rest of them is left alone", 0, 0},
        {"replaced", '\0', OPTION_TEXT, &replaced, "GLOB[,…]",
         "parameters in which a tensor may replace an earlier one", 0, 0},
        {"no-verify", '\0', OPTION_FLAG, &unverified, NULL,
         "load no random values to compare every byte", 0, 0},
        {"out", 'o', OPTION_TEXT, &out, "FILE.json",
         "output file (in the folder of learned layouts: BANYAN_LAYOUTS)", 0, 0},
    };
    const option_table table = {
        "banyan layout learn",
        "--engine vllm --model FOLDER [--tp N] [--pp N] [-o FILE.json] [options]",
        "Learn the layouts of all ranks from the engine's own loader, which runs in this process\n"
        "without weights, and write them to a layout file. Every place of a parameter is filled\n"
        "once, is padding, or is left alone. A loader that computes values is refused by name.\n"
        "Needs the Python package and the engine: BANYAN_PYTHON, or python3 in PATH, must have\n"
        "them. docs/layouts.md#learned-layouts.\n",
        entries, sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(options_parse_only(&table, argc, argv));
    if (!engine)
        return options_refuse(&table, "--engine is missing: there is vllm");
    if (!model)
        return options_refuse(&table, "--model FOLDER is missing");
    char tp_text[16], pp_text[16];
    snprintf(tp_text, sizeof tp_text, "%d", tp);
    snprintf(pp_text, sizeof pp_text, "%d", pp);
    const char *words[PYTHON_MAX_WORDS] = {"learn", engine, model,  "--tp",
                                           tp_text, "--pp", pp_text};
    int count = 7;
    const char *const given[][2] = {{"--holes", holes}, {"--replaced", replaced}, {"--out", out}};
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        if (given[i][1]) {
            words[count++] = given[i][0];
            words[count++] = given[i][1];
        }
    }
    if (expert_parallel)
        words[count++] = "--expert-parallel";
    if (unverified)
        words[count++] = "--no-verify";
    return python_become(table.command, "banyan.integrations.__main__", words);
}

static const command_entry subcommands[] = {
    {"save", "--model FILE --spec SPEC -o FILE.json", "write the layouts of all ranks",
     save_command},
    {"learn", "--engine vllm --model FOLDER [--tp N] [--pp N] [-o FILE.json]",
     "learn them from an engine's own loader", learn_command},
    {"check", "FILE.json", "check it as a side of a reshard", check_layout_command},
    {"show", "FILE.json", "list the tensors of the ranks", layout_command_show_command},
};

int layout_command(int argc, char **argv)
{
    static const command_set set = {
        .command = "banyan layout",
        .usage = "save|learn|check|show ...",
        .about = "",
        .more = "",
        .entries = subcommands,
        .count = sizeof subcommands / sizeof subcommands[0],
    };
    return command_set_run(&set, argc, argv);
}
