/* GPUs of the ranks of a command. */
#ifndef TOOLS_GPUS_H
#define TOOLS_GPUS_H

#include <banyan/world.h>

/* Choose this rank's GPU: one for each rank of the machine, or the ranks share those that there
 * are. A message on stderr behind `who` then says so. */
banyan_status gpus_choose(const char *who, const banyan_world *world, DLDevice *device);

#endif
