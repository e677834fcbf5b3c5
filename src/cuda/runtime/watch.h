/* Threads of the module, and those that check repeatedly for failures while a device waits for its
 * peers. */
#ifndef CUDA_RUNTIME_WATCH_H
#define CUDA_RUNTIME_WATCH_H

#include <pthread.h>

#include <banyan/world.h>

#include "core/module.h"
#include "core/status.h"
#include "cuda/runtime/report.h"

/* Start a thread that receives none of the program's signals. SYSTEM: "cuda: no thread for …". */
banyan_status module_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                                  const char *what);

/* True if BANYAN_GPU_NETWORK is "direct": transports may access memory of GPUs while kernels wait.
 * UCX's copies for CUDA did not go on beside a waiting kernel on an H100 (docs/internals/gpu.md).
 */
bool module_network_is_direct(void);

/* False, and end the world, if a thread's operation has failed: then no rank waits for what the
 * thread does not do. A lost peer's world ends by itself, with the reason, unless it takes long. */
bool module_world_holds(banyan_world *world, banyan_status status);

/* The time of CLOCK_MONOTONIC. */
uint64_t module_now_ns(void);
/* Initialize a condition variable whose waits end by that clock; and wait on it for up to this
 * long, under 1 s. */
void module_cond_init(pthread_cond_t *cond);
void module_cond_nap(pthread_cond_t *cond, pthread_mutex_t *lock, long nap_ns);

typedef struct watch watch;

/* Call `look` every 10 ms, until it returns false or the watch is ended. */
banyan_status watch_start(bool (*look)(void *context), void *context, watch **started);

/* Kernels that report. Set the first three members. */
typedef struct watched {
    report_words *reports;
    /* Called by the watch's thread while a wait lasts; NULL: none does, and none has failed. */
    void (*lasts)(void *context, const device_report *wait);
    void *context;
    uint64_t waited_ns, changed_ns; /* the last report, and when it was seen first */
    struct watched *next;
} watched;

/* Watch the kernels that are added: stop them when banyan_world_check fails, and pass on their
 * reports. While `is_idle` returns true, no kernel runs, and the watch sleeps until watch_wake;
 * NULL: it never sleeps. */
banyan_status watch_world(banyan_world *world, bool (*is_idle)(void *context), void *context,
                          watch **started);
void watch_add(watch *of, watched *added);
/* `lasts` is not running on return. */
void watch_remove(watch *of, const watched *removed);
void watch_wake(watch *of);

/* Watch kernels whose reports name ranks of the world, for the log and for peers. `describe` writes
 * a text that continues "rank 2 has waited 10.0 s on its device". */
typedef void (*watch_describe)(const device_report *wait, char *text, size_t bytes);
banyan_status watch_ranks(banyan_world *world, report_words *reports, watch_describe describe,
                          watch **started);

/* No function is running on return. Ignores NULL. */
void watch_end(watch *ended);

#endif
