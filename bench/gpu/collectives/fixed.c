#include "collectives/fixed.h"

#include <stdlib.h>
#include <string.h>

#define BYTES 4096

typedef struct fixed_run {
    banyan_loaded_plan *loaded;
    char *input, *output;
} fixed_run;

static void run(void *context, cudaStream_t stream)
{
    const fixed_run *of = context;
    need(banyan_loaded_plan_run(of->loaded, of->input, of->output, BYTES, BANYAN_BF16, stream));
}

static void write_ids(FILE *text, const char *key, int count, int but)
{
    fprintf(text, "\"%s\": [", key);
    for (int i = 0, written = 0; i < count; i++)
        if (i != but)
            fprintf(text, "%s%d", written++ ? ", " : "", i);
    fprintf(text, "]");
}

static void write_block(FILE *text, int id, int peers)
{
    fprintf(text, "%s{\"id\": %d, \"ops\": [", id ? ", " : "", id);
    if (peers > 0) {
        fprintf(text, "{\"name\": \"signal\", \"channel_type\": \"memory\", ");
        write_ids(text, "channel_ids", peers, -1);
        fprintf(text, "}, {\"name\": \"wait\", \"channel_type\": \"memory\", ");
        write_ids(text, "channel_ids", peers, -1);
        fprintf(text, "}], \"channels\": [{\"channel_type\": \"memory\", ");
        write_ids(text, "channel_ids", peers, -1);
        fprintf(text, "}]");
    } else {
        fprintf(text, "{\"name\": \"nop\"}], \"channels\": []");
    }
    fprintf(text, ", \"remote_buffer_refs\": []}");
}

static void write_rank(FILE *text, int rank, int ranks, int blocks, bool synchronizes)
{
    fprintf(text,
            "%s{\"id\": %d, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0, ",
            rank ? ", " : "", rank);
    fprintf(text, "\"threadblocks\": [");
    for (int i = 0; i < blocks; i++)
        write_block(text, i, synchronizes ? ranks - 1 : 0);
    fprintf(text, "], \"channels\": [");
    if (synchronizes) {
        fprintf(text, "{\"channel_type\": \"memory\", ");
        write_ids(text, "connected_to", ranks, rank);
        fprintf(text, "}");
    }
    fprintf(text, "], \"remote_buffers\": [], \"semaphores\": []}");
}

static banyan_plan *make_plan(int ranks, int blocks, bool synchronizes)
{
    char *written;
    size_t bytes;
    banyan_plan *plan;
    FILE *text = open_memstream(&written, &bytes);
    if (!text)
        exit(1);
    fprintf(text, "{\"name\": \"fixed\", \"collective\": \"custom\", \"protocol\": \"Simple\", "
                  "\"inplace\": false, \"reuse_resources\": false, \"num_threads_per_block\": 512, "
                  "\"use_double_scratch_buffer\": false, \"buffer_alignment\": 16, "
                  "\"min_message_size\": 0, \"max_message_size\": 1048576, \"gpus\": [");
    for (int rank = 0; rank < ranks; rank++)
        write_rank(text, rank, ranks, blocks, synchronizes);
    fprintf(text, "]}");
    fclose(text);
    need(banyan_plan_parse(written, bytes, "fixed", &plan));
    free(written);
    return plan;
}

static double measure(const gpu *on, banyan_executor *executor, int blocks, bool synchronizes)
{
    fixed_run of;
    banyan_plan *plan = make_plan(on->ranks, blocks, synchronizes);
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = BYTES;
    need(banyan_loaded_plan_open(executor, plan, &options, &of.loaded));
    CUDA(cudaMalloc((void **)&of.input, BYTES));
    CUDA(cudaMalloc((void **)&of.output, BYTES));
    double us = gpu_time_us(on, run, &of);
    need(banyan_loaded_plan_close(of.loaded));
    banyan_plan_destroy(plan);
    CUDA(cudaFree(of.input));
    CUDA(cudaFree(of.output));
    return us;
}

void fixed_measure(const gpu *on)
{
    static const int blocks[] = {1, 16, 64};
    banyan_executor_options options = BANYAN_EXECUTOR_OPTIONS_INIT;
    banyan_executor *executor;
    options.device = BANYAN_CUDA(on->device);
    need(banyan_executor_open(on->world, &options, &executor));
    for (int i = 0; i < 3; i++) {
        double us = measure(on, executor, blocks[i], false);
        if (on->rank == 0)
            printf("a plan of %2d thread blocks that do nothing: %.2f µs\n", blocks[i], us);
    }
    double us = measure(on, executor, 1, true);
    if (on->rank == 0)
        printf("a plan in which all signal all and wait: %.2f µs\n", us);
    banyan_executor_close(executor);
}
