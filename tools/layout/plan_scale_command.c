#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/forecast.h>
#include <jansson.h>

#include "cli/files.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "layout/job_spec.h"
#include "layout/traffic_links.h"
#include "reshard/mxfp8_target.h"

#define WHO "banyan plan-scale"

struct scale {
    job_spec spec;
    int sampled, ranks_per_node;
    bool json, each_rank_fetches;
    const char *transform_name;
    banyan_transform *transform; /* NULL: none */
    int *ranks;
    banyan_reshard_plan_cost *costs;
    banyan_traffic_links links; /* with ranks_per_node */
    progress bar;
};

static banyan_status plan_scale_command_rank_layouts(void *context, int rank, banyan_layout *source,
                                                     banyan_layout *destination)
{
    const struct scale *scale = context;
    banyan_layout *plain;
    if (!scale->transform) {
        job_spec_layouts(&scale->spec, rank, source, destination);
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(banyan_layout_create(&plain));
    job_spec_layouts(&scale->spec, rank, source, plain);
    banyan_status status = mxfp8_target_convert(plain, destination);
    banyan_layout_destroy(plain);
    return status;
}

static void plan_scale_command_show_progress(void *context, uint64_t done, uint64_t total)
{
    struct scale *scale = context;
    if (done == 1)
        progress_begin(&scale->bar, true, "planning", total, false);
    progress_add(&scale->bar, 1);
}

/* Choose ranks evenly over the world, including the first and the last. */
static void plan_scale_command_choose_ranks(struct scale *scale)
{
    int ranks = scale->spec.ranks;
    if (scale->sampled > ranks)
        scale->sampled = ranks;
    for (int i = 0; i < scale->sampled; i++)
        scale->ranks[i] =
            scale->sampled == 1 ? 0 : (int)((int64_t)i * (ranks - 1) / (scale->sampled - 1));
}

static int by_seconds(const void *a, const void *b)
{
    double first = ((const banyan_reshard_plan_cost *)a)->seconds;
    double second = ((const banyan_reshard_plan_cost *)b)->seconds;
    return (first > second) - (first < second);
}

static const banyan_reshard_plan_cost *plan_scale_command_largest(const struct scale *scale)
{
    const banyan_reshard_plan_cost *found = &scale->costs[0];
    for (int i = 1; i < scale->sampled; i++) {
        if (scale->costs[i].bytes > found->bytes)
            found = &scale->costs[i];
    }
    return found;
}

static void plan_scale_command_print_row(const char *what, const banyan_reshard_plan_cost *cost)
{
    char cell[TEXT_NUMBER_BYTES], text[TEXT_NUMBER_BYTES];
    printf("%-12s%8d", what, cost->rank);
    printf("%s", text_right(text_seconds(cost->seconds, text), 11, cell));
    printf("%s", text_right(text_seconds(cost->owner_seconds, text), 11, cell));
    printf("%11s", text_bytes(cost->bytes, text));
    printf("%11s", text_bytes(cost->owner_bytes, text));
    printf("%11s", text_count(cost->transfers, text));
    printf("%11s\n", text_bytes(cost->transfer_bytes, text));
}

/* The costs are sorted by time. */
static void plan_scale_command_print_table(const struct scale *scale)
{
    char title[JOB_SPEC_TITLE_BYTES], texts[3][TEXT_NUMBER_BYTES];
    printf("%s\n%s tensors; %s of %s ranks measured, of processor time and memory\n\n",
           job_spec_title(&scale->spec, title),
           text_count(banyan_model_tensor_count(scale->spec.model), texts[0]),
           text_count((uint64_t)scale->sampled, texts[1]),
           text_count((uint64_t)scale->spec.ranks, texts[2]));
    printf("%-12s%8s%11s%11s%11s%11s%11s%11s\n", "", "rank", "time", "as owner", "memory",
           "directory", "transfers", "receives");
    plan_scale_command_print_row("slowest", &scale->costs[scale->sampled - 1]);
    plan_scale_command_print_row("median", &scale->costs[scale->sampled / 2]);
    plan_scale_command_print_row("most memory", plan_scale_command_largest(scale));
    traffic_links_print(&scale->links);
}

static int plan_scale_command_print_json(const struct scale *scale)
{
    json_t *ranks = json_array();
    for (int i = 0; i < scale->sampled; i++) {
        const banyan_reshard_plan_cost *cost = &scale->costs[i];
        json_array_append_new(
            ranks, json_pack("{s:i, s:f, s:f, s:I, s:I, s:I, s:I}", "rank", cost->rank, "seconds",
                             cost->seconds, "owner_seconds", cost->owner_seconds, "bytes",
                             (json_int_t)cost->bytes, "owner_bytes", (json_int_t)cost->owner_bytes,
                             "transfers", (json_int_t)cost->transfers, "transfer_bytes",
                             (json_int_t)cost->transfer_bytes));
    }
    json_t *object = json_pack(
        "{s:s?, s:s, s:s, s:b, s:I, s:i, s:f, s:f, s:I, s:o}", "model", scale->spec.model_path,
        "from", scale->spec.from_text, "to", scale->spec.to_text, "disjoint", scale->spec.disjoint,
        "tensors", (json_int_t)banyan_model_tensor_count(scale->spec.model), "ranks",
        scale->spec.ranks, "slowest_seconds", scale->costs[scale->sampled - 1].seconds,
        "median_seconds", scale->costs[scale->sampled / 2].seconds, "most_bytes",
        (json_int_t)plan_scale_command_largest(scale)->bytes, "sampled", ranks);
    if (scale->ranks_per_node > 0)
        json_object_set_new(object, "links", traffic_links_json(&scale->links));
    return json_print(object) == BANYAN_OK ? 0 : text_fail(WHO);
}

/* Plan all ranks to the end, and add up what they move. */
static banyan_status plan_scale_command_count_links(struct scale *scale,
                                                    const banyan_reshard_sample_world *world,
                                                    const banyan_reshard_options *options)
{
    banyan_traffic *traffic;
    banyan_status status = banyan_traffic_plan(world, options, &traffic);
    progress_end(&scale->bar);
    if (status != BANYAN_OK)
        return status;
    status = banyan_traffic_describe_links(traffic, &scale->links);
    banyan_traffic_destroy(traffic);
    return status;
}

static int plan_scale_command_measure(struct scale *scale)
{
    if (!job_spec_read(&scale->spec, WHO))
        return 1;
    plan_scale_command_choose_ranks(scale);
    banyan_reshard_sample_world world = {.world_size = scale->spec.ranks,
                                         .layouts = plan_scale_command_rank_layouts,
                                         .progress = plan_scale_command_show_progress,
                                         .context = scale,
                                         .ranks_per_node = scale->ranks_per_node};
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.require_whole_source = !scale->spec.partial_source;
    options.each_rank_fetches = scale->each_rank_fetches;
    options.transform = scale->transform;
    banyan_status status =
        banyan_reshard_plan_sample(&world, &options, scale->ranks, scale->sampled, scale->costs);
    progress_end(&scale->bar);
    if (status == BANYAN_OK && scale->ranks_per_node > 0)
        status = plan_scale_command_count_links(scale, &world, &options);
    if (status != BANYAN_OK)
        return text_fail(WHO);
    qsort(scale->costs, (size_t)scale->sampled, sizeof *scale->costs, by_seconds);
    if (scale->json)
        return plan_scale_command_print_json(scale);
    plan_scale_command_print_table(scale);
    return 0;
}

int plan_scale_command(int argc, char **argv)
{
    struct scale scale = {.sampled = 16};
    const option_entry entries[] = {
        {"model", 'm', OPTION_TEXT, &scale.spec.model_path, "FILE",
         "tensor list (JSON), Hugging Face folder or safetensors file", 0, 0},
        {"from", '\0', OPTION_TEXT, &scale.spec.from_text, "SPEC",
         "source layout: tp=8,pp=8,ep=16,dp=16, or a layout file (.json)", 0, 0},
        {"to", '\0', OPTION_TEXT, &scale.spec.to_text, "SPEC",
         "destination layout, or a layout file", 0, 0},
        {"disjoint", '\0', OPTION_FLAG, &scale.spec.disjoint, NULL,
         "destination ranks differ from source ranks", 0, 0},
        {"ranks-sampled", '\0', OPTION_COUNT, &scale.sampled, "K",
         "number of ranks to measure (16)", 1, 1000000},
        {"ranks-per-node", '\0', OPTION_COUNT, &scale.ranks_per_node, "N",
         "also print the bytes that cross links between nodes of N ranks", 1, 1000000},
        {"each-rank-fetches", '\0', OPTION_FLAG, &scale.each_rank_fetches, NULL,
         "let each rank of a node fetch all of its data over the network", 0, 0},
        {"transform", '\0', OPTION_CHOICE, &scale.transform_name, "none|mxfp8|mxfp8-at-sender",
         "quantize the destination's matrices (none)", 0, 0},
        {"partial-source", '\0', OPTION_FLAG, &scale.spec.partial_source, NULL,
         "allow source elements that no destination holds (they are refused)", 0, 0},
        {"config", '\0', OPTION_TEXT, &scale.spec.config_path, "FILE",
         "config.json of the model, if it is not beside the weights", 0, 0},
        {"rules", '\0', OPTION_TEXT, &scale.spec.rules_path, "FILE",
         "rules that split the tensors (built in)", 0, 0},
        {"json", '\0', OPTION_FLAG, &scale.json, NULL, "print one JSON object instead of a table",
         0, 0},
    };
    const option_table table = {
        WHO, "--model FILE --from SPEC --to SPEC [options]",
        "Plan a reshard of a world of thousands of ranks in this process, with the planner of a\n"
        "real world. Measure what it costs some of the ranks: their own planning, and their\n"
        "part of the directory.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    options_result result = options_parse_only(&table, argc, argv);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    const char *missing = job_spec_missing(&scale.spec);
    if (missing)
        return options_refuse(&table, "%s is missing", missing);
    scale.ranks = calloc((size_t)scale.sampled, sizeof *scale.ranks);
    scale.costs = calloc((size_t)scale.sampled, sizeof *scale.costs);
    int code = 1;
    bool quantizes = scale.transform_name && strcmp(scale.transform_name, "none") != 0;
    if (!scale.ranks || !scale.costs)
        fprintf(stderr, WHO ": out of memory for %d ranks\n", scale.sampled);
    else if (quantizes &&
             mxfp8_target_transform(scale.transform_name, &scale.transform) != BANYAN_OK)
        code = text_fail(WHO);
    else
        code = plan_scale_command_measure(&scale);
    banyan_transform_destroy(scale.transform);
    job_spec_free(&scale.spec);
    free(scale.ranks);
    free(scale.costs);
    return code;
}
