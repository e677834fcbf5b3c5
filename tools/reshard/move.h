/* Everything that a rank needs to move a model: its layouts, a plan, a service, memory. */
#ifndef TOOLS_MOVE_H
#define TOOLS_MOVE_H

#include <banyan/banyan.h>

#include "launch/forked.h"
#include "layout/job_spec.h"
#include "reshard/mxfp8_target.h"

typedef struct move_options {
    const char *backend;   /* NULL: Banyan's choice */
    const char *transform; /* NULL: none; "mxfp8" or "mxfp8-at-sender" */
    bool ordinary_memory;  /* the tensors do not lie in symmetric memory */
    bool checksums;
} move_options;

/* A rank that has no part of a side has an empty layout of it, and no tensors. */
typedef struct move {
    int rank;
    banyan_world *world;
    banyan_layout *source, *plain; /* plain: the destination without a transform */
    const banyan_layout *destination;
    mxfp8_target target;    /* makes the destination differ from `plain`; zeroed: none */
    banyan_transform *cast; /* without a target: for tensors whose two types differ */
    banyan_reshard_plan *plan;
    double plan_s; /* on all ranks */
    banyan_copy_service *service;
    banyan_tensors *source_tensors, *destination_tensors;
} move;

/* Open the world that the environment describes, plan, and allocate memory. Collective. After a
 * failure, too, move_end frees what exists. */
banyan_status move_prepare(const job_spec *spec, const move_options *options, int rank, move *made);
banyan_status move_execute(move *prepared);

/* Overwrite the destination with bytes that no right value equals. */
void move_poison(move *prepared);

/* Release everything and return the rank's exit code; `failed` keeps an error. The world is closed
 * after success only, since closing waits for all ranks. */
int move_end(move *made, banyan_status status, failure *failed);

/* Return the elements of a tensor, and their bytes. */
uint64_t move_tensor_elems(const DLTensor *tensor);
uint64_t move_tensor_bytes(const DLTensor *tensor);

#endif
