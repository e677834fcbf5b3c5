#include "topo_probe.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <banyan/program.h>
#include <banyan/simulate.h>

#include "forked.h"
#include "options.h"
#include "out_file.h"
#include "run_job.h"
#include "try.h"

#define WHO "banyan topo probe"
#define SMALL_BYTES 64
#define LARGE_BYTES (UINT64_C(2) << 20)
#define TRIES 21       /* of each size; the median counts */
#define RUNS 20        /* of a try */
#define MANY 33        /* copies in a row */
#define ROUND_TRIPS 16 /* of signals */
#define RANKS_MOST 1024

/* What a plan took for a small and a large message. */
typedef struct timing {
    double small, large;
} timing;

/* ---- plans that do one thing, on all pairs of ranks at once ---- */

typedef struct pair {
    banyan_program *program;
    int rank, partner;
    banyan_chunk input, output, scratch, partner_output, partner_scratch;
} pair;

static banyan_memory_channel *channel(const pair *of)
{
    return banyan_memory_channel_create(of->program, of->partner, of->rank);
}

static void copy_once(const pair *of)
{
    banyan_copy(of->program, of->rank, of->output, of->input, BANYAN_TB(0));
}

static void copy_often(const pair *of)
{
    for (int i = 0; i < MANY; i++)
        copy_once(of);
}

static void reduce(const pair *of)
{
    banyan_reduce_chunks(of->program, of->rank, of->input, &of->output, 1, of->output, BANYAN_SUM,
                         BANYAN_TB(0));
}

/* The lower rank of a pair calls, the other answers. */
static void call(const pair *of)
{
    banyan_memory_channel *to = channel(of);
    for (int i = 0; i < ROUND_TRIPS; i++) {
        if (of->rank < of->partner)
            banyan_memory_signal(to, 0, BANYAN_SYNC_BOTH);
        banyan_memory_wait(to, 0, BANYAN_SYNC_BOTH);
        if (of->rank > of->partner)
            banyan_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    }
}

static void put(const pair *of)
{
    banyan_memory_channel *to = channel(of);
    banyan_memory_put(to, of->partner_output, of->input, BANYAN_TB(0));
    banyan_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_memory_wait(to, 0, BANYAN_SYNC_BOTH);
}

static void get(const pair *of)
{
    banyan_memory_channel *to = channel(of);
    banyan_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_memory_wait(to, 0, BANYAN_SYNC_BOTH);
    banyan_memory_get(to, of->output, banyan_input(of->program, of->partner, 0, 1), BANYAN_TB(0));
}

static void send_packets(const pair *of)
{
    banyan_memory_put_packets(channel(of), of->partner_scratch, of->input, BANYAN_TB(0));
    banyan_unpack_packets(of->program, of->rank, of->output, of->scratch, BANYAN_TB(0));
}

static void put_by_port(const pair *of)
{
    banyan_port_channel *to = banyan_port_channel_create(of->program, of->partner, of->rank);
    banyan_port_put_with_signal_and_flush(to, of->partner_output, of->input, 0);
    banyan_port_wait(to, 0, BANYAN_SYNC_BOTH);
}

typedef void (*probe_build)(const pair *of);

/* Of an odd number the last rank only copies. */
static void build_ranks(banyan_program *program, int ranks, probe_build build)
{
    banyan_chunk scratch[RANKS_MOST];
    for (int r = 0; r < ranks; r++)
        scratch[r] = banyan_scratch(program, r, 1);
    for (int r = 0; r < ranks; r++) {
        pair of = {.program = program, .rank = r, .partner = r ^ 1, .scratch = scratch[r]};
        bool alone = of.partner >= ranks;
        of.input = banyan_input(program, r, 0, 1);
        of.output = banyan_output(program, r, 0, 1);
        if (!alone) {
            of.partner_output = banyan_output(program, of.partner, 0, 1);
            of.partner_scratch = scratch[of.partner];
        }
        (alone ? copy_once : build)(&of);
    }
}

static banyan_status build_plan(int ranks, probe_build build, banyan_plan **plan)
{
    const banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = 1, .output_chunks = 1};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    options.double_scratch = true;
    TRY(banyan_program_create("probe", &collective, ranks, &options, &program));
    build_ranks(program, ranks, build);
    banyan_status status = banyan_program_compile(program, plan);
    banyan_program_destroy(program);
    return status;
}

/* ---- running them ---- */

static banyan_status run_forked(run_job *job)
{
    size_t bytes = 2 * TRIES * sizeof *job->sizes;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
    job->sizes = shared;
    job->size_count = 2 * TRIES;
    for (size_t i = 0; i < job->size_count; i++) {
        uint64_t size = i < TRIES ? SMALL_BYTES : LARGE_BYTES;
        job->sizes[i] = (run_size){.message_bytes = size, .bytes = size};
    }
    if (forked_run(WHO, job->info.ranks, run_rank, job, job->failed) != 0)
        return banyan_error_set(BANYAN_ERR_ABORTED, "a measurement failed");
    return BANYAN_OK;
}

static int compare_sizes(const void *a, const void *b)
{
    double first = ((const run_size *)a)->seconds, second = ((const run_size *)b)->seconds;
    return first < second ? -1 : first > second;
}

static timing median(run_job *job)
{
    qsort(job->sizes, TRIES, sizeof *job->sizes, compare_sizes);
    qsort(job->sizes + TRIES, TRIES, sizeof *job->sizes, compare_sizes);
    return (timing){job->sizes[TRIES / 2].seconds, job->sizes[TRIES + TRIES / 2].seconds};
}

static banyan_status run_plan(const banyan_plan *plan, timing *took)
{
    run_job job = {.path = "probe",
                   .dtype_name = "f32",
                   .plan = plan,
                   .info = banyan_plan_describe(plan),
                   .json = true,
                   .iters = RUNS,
                   .workers = 1};
    TRY(run_data_make(plan, BANYAN_F32, &job.data));
    job.failed = failure_create();
    if (!job.failed)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
    banyan_status status = run_forked(&job);
    if (status == BANYAN_OK)
        *took = median(&job);
    if (job.sizes)
        munmap(job.sizes, 2 * TRIES * sizeof *job.sizes);
    failure_destroy(job.failed);
    return status;
}

static banyan_status probe(int ranks, probe_build build, timing *took)
{
    banyan_plan *plan;
    TRY(build_plan(ranks, build, &plan));
    banyan_status status = run_plan(plan, took);
    banyan_plan_destroy(plan);
    return status;
}

/* ---- figures ---- */

typedef struct figures {
    double launch, operation, signal, latency, request; /* seconds */
    double local, load, store, packet, reduce, port;
} figures;

/* Bytes a second, by what the large message took more than the small one. */
static double rate_of(const timing *took, double times)
{
    double rate = times * (double)(LARGE_BYTES - SMALL_BYTES) / (took->large - took->small);
    return rate > 1e6 && rate < 1e15 ? rate : 1e15;
}

static banyan_status measure(int ranks, figures *found)
{
    timing once, often, calls, sums, puts, gets, packets, ports;
    TRY(probe(ranks, copy_once, &once));
    TRY(probe(ranks, copy_often, &often));
    TRY(probe(ranks, reduce, &sums));
    TRY(probe(ranks, call, &calls));
    TRY(probe(ranks, put, &puts));
    TRY(probe(ranks, get, &gets));
    TRY(probe(ranks, send_packets, &packets));
    TRY(probe(ranks, put_by_port, &ports));
    figures of = {.operation = fmax(0, (often.small - once.small) / (MANY - 1))};
    of.launch = fmax(0, once.small - of.operation);
    of.latency = fmax(0, (calls.small - of.launch) / (2 * ROUND_TRIPS) - 2 * of.operation);
    /* What a signal takes more when it has data to publish, as it mostly has. */
    of.signal = fmax(0, puts.small - of.launch - 3 * of.operation - of.latency);
    of.request = fmax(0, ports.small - of.launch - 2 * of.operation - 2 * of.latency);
    of.local = rate_of(&once, 2);  /* read and written */
    of.reduce = rate_of(&sums, 2); /* two sources */
    of.store = rate_of(&puts, 1);
    of.load = rate_of(&gets, 1);
    of.packet = rate_of(&packets, 4); /* written, then read, with flags */
    of.port = rate_of(&ports, 1);
    *found = of;
    return BANYAN_OK;
}

/* Ranks share caches and memory: what that costs is in the rates, since all were measured at once.
 * Links and memories are never full. */
static void print_topology(FILE *file, const char *host, int ranks, const figures *of)
{
    double plenty = 1000 * fmax(fmax(of->local, of->port), fmax(of->load, of->store));
    fprintf(
        file,
        "{\n  \"name\": \"%s-x%d\",\n"
        "  \"about\": \"%d processes of this machine, measured by banyan topo probe\",\n"
        "  \"kinds\": {\n    \"process\": {\n      \"memory_bytes_per_s\": %.4g,\n"
        "      \"blocks_at_once\": 1,\n"
        "      \"launch_ns\": %.4g,\n      \"operation_ns\": %.4g,\n      \"sync_ns\": 0,\n"
        "      \"signal_ns\": %.4g,\n      \"block\": {\n        \"local_bytes_per_s\": %.4g,\n"
        "        \"load_bytes_per_s\": %.4g,\n        \"store_bytes_per_s\": %.4g,\n"
        "        \"packet_bytes_per_s\": %.4g,\n        \"reduce_bytes_per_s\": %.4g\n      },\n"
        "      \"proxy\": {\"request_ns\": %.4g, \"bytes_per_s\": %.4g}\n    }\n  },\n",
        host, ranks, ranks, plenty, of->launch * 1e9, of->operation * 1e9, of->signal * 1e9,
        of->local, of->load, of->store, of->packet, of->reduce, of->request * 1e9, of->port);
    fprintf(file,
            "  \"processors\": [{\"for\": {\"r\": %d}, \"name\": \"process{r}\","
            " \"kind\": \"process\"}],\n"
            "  \"switches\": [{\"name\": \"memory\", \"multicast\": true}],\n"
            "  \"links\": [{\"for\": {\"r\": %d}, \"from\": \"process{r}\", \"to\": \"memory\",\n"
            "             \"latency_ns\": %.4g, \"bytes_per_s\": %.4g}]\n}\n",
            ranks, ranks, of->latency / 2 * 1e9, plenty);
}

/* A name that needs no quoting. */
static void name_host(char name[64])
{
    if (gethostname(name, 64) != 0)
        strcpy(name, "host");
    name[63] = '\0';
    for (char *at = name; *at; at++) {
        if (*at == '"' || *at == '\\' || *at == '{' || (unsigned char)*at < ' ')
            *at = '-';
    }
}

static int write_topology(const char *path, int ranks, const figures *of)
{
    char host[64];
    out_file out;
    name_host(host);
    if (!path) {
        print_topology(stdout, host, ranks, of);
        return 0;
    }
    if (!out_file_open(&out, path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", path, strerror(errno));
        return 1;
    }
    print_topology(out.file, host, ranks, of);
    if (out_file_finish(&out))
        return 0;
    fprintf(stderr, WHO ": cannot write %s: %s\n", path, strerror(errno));
    return 1;
}

int topo_probe_command(int argc, char **argv)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int ranks = cores < 2 ? 2 : cores < RANKS_MOST ? (int)cores : RANKS_MOST;
    const char *path = NULL;
    const option_entry entries[] = {
        {"ranks", 'n', OPTION_COUNT, &ranks, "N", "processes (as many as cores)", 2, RANKS_MOST},
        {"out", 'o', OPTION_TEXT, &path, "FILE", "where to (stdout)", 0, 0},
    };
    const option_table table = {
        WHO, "[-n N] [-o FILE]",
        "Measure this machine with small plans that all of so many processes run at once, and\n"
        "write a topology that predicts what plans take on it. Nothing else should run.\n",
        entries, sizeof entries / sizeof entries[0]};
    figures found;
    options_result result = options_parse_only(&table, argc, argv);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (path && !out_file_possible(path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", path, strerror(errno));
        return 1;
    }
    if (measure(ranks, &found) != BANYAN_OK) {
        fprintf(stderr, WHO ": %s\n", banyan_last_error());
        return 1;
    }
    return write_topology(path, ranks, &found);
}
