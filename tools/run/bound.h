/* A processor for each rank of this machine. */
#ifndef TOOLS_BOUND_H
#define TOOLS_BOUND_H

#include <stdbool.h>

/* Keep the calling thread, rank `rank` of `ranks`, on a processor that no other rank is kept on.
 * Nothing happens where there are fewer processors than ranks. */
void bound_to_processor(int rank, int ranks);

/* True if there is a processor for the proxy of each rank, too. */
bool bound_leaves_room(int ranks);

#endif
