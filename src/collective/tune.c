/* Measures all algorithms to find the fastest. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/comm.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "execute/executor.h"
#include "world/control.h"

#define SIZE_STEP 4          /* ratio of consecutive measured sizes */
#define BATCHES 5            /* the median of this many batches counts */
#define BATCH_NS (NS_PER_MS) /* duration of a batch, which has at least one run */
#define RUNS_MAX 1000
#define INSTANCES_MOST 128
#define INSTANCES_FIRST 32
#define INSTANCE_USUAL (UINT64_C(32) << 10) /* message bytes for each instance */
#define INSTANCE_LEAST 256
#define HOPELESS 2.5
#define KINDS (BANYAN_REDUCE - BANYAN_ALLREDUCE + 1)
#define FIELDS (2 * KINDS - 1) /* each collective on two kinds of memory, reduce on one */

/* One field of tuning: a collective on one kind of memory. */
struct tuning_field {
    banyan_comm *comm;
    const banyan_tune_options *options;
    uint64_t begin_ns; /* of the whole tuning */
    uint64_t end_ns;   /* of this field */
    banyan_collective_kind kind;
    DLDataType dtype;
    const banyan_memory *memory; /* NULL: ordinary memory */
    char *input, *output;
    ARRAY(tuning_row) rows;
};

static banyan_status run_many(const struct tuning_field *field, banyan_loaded_plan *loaded,
                              uint64_t message_bytes, uint64_t runs, uint64_t *ns)
{
    return banyan_loaded_plan_time(loaded, field->input, field->output, message_bytes, field->dtype,
                                   (uint32_t)runs, ns);
}

static int tune_by_value(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

/* Return nanoseconds per run on the slowest rank, the median of several batches. */
static banyan_status tune_measure(const struct tuning_field *field, banyan_loaded_plan *loaded,
                                  uint64_t message_bytes, double *run_ns)
{
    uint64_t ns, slowest_ns;
    RETURN_IF_FAILED(run_many(field, loaded, message_bytes, 2, &ns));
    RETURN_IF_FAILED(run_many(field, loaded, message_bytes, 3, &ns));
    RETURN_IF_FAILED(control_max(field->comm->world, ns, &slowest_ns));
    uint64_t runs = slowest_ns > 0 ? 3 * BATCH_NS / slowest_ns : RUNS_MAX;
    runs = runs < 1 ? 1 : runs > RUNS_MAX ? RUNS_MAX : runs;
    double batches[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        RETURN_IF_FAILED(run_many(field, loaded, message_bytes, runs, &ns));
        RETURN_IF_FAILED(control_max(field->comm->world, ns, &slowest_ns));
        batches[i] = (double)slowest_ns / (double)runs;
    }
    qsort(batches, BATCHES, sizeof *batches, tune_by_value);
    *run_ns = batches[BATCHES / 2];
    return BANYAN_OK;
}

static banyan_status try_algorithm(const struct tuning_field *field, const tuning_row *row,
                                   uint64_t message_bytes, double *run_ns)
{
    call wanted = {.kind = field->kind,
                   .shift = 1,
                   .in_place = field->kind == BANYAN_BROADCAST || field->kind == BANYAN_REDUCE,
                   .message_bytes = message_bytes,
                   .input = field->memory,
                   .output = field->memory};
    choice chosen = {.row = *row};
    banyan_loaded_plan *loaded;
    RETURN_IF_FAILED(comm_load(field->comm, &wanted, &chosen, &loaded));
    banyan_status status = tune_measure(field, loaded, message_bytes, run_ns);
    if (status == BANYAN_OK && field->comm->rank == 0 && field->options->measured)
        field->options->measured(field->options->context,
                                 &(banyan_tune_time){.kind = field->kind,
                                                     .registered = field->memory != NULL,
                                                     .message_bytes = message_bytes,
                                                     .algorithm = row->algorithm,
                                                     .instances = row->instances,
                                                     .ns = *run_ns});
    if (status == BANYAN_OK && field->comm->rank == 0)
        log_debug("tuning: %s x %d, %" PRIu64 " bytes, %s memory: %.2f us", row->algorithm,
                  row->instances, message_bytes, field->memory ? "registered" : "ordinary",
                  *run_ns / 1e3);
    banyan_status unloaded = banyan_loaded_plan_close(loaded);
    return status == BANYAN_OK ? unloaded : status;
}

/* Rank 0's clock decides for all ranks. */
static banyan_status time_is_up(const struct tuning_field *field, bool *up)
{
    uint32_t over = time_now_ns() >= field->end_ns;
    RETURN_IF_FAILED(banyan_world_broadcast(field->comm->world, &over, sizeof over, 0));
    *up = over != 0;
    return BANYAN_OK;
}

/* Double or halve the number of instances while that is faster. */
static banyan_status tune_climb(const struct tuning_field *field, tuning_row *row,
                                uint64_t message_bytes, bool up, double *run_ns, bool *gained)
{
    for (tuning_row next = *row;;) {
        double next_ns;
        next.instances = up ? 2 * next.instances : next.instances / 2;
        if (next.instances < 1 || next.instances > INSTANCES_MOST ||
            message_bytes / (uint64_t)next.instances < INSTANCE_LEAST)
            return BANYAN_OK;
        RETURN_IF_FAILED(try_algorithm(field, &next, message_bytes, &next_ns));
        if (next_ns >= *run_ns)
            return BANYAN_OK;
        *run_ns = next_ns;
        *row = next;
        *gained = true;
    }
}

/* Thread blocks are free on a device where they fit, and more of them are faster up to some
 * number. Algorithms that begin much slower than the best so far are not tried further. On the
 * host, one thread of a rank runs all thread blocks. */
static banyan_status try_instances(const struct tuning_field *field, tuning_row *row,
                                   uint64_t message_bytes, double best_ns, double *run_ns)
{
    bool on_host = executor_is_host(field->comm->executor), gained = false;
    if (!on_host) {
        row->instances = 1;
        while (row->instances < INSTANCES_FIRST &&
               message_bytes / (uint64_t)row->instances > INSTANCE_USUAL)
            row->instances *= 2;
    }
    RETURN_IF_FAILED(try_algorithm(field, row, message_bytes, run_ns));
    if (on_host || (best_ns > 0 && *run_ns > HOPELESS * best_ns))
        return BANYAN_OK;
    RETURN_IF_FAILED(tune_climb(field, row, message_bytes, true, run_ns, &gained));
    return gained ? BANYAN_OK : tune_climb(field, row, message_bytes, false, run_ns, &gained);
}

static bool is_for_nodes(const banyan_comm *comm, const algorithm_entry *entry,
                         uint64_t message_bytes)
{
    if (comm->ranks_per_node < comm->ranks)
        return entry->over_nodes;
    return !entry->by_nodes && message_bytes >= entry->least_bytes;
}

/* `*whole`: all algorithms were tried in time, and `best` is the fastest of all. */
static banyan_status best_for(const struct tuning_field *field, uint64_t message_bytes,
                              tuning_row *best, bool *whole)
{
    double best_ns = 0;
    bool found = false, up = false;
    banyan_algorithm_info info;
    *whole = false;
    for (size_t i = 0; banyan_algorithm_at(i, &info) == BANYAN_OK; i++) {
        if (info.collective != field->kind || (info.reaches_peers_buffers && !field->memory) ||
            !is_for_nodes(field->comm, &algorithm_table[i], message_bytes))
            continue;
        RETURN_IF_FAILED(time_is_up(field, &up));
        if (up)
            return BANYAN_OK;
        tuning_row row = {.kind = field->kind,
                          .on_gpu = !executor_is_host(field->comm->executor),
                          .ranks = field->comm->ranks,
                          .ranks_per_node = field->comm->ranks_per_node,
                          .dtype = field->options->dtype,
                          .registered = field->memory != NULL,
                          .up_to_bytes = message_bytes};
        snprintf(row.algorithm, sizeof row.algorithm, "%s", info.name);
        double run_ns;
        RETURN_IF_FAILED(try_instances(field, &row, message_bytes, best_ns, &run_ns));
        if (!found || run_ns < best_ns) {
            best_ns = run_ns;
            *best = row;
            found = true;
        }
    }
    *whole = found;
    return BANYAN_OK;
}

/* Place the border between two measured sizes at their geometric mean. Messages above the last
 * measured size keep their rows, unless all sizes were measured. */
static void place_borders(struct tuning_field *field, bool all_sizes)
{
    size_t kept = 0;
    for (size_t i = 0; i < field->rows.count; i++) {
        tuning_row row = field->rows.data[i];
        row.up_to_bytes *= SIZE_STEP / 2;
        if (i + 1 == field->rows.count && all_sizes)
            row.up_to_bytes = UINT64_MAX;
        const tuning_row *last = kept > 0 ? &field->rows.data[kept - 1] : NULL;
        if (last && strcmp(last->algorithm, row.algorithm) == 0 && last->instances == row.instances)
            field->rows.data[kept - 1].up_to_bytes = row.up_to_bytes;
        else
            field->rows.data[kept++] = row;
    }
    field->rows.count = kept;
}

static void tune_report(const struct tuning_field *field, uint64_t bytes)
{
    if (!field->options->progress || field->comm->rank != 0)
        return;
    char what[128];
    snprintf(what, sizeof what, "%s of %" PRIu64 " bytes, %s memory",
             banyan_collective_kind_name(field->kind), bytes,
             field->memory ? "registered" : "ordinary");
    double passed_s = (double)(time_now_ns() - field->begin_ns) / (double)NS_PER_S;
    field->options->progress(field->options->context, what, passed_s / field->options->seconds);
}

/* Return a rank's message size if the longer of its buffers has `bytes`; 0: too few. */
static uint64_t tune_message_for(const struct tuning_field *field, uint64_t bytes)
{
    uint64_t ranks = (uint64_t)field->comm->ranks, elem = banyan_dtype_bytes(field->dtype);
    if (field->kind == BANYAN_ALLGATHER)
        return bytes / ranks / elem * elem;
    if (field->kind == BANYAN_REDUCESCATTER || field->kind == BANYAN_ALLTOALL)
        return bytes / (ranks * elem) * ranks * elem;
    return bytes / elem * elem;
}

/* Rows of sizes that were not measured in time stay in the table. */
static void report_lack_of_time(const struct tuning_field *field)
{
    const char *kind = banyan_collective_kind_name(field->kind);
    const char *memory = field->memory ? "registered" : "ordinary";
    if (field->comm->rank == 0 && field->rows.count == 0)
        log_warn("tuning: no size of %s in %s memory was measured in its share of the %g s: they "
                 "are too few",
                 kind, memory, field->options->seconds);
    else if (field->comm->rank == 0)
        log_info("tuning: %zu sizes of %s in %s memory were measured in its share of the %g s",
                 field->rows.count, kind, memory, field->options->seconds);
}

static banyan_status tune_field(struct tuning_field *field)
{
    bool whole = true;
    for (uint64_t bytes = field->options->min_bytes; bytes <= field->options->max_bytes && whole;
         bytes *= SIZE_STEP) {
        uint64_t message_bytes = tune_message_for(field, bytes);
        if (message_bytes == 0)
            continue;
        tune_report(field, bytes);
        tuning_row best;
        RETURN_IF_FAILED(best_for(field, message_bytes, &best, &whole));
        if (whole && !array_push(&field->rows, best))
            return BANYAN_ERR_NO_MEMORY;
    }
    if (!whole)
        report_lack_of_time(field);
    if (field->rows.count == 0)
        return BANYAN_OK;
    place_borders(field, whole);
    return tuning_replace(&field->comm->table, field->rows.data, field->rows.count);
}

static banyan_status check_options(const banyan_comm *comm, const banyan_tune_options *options)
{
    if (options->min_bytes == 0 || options->min_bytes > options->max_bytes ||
        options->max_bytes > SIZE_MAX / (2 * SIZE_STEP))
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: tuning from %" PRIu64 " to %" PRIu64 " bytes", comm->rank,
                         options->min_bytes, options->max_bytes);
    if (options->dtype.bits && banyan_dtype_bytes(options->dtype) == 0)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: tuning with elements of %d bits × %d, which do not fill whole "
                         "bytes",
                         comm->rank, options->dtype.bits, options->dtype.lanes);
    if ((int)options->kind < BANYAN_CUSTOM || options->kind > BANYAN_REDUCE)
        return error_set(BANYAN_ERR_INVALID, "rank %d: tuning of collective %d", comm->rank,
                         (int)options->kind);
    if (!(options->seconds > 0) || options->seconds > 1e9)
        return error_set(BANYAN_ERR_INVALID, "rank %d: tuning within %g seconds", comm->rank,
                         options->seconds);
    return BANYAN_OK;
}

/* Return the end time of the next of `left` fields. They share the remaining time equally, so a
 * field that exceeds its share delays all others a little. */
static uint64_t end_of_share(const banyan_tune_options *options, uint64_t begin_ns, int left)
{
    uint64_t now_ns = time_now_ns();
    uint64_t end_ns = begin_ns + (uint64_t)(options->seconds * (double)NS_PER_S);
    return now_ns < end_ns ? now_ns + (end_ns - now_ns) / (uint64_t)left : end_ns;
}

/* Tune every collective on each kind of memory. */
static banyan_status tune_all(banyan_comm *comm, const banyan_tune_options *options,
                              uint64_t begin_ns, const banyan_memory *memory, char *input,
                              char *output)
{
    bool one = options->kind != BANYAN_CUSTOM;
    int count = !one ? FIELDS : options->kind == BANYAN_REDUCE ? 1 : 2;
    for (int kind = BANYAN_ALLREDUCE; kind <= BANYAN_REDUCE; kind++) {
        bool in_place = kind == BANYAN_BROADCAST || kind == BANYAN_REDUCE;
        if (memory && kind == BANYAN_REDUCE)
            continue; /* calls never use registered memory */
        if (one && (int)options->kind != kind)
            continue;
        int number = one ? memory != NULL : (memory ? KINDS : 0) + kind - BANYAN_ALLREDUCE;
        struct tuning_field field = {
            .comm = comm,
            .options = options,
            .begin_ns = begin_ns,
            .end_ns = end_of_share(options, begin_ns, count - number),
            .kind = (banyan_collective_kind)kind,
            .dtype = options->dtype.bits ? options->dtype : BANYAN_F32,
            .memory = memory,
            .input = in_place ? output : input,
            .output = output,
        };
        banyan_status status = tune_field(&field);
        array_free(&field.rows);
        RETURN_IF_FAILED(status);
    }
    return BANYAN_OK;
}

static banyan_status tune_both(banyan_comm *comm, const banyan_tune_options *how, char *ordinary)
{
    size_t bytes = (size_t)how->max_bytes;
    uint64_t begin_ns = time_now_ns();
    banyan_memory *memory;
    RETURN_IF_FAILED(tune_all(comm, how, begin_ns, NULL, ordinary, ordinary + bytes));
    RETURN_IF_FAILED(
        banyan_memory_alloc_on(comm->world, executor_device(comm->executor), 2 * bytes, &memory));
    char *start = banyan_memory_local(memory);
    banyan_status status = tune_all(comm, how, begin_ns, memory, start, start + bytes);
    banyan_memory_free(memory);
    return status;
}

banyan_status banyan_comm_tune(banyan_comm *comm, const banyan_tune_options *options)
{
    CONTROL_ENTER_WITHIN(comm->world, comm->timeout);
    banyan_tune_options how = BANYAN_TUNE_OPTIONS_INIT;
    banyan_status status = options_take(options, "BANYAN_TUNE_OPTIONS_INIT", &how, sizeof how);
    if (status == BANYAN_OK)
        status = check_options(comm, &how);
    RETURN_IF_FAILED(control_agree(comm->world, status));
    if (comm->ranks == 1)
        return comm_forget(comm, NULL);
    /* Two buffers of this rank alone, where the plans run. */
    DLDevice device = executor_device(comm->executor);
    void *ordinary = NULL;
    status = control_agree(comm->world,
                           memory_device_buffer(device, 2 * (size_t)how.max_bytes, 0, &ordinary));
    if (status == BANYAN_OK)
        status = tune_both(comm, &how, ordinary);
    memory_device_buffer_free(device, ordinary);
    return status == BANYAN_OK ? comm_forget(comm, NULL) : status;
}
