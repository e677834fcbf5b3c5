/* A subscription's state at one rank, for its thread. */
#ifndef PUBLISH_SUBSCRIPTION_H
#define PUBLISH_SUBSCRIPTION_H

#include <pthread.h>

#include "publish/session.h"
#include "publish/staged.h"

#define ADDRESS_BYTES 300
#define SECRET_BYTES 33
#define NAME_BYTES 128

struct banyan_subscription {
    banyan_world *world;   /* the caller's, for its calls */
    banyan_world *threads; /* for the thread that follows */
    banyan_layout *layout;
    banyan_tensors *tensors;
    struct publish_device device; /* in whose memory the tensors lie */
    uint32_t *layers;             /* of the tensors on a device (staged_layers) */
    bool on_device;               /* tensors of some rank lie on a device */
    char address[ADDRESS_BYTES], secret[SECRET_BYTES], name[NAME_BYTES];
    banyan_subscription_options options;
    pthread_t following;
    bool has_thread;

    bool has_shadow;
    ptrdiff_t shadow_shift; /* from the tensors' memory to the shadow's */
    /* The shadow holds the version with this number; 0: nothing of use. With `contents` held. */
    uint64_t shadow_number;

    pthread_mutex_t contents; /* held while the tensors' elements change, or must not */
    pthread_mutex_t lock;     /* of everything below */
    pthread_cond_t changed;
    bool closing;
    struct staged_list staged; /* to be committed */
    struct staged_list
        previous; /* what the last commit replaced; the streams have the old elements */
    struct staged_list replaced; /* to be freed, which takes longer than a pause may last */
    uint64_t number, version, publication; /* of the current version; number 0: none */
    uint64_t before_number, before_version, before_publication; /* of that before `previous` */
    uint64_t next_number;
    bool needs_waves;                  /* session_report.in_waves */
    uint64_t above, above_publication; /* versions up to this one of it are not wanted */
    banyan_subscription_status status;
    error_kept failed; /* the thread's last error */
};

/* Return the number of the last version that this rank has. With the lock held. */
static inline uint64_t subscription_last_number(const banyan_subscription *subscription)
{
    return subscription->staged.last ? subscription->staged.last->number : subscription->number;
}

/* Fetch the versions of the publication until the subscription closes. A thread's function; the
 * argument is the subscription. */
void *subscription_follow(void *subscription);

#endif
