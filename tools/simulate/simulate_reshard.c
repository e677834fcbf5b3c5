
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/forecast.h>
#include <jansson.h>

#include "cli/files.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "core/text/escape.h"
#include "layout/traffic_links.h"
#include "simulate/simulate_report.h"

#define WHO "banyan simulate"

static const char *const services[] = {
    [BANYAN_FORECAST_DIRECT] = "direct", [BANYAN_FORECAST_PIPELINE] = "pipeline"};
#define SERVICES (sizeof services / sizeof services[0])

/* A service's results before anything is printed. */
typedef struct outcome {
    banyan_forecast forecast;
    banyan_simulation *simulation; /* NULL: not asked for */
} outcome;

typedef struct job {
    simulate_reshard_arguments *given;
    banyan_topology *topology;
    banyan_traffic *traffic;
    char title[JOB_SPEC_TITLE_BYTES];
    banyan_traffic_links links;
    progress bar;
    outcome outcomes[SERVICES];
} job;

const char *simulate_reshard_problem(const simulate_reshard_arguments *given,
                                     const char *trace_path)
{
    bool is_reshard = given->is_case || given->spec.from_text;
    bool known = !given->service;
    for (size_t i = 0; i < SERVICES && given->service; i++)
        known = known || strcmp(given->service, services[i]) == 0;
    if (!known)
        return "--service is direct or pipeline";
    if (!is_reshard && (given->service || given->slot_bytes > 0 || given->optimal_rounds ||
                        given->each_rank_fetches))
        return "--service, --slot-bytes, --optimal-rounds and --each-rank-fetches are for reshards";
    if (is_reshard && trace_path && !given->service)
        return "a trace is of one --service";
    return NULL;
}

static banyan_status simulate_reshard_rank_layouts(void *context, int rank, banyan_layout *source,
                                                   banyan_layout *destination)
{
    const job *of = context;
    job_spec_layouts(&of->given->spec, rank, source, destination);
    return BANYAN_OK;
}

static void simulate_reshard_show_progress(void *context, uint64_t done, uint64_t total)
{
    job *of = context;
    if (done == 1)
        progress_begin(&of->bar, true, "planning", total, false);
    progress_add(&of->bar, 1);
}

static banyan_status simulate_reshard_plan_case(job *of)
{
    banyan_megatron_case *loaded;
    RETURN_IF_FAILED(banyan_megatron_case_load(of->given->case_path, &loaded));
    char name[sizeof of->title];
    snprintf(of->title, sizeof of->title, "%s: %d ranks",
             escape_controls(banyan_megatron_case_name(loaded), name, sizeof name),
             banyan_megatron_case_world_size(loaded));
    banyan_status status = banyan_traffic_plan_case(loaded, NULL, &of->traffic);
    banyan_megatron_case_destroy(loaded);
    return status;
}

static banyan_status plan_model(job *of)
{
    const banyan_reshard_sample_world world = {
        .world_size = of->given->spec.ranks,
        .layouts = simulate_reshard_rank_layouts,
        .progress = simulate_reshard_show_progress,
        .context = of,
        .ranks_per_node = banyan_topology_describe(of->topology).processors_per_node};
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.require_whole_source = !of->given->spec.partial_source;
    options.each_rank_fetches = of->given->each_rank_fetches;
    job_spec_title(&of->given->spec, of->title);
    banyan_status status = banyan_traffic_plan(&world, &options, &of->traffic);
    progress_end(&of->bar);
    return status;
}

static void print_traffic(const job *of)
{
    banyan_traffic_info info = banyan_traffic_describe(of->traffic);
    char texts[5][TEXT_NUMBER_BYTES];
    printf("%s, on %s\n", of->title, banyan_topology_describe(of->topology).name);
    printf("%s transfers between %s pairs of ranks, %s; %s stay at their rank\n",
           text_count(info.transfers, texts[0]), text_count(info.pairs, texts[1]),
           text_bytes(info.bytes, texts[2]), text_bytes(info.local_bytes, texts[3]));
    printf("one rank sends up to %s", text_bytes(info.most_sent, texts[4]));
    printf(", receives up to %s\n", text_bytes(info.most_received, texts[4]));
    traffic_links_print(&of->links);
}

static void print_forecast(const job *of, size_t service)
{
    banyan_traffic_info info = banyan_traffic_describe(of->traffic);
    const banyan_forecast *forecast = &of->outcomes[service].forecast;
    char text[TEXT_NUMBER_BYTES], slots[TEXT_NUMBER_BYTES];
    double gb = (double)(info.bytes + info.local_bytes) / 1e9;
    printf("\n%-10s%s, %.1f GB/s of all ranks; rank %d is the last", services[service],
           text_seconds(forecast->seconds, text),
           forecast->seconds > 0 ? gb / forecast->seconds : 0, forecast->critical_rank);
    if (service == BANYAN_FORECAST_PIPELINE)
        printf("\n%-10s%s batches in %zu rounds, slots of %s", "",
               text_count(forecast->batches, text), (size_t)forecast->rounds,
               text_bytes(forecast->slot_bytes, slots));
    printf("\n");
    simulate_report_links(of->outcomes[service].simulation);
    simulate_report_path(of->outcomes[service].simulation);
}

static void simulate_reshard_print_table(const job *of)
{
    print_traffic(of);
    for (size_t service = 0; service < SERVICES; service++) {
        if (of->outcomes[service].simulation)
            print_forecast(of, service);
    }
}

static json_t *forecasts_json(const job *of)
{
    json_t *list = json_array();
    for (size_t service = 0; service < SERVICES; service++) {
        const banyan_forecast *forecast = &of->outcomes[service].forecast;
        const banyan_simulation *simulation = of->outcomes[service].simulation;
        if (!simulation)
            continue;
        json_t *entry = json_pack(
            "{s:s, s:f, s:i, s:I, s:I, s:I, s:o, s:o}", "service", services[service], "seconds",
            forecast->seconds, "critical_rank", forecast->critical_rank, "batches",
            (json_int_t)forecast->batches, "rounds", (json_int_t)forecast->rounds, "slot_bytes",
            (json_int_t)forecast->slot_bytes, "links", simulate_report_links_json(simulation),
            "critical_path", simulate_report_path_json(simulation));
        if (json_array_append_new(list, entry) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static banyan_status simulate_reshard_print_json(const job *of)
{
    banyan_traffic_info info = banyan_traffic_describe(of->traffic);
    json_t *object = json_pack(
        "{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "title", of->title, "topology",
        banyan_topology_describe(of->topology).name, "ranks", info.ranks, "transfers",
        (json_int_t)info.transfers, "bytes", (json_int_t)info.bytes, "local_bytes",
        (json_int_t)info.local_bytes, "pairs", (json_int_t)info.pairs, "most_sent",
        (json_int_t)info.most_sent, "most_received", (json_int_t)info.most_received, "links",
        traffic_links_json(&of->links), "forecasts", forecasts_json(of));
    return json_print(object);
}

static banyan_status forecast_one(job *of, banyan_forecast_service service)
{
    const simulate_reshard_arguments *given = of->given;
    banyan_forecast_options options = BANYAN_FORECAST_OPTIONS_INIT;
    outcome *made = &of->outcomes[service];
    options.service = service;
    options.slot_bytes = given->slot_bytes;
    options.optimal_rounds = given->optimal_rounds;
    options.steps = true;
    RETURN_IF_FAILED(banyan_traffic_simulate(of->traffic, of->topology, &options, &made->forecast,
                                             &made->simulation));
    return given->trace_path ? banyan_simulation_write_trace(made->simulation, given->trace_path)
                             : BANYAN_OK;
}

static banyan_status forecast_all(job *of)
{
    const char *only = of->given->service;
    banyan_status status = BANYAN_OK;
    progress_begin(&of->bar, true, "simulating", 1, false);
    for (size_t service = 0; service < SERVICES && status == BANYAN_OK; service++) {
        if (only && strcmp(only, services[service]) != 0)
            continue;
        progress_show(&of->bar, services[service], only ? 0 : (double)service / SERVICES);
        status = forecast_one(of, (banyan_forecast_service)service);
    }
    progress_end(&of->bar);
    return status;
}

static banyan_status simulate_reshard_run(job *of)
{
    const simulate_reshard_arguments *given = of->given;
    RETURN_IF_FAILED(banyan_topology_read(given->topology_name, &of->topology));
    RETURN_IF_FAILED(given->is_case ? simulate_reshard_plan_case(of) : plan_model(of));
    RETURN_IF_FAILED(banyan_traffic_describe_links(of->traffic, &of->links));
    RETURN_IF_FAILED(forecast_all(of));
    if (given->json)
        return simulate_reshard_print_json(of);
    simulate_reshard_print_table(of);
    return BANYAN_OK;
}

int simulate_reshard(simulate_reshard_arguments *given)
{
    job of = {.given = given};
    if (given->spec.from_text && !job_spec_read(&given->spec, WHO)) {
        job_spec_free(&given->spec);
        return 1;
    }
    banyan_status status = simulate_reshard_run(&of);
    if (status != BANYAN_OK)
        fprintf(stderr, WHO ": %s\n", banyan_last_error());
    for (size_t service = 0; service < SERVICES; service++)
        banyan_simulation_destroy(of.outcomes[service].simulation);
    banyan_traffic_destroy(of.traffic);
    banyan_topology_destroy(of.topology);
    job_spec_free(&given->spec);
    return status == BANYAN_OK ? 0 : 1;
}
