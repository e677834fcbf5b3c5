#include "draw/plan_view.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/files.h"
#include "cli/message.h"
#include "cli/options.h"
#include "core/status.h"
#include <banyan/check.h>

#define WHO "banyan plan view"
#define DEFAULT_SIZE (UINT64_C(1) << 20)

struct view {
    const char *path, *out, *topology_name, *trace, *ranks, *part;
    uint64_t size;
    bool check, svg;
    int width;
    plan_view shown;
    banyan_plan *plan;
    banyan_topology *topology;
    char *hang; /* message about the deadlock */
    banyan_check_report *report;
};

/* Without a topology the page shows the order: an operation takes one step, bytes and routes
 * nothing. */
#define IN_STEPS                                                                                   \
    "{\"name\": \"steps\", \"kinds\": {\"step\": {\"memory_bytes_per_s\": 1e18, "                  \
    "\"blocks_at_once\": 1e6,"                                                                     \
    " \"launch_ns\": 0, \"operation_ns\": 1, \"sync_ns\": 0, \"signal_ns\": 0,"                    \
    " \"block\": {\"local_bytes_per_s\": 1e18, \"load_bytes_per_s\": 1e18,"                        \
    "  \"store_bytes_per_s\": 1e18, \"packet_bytes_per_s\": 1e18, \"reduce_bytes_per_s\": 1e18},"  \
    " \"proxy\": {\"request_ns\": 1, \"bytes_per_s\": 1e18}}},"                                    \
    " \"processors\": [{\"for\": {\"r\": %d}, \"name\": \"r{r}\", \"kind\": \"step\"}],"           \
    " \"switches\": [{\"name\": \"s\", \"multicast\": true}],"                                     \
    " \"links\": [{\"for\": {\"r\": %d}, \"from\": \"r{r}\", \"to\": \"s\", \"latency_ns\": 0.5,"  \
    "  \"bytes_per_s\": 1e18}]}"

static banyan_status plan_view_read_topology(struct view *view)
{
    char text[1024];
    int ranks = banyan_plan_describe(view->plan).ranks;
    if (view->topology_name)
        return banyan_topology_read(view->topology_name, &view->topology);
    int bytes = snprintf(text, sizeof text, IN_STEPS, ranks, ranks);
    return banyan_topology_parse(text, (size_t)bytes, "steps", &view->topology);
}

/* A plan that hangs is shown too. */
static banyan_status plan_view_simulate(struct view *view)
{
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    banyan_simulation *simulation;
    message size;
    RETURN_IF_FAILED(plan_view_read_topology(view));
    RETURN_IF_FAILED(message_fit(view->plan, options.elem_bytes, view->size, &size));
    options.message_bytes = view->shown.message_bytes = size.message_bytes;
    options.steps = true;
    banyan_status status = banyan_plan_simulate(view->plan, view->topology, &options, &simulation);
    if (status == BANYAN_ERR_MISMATCH) {
        view->shown.hang = view->hang = strdup(banyan_last_error());
        if (!view->hang)
            return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
        return picture_take_order(&view->shown.picture);
    }
    RETURN_IF_FAILED(status);
    if (view->topology_name)
        view->shown.topology = banyan_topology_describe(view->topology).name;
    status = picture_take_simulation(&view->shown.picture, simulation);
    banyan_simulation_destroy(simulation);
    return status;
}

static banyan_status plan_view_gather(struct view *view)
{
    RETURN_IF_FAILED(plan_file_read(view->path, &view->plan));
    view->shown.plan = view->plan;
    view->shown.trace = view->trace;
    RETURN_IF_FAILED(picture_begin(&view->shown.picture, view->plan));
    RETURN_IF_FAILED(view->trace ? picture_take_trace(&view->shown.picture, view->trace)
                                 : plan_view_simulate(view));
    RETURN_IF_FAILED(picture_finish(&view->shown.picture));
    if (view->check)
        RETURN_IF_FAILED(banyan_plan_check(view->plan, NULL, &view->report));
    view->shown.report = view->report;
    return BANYAN_OK;
}

/* "0,2", "0:3", "0:1,7". */
static banyan_status plan_view_read_ranks(const char *text, int count, bool *ranks)
{
    for (const char *at = text; at;) {
        int first, last, read = 0;
        if (sscanf(at, "%d%n:%d%n", &first, &read, &last, &read) < 2)
            last = first;
        if (read == 0 || (at[read] && at[read] != ',') || first < 0 || last < first ||
            last >= count)
            return banyan_error_set(BANYAN_ERR_INVALID,
                                    "--ranks wants ranks from 0 to %d, such as 0,1 or 0:3, not "
                                    "\"%s\"",
                                    count - 1, text);
        for (int r = first; r <= last; r++)
            ranks[r] = true;
        at = at[read] ? at + read + 1 : NULL;
    }
    return BANYAN_OK;
}

/* "25:50" */
static banyan_status plan_view_read_part(const char *text, plan_figure *figure)
{
    int from, to, read = 0;
    if (sscanf(text, "%d:%d%n", &from, &to, &read) < 2 || text[read] || from < 0 || to > 100 ||
        from >= to)
        return banyan_error_set(BANYAN_ERR_INVALID,
                                "--part wants two numbers from 0 to 100, such as 25:50, not \"%s\"",
                                text);
    figure->from = from / 100.0;
    figure->to = to / 100.0;
    return BANYAN_OK;
}

static banyan_status print_figure(FILE *to, const struct view *view)
{
    int count = view->shown.picture.ranks;
    plan_figure figure = {.width = view->width, .from = 0, .to = 1};
    if (view->part)
        RETURN_IF_FAILED(plan_view_read_part(view->part, &figure));
    bool *ranks = calloc((size_t)count, sizeof *ranks);
    if (!ranks)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
    figure.ranks = ranks;
    banyan_status status = BANYAN_OK;
    for (int r = 0; r < count; r++)
        ranks[r] = !view->ranks;
    if (view->ranks)
        status = plan_view_read_ranks(view->ranks, count, ranks);
    if (status == BANYAN_OK)
        status = plan_figure_print(to, &view->shown, &figure);
    free(ranks);
    return status;
}

static banyan_status plan_view_print(const struct view *view, char **text, size_t *bytes)
{
    FILE *to = open_memstream(text, bytes);
    if (!to)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
    banyan_status status = view->svg ? print_figure(to, view) : plan_page_print(to, &view->shown);
    bool whole = ferror(to) == 0;
    whole &= fclose(to) == 0;
    if (status == BANYAN_OK && !whole)
        status = banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %zu bytes", *bytes);
    if (status != BANYAN_OK)
        free(*text);
    return status;
}

static bool plan_view_write_out(const char *path, const char *text, size_t bytes)
{
    out_file out;
    if (!out_file_open(&out, path))
        return false;
    fwrite(text, 1, bytes, out.file);
    return out_file_finish(&out);
}

static banyan_status plan_view_draw(struct view *view)
{
    char *text;
    size_t bytes;
    RETURN_IF_FAILED(plan_view_gather(view));
    RETURN_IF_FAILED(plan_view_print(view, &text, &bytes));
    bool written = plan_view_write_out(view->out, text, bytes);
    int error = errno;
    free(text);
    if (!written)
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write %s: %s", view->out,
                                strerror(error));
    return BANYAN_OK;
}

static int plan_view_run(struct view *view)
{
    banyan_status status = plan_view_draw(view);
    if (status != BANYAN_OK)
        fprintf(stderr, WHO ": %s\n", banyan_last_error());
    else if (view->hang)
        fprintf(stderr, WHO ": %s\n", view->hang);
    free(view->hang);
    picture_free(&view->shown.picture);
    banyan_check_report_destroy(view->report);
    banyan_topology_destroy(view->topology);
    banyan_plan_destroy(view->plan);
    return status == BANYAN_OK ? 0 : 1;
}

int plan_view_command(int argc, char **argv)
{
    struct view view = {.size = DEFAULT_SIZE};
    const option_entry entries[] = {
        {"out", 'o', OPTION_TEXT, &view.out, "FILE", "file of the page or figure (-: stdout)", 0,
         0},
        {"topology", 't', OPTION_TEXT, &view.topology_name, "TOPOLOGY",
         "take times from a simulation on this machine: a file, or a name from `banyan topo list`",
         0, 0},
        {"size", 's', OPTION_BYTES, &view.size, "BYTES",
         "simulated size: bytes of the longer of input and output (1M)", 0, 0},
        {"trace", '\0', OPTION_TEXT, &view.trace, "FILE",
         "take times from the last run in a file of `banyan run --trace`", 0, 0},
        {"check", 'c', OPTION_FLAG, &view.check, NULL,
         "mark the findings of `banyan check`, for all sizes", 0, 0},
        {"svg", '\0', OPTION_FLAG, &view.svg, NULL, "draw a figure for papers instead of a page", 0,
         0},
        {"ranks", '\0', OPTION_TEXT, &view.ranks, "LIST",
         "figure: draw these ranks alone, such as 0,1 or 0:3 (all)", 0, 0},
        {"part", '\0', OPTION_TEXT, &view.part, "FROM:TO",
         "figure: draw this part of the time alone, in percent (0:100)", 0, 0},
        {"width", '\0', OPTION_COUNT, &view.width, "POINTS", "figure: width (as its labels need)",
         200, 10000},
    };
    const option_table table = {
        WHO, "PLAN.json -o plan.html [options]",
        "Draw a plan on a page that needs no network: a lane for each thread block, a block for\n"
        "each operation, and arrows for signals, packets and data. Point at an operation to see\n"
        "its chunks and peers. Click an operation to see the chain of operations before it.\n"
        "Click a chunk of an input below to see its destinations. Without --topology or\n"
        "--trace, an operation takes one step. For a plan that hangs, the page shows the\n"
        "operations in order and their dependencies. With --svg, draw a figure with a legend.\n"
        "Use - as PLAN.json to read stdin. docs/pictures.md has the details.\n",
        entries, sizeof entries / sizeof entries[0]};
    RETURN_UNLESS_PARSED(
        options_parse_one(&table, argc, argv, "which plan: PLAN.json", &view.path));
    if (!view.out)
        return options_refuse(&table, "give the output file: -o plan.html");
    if (view.trace && view.topology_name)
        return options_refuse(&table, "--trace and --topology are two sources of times: give one");
    if (!view.svg && (view.ranks || view.part || view.width > 0))
        return options_refuse(&table, "--ranks, --part and --width are for figures: add --svg");
    const char *ending = strrchr(view.out, '.');
    if (!view.svg && ending && strcmp(ending, ".svg") == 0)
        return options_refuse(&table, "-o %s would be a page: add --svg for a figure", view.out);
    return plan_view_run(&view);
}
