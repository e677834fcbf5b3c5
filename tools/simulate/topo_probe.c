#include "cli/commands.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <banyan/program.h>
#include <banyan/simulate.h>

#include "cli/clock.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "launch/forked.h"
#include "run/measure.h"
#include "run/run_job.h"

#define WHO "banyan topo probe"
#define SMALL_BYTES 64
#define PORT_BYTES (UINT64_C(2) << 20)
#define PASSES 2       /* over all measurements */
#define PROBE_S 20.0   /* after which no more are made, once there is one of each */
#define ROUNDS 200     /* of runs, at most; the fastest counts */
#define GENEROUS 3     /* times its share of the time for a message */
#define MANY 33        /* copies in a row */
#define ROUND_TRIPS 16 /* of signals */
#define RANKS_MOST 1024
#define STEADY 1.5 /* times the fastest signal, at most, takes the slowest */

/* Bytes that a rank touches in a run: from what the first cache holds to what none does. */
static const double working_sets[] = {0x1p12, 0x1p14, 0x1p16, 0x1p18, 0x1p20, 0x1p21,
                                      0x1p22, 0x1p23, 0x1p24, 0x1p25, 0x1p26, 0x1p27};
enum { SETS = sizeof working_sets / sizeof working_sets[0] };

/* Memory that many ranks touch at once leaves every cache long before each rank touches the most,
 * and must fit into memory more than twice. */
#define ALWAYS_BYTES 0x1p25
#define TOGETHER_BYTES 0x1p31

static int sets_for(int ranks)
{
    int sets = SETS;
    while (working_sets[sets - 1] > ALWAYS_BYTES && ranks * working_sets[sets - 1] > TOGETHER_BYTES)
        sets--;
    return sets;
}

typedef struct pair {
    banyan_program *program;
    int rank, partner;
    banyan_chunk input, output, scratch, partner_output, partner_scratch;
} pair;

static banyan_program_memory_channel *topo_probe_channel(const pair *of)
{
    return banyan_program_memory_channel_create(of->program, of->partner, of->rank);
}

static void copy_once(const pair *of)
{
    banyan_program_copy(of->program, of->rank, of->output, of->input, BANYAN_TB(0));
}

static void copy_often(const pair *of)
{
    for (int i = 0; i < MANY; i++)
        copy_once(of);
}

static void topo_probe_reduce(const pair *of)
{
    banyan_program_reduce(of->program, of->rank, of->input, &of->output, 1, of->output, BANYAN_SUM,
                          BANYAN_TB(0));
}

/* The lower rank of a pair signals, and the other answers. */
static void topo_probe_call(const pair *of)
{
    banyan_program_memory_channel *to = topo_probe_channel(of);
    for (int i = 0; i < ROUND_TRIPS; i++) {
        if (of->rank < of->partner)
            banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
        banyan_program_memory_wait(to, 0, BANYAN_SYNC_BOTH);
        if (of->rank > of->partner)
            banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    }
}

static void topo_probe_barrier(banyan_program_memory_channel *to)
{
    banyan_program_memory_signal(to, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait(to, 0, BANYAN_SYNC_BOTH);
}

static void barrier_once(const pair *of)
{
    topo_probe_barrier(topo_probe_channel(of));
}

/* Each rank reads what the other writes, repeatedly: every line moves from cache to cache. */
static void topo_probe_pass_on(const pair *of)
{
    banyan_program_memory_channel *to = topo_probe_channel(of), *end = topo_probe_channel(of);
    banyan_program_memory_put(to, of->partner_scratch, of->input, BANYAN_TB(0));
    topo_probe_barrier(to);
    banyan_program_copy(of->program, of->rank, of->output, of->scratch, BANYAN_TB(0));
    topo_probe_barrier(end);
}

/* As pass_on, with sums, which are stored as they are computed. */
static void pass_sums_on(const pair *of)
{
    banyan_program_memory_channel *to = topo_probe_channel(of), *end = topo_probe_channel(of);
    banyan_program_reduce(of->program, of->rank, of->input, &of->output, 1, of->scratch, BANYAN_SUM,
                          BANYAN_TB(0));
    topo_probe_barrier(to);
    banyan_program_memory_get(to, of->output, of->partner_scratch, BANYAN_TB(0));
    topo_probe_barrier(end);
}

static void send_packets(const pair *of)
{
    banyan_program_memory_put_packets(topo_probe_channel(of), of->partner_scratch, of->input,
                                      BANYAN_TB(0));
    banyan_program_unpack_packets(of->program, of->rank, of->output, of->scratch, BANYAN_TB(0));
}

static void put_by_port(const pair *of)
{
    banyan_program_port_channel *to =
        banyan_program_port_channel_create(of->program, of->partner, of->rank);
    banyan_program_port_put_with_signal_and_flush(to, of->partner_output, of->input, 0);
    banyan_program_port_wait(to, 0, BANYAN_SYNC_BOTH);
}

typedef void (*probe_build)(const pair *of);

/* With an odd number of ranks the last one only copies. */
static void build_ranks(banyan_program *program, int ranks, probe_build build)
{
    banyan_chunk scratch[RANKS_MOST];
    for (int r = 0; r < ranks; r++)
        scratch[r] = banyan_program_scratch(program, r, 1);
    for (int r = 0; r < ranks; r++) {
        pair of = {.program = program, .rank = r, .partner = r ^ 1, .scratch = scratch[r]};
        bool alone = of.partner >= ranks;
        of.input = banyan_program_input(program, r, 0, 1);
        of.output = banyan_program_output(program, r, 0, 1);
        if (!alone) {
            of.partner_output = banyan_program_output(program, of.partner, 0, 1);
            of.partner_scratch = scratch[of.partner];
        }
        (alone ? copy_once : build)(&of);
    }
}

/* A measured plan, with a message of SMALL_BYTES, and with a message for each working set or one
 * long message. */
typedef struct probe_measurement {
    const char *name;
    probe_build build;
    int touched; /* bytes touched per message byte; 0: not by working set */
    uint64_t long_bytes;
    double seconds[SETS + 1]; /* of a run, the fastest so far */
} probe_measurement;

enum { COPY, COPIES, REDUCE, CALL, BARRIER, PASS_ON, PASS_SUMS, PACKETS, PORT, MEASUREMENTS };

static banyan_status build_plan(int ranks, probe_build build, banyan_plan **plan)
{
    const banyan_collective collective = {
        .kind = BANYAN_CUSTOM, .input_chunks = 1, .output_chunks = 1};
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_program *program;
    options.double_scratch = build == send_packets; /* no wait ends its runs */
    RETURN_IF_FAILED(banyan_program_create("probe", &collective, ranks, &options, &program));
    build_ranks(program, ranks, build);
    banyan_status status = banyan_program_compile(program, plan);
    banyan_program_destroy(program);
    return status;
}

static banyan_status run_forked(run_job *job, const uint64_t *messages, size_t count)
{
    size_t bytes = count * sizeof *job->sizes;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
    job->sizes = shared;
    job->size_count = count;
    for (size_t i = 0; i < count; i++)
        job->sizes[i] = (run_size){.message_bytes = messages[i], .bytes = messages[i]};
    if (forked_run(WHO, job->info.ranks, run_rank, job, job->failed) != 0)
        return banyan_error_set(BANYAN_ERR_ABORTED, "a measurement failed");
    return BANYAN_OK;
}

/* Measure the seconds of a run with each message. */
static banyan_status run_plan(const banyan_plan *plan, const uint64_t *messages, size_t count,
                              double rounds_s, double *seconds)
{
    run_job job = {.path = "probe",
                   .dtype_name = "f32",
                   .plan = plan,
                   .info = banyan_plan_describe(plan),
                   .json = true,
                   .rounds = ROUNDS,
                   .rounds_s = rounds_s,
                   .bound = true,
                   .workers = 1};
    RETURN_IF_FAILED(run_data_make(plan, BANYAN_F32, &job.data));
    job.failed = failure_create();
    if (!job.failed)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory");
    banyan_status status = run_forked(&job, messages, count);
    for (size_t i = 0; status == BANYAN_OK && i < count; i++)
        seconds[i] = job.sizes[i].seconds;
    if (job.sizes)
        munmap(job.sizes, count * sizeof *job.sizes);
    failure_destroy(job.failed);
    return status;
}

/* Return the message with which a rank touches this many bytes, `touched` per byte of its own. */
static uint64_t topo_probe_message_for(double working_set, int touched)
{
    uint64_t lines = (uint64_t)working_set / (uint64_t)touched / SMALL_BYTES;
    return SMALL_BYTES * (lines < 2 ? 2 : lines);
}

static banyan_status take_measurement(int ranks, double rounds_s, probe_measurement *of)
{
    uint64_t messages[SETS + 1] = {SMALL_BYTES};
    double seconds[SETS + 1];
    size_t count = 1, sets = (size_t)sets_for(ranks);
    for (; of->touched > 0 && count <= sets; count++)
        messages[count] = topo_probe_message_for(working_sets[count - 1], of->touched);
    if (of->long_bytes > 0)
        messages[count++] = of->long_bytes;
    banyan_plan *plan;
    RETURN_IF_FAILED(build_plan(ranks, of->build, &plan));
    banyan_status status = run_plan(plan, messages, count, rounds_s, seconds);
    banyan_plan_destroy(plan);
    for (size_t i = 0; status == BANYAN_OK && i < count; i++)
        of->seconds[i] = fmin(of->seconds[i], seconds[i]);
    return status;
}

typedef struct rates {
    double local, others, packet, reduce, sums; /* bytes a second */
} rates;

typedef struct probe_figures {
    double launch, operation, signal, latency, request; /* seconds */
    double port;
    bool port_takes_block;
    int sets;
    rates of[SETS];
} probe_figures;

/* Return the seconds per byte, from the extra time beyond the small message. */
static double byte_seconds(const probe_measurement *of, int set)
{
    uint64_t message = topo_probe_message_for(working_sets[set], of->touched);
    return (of->seconds[1 + set] - of->seconds[0]) / (double)(message - SMALL_BYTES);
}

/* An extra time below the resolution counts as almost none. */
static double rate_of(double seconds)
{
    return 1 / fmax(seconds, 1e-15);
}

/* A byte of own memory takes `own`: anything costlier is at least as slow. */
static double rate_beyond(double seconds, double own)
{
    return rate_of(fmax(seconds, own));
}

/* A copy reads and writes. So do passed-on bytes, once at each rank, and packets, with flags. A
 * reduction has two sources. */
static rates rates_of(const probe_measurement *all, int set)
{
    double own = byte_seconds(&all[COPY], set) / 2;
    double others = fmax((byte_seconds(&all[PASS_ON], set) - 2 * own) / 2, own);
    return (rates){
        .local = rate_of(own),
        .others = rate_of(others),
        .sums = rate_beyond(byte_seconds(&all[PASS_SUMS], set) - 3 * own - others, own),
        .packet = rate_beyond((byte_seconds(&all[PACKETS], set) - 2 * own) / 4, own / 2),
        .reduce = rate_of(byte_seconds(&all[REDUCE], set) / 2),
    };
}

static probe_figures figures_of(const probe_measurement *all, int ranks)
{
    probe_figures of = {.sets = sets_for(ranks)};
    double once = all[COPY].seconds[0];
    const double *ports = all[PORT].seconds;
    of.operation = fmax(0, (all[COPIES].seconds[0] - once) / (MANY - 1));
    double alone = once - of.operation;
    of.latency = fmax(0, (all[CALL].seconds[0] - alone) / (2 * ROUND_TRIPS) - 2 * of.operation);
    /* Runs without waits overlap. */
    of.launch = fmax(0, all[BARRIER].seconds[0] - 2 * of.operation - of.latency);
    /* Six operations and two signals in transit. */
    of.signal = fmax(0, all[PASS_ON].seconds[0] - of.launch - 6 * of.operation - 2 * of.latency);
    of.request = fmax(0, ports[0] - of.launch - 2 * of.operation - 2 * of.latency);
    of.port = (double)(PORT_BYTES - SMALL_BYTES) * rate_of(ports[1] - ports[0]);
    for (int i = 0; i < of.sets; i++)
        of.of[i] = rates_of(all, i);
    return of;
}

/* Times of a signal at several moments. They differ where a hypervisor moves processors, now next
 * to each other, now behind different caches. */
typedef struct signal_range {
    double fastest, slowest;
} signal_range;

static banyan_status watch_signals(int ranks, double rounds_s, signal_range *seen)
{
    probe_measurement now = {.build = topo_probe_call, .seconds = {INFINITY}};
    RETURN_IF_FAILED(take_measurement(ranks, rounds_s, &now));
    double seconds = now.seconds[0] / (2 * ROUND_TRIPS);
    seen->fastest = fmin(seen->fastest, seconds);
    seen->slowest = fmax(seen->slowest, seconds);
    return BANYAN_OK;
}

/* Measure all plans in turn, repeatedly: a temporary disturbance then does not hit every
 * measurement of one plan. */
static banyan_status topo_probe_measure(int ranks, const progress *bar, probe_figures *found,
                                        signal_range *signals)
{
    probe_measurement all[] = {
        [COPY] = {"copies", .build = copy_once, .touched = 2},
        [COPIES] = {"copies in a row", .build = copy_often},
        [REDUCE] = {"reductions", .build = topo_probe_reduce, .touched = 2},
        [CALL] = {"signals", .build = topo_probe_call},
        [BARRIER] = {"a barrier of two ranks", .build = barrier_once},
        [PASS_ON] = {"data", .build = topo_probe_pass_on, .touched = 4},
        [PASS_SUMS] = {"sums", .build = pass_sums_on, .touched = 4},
        [PACKETS] = {"packets", .build = send_packets, .touched = 10},
        [PORT] = {"ports", .build = put_by_port, .long_bytes = PORT_BYTES},
    };
    for (int i = 0; i < MEASUREMENTS; i++) {
        for (int k = 0; k <= SETS; k++)
            all[i].seconds[k] = INFINITY;
    }
    double end_s = clock_now_s() + PROBE_S;
    for (int left = PASSES * MEASUREMENTS; left > 0; left--) {
        progress_show(bar, all[left % MEASUREMENTS].name,
                      1 - left / (double)(PASSES * MEASUREMENTS));
        double time_left = end_s - clock_now_s();
        if (time_left < 0 && left <= (PASSES - 1) * MEASUREMENTS)
            break;
        /* Assume that each remaining plan has as many messages as any, few of which need all their
         * time. */
        double share = fmax(1e-3, GENEROUS * time_left / (left * (sets_for(ranks) + 1)));
        RETURN_IF_FAILED(take_measurement(ranks, share, &all[left % MEASUREMENTS]));
        RETURN_IF_FAILED(watch_signals(ranks, share, signals));
    }
    *found = figures_of(all, ranks);
    return BANYAN_OK;
}

/* Warn when ranks share a processor: they wait for each other's time slices, and the figures are
 * meaningless. */
static void warn_if_unsteady(int ranks, long cores, const signal_range *signals)
{
    if (ranks <= cores && signals->slowest > STEADY * signals->fastest)
        fprintf(stderr,
                WHO ": warning: a signal took %.0f ns at some times and %.0f ns at others: "
                    "something, a hypervisor perhaps, moves the processors between caches, and "
                    "what is predicted from these figures can be off by as much\n",
                signals->fastest * 1e9, signals->slowest * 1e9);
}

static void print_rates(FILE *file, const probe_figures *of)
{
    for (int i = 0; i < of->sets; i++) {
        const rates *one = &of->of[i];
        fprintf(file,
                "%s        {\"working_set_bytes\": %.0f, \"local_bytes_per_s\": %.4g,\n"
                "         \"load_bytes_per_s\": %.4g, \"store_bytes_per_s\": %.4g,\n"
                "         \"packet_bytes_per_s\": %.4g, \"reduce_bytes_per_s\": %.4g,\n"
                "         \"reduce_store_bytes_per_s\": %.4g}",
                i > 0 ? ",\n" : "", working_sets[i], one->local, one->others, one->others,
                one->packet, one->reduce, one->sums);
    }
}

/* Ranks share caches and memory. The rates include that cost, since all ranks were measured at
 * once. Links and memories are never full. */
static void print_topology(FILE *file, const char *host, int ranks, const probe_figures *of)
{
    const double plenty = 1e15;
    fprintf(file,
            "{\n  \"name\": \"%s-x%d\",\n"
            "  \"about\": \"%d processes of this machine, measured by banyan topo probe\",\n"
            "  \"kinds\": {\n    \"process\": {\n      \"shared_memory\": true,\n"
            "      \"memory_bytes_per_s\": %.4g,\n      \"blocks_at_once\": 1,\n"
            "      \"launch_ns\": %.4g,\n      \"operation_ns\": %.4g,\n      \"sync_ns\": 0,\n"
            "      \"signal_ns\": %.4g,\n      \"block\": [\n",
            host, ranks, ranks, plenty, of->launch * 1e9, of->operation * 1e9, of->signal * 1e9);
    print_rates(file, of);
    fprintf(file,
            "],\n      \"proxy\": {\"request_ns\": %.4g, \"bytes_per_s\": %.4g,\n"
            "                \"takes_block\": %s}\n    }\n  },\n"
            "  \"processors\": [{\"for\": {\"r\": %d}, \"name\": \"process{r}\","
            " \"kind\": \"process\"}],\n"
            "  \"switches\": [{\"name\": \"memory\", \"multicast\": true}],\n"
            "  \"links\": [{\"for\": {\"r\": %d}, \"from\": \"process{r}\", \"to\": \"memory\",\n"
            "             \"latency_ns\": %.4g, \"bytes_per_s\": %.4g}]\n}\n",
            of->request * 1e9, fmin(of->port, plenty), of->port_takes_block ? "true" : "false",
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

static int write_topology(const char *path, int ranks, const probe_figures *of)
{
    char host[64];
    out_file out;
    name_host(host);
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
    const char *path = "-";
    const option_entry entries[] = {
        {"ranks", 'n', OPTION_COUNT, &ranks, "N", "number of processes (as many as cores)", 2,
         RANKS_MOST},
        {"out", 'o', OPTION_TEXT, &path, "FILE", "output file (-: stdout)", 0, 0},
    };
    const option_table table = {
        WHO, "[-n N] [-o FILE]",
        "Measure this machine with small plans between all of the processes at once, and write\n"
        "a topology that predicts the time of plans on it. Run nothing else meanwhile.\n",
        entries, sizeof entries / sizeof entries[0]};
    probe_figures found;
    signal_range signals = {.fastest = INFINITY};
    options_result result = options_parse_only(&table, argc, argv);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (!out_file_possible(path)) {
        fprintf(stderr, WHO ": cannot write %s: %s\n", path, strerror(errno));
        return 1;
    }
    progress bar;
    progress_begin(&bar, true, "probing", 1, false);
    banyan_status status = topo_probe_measure(ranks, &bar, &found, &signals);
    progress_end(&bar);
    if (status != BANYAN_OK)
        return text_fail(WHO);
    warn_if_unsteady(ranks, cores, &signals);
    found.port_takes_block = !bound_leaves_room(ranks);
    return write_topology(path, ranks, &found);
}
