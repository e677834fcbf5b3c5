/* The contents of a picture of a plan, equal on a page and in a figure: lanes, the steps in them,
 * and arrows between them. */
#ifndef TOOLS_PICTURE_H
#define TOOLS_PICTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <banyan/simulate.h>
#include <jansson.h>

/* More than this is too slow in a browser. */
#define PICTURE_STEPS_MOST 50000
#define PICTURE_NONE SIZE_MAX

/* One execution of an operation, or the launch of a thread block. */
typedef struct picture_step {
    int rank, thread_block;
    int operation;      /* -1: the launch */
    int loop_operation; /* -1: outside of any */
    uint64_t iteration;
    bool proxy;
    double began_s, ended_s;
    size_t after; /* the step that it waited for; PICTURE_NONE */
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
    PICTURE_PACKETS, /* from the writer of packets to their reader */
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
    bool timeless; /* the begins of steps are unknown */
} picture;

/* Begin with a plan, add steps from one of the three sources, and finish: lanes and arrows follow.
 * A zeroed picture may be freed. */
banyan_status picture_begin(picture *of, const banyan_plan *plan);
banyan_status picture_take_simulation(picture *of, const banyan_simulation *simulation);
/* Take the last run of a trace, of banyan_executor_trace_write or banyan_simulation_write_trace. */
banyan_status picture_take_trace(picture *of, const char *path);
/* Take the operations of a plan that hangs, in order, loops once, one step each. */
banyan_status picture_take_order(picture *of);
banyan_status picture_finish(picture *of);
void picture_free(picture *of);

/* Room for one more of `elem_bytes` in a list that holds `count`. NO_MEMORY. */
banyan_status picture_grow(void **list, size_t *room, size_t count, size_t elem_bytes);

/* Return 0 for anything but a number, and above the range of a double. */
uint64_t picture_number(const json_t *value);

banyan_status picture_add_step(picture *of, const picture_step *step);
/* Add signals, packets and data between the steps, and each step's predecessor if unknown. */
banyan_status picture_add_arrows(picture *of);

/* Chunks of one rank's buffer, or of the same one of several ranks. */
typedef struct picture_operand {
    const json_t *ranks; /* NULL: `rank` alone */
    int rank;
    char buffer; /* 'i', 'o', 's' */
    uint64_t index, size;
    bool packets;
} picture_operand;

/* The drawing style of a kind of operation. */
typedef struct picture_family {
    const char *name, *colour;
    bool dark; /* its label is */
} picture_family;

/* Ends with one without a name. */
extern const picture_family picture_families[];

/* NULL for the launch. */
const json_t *picture_op_of(const picture *of, const picture_step *step);
/* The thread block whose numbers it uses. */
const json_t *picture_block_of(const picture *of, const picture_step *step);
/* "put", "launch" */
const char *picture_op_name(const picture *of, const picture_step *step);
const picture_family *picture_op_family(const picture *of, const picture_step *step);

size_t picture_operand_count(const json_t *op, bool sources);
picture_operand picture_operand_at(const picture *of, const picture_step *step, bool sources,
                                   size_t index);

/* Return the rank that a rank's k-th channel of a type leads to; -1: there is none. */
int picture_channel_peer(const picture *of, int rank, const char *type, int channel);
/* Return the rank's number of the index-th channel that an operation names. */
int picture_channel_of(const picture *of, const picture_step *step, size_t index);

/* Print details beside its name, one per line: "from input[0..2) of rank 1". */
void picture_op_print_about(FILE *to, const picture *of, const picture_step *step);

/* Return the text under an operation's name, "i0→s1@2": all of it, its destination, or NULL,
 * whichever fits. To be freed. */
char *picture_label_detail(const picture *of, const picture_step *step, double room,
                           double font_size);

#endif
