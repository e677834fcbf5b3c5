/* Operations of a plan's file, with what they name by number resolved. */
#ifndef TOOLS_PICTURE_OP_H
#define TOOLS_PICTURE_OP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "draw/picture.h"

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

/* "i[0..2), s[1]@2" */
void picture_op_print_operands(FILE *to, const picture *of, const picture_step *step, bool sources);
/* Print details beside its name, one per line: "from input[0..2) of rank 1". */
void picture_op_print_about(FILE *to, const picture *of, const picture_step *step);

#endif
