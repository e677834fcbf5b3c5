#include "plan_view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/check.h>
#include <banyan/simulate.h>
#include <jansson.h>

#include "message.h"
#include "options.h"
#include "out_file.h"
#include "pages.h"
#include "plan_file.h"
#include "try.h"

#define WHO "banyan plan view"
#define DEFAULT_SIZE (UINT64_C(1) << 20)
/* More than a browser draws willingly. */
#define STEPS_MOST 50000
/* Where the page has its data. */
#define MARK "/*DATA*/null"

struct view {
    const char *path, *out, *topology_name;
    uint64_t size;
    banyan_plan *plan;
    banyan_topology *topology;
    bool check;
    banyan_simulation *simulation; /* NULL: the plan hangs */
    char *hang;                    /* the sentence about it */
    banyan_check_report *report;   /* NULL: it was not checked */
    uint64_t message_bytes;
};

/* Without a topology the page shows the order: an operation takes a step, bytes and ways nothing.
 */
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

static banyan_status read_topology(struct view *view)
{
    char text[1024];
    int ranks = banyan_plan_describe(view->plan).ranks;
    if (view->topology_name)
        return banyan_topology_read(view->topology_name, &view->topology);
    int bytes = snprintf(text, sizeof text, IN_STEPS, ranks, ranks);
    return banyan_topology_parse(text, (size_t)bytes, "steps", &view->topology);
}

static banyan_status simulate(struct view *view)
{
    banyan_simulate_options options = BANYAN_SIMULATE_OPTIONS_INIT;
    banyan_simulation_step step;
    message size;
    TRY(message_fit(view->plan, options.elem_bytes, view->size, &size));
    options.message_bytes = view->message_bytes = size.message_bytes;
    options.steps = true;
    banyan_status status =
        banyan_plan_simulate(view->plan, view->topology, &options, &view->simulation);
    if (status == BANYAN_ERR_MISMATCH) {
        view->hang = strdup(banyan_last_error());
        return view->hang ? BANYAN_OK : banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
    }
    TRY(status);
    if (banyan_simulation_step_at(view->simulation, STEPS_MOST, &step) ||
        !banyan_simulation_step_at(view->simulation, 0, &step))
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "%s makes more than %d steps, or none: a page has one to that many",
                                view->path, STEPS_MOST);
    return BANYAN_OK;
}

static banyan_status gather(struct view *view)
{
    TRY(plan_file_read(view->path, &view->plan));
    TRY(read_topology(view));
    TRY(simulate(view));
    return view->check ? banyan_plan_check(view->plan, NULL, &view->report) : BANYAN_OK;
}

/* ---- the page ---- */

/* JSON in a script: what could end the script can only be in a string. */
static void write_json(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("\\u003c", file);
        else
            fputc(*text, file);
    }
}

static void write_steps(FILE *file, const banyan_simulation *simulation)
{
    banyan_simulation_step step;
    for (size_t i = 0; banyan_simulation_step_at(simulation, i, &step); i++) {
        fprintf(file, "%s\n[%d,%d,%d,%d,%d,%" PRIu64 ",%.9g,%.9g,", i > 0 ? "," : "", step.rank,
                step.thread_block, step.proxy, step.operation, step.loop_operation, step.iteration,
                step.began_s, step.ended_s);
        if (step.after == SIZE_MAX)
            fprintf(file, "-1]");
        else
            fprintf(file, "%zu]", step.after);
    }
}

static void write_text(FILE *file, const char *text)
{
    json_t *string = text ? json_string(text) : json_null();
    char *printed = json_dumps(string, JSON_ENCODE_ANY);
    write_json(file, printed ? printed : "null");
    free(printed);
    json_decref(string);
}

static void write_findings(FILE *file, const banyan_check_report *report)
{
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_finding *finding = banyan_check_report_finding(report, i);
        fprintf(file, "%s\n{\"rule\": \"%s\", \"warning\": %s, \"message\": ", i > 0 ? "," : "",
                banyan_rule_name(finding->rule),
                banyan_rule_is_warning(finding->rule) ? "true" : "false");
        write_text(file, finding->message);
        fprintf(file, ", \"places\": [");
        for (size_t p = 0; p < finding->place_count; p++) {
            const banyan_place *place = &finding->places[p];
            fprintf(file, "%s[%d,%d,%d,%d]", p > 0 ? "," : "", place->rank, place->thread_block,
                    place->operation, place->loop_operation);
        }
        fprintf(file, "]}");
    }
}

static banyan_status write_data(FILE *file, const struct view *view)
{
    char *plan;
    size_t bytes;
    TRY(banyan_plan_print(view->plan, &plan, &bytes));
    fprintf(file, "{\"message_bytes\": %" PRIu64 ", \"topology\": ", view->message_bytes);
    write_text(file, view->topology_name ? banyan_topology_describe(view->topology).name : NULL);
    fprintf(file, ", \"hang\": ");
    write_text(file, view->hang);
    fprintf(file, ",\n\"plan\": ");
    write_json(file, plan);
    free(plan);
    fprintf(file, ",\n\"checked\": %s, \"findings\": [", view->report ? "true" : "false");
    if (view->report)
        write_findings(file, view->report);
    fprintf(file, "],\n\"steps\": [");
    if (view->simulation)
        write_steps(file, view->simulation);
    fprintf(file, "]}");
    return BANYAN_OK;
}

static banyan_status make_data(const struct view *view, char **data)
{
    size_t bytes;
    FILE *file = open_memstream(data, &bytes);
    if (!file)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
    banyan_status status = write_data(file, view);
    bool whole = ferror(file) == 0;
    whole &= fclose(file) == 0;
    if (status == BANYAN_OK && !whole)
        status =
            banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %zu bytes of a page", bytes);
    if (status != BANYAN_OK)
        free(*data);
    return status;
}

static bool write_page(const char *path, const char *data)
{
    const char *html = pages[0].text, *mark = strstr(html, MARK);
    out_file out;
    if (!out_file_open(&out, path))
        return false;
    fwrite(html, 1, (size_t)(mark - html), out.file);
    fputs(data, out.file);
    fputs(mark + strlen(MARK), out.file);
    return out_file_finish(&out);
}

static banyan_status draw(struct view *view)
{
    char *data;
    TRY(gather(view));
    TRY(make_data(view, &data));
    bool written = write_page(view->out, data);
    int error = errno;
    free(data);
    if (!written)
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write %s: %s", view->out,
                                strerror(error));
    return BANYAN_OK;
}

static int run(struct view *view)
{
    banyan_status status = draw(view);
    if (status != BANYAN_OK)
        fprintf(stderr, WHO ": %s\n", banyan_last_error());
    else if (view->hang)
        fprintf(stderr, WHO ": %s\n", view->hang);
    free(view->hang);
    banyan_check_report_destroy(view->report);
    banyan_simulation_destroy(view->simulation);
    banyan_topology_destroy(view->topology);
    banyan_plan_destroy(view->plan);
    return status == BANYAN_OK ? 0 : 1;
}

int plan_view_command(int argc, char **argv)
{
    struct view view = {.size = DEFAULT_SIZE};
    const option_entry entries[] = {
        {"out", 'o', OPTION_TEXT, &view.out, "FILE", "the page to write: plan.html", 0, 0},
        {"topology", 't', OPTION_TEXT, &view.topology_name, "FILE|NAME",
         "to time, as simulated on this machine (an operation takes a step)", 0, 0},
        {"size", 's', OPTION_BYTES, &view.size, "BYTES", "of the longer of input and output (1M)",
         0, 0},
        {"check", 'c', OPTION_FLAG, &view.check, NULL,
         "mark what `banyan check` finds, at any size", 0, 0},
    };
    const option_table table = {
        WHO, "PLAN.json -o plan.html [--topology FILE|NAME] [--size 1M] [--check]",
        "Draw a plan on a page that needs no network: a lane for each thread block, a block for\n"
        "each operation, arrows for what it waited for. Pointing at an operation tells its chunks\n"
        "and peers; a click shows the chain of operations that it came after. Of a plan that\n"
        "hangs the page has the operations in their order, and who waits for whom.\n",
        entries, sizeof entries / sizeof entries[0]};
    int rest;
    options_result result = options_parse_anywhere(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (rest + 1 != argc)
        return options_refuse(&table, "say which plan: PLAN.json");
    if (!view.out)
        return options_refuse(&table, "say where to: -o plan.html");
    view.path = argv[rest];
    return run(&view);
}
