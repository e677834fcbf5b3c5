/* The copy pipeline's schedule of a plan, as its executors would follow it. */
#ifndef RESHARD_VERIFY_SLOTS_H
#define RESHARD_VERIFY_SLOTS_H

#include "reshard/verify/check.h"

/* Pack all ranks' transfers into batches for slots of `slot_bytes`, assign the batches to rounds,
 * by rotation and then by colouring, and check the use of the slots. parts[i] is rank i's; they fit
 * together. */
banyan_status check_slots(const check_part *parts, int count, uint64_t slot_bytes,
                          banyan_reshard_report *report);

#endif
