/* What a picture of a plan shows, the same on a page and in a figure: lanes, the steps in them, and
 * arrows between them. */
#ifndef TOOLS_PICTURE_H
#define TOOLS_PICTURE_H

#include <banyan/simulate.h>
#include <jansson.h>

/* More than a browser draws willingly. */
#define PICTURE_STEPS_MOST 50000
#define PICTURE_NONE SIZE_MAX

/* An operation as it was done once, or the launch of a thread block. */
typedef struct picture_step {
    int rank, thread_block;
    int operation;      /* -1: the launch */
    int loop_operation; /* -1: outside of any */
    uint64_t iteration;
    bool proxy;
    double began_s, ended_s;
    size_t after; /* the step without which it had ended earlier; PICTURE_NONE */
    size_t lane;
} picture_step;

typedef enum picture_lane_kind {
    PICTURE_RANK, /* the head of the lanes below, with nothing in it */
    PICTURE_BLOCK,
    PICTURE_PROXY,
    PICTURE_BUFFERS /* a rank's memory, where arrows of data begin and end */
} picture_lane_kind;

typedef struct picture_lane {
    picture_lane_kind kind;
    int rank, thread_block;
} picture_lane;

typedef enum picture_arrow_kind {
    PICTURE_SIGNAL,  /* from a step to the one that waited for it */
    PICTURE_PACKETS, /* from who wrote packets to who read them */
    PICTURE_PUT,     /* from a step to the lane of a rank's buffers */
    PICTURE_GET      /* from such a lane to a step */
} picture_arrow_kind;

typedef struct picture_arrow {
    picture_arrow_kind kind;
    size_t from, to; /* indices of steps, or of a lane */
} picture_arrow;

typedef struct picture {
    json_t *root; /* the plan as its file has it; numbers by picture_number */
    int ranks;
    picture_step *steps; /* in the order of their ends */
    size_t step_count, step_room;
    picture_lane *lanes;
    size_t lane_count;
    picture_arrow *arrows;
    size_t arrow_count, arrow_room;
    bool has_proxies;
    bool timeless; /* nobody knows when steps begin */
} picture;

/* Begin with a plan, give it steps from one of the three, and finish: lanes and arrows follow. A
 * picture that is all zeros may be freed. */
banyan_status picture_begin(picture *of, const banyan_plan *plan);
banyan_status picture_take_simulation(picture *of, const banyan_simulation *simulation);
/* The last run that a trace has, of banyan_executor_trace_write or banyan_simulation_write_trace.
 */
banyan_status picture_take_trace(picture *of, const char *path);
/* Of a plan that hangs: its operations in their order, loops once, a step each. */
banyan_status picture_take_order(picture *of);
banyan_status picture_finish(picture *of);
void picture_free(picture *of);

/* Room for one more of `elem_bytes` in a list that holds `count`. NO_MEMORY. */
banyan_status picture_grow(void **list, size_t *room, size_t count, size_t elem_bytes);

/* 0 for what is none, or more than a double counts. */
uint64_t picture_number(const json_t *value);

banyan_status picture_add_step(picture *of, const picture_step *step);
/* Signals, packets and data between the steps, and what each came after if that is not known. */
banyan_status picture_add_arrows(picture *of);

#endif
