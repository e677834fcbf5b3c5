/* Room for thread blocks on the emulated devices: a launch begins when all of its blocks fit beside
 * those of other streams. Of this process alone: processes take turns on a device. */
#ifndef EMULATION_ROOM_H
#define EMULATION_ROOM_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* More than a device has, whose blocks do not wait for each other, are not counted. */
void room_take(int device, unsigned blocks);
bool room_try(int device, unsigned blocks);
void room_give(int device, unsigned blocks);

#pragma GCC visibility pop

#endif
