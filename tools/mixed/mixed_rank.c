#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/progress.h"
#include "cli/text.h"
#include "core/status.h"
#include "core/types/float_bits.h"
#include "launch/gpus.h"
#include "mixed/mixed_job.h"

/* Contents of an output before a checked run. */
#define POISON 0xa5

struct mixed_rank_run {
    mixed_job *job; /* this rank's copy */
    int rank;
    banyan_world *world;
    banyan_mixed *mixed;
    banyan_mixed_grid grid;
    banyan_memory *input, *output;  /* on GPUs */
    char *host_input, *host_output; /* on the host, the tensors themselves */
    struct mixed_found *all_found;  /* of every rank */
    progress bar;                   /* of rank 0 */
};

struct mixed_found {
    uint64_t checked, wrong, index;
    double expected, found;
};

/* Return a whole number, different at every place, whose sums over 64 ranks every type holds
 * exactly. */
static int mixed_rank_value(int rank, uint64_t index)
{
    uint64_t x =
        (index + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)rank * UINT64_C(0xd1b54a32d192ed03);
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return (int)(x >> 61) - 4;
}

static void mixed_rank_store(DLDataType dtype, char *to, uint64_t index, double number)
{
    uint32_t bits = f32_bits((float)number);
    uint16_t half = dtype.code == kDLBfloat ? bf16_of_f32(bits) : f16_of_f32(bits);
    if (dtype.bits == 32)
        memcpy(to + 4 * index, &bits, 4);
    else
        memcpy(to + 2 * index, &half, 2);
}

static double mixed_rank_load(DLDataType dtype, const char *from, uint64_t index)
{
    uint32_t bits;
    uint16_t half;
    if (dtype.bits == 32) {
        memcpy(&bits, from + 4 * index, 4);
        return (double)f32_of_bits(bits);
    }
    memcpy(&half, from + 2 * index, 2);
    return (double)f32_of_bits(dtype.code == kDLBfloat ? f32_of_bf16(half) : f32_of_f16(half));
}

/* Return, for the rank with this dp index, the sum over tp of an input's element. */
static double sum_over_tp(const banyan_mixed_grid *grid, int dp_index, uint64_t index)
{
    double sum = 0;
    for (int tp = 0; tp < grid->tp; tp++)
        sum += mixed_rank_value(banyan_mixed_rank_at(grid, tp, dp_index), index);
    return sum;
}

static double mixed_rank_expected(const banyan_mixed_grid *grid, banyan_mixed_op op, uint64_t elems,
                                  uint64_t index)
{
    double sum = 0;
    switch (op) {
    case BANYAN_MIXED_ALLGATHER:
    case BANYAN_MIXED_ALLREDUCE_ALLGATHER:
        return sum_over_tp(grid, (int)(index / elems), index % elems);
    case BANYAN_MIXED_ALLREDUCE:
        return sum_over_tp(grid, grid->dp_index, index);
    default:
        for (int dp = 0; dp < grid->dp; dp++)
            sum += sum_over_tp(grid, dp, (uint64_t)grid->dp_index * elems + index);
        return sum;
    }
}

/* A run's tensors. */
struct tensors {
    DLTensor input, output;
    int64_t input_shape[2], output_shape[2];
    uint64_t input_elems, output_elems;
};

static void mixed_rank_make_tensors(const struct mixed_rank_run *run, banyan_mixed_op op,
                                    uint64_t rows, struct tensors *made)
{
    const mixed_job *job = run->job;
    uint64_t dp = (uint64_t)run->grid.dp;
    bool scatters = op == BANYAN_MIXED_REDUCESCATTER || op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE;
    bool gathers = op == BANYAN_MIXED_ALLGATHER || op == BANYAN_MIXED_ALLREDUCE_ALLGATHER;
    uint64_t in = scatters ? rows * dp : rows, out = gathers ? rows * dp : rows;
    *made = (struct tensors){.input_shape = {(int64_t)in, (int64_t)job->hidden},
                             .output_shape = {(int64_t)out, (int64_t)job->hidden},
                             .input_elems = in * job->hidden,
                             .output_elems = out * job->hidden};
    made->input = (DLTensor){.data = run->input ? banyan_memory_local(run->input) : run->host_input,
                             .device = job->options.device,
                             .ndim = 2,
                             .dtype = job->options.dtype,
                             .shape = made->input_shape};
    made->output = made->input;
    made->output.data = run->output ? banyan_memory_local(run->output) : run->host_output;
    made->output.shape = made->output_shape;
}

static banyan_status mixed_rank_fill(const struct mixed_rank_run *run, const struct tensors *with)
{
    DLDataType dtype = run->job->options.dtype;
    size_t elem = banyan_dtype_bytes(dtype);
    for (uint64_t i = 0; i < with->input_elems; i++)
        mixed_rank_store(dtype, run->host_input, i, mixed_rank_value(run->rank, i));
    memset(run->host_output, POISON, with->output_elems * elem);
    if (!run->job->on_gpus)
        return BANYAN_OK;
    RETURN_IF_FAILED(
        banyan_memory_copy(with->input.data, run->host_input, with->input_elems * elem));
    return banyan_memory_copy(with->output.data, run->host_output, with->output_elems * elem);
}

static banyan_status mixed_rank_compare(const struct mixed_rank_run *run, banyan_mixed_op op,
                                        uint64_t elems, const struct tensors *with,
                                        struct mixed_found *found)
{
    DLDataType dtype = run->job->options.dtype;
    *found = (struct mixed_found){.checked = with->output_elems};
    if (run->job->on_gpus)
        RETURN_IF_FAILED(banyan_memory_copy(run->host_output, with->output.data,
                                            with->output_elems * banyan_dtype_bytes(dtype)));
    for (uint64_t i = 0; i < with->output_elems; i++) {
        double right = mixed_rank_expected(&run->grid, op, elems, i);
        double got = mixed_rank_load(dtype, run->host_output, i);
        if (got == right)
            continue;
        if (found->wrong++ == 0) {
            found->index = i;
            found->expected = right;
            found->found = got;
        }
    }
    return BANYAN_OK;
}

/* Combine all ranks' results into the cell. */
static banyan_status mixed_rank_gather(const struct mixed_rank_run *run,
                                       const struct mixed_found *mine, mixed_cell *cell)
{
    RETURN_IF_FAILED(banyan_world_allgather(run->world, mine, sizeof *mine, run->all_found));
    for (int r = 0; r < run->job->ranks && run->rank == 0; r++) {
        const struct mixed_found *one = &run->all_found[r];
        if (cell->wrong == 0 && one->wrong > 0) {
            cell->wrong_rank = r;
            cell->wrong_index = one->index;
            cell->wrong_expected = one->expected;
            cell->wrong_found = one->found;
        }
        cell->wrong += one->wrong;
        cell->checked += one->checked;
    }
    return BANYAN_OK;
}

static banyan_status run_cell(const struct mixed_rank_run *run, mixed_size *size,
                              banyan_mixed_op op, banyan_mixed_mode mode)
{
    mixed_cell *cell = &size->cells[op][mode];
    struct tensors with;
    struct mixed_found found;
    uint64_t ns;
    mixed_rank_make_tensors(run, op, size->rows, &with);
    RETURN_IF_FAILED(mixed_rank_fill(run, &with));
    RETURN_IF_FAILED(banyan_world_barrier(run->world));
    RETURN_IF_FAILED(banyan_mixed_measure(run->mixed, op, &with.input, &with.output, mode, &ns));
    RETURN_IF_FAILED(banyan_world_barrier(run->world));
    RETURN_IF_FAILED(mixed_rank_compare(run, op, size->rows * run->job->hidden, &with, &found));
    RETURN_IF_FAILED(mixed_rank_gather(run, &found, cell));
    if (run->rank == 0) {
        cell->ns = ns;
        cell->done = true;
    }
    return BANYAN_OK;
}

static bool is_valid(const struct mixed_rank_run *run, banyan_mixed_op op, banyan_mixed_mode mode)
{
    banyan_mixed_mode modes[BANYAN_MIXED_MODES];
    size_t count = 0, i = 0;
    (void)banyan_mixed_valid_modes(run->mixed, op, modes, BANYAN_MIXED_MODES, &count);
    while (i < count && modes[i] != mode)
        i++;
    return i < count;
}

/* NCCL's modes are valid until NCCL fails to start: then they are left out. */
static banyan_status try_cell(const struct mixed_rank_run *run, mixed_size *size,
                              banyan_mixed_op op, banyan_mixed_mode mode)
{
    bool was_valid = is_valid(run, op, mode);
    banyan_status status = run_cell(run, size, op, mode);
    return status != BANYAN_OK && was_valid && !is_valid(run, op, mode) ? BANYAN_OK : status;
}

static banyan_status run_chosen(const struct mixed_rank_run *run, mixed_size *size,
                                banyan_mixed_op op)
{
    banyan_mixed_mode chosen;
    uint64_t bytes = mixed_job_bytes(run->job, size);
    do {
        RETURN_IF_FAILED(banyan_mixed_select_autotune_mode(run->mixed, op, bytes, &chosen));
        RETURN_IF_FAILED(try_cell(run, size, op, chosen));
    } while (!is_valid(run, op, chosen));
    return BANYAN_OK;
}

static banyan_status run_modes(const struct mixed_rank_run *run, mixed_size *size,
                               banyan_mixed_op op)
{
    const mixed_job *job = run->job;
    if (job->mode_name)
        return job->mode == BANYAN_MIXED_AUTO ? run_chosen(run, size, op)
                                              : run_cell(run, size, op, job->mode);
    for (int mode = BANYAN_MIXED_AUTO + 1; mode < BANYAN_MIXED_MODES; mode++) {
        if (is_valid(run, op, (banyan_mixed_mode)mode))
            RETURN_IF_FAILED(try_cell(run, size, op, (banyan_mixed_mode)mode));
    }
    return BANYAN_OK;
}

static banyan_status run_op(const struct mixed_rank_run *run, mixed_size *size, banyan_mixed_op op)
{
    banyan_mixed_mode chosen;
    banyan_mixed_timing any;
    uint64_t bytes = mixed_job_bytes(run->job, size);
    RETURN_IF_FAILED(run_modes(run, size, op));
    RETURN_IF_FAILED(banyan_mixed_select_autotune_mode(run->mixed, op, bytes, &chosen));
    if (run->rank == 0) {
        size->chosen[op] = chosen;
        size->is_tuned = banyan_mixed_timing_at(run->mixed, 0, &any) == BANYAN_OK;
    }
    return BANYAN_OK;
}

static void show_rows(const struct mixed_rank_run *run, size_t s)
{
    char rows[TEXT_NUMBER_BYTES], what[TEXT_NUMBER_BYTES + 8];
    uint64_t count = run->job->sizes[s].rows;
    snprintf(what, sizeof what, "%s row%s", text_count(count, rows), count == 1 ? "" : "s");
    progress_show(&run->bar, what, (double)s / (double)run->job->size_count);
}

static banyan_status mixed_rank_run_all(const struct mixed_rank_run *run)
{
    const mixed_job *job = run->job;
    banyan_mixed_op ops[BANYAN_MIXED_OPS];
    size_t count;
    RETURN_IF_FAILED(banyan_mixed_valid_ops(run->mixed, ops, BANYAN_MIXED_OPS, &count));
    for (size_t s = 0; s < job->size_count; s++) {
        show_rows(run, s);
        if (job->op_name) {
            RETURN_IF_FAILED(run_op(run, &job->sizes[s], job->op));
            continue;
        }
        for (size_t i = 0; i < count; i++)
            RETURN_IF_FAILED(run_op(run, &job->sizes[s], ops[i]));
    }
    return job->save_path ? banyan_mixed_save_autotune(run->mixed, job->save_path) : BANYAN_OK;
}

static banyan_status mixed_rank_take_buffers(struct mixed_rank_run *run)
{
    const mixed_job *job = run->job;
    uint64_t bytes =
        mixed_job_bytes(job, &job->sizes[job->size_count - 1]) * (uint64_t)run->grid.dp;
    run->all_found = calloc((size_t)job->ranks, sizeof *run->all_found);
    run->host_input = malloc(bytes);
    run->host_output = malloc(bytes);
    if (!run->all_found || !run->host_input || !run->host_output)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for two buffers of %llu bytes",
                                (unsigned long long)bytes);
    if (!job->on_gpus)
        return BANYAN_OK;
    RETURN_IF_FAILED(banyan_memory_alloc_on(run->world, job->options.device, bytes, &run->input));
    return banyan_memory_alloc_on(run->world, job->options.device, bytes, &run->output);
}

static banyan_status give_buffers_back(struct mixed_rank_run *run)
{
    RETURN_IF_FAILED(banyan_world_barrier(run->world));
    banyan_memory_free(run->output);
    banyan_memory_free(run->input);
    free(run->host_output);
    free(run->host_input);
    free(run->all_found);
    return BANYAN_OK;
}

static banyan_status mixed_rank_run_job(struct mixed_rank_run *run)
{
    RETURN_IF_FAILED(banyan_world_open(NULL, &run->world));
    progress_show(&run->bar, "opening", 0);
    if (run->job->on_gpus)
        RETURN_IF_FAILED(gpus_choose("banyan mixed", run->world, &run->job->options.device));
    RETURN_IF_FAILED(banyan_mixed_open(run->world, &run->job->options, &run->mixed));
    run->grid = banyan_mixed_describe(run->mixed);
    RETURN_IF_FAILED(mixed_rank_take_buffers(run));
    RETURN_IF_FAILED(mixed_rank_run_all(run));
    RETURN_IF_FAILED(give_buffers_back(run));
    RETURN_IF_FAILED(banyan_mixed_close(run->mixed));
    return banyan_world_close(run->world);
}

/* A rank that fails ends without releasing anything: its process does that. */
int mixed_rank(int rank, void *context)
{
    mixed_job job = *(const mixed_job *)context;
    struct mixed_rank_run run = {.job = &job, .rank = rank};
    progress_begin(&run.bar, rank == 0, "measuring", 1, false);
    banyan_status status = mixed_rank_run_job(&run);
    progress_end(&run.bar);
    if (status != BANYAN_OK)
        failure_note(job.failed, rank, status);
    return status == BANYAN_OK ? 0 : 1;
}
