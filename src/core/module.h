/* Optional engines: shared libraries that are loaded on demand. */
#ifndef CORE_MODULE_H
#define CORE_MODULE_H

#include <banyan/core.h>

#include "core/deadline.h"

#define MODULE_ABI_VERSION 10
#define MODULE_ENTRY "banyan_module_entry"

struct banyan_world;
struct banyan_transport;
struct banyan_copy_backend;
struct banyan_transport_ops;
struct memory_device_ops;
struct execute_engine_ops;
struct copy_gpu_copy_ops;
struct copy_gpu_pipeline_ops;
struct mixed_engine_ops;
struct delta_device_ops;

/* The calling process's rank in its job, from a job manager; filled in by a module such as PMIx. */
typedef struct module_identity {
    int rank, world_size;
    int local_rank, local_size;
    char job[256]; /* equal on every rank of the job, different for every job */
} module_identity;

/* Operations of a job manager's module: how processes of a job find each other. */
typedef struct module_identity_ops {
    /* NOT_FOUND when no such job manager started this process. May be called again: its state stays
     * until the process ends. */
    banyan_status (*open)(module_identity *identity);
    /* Broadcast rank 0's bytes. Collective over the job. */
    banyan_status (*broadcast_from_zero)(void *data, size_t bytes);
} module_identity_ops;

/* The tables that a module provides; NULL for each that it lacks. */
typedef struct module_tables {
    uint32_t abi_version;
    const char *name;
    const module_identity_ops *identity;
    const struct banyan_copy_backend *copy_backend;
    const struct banyan_transport_ops *transport;
    /* For a device: its memory, plan engine, strided copies between devices, copy pipeline, copy
     * backends for tensors in its memory (a list that ends with NULL, or NULL), mixed
     * collectives, and changes of published tensors. */
    const struct memory_device_ops *device_memory;
    const struct execute_engine_ops *engine;
    const struct copy_gpu_copy_ops *gpu_copy;
    const struct copy_gpu_pipeline_ops *gpu_pipeline;
    const struct banyan_copy_backend *const *device_copy_backends;
    const struct mixed_engine_ops *mixed;
    const struct delta_device_ops *delta;
} module_tables;

/* The module's only entry point. Sets the tables and returns true, or writes why the module cannot
 * work here. */
typedef bool (*module_entry_fn)(uint32_t abi_version, const module_tables **tables, char *reason,
                                size_t reason_bytes);

/* For modules: write a log line. */
BANYAN_API void banyan_module_log(banyan_log_level level, const char *line);

/* For modules: control_wait of world/control.h, the host's only way to wait for ranks. */
typedef struct module_wait {
    struct banyan_world *world;
    uint64_t began_ns, ends_ns; /* the deadline */
    uint64_t timeout_ns;        /* from its begin to the deadline */
    const char *option;         /* that sets the timeout; NULL: the world's */
    uint64_t ask_ns, log_ns;    /* when to ask for the late rank, and when to log a line */
    uint64_t due_ns;            /* when the next of these is due, once peers know of this wait */
    int rank;                   /* the awaited rank, as peers know it */
    uint64_t reported_ns;       /* for a device's wait: when it last reported */
    bool is_known;              /* this wait is reported to peers that ask */
} module_wait;

/* See control_wait_begin, control_wait_on (without a sleep) and control_wait_end. */
BANYAN_API module_wait banyan_module_wait_begin(struct banyan_world *world);
BANYAN_API banyan_status banyan_module_wait_on(module_wait *wait, int rank, const char *text);
BANYAN_API void banyan_module_wait_end(module_wait *wait);
/* See control_device_waits. */
#define MODULE_SOME_RANK (-2)
BANYAN_API void banyan_module_device_waits(module_wait *wait, int rank, uint64_t waited_ns,
                                           const char *text);

/* For modules: control_agree. Call it before peers wait for something that this rank failed to get.
 */
BANYAN_API banyan_status banyan_module_agree(struct banyan_world *world, banyan_status mine);

/* For threads of modules that poll: process what has arrived by the tables of a transport's world;
 * and tell them that the thread stops polling for a while. Any thread. */
BANYAN_API void banyan_module_transport_progress(struct banyan_transport *transport);
BANYAN_API void banyan_module_transport_rest(struct banyan_transport *transport);

/* True if module_load would find a file. */
bool module_is_there(const char *name);

/* Load libbanyan_<name>.so, once per process, from BANYAN_MODULE_PATH, else from the folder of
 * libbanyan.so, else from its subfolder "banyan". UNSUPPORTED, with what is missing. Any thread. */
banyan_status module_load(const char *name, const module_tables **tables);

#endif
