/* Space for thread blocks on the emulated devices: a launch begins when all of its blocks fit
 * beside those of other streams. Counts only this process: processes take turns on a device. */
#ifndef EMULATION_ROOM_H
#define EMULATION_ROOM_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* Blocks beyond the device's limit do not wait for each other, and are not counted. */
void room_take(int device, unsigned blocks);
bool room_try(int device, unsigned blocks);
void room_give(int device, unsigned blocks);

#pragma GCC visibility pop

#endif
