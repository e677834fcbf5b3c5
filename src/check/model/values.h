/* Symbolic contents of bytes: the input bytes that were reduced to them, and the operator.
 *
 * A value is a multiset of terms. It is kept once, with its smallest term at offset 0; a value_ref
 * has the real offset of that term's byte, so that one value stands for all bytes of a chunk. */
#ifndef CHECK_MODEL_VALUES_H
#define CHECK_MODEL_VALUES_H

#include "core/containers.h"
#include "plan/plan.h"

enum {
    VALUE_NOTHING,  /* never written */
    VALUE_ZERO,     /* zeros behind the data of packets */
    VALUE_ANYTHING, /* wrong, and already reported */
    VALUE_FIRST
};

typedef struct value_ref {
    uint32_t id;
    uint64_t offset;
} value_ref;

/* An input's byte, or with VALUE_NESTED a value that another operator reduced. */
#define VALUE_NESTED (UINT32_C(1) << 31)
typedef struct value_term {
    uint32_t source; /* run × ranks + rank */
    uint32_t count;
    uint64_t offset;
} value_term;

typedef struct value_form {
    banyan_reduce_op op;
    uint32_t count;
    const value_term *terms; /* ascending by source, then offset */
} value_form;

typedef struct values {
    arena memory;
    ARRAY(value_form) list;
    hash_map by_content;
    ARRAY(value_term) room;
} values;

bool values_make(values *all);
void values_free(values *all);

/* Make the value of an input's byte. False, with the error set, when memory ran out. */
bool values_input(values *all, uint32_t source, uint64_t offset, value_ref *made);
bool values_reduce(values *all, const value_ref *refs, size_t count, banyan_reduce_op op,
                   value_ref *made);
/* Return the value `bytes` further on. */
static inline value_ref value_ahead(value_ref ref, uint64_t bytes)
{
    return (value_ref){ref.id, ref.id < VALUE_FIRST ? 0 : ref.offset + bytes};
}
static inline bool value_is(value_ref a, value_ref b)
{
    return a.id == b.id && a.offset == b.offset;
}

/* Write "sum of rank 0 [16], rank 1 [16]", in at most `text_bytes` bytes. */
void values_describe(const values *all, value_ref ref, int ranks, char *text, size_t text_bytes);

#endif
