/* The kinds of a thread block's steps, on the host and on devices. */
#ifndef EXECUTE_SPECIALIZE_STEP_KIND_H
#define EXECUTE_SPECIALIZE_STEP_KIND_H

/* There are fewer kinds than in a plan. Operations that differ only in their operands' places are
 * one kind. Operations with several pairs of operands, or that move and signal, become several
 * steps. */
typedef enum step_kind {
    STEP_NOP,
    STEP_COPY,    /* data to data, one source, one destination or more */
    STEP_PACK,    /* data to packets */
    STEP_UNPACK,  /* packets to data, when they arrive */
    STEP_FORWARD, /* packets to packets, as they arrive */
    STEP_COMBINE, /* reduce sources, data or packets, to destinations, data or packets */
    STEP_POST_COPY,
    STEP_POST_PACK,
    STEP_POST_FORWARD,
    STEP_POST_SIGNAL,
    STEP_SIGNAL,
    STEP_WAIT,
    STEP_FLUSH,
    STEP_ACQUIRE,
    STEP_RELEASE,
    STEP_BARRIER,
    STEP_LOOP, /* repeats the steps up to its STEP_LOOP_END */
    STEP_LOOP_END
} step_kind;

#endif
