/* A rank's position in a parallel layout. */
#ifndef RESHARD_MODEL_SPEC_H
#define RESHARD_MODEL_SPEC_H

#include <stdio.h>

#include <banyan/layout.h>

/* Check a spec, which may be made by hand. INVALID, quoting `text`, when its numbers contradict
 * each other. */
banyan_status spec_check(const banyan_spec *spec, const char *text);

/* One axis of the grid of ranks: neighbours along it are `stride` ranks apart. */
typedef struct spec_axis {
    int index, count, stride;
} spec_axis;

/* The axes for one kind of tensors inside a stage. */
typedef struct spec_axes {
    spec_axis shard;    /* tp, or etp */
    spec_axis rows;     /* fsdp; for experts the part of it that divides their replicas */
    spec_axis replicas; /* the remaining ranks */
} spec_axes;

typedef struct spec_place {
    int rank, stage_ranks;
    spec_axis stage;
    spec_axes dense;
    spec_axes expert;
    spec_axis expert_owner; /* ep */
} spec_place;

spec_place spec_place_of(const banyan_spec *spec, int rank);

#endif
