#include "stores.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LINE ((size_t)16)
#define SLOTS ((size_t)1024) /* a power of two */
#define LINES_MOST (SLOTS / 2)

/* Stored bytes of a line have their bits in `mask`. */
typedef struct line {
    uintptr_t at; /* 0: none */
    unsigned mask;
    unsigned char bytes[LINE];
} line;

/* Stores of a launch: found by address, and in the order of creation. */
typedef struct stores {
    line slots[SLOTS];
    uint16_t made[LINES_MOST];
    size_t count;
    uint64_t random;
} stores;

static __thread stores *kept;

void stores_begin(uint64_t seed)
{
    kept = calloc(1, sizeof *kept);
    if (!kept)
        abort();
    kept->random = seed;
}

void stores_end(void)
{
    emulated_release();
    free(kept);
    kept = NULL;
}

/* Return the line's slot, or the free slot for it. */
static line *slot_of(uintptr_t at)
{
    size_t slot = (size_t)(at / LINE * 0x9E3779B97F4A7C15u >> 40) % SLOTS;
    while (kept->slots[slot].at != 0 && kept->slots[slot].at != at)
        slot = (slot + 1) % SLOTS;
    return &kept->slots[slot];
}

static unsigned mask_of(const void *at, size_t bytes)
{
    return ((1u << bytes) - 1) << ((uintptr_t)at % LINE);
}

/* Write runs of bytes, so that the bytes between them are left alone. */
static void write_line(const line *from)
{
    size_t begin = 0;
    while (begin < LINE) {
        size_t end = begin;
        while (end < LINE && (from->mask >> end & 1))
            end++;
        memcpy((char *)from->at + begin, from->bytes + begin, end - begin);
        begin = end + 1;
    }
}

static bool goes_at_once(void)
{
    if (kept->random == 0)
        return false;
    kept->random ^= kept->random << 13;
    kept->random ^= kept->random >> 7;
    kept->random ^= kept->random << 17;
    return kept->random >> 63;
}

void emulated_store(void *to, const void *value, size_t bytes)
{
    uintptr_t offset = (uintptr_t)to % LINE, at = (uintptr_t)to - offset;
    line *found = kept ? slot_of(at) : NULL;
    if (!found || (found->at == 0 && goes_at_once())) {
        memcpy(to, value, bytes);
        return;
    }
    if (found->at == 0 && kept->count == LINES_MOST) {
        emulated_release();
        found = slot_of(at);
    }
    if (found->at == 0) {
        found->at = at;
        found->mask = 0;
        kept->made[kept->count++] = (uint16_t)(found - kept->slots);
    }
    found->mask |= mask_of(to, bytes);
    memcpy(found->bytes + offset, value, bytes);
}

void emulated_load(void *value, const void *from, size_t bytes)
{
    memcpy(value, from, bytes);
    if (!kept || kept->count == 0)
        return;
    uintptr_t offset = (uintptr_t)from % LINE;
    const line *found = slot_of((uintptr_t)from - offset);
    if (found->at == 0 || (found->mask & mask_of(from, bytes)) == 0)
        return;
    for (size_t i = 0; i < bytes; i++) {
        if (found->mask >> (offset + i) & 1)
            ((unsigned char *)value)[i] = found->bytes[offset + i];
    }
}

void emulated_release(void)
{
    for (size_t i = 0; kept && i < kept->count; i++) {
        line *one = &kept->slots[kept->made[i]];
        write_line(one);
        one->at = 0;
    }
    if (kept)
        kept->count = 0;
}
