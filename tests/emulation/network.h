/* A network between emulated ranks, as a thread of each of them. It knows no order: of two puts
 * either may come first, and a signal may be seen before the data that it stands for. */
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
    uint32_t *unplaced; /* the receiver's */
} network_put;

/* Any thread. Ends the process when it cannot. */
void network_take(const network_put *put);
#endif
