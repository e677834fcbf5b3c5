/* A network between emulated ranks, as a thread in each of them. It keeps no order: either of two
 * puts may come first, and a signal may be visible before its data. */
#ifndef EMULATION_NETWORK_H
#define EMULATION_NETWORK_H

#include <stddef.h>
#include <stdint.h>

typedef struct network_put {
    char *to;
    const char *from;
    size_t bytes;
    uint64_t *word;
    uint64_t value;
    uint32_t *unplaced; /* of the receiver */
} network_put;

/* Any thread. Ends the process on failure. */
void network_take(const network_put *put);
#endif
