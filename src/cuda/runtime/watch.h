/* Threads that look, again and again, whether all is well, while a device waits for its peers. */
#ifndef CUDA_RUNTIME_WATCH_H
#define CUDA_RUNTIME_WATCH_H

#include <banyan/world.h>

#include "core/module.h"
#include "cuda/runtime/waits.h"

typedef struct watch watch;

/* Calls `look` every 10 ms, until it returns false or the watch is ended. */
banyan_status watch_start(bool (*look)(void *context), void *context, watch **started);
/* A kernel's word of its waits, as the host follows it. Zeroed is ready. */
typedef struct watch_beat {
    uint64_t waited_ns, heard_ns;
} watch_beat;
/* Does the wait still last that it has told of? */
bool watch_beat_lasts(watch_beat *beat, const device_waits *told, uint64_t *waited_ns);

/* A device's words, in pinned memory. */
typedef struct watch_words {
    banyan_world *world;
    uint32_t *stop;           /* becomes 1 once banyan_world_check fails */
    const device_waits *told; /* what[0]: the rank of the world, plus 1, and 32 bits of its own */
    const uint32_t *failed;   /* not 0: a wait has ended in vain, which stays known */
    /* The object of the wait, continuing "rank 2 has waited 10.0 s on its device". */
    void (*describe)(int rank, uint32_t own, char *text, size_t bytes);
} watch_words;
banyan_status watch_world(const watch_words *words, watch **started);
/* `look` is not under way when it returns. NULL is ignored. */
void watch_end(watch *ended);

#endif
