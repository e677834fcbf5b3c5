/* What the steps of a thread block are, on the host and on devices. */
#ifndef EXECUTE_SPECIALIZE_STEP_KIND_H
#define EXECUTE_SPECIALIZE_STEP_KIND_H

/* Fewer kinds than a plan has: operations that differ only in where their operands lie are one
 * kind, and those with several pairs of operands, or that move and tell, are several steps. */
typedef enum step_kind {
    STEP_NOP,
    STEP_COPY,    /* data to data, one source, one destination or more */
    STEP_PACK,    /* data to packets */
    STEP_UNPACK,  /* packets to data, once they have come */
    STEP_FORWARD, /* packets to packets, as they come */
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
    STEP_LOOP, /* what follows, up to its STEP_LOOP_END, again and again */
    STEP_LOOP_END
} step_kind;

#endif
