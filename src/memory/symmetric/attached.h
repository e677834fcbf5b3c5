/* Peers' shares that are mapped here. */
#ifndef MEMORY_SYMMETRIC_ATTACHED_H
#define MEMORY_SYMMETRIC_ATTACHED_H

#include "memory/device.h"
#include "memory/symmetric/attach.h"

typedef struct attached_share {
    struct attached_share *next;
    int owner;   /* rank */
    uint64_t id; /* the owner's id of the share */
    int device;  /* the local device that uses it */
    size_t uses; /* attachments */
    device_share what;
    device_attachment where;
    char reason[256]; /* why it could not be mapped; "" if it was */
} attached_share;

/* Map shares by parts, in rounds: all of `missing` that have no reason yet. Collective; ranks that
 * miss nothing take part. A share that cannot be mapped gets its reason. Errors are those of the
 * control plane or of memory. */
banyan_status attached_shares_fetch(memory_space *space, attached_share **missing, size_t count);

#endif
