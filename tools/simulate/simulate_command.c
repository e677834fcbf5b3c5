#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/collective.h>
#include <banyan/simulate.h>
#include <jansson.h>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/message.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "simulate/simulate_report.h"

#define WHO "banyan simulate"

struct simulate_arguments {
    const char *path, *algorithm, *topology_name, *trace_path, *dtype_name, *tuning_path;
    int instances; /* of the algorithm; 0: as tuned */
    simulate_reshard_arguments reshard;
    uint64_t range[2];
    int step_factor;
    int max_steps; /* 0: not given */
    bool json;
};

/* A plan and, if it was compiled here, its parameters. */
typedef struct sized_plan {
    banyan_plan *plan;
    int instances;
    uint64_t unit_bytes;
} sized_plan;

/* The algorithm's parameters for messages whose longer buffer has `bytes`. */
static banyan_status choose_params(const struct simulate_arguments *given,
                                   const banyan_topology *topology, DLDataType dtype,
                                   uint64_t bytes, banyan_algorithm_params *params)
{
    banyan_topology_info machine = banyan_topology_describe(topology);
    banyan_algorithm_info info;
    size_t i = 0;
    *params = (banyan_algorithm_params)BANYAN_ALGORITHM_PARAMS_INIT;
    params->ranks = machine.processors;
    params->instances = given->instances;
    params->shift = 1;
    while (banyan_algorithm_at(i, &info) == BANYAN_OK && strcmp(info.name, given->algorithm) != 0)
        i++;
    /* The compiler refuses an unknown name. */
    if (given->instances > 0 || banyan_algorithm_at(i, &info) != BANYAN_OK)
        return BANYAN_OK;
    bool gathers = info.collective == BANYAN_ALLGATHER, on_gpus = machine.thread_blocks > 1;
    banyan_status status = banyan_algorithm_tuned(
        given->algorithm, given->tuning_path, on_gpus ? BANYAN_CUDA(0) : BANYAN_HOST, dtype,
        gathers ? bytes / (uint64_t)machine.processors : bytes, params);
    params->instances = params->instances > 0 ? params->instances : 1;
    return status;
}

/* Make `*made` the plan for this size. Algorithms are compiled here, since a plan of a thousand
 * ranks is a gigabyte of JSON, which takes longer to read than to simulate. */
static banyan_status simulate_command_make_plan(const struct simulate_arguments *given,
                                                const banyan_topology *topology, DLDataType dtype,
                                                uint64_t bytes, sized_plan *made)
{
    banyan_algorithm_params params;
    if (!given->algorithm)
        return made->plan ? BANYAN_OK : plan_file_read(given->path, &made->plan);
    RETURN_IF_FAILED(choose_params(given, topology, dtype, bytes, &params));
    if (made->plan && params.instances == made->instances && params.unit_bytes == made->unit_bytes)
        return BANYAN_OK;
    banyan_plan_destroy(made->plan);
    *made = (sized_plan){.instances = params.instances, .unit_bytes = params.unit_bytes};
    return plan_file_compile(given->algorithm, &params, &made->plan);
}

typedef struct simulated {
    const struct simulate_arguments *given;
    const banyan_topology *topology;
    DLDataType dtype;
    const progress *bar;
    banyan_simulate_options options;
} simulated;

static banyan_status simulate_size(const simulated *of, const banyan_plan *plan,
                                   const message *size, bool steps, double share,
                                   banyan_simulation **simulation)
{
    banyan_simulate_options options = of->options;
    char text[TEXT_NUMBER_BYTES];
    progress_show(of->bar, text_bytes(size->bytes, text), share);
    options.message_bytes = size->message_bytes;
    options.elem_bytes = banyan_dtype_bytes(of->dtype);
    options.steps = steps;
    banyan_status status = banyan_plan_simulate(plan, of->topology, &options, simulation);
    progress_hide(of->bar);
    return status;
}

/* The sizes that are asked for, ascending; the plan rounds them. */
static size_t wanted_sizes(const struct simulate_arguments *given, uint64_t wanted[MESSAGES_MOST])
{
    uint64_t high = given->range[1], factor = (uint64_t)given->step_factor;
    size_t count = 0;
    for (uint64_t bytes = given->range[0]; count < MESSAGES_MOST; bytes *= factor) {
        wanted[count++] = bytes;
        if (bytes > high / factor)
            break;
    }
    return count;
}

/* Simulate the longest size before the first line is printed: an error of any size is one of the
 * longest. The path and the trace come from its steps. */
static banyan_status simulate_command_simulate(const simulated *of, sized_plan *longest,
                                               simulate_report *report)
{
    uint64_t wanted[MESSAGES_MOST];
    message last, size, before = {0};
    size_t count = wanted_sizes(of->given, wanted), elem_bytes = banyan_dtype_bytes(of->dtype);
    RETURN_IF_FAILED(message_fit(longest->plan, elem_bytes, wanted[count - 1], &last));
    RETURN_IF_FAILED(simulate_size(of, longest->plan, &last, true, 0, &report->last));
    if (of->given->trace_path)
        RETURN_IF_FAILED(banyan_simulation_write_trace(report->last, of->given->trace_path));
    simulate_report_begin(report);
    sized_plan own = {0};
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i + 1 < count && status == BANYAN_OK; i++) {
        banyan_simulation *simulation;
        sized_plan *used = of->given->algorithm ? &own : longest;
        status = simulate_command_make_plan(of->given, of->topology, of->dtype, wanted[i], used);
        if (status == BANYAN_OK)
            status = message_fit(used->plan, elem_bytes, wanted[i], &size);
        if (status != BANYAN_OK || size.message_bytes == before.message_bytes ||
            size.message_bytes >= last.message_bytes)
            continue;
        before = size;
        status = simulate_size(of, used->plan, &size, false, (double)(i + 1) / (double)count,
                               &simulation);
        if (status != BANYAN_OK)
            continue;
        simulate_report_size(report, &size, simulation, used->instances);
        banyan_simulation_destroy(simulation);
    }
    banyan_plan_destroy(own.plan);
    RETURN_IF_FAILED(status);
    simulate_report_size(report, &last, report->last, longest->instances);
    simulate_report_end(report);
    return BANYAN_OK;
}

static int simulate_command_run(const struct simulate_arguments *given)
{
    banyan_topology *topology = NULL;
    sized_plan longest = {0};
    uint64_t wanted[MESSAGES_MOST];
    progress bar;
    simulated of = {.given = given, .bar = &bar, .options = BANYAN_SIMULATE_OPTIONS_INIT};
    if (given->max_steps > 0)
        of.options.max_steps = (uint64_t)given->max_steps;
    progress_begin(&bar, true, "simulating", 1, false);
    banyan_status status = banyan_dtype_parse(given->dtype_name, &of.dtype);
    if (status == BANYAN_OK)
        status = banyan_topology_read(given->topology_name, &topology);
    of.topology = topology;
    progress_show(&bar, given->algorithm ? given->algorithm : given->path, 0);
    if (status == BANYAN_OK)
        status = simulate_command_make_plan(given, topology, of.dtype,
                                            wanted[wanted_sizes(given, wanted) - 1], &longest);
    progress_hide(&bar);
    if (status == BANYAN_OK) {
        simulate_report report = {.plan = longest.plan, .topology = topology, .json = given->json};
        status = simulate_command_simulate(&of, &longest, &report);
        simulate_report_free(&report);
    }
    if (status != BANYAN_OK)
        fprintf(stderr, WHO ": %s\n", banyan_last_error());
    banyan_topology_destroy(topology);
    banyan_plan_destroy(longest.plan);
    return status == BANYAN_OK ? 0 : 1;
}

int simulate_command(int argc, char **argv)
{
    struct simulate_arguments given = {
        .dtype_name = "f32", .range = {UINT64_C(1) << 10, UINT64_C(64) << 20}, .step_factor = 2};
    job_spec *spec = &given.reshard.spec;
    const option_entry entries[] = {
        {"topology", 't', OPTION_TEXT, &given.topology_name, "TOPOLOGY",
         "machine: a file, or a name from `banyan topo list`", 0, 0},
        {"algo", 'a', OPTION_TEXT, &given.algorithm, "ALGORITHM",
         "simulate this built-in algorithm on all processors, without a plan file", 0, 0},
        {"instances", '\0', OPTION_COUNT, &given.instances, "N",
         "number of instances of --algo (the tuned one for each size, or 1)", 1, 1024},
        {"tuning", '\0', OPTION_TEXT, &given.tuning_path, "FILE",
         "table of banyan tune with numbers of instances (BANYAN_TUNING, or built in)", 0, 0},
        {"size", 's', OPTION_BYTES_RANGE, given.range, "LOW:HIGH",
         "bytes of the longer of input and output (1K:64M)", 0, 0},
        {"step-factor", '\0', OPTION_COUNT, &given.step_factor, "N",
         "factor from one size to the next (2)", 2, 1 << 20},
        {"max-steps", '\0', OPTION_COUNT, &given.max_steps, "N",
         "limit on the steps of the plan's loops (33554432)", 1, INT_MAX},
        {"dtype", 'd', OPTION_TEXT, &given.dtype_name, "TYPE", "element type (f32)", 0, 0},
        {"trace", '\0', OPTION_FILE, &given.trace_path, "FILE",
         "write a trace of the longest size, for Perfetto and banyan plan view", 0, 0},
        {"reshard", '\0', OPTION_FLAG, &given.reshard.is_case, NULL,
         "simulate a case file of banyan reshard verify", 0, 0},
        {"model", 'm', OPTION_TEXT, &spec->model_path, "FILE",
         "reshard this model: a tensor list, Hugging Face folder or safetensors file", 0, 0},
        {"from", '\0', OPTION_TEXT, &spec->from_text, "SPEC",
         "source layout: tp=8,pp=8,ep=16, or a layout file", 0, 0},
        {"to", '\0', OPTION_TEXT, &spec->to_text, "SPEC", "destination layout", 0, 0},
        {"disjoint", '\0', OPTION_FLAG, &spec->disjoint, NULL,
         "destination ranks differ from source ranks", 0, 0},
        {"partial-source", '\0', OPTION_FLAG, &spec->partial_source, NULL,
         "allow source elements that no destination holds (they are refused)", 0, 0},
        {"config", '\0', OPTION_TEXT, &given.reshard.spec.config_path, "FILE",
         "config.json of the model, if it is not beside the weights", 0, 0},
        {"rules", '\0', OPTION_TEXT, &spec->rules_path, "FILE",
         "rules that split the tensors (built in)", 0, 0},
        {"service", '\0', OPTION_TEXT, &given.reshard.service, "direct|pipeline",
         "copy service of a reshard (both)", 0, 0},
        {"slot-bytes", '\0', OPTION_BYTES, &given.reshard.slot_bytes, "BYTES",
         "bytes of a slot of the pipeline (16M)", 0, 0},
        {"each-rank-fetches", '\0', OPTION_FLAG, &given.reshard.each_rank_fetches, NULL,
         "let each rank of a node fetch all of its data over the network", 0, 0},
        {"optimal-rounds", '\0', OPTION_FLAG, &given.reshard.optimal_rounds, NULL,
         "give the pipeline the fewest possible rounds", 0, 0},
        {"json", '\0', OPTION_FLAG, &given.json, NULL, "print one JSON object instead of a table",
         0, 0},
    };
    const option_table table = {
        WHO,
        "PLAN.json --topology TOPOLOGY [options]\n"
        "       banyan simulate --algo ALGORITHM --topology TOPOLOGY [options]\n"
        "       banyan simulate --model FILE --from SPEC --to SPEC -t TOPOLOGY [options]\n"
        "       banyan simulate --reshard CASE.json -t TOPOLOGY [options]",
        "Predict the time that a plan takes on a machine, with rank i on processor i. Print the\n"
        "time for each size. For the longest size, also print the use of links and memories and\n"
        "the critical path: the chain of dependent operations that determines the end. Nothing\n"
        "is run. A plan that hangs is refused, with its dependencies. docs/simulate.md explains\n"
        "the figures and how far to trust them.\n\n"
        "Sizes are rounded down to sizes that the plan can divide into whole elements. A ~\n"
        "marks sizes outside the message bounds of the plan. algbw and busbw are defined as in\n"
        "banyan run. Use - as PLAN.json to read stdin.\n\n"
        "With --algo, each size has the number of instances that the tuning table has for the\n"
        "algorithm: the rows for GPUs if a processor of the machine runs several thread blocks\n"
        "at once. The table of times shows the number.\n\n"
        "For a reshard, all ranks are planned with the planner of a real run. The transfers are\n"
        "simulated as the direct service and as the copy pipeline perform them.\n",
        entries, sizeof entries / sizeof entries[0]};
    int rest;
    RETURN_UNLESS_PARSED(options_parse_anywhere(&table, argc, argv, &rest));
    bool of_model = spec->model_path || spec->from_text || spec->to_text;
    if (of_model && (rest < argc || given.reshard.is_case))
        return options_refuse(&table, "--model, --from and --to go without a file");
    if (of_model && job_spec_missing(spec))
        return options_refuse(&table, "%s is missing", job_spec_missing(spec));
    if (given.algorithm && (rest < argc || of_model))
        return options_refuse(&table, "--algo goes without a file and without a model");
    if (given.instances && !given.algorithm)
        return options_refuse(&table, "--instances are those of --algo");
    if (given.tuning_path && (!given.algorithm || given.instances))
        return options_refuse(&table, given.algorithm ? "--tuning and --instances contradict"
                                                      : "--tuning is for --algo");
    if (!of_model && !given.algorithm && rest + 1 != argc)
        return options_refuse(&table, rest == argc ? "say which plan: PLAN.json"
                                                   : "one plan at a time: PLAN.json");
    if (!given.topology_name)
        return options_refuse(&table, "say which machine: --topology FILE or NAME");
    const char *problem = simulate_reshard_problem(&given.reshard, given.trace_path);
    if (problem)
        return options_refuse(&table, "%s", problem);
    given.path = argv[rest];
    if (given.trace_path && !out_file_possible(given.trace_path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", given.trace_path, strerror(errno));
        return 1;
    }
    given.reshard.case_path = given.path;
    given.reshard.topology_name = given.topology_name;
    given.reshard.trace_path = given.trace_path;
    given.reshard.json = given.json;
    return of_model || given.reshard.is_case ? simulate_reshard(&given.reshard)
                                             : simulate_command_run(&given);
}
