/* Example programs of MSCCL++, written with Banyan: both make equal plans. */
#ifndef TESTS_PROGRAM_MSCCLPP_PROGRAM_H
#define TESTS_PROGRAM_MSCCLPP_PROGRAM_H

#include "support/test.h"

typedef struct mscclpp_program {
    const char *file; /* of the plan, without ".json" */
    const char *name;
    int ranks;
    banyan_collective collective;
    /* Set the options that differ from the defaults, before the program is created. */
    void (*choose)(banyan_program_options *options);
    void (*write)(banyan_program *program, int ranks);
} mscclpp_program;

typedef struct mscclpp_programs {
    const mscclpp_program *programs;
    size_t count;
} mscclpp_programs;

/* A collective that defines only the sizes of its buffers. */
#define TEST_BUFFERS(inputs, outputs)                                                              \
    {                                                                                              \
        .kind = BANYAN_CUSTOM, .name = "test", .input_chunks = (inputs),                           \
        .output_chunks = (outputs)                                                                 \
    }

static inline void choose_ll(banyan_program_options *options)
{
    options->protocol = BANYAN_LL;
}

/* Chunks of the current program, which is always called `program`. */
#define IN(rank, start, stop) banyan_program_input(program, (rank), (start), (stop))
#define OUT(rank, start, stop) banyan_program_output(program, (rank), (start), (stop))
#define CHUNKS(...) ((const banyan_chunk[]){__VA_ARGS__})

extern const mscclpp_programs mscclpp_allreduce, mscclpp_alltoall, mscclpp_gather, mscclpp_units;

#endif
