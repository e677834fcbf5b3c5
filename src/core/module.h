/* Optional engines: shared libraries that are loaded when they are asked for. */
#ifndef CORE_MODULE_H
#define CORE_MODULE_H

#include <banyan/core.h>

#include "core/deadline.h"

#define MODULE_ABI_VERSION 4
#define MODULE_ENTRY "banyan_module_entry"

struct banyan_world;
struct banyan_copy_backend;
struct banyan_transport_ops;
struct memory_device_ops;
struct execute_engine_ops;
struct copy_gpu_copy_ops;
struct copy_gpu_pipeline_ops;
struct mixed_engine_ops;

/* Who the calling process is, from a job manager; filled in by a module such as PMIx. */
typedef struct module_identity {
    int rank, world_size;
    int local_rank, local_size;
    char job[256]; /* the same on every rank of the job, different for every job */
} module_identity;

/* How a job manager's module introduces processes to each other. */
typedef struct module_identity_ops {
    /* NOT_FOUND when no such job manager started this process. May be called again: what it sets up
     * stays until the process ends. */
    banyan_status (*open)(module_identity *identity);
    /* Collective over the job: every rank gets the bytes that rank 0 gave. */
    banyan_status (*broadcast_from_zero)(void *data, size_t bytes);
} module_identity_ops;

/* What a module hands over: NULL for what it does not have. */
typedef struct module_tables {
    uint32_t abi_version;
    const char *name;
    const module_identity_ops *identity;
    const struct banyan_copy_backend *copy_backend;
    const struct banyan_transport_ops *transport;
    /* For a device: its memory, plans on it, strided moves between devices, the pipeline, copy
     * backends for tensors in its memory (a list that ends with NULL, or NULL), and mixed
     * collectives. */
    const struct memory_device_ops *device_memory;
    const struct execute_engine_ops *engine;
    const struct copy_gpu_copy_ops *gpu_copy;
    const struct copy_gpu_pipeline_ops *gpu_pipeline;
    const struct banyan_copy_backend *const *device_copy_backends;
    const struct mixed_engine_ops *mixed;
} module_tables;

/* The module's one entry. It sets the tables and returns true, or writes why it cannot work here.
 */
typedef bool (*module_entry_fn)(uint32_t abi_version, const module_tables **tables, char *reason,
                                size_t reason_bytes);

/* For modules: a line of the log. */
BANYAN_API void banyan_module_log(banyan_log_level level, const char *line);

/* For modules: control_wait of world/control.h, the one way in which the host waits for ranks. */
typedef struct module_wait {
    struct banyan_world *world;
    uint64_t began_ns, ends_ns; /* the deadline */
    uint64_t timeout_ns;        /* from its begin to the deadline */
    const char *option;         /* that sets it; NULL: the world's */
    uint64_t ask_ns, log_ns;    /* when to ask who is late, and to log a line */
    uint64_t due_ns;            /* when the next of these is due, once peers know of it */
    int rank;                   /* that is waited for, as they know it */
    uint64_t heard_ns;          /* a device's: when it told of this wait last */
    bool is_known;              /* peers that ask are told of it */
} module_wait;

/* control_wait_begin, control_wait_on without a nap, and control_wait_end. */
BANYAN_API module_wait banyan_module_wait_begin(struct banyan_world *world);
BANYAN_API banyan_status banyan_module_wait_on(module_wait *wait, int rank, const char *text);
BANYAN_API void banyan_module_wait_end(module_wait *wait);
/* control_device_waits. */
#define MODULE_SOME_RANK (-2)
BANYAN_API void banyan_module_device_waits(module_wait *wait, int rank, uint64_t waited_ns,
                                           const char *text);

/* For modules: control_agree, before others wait for what this rank lacks. */
BANYAN_API banyan_status banyan_module_agree(struct banyan_world *world, banyan_status mine);

/* Is there a file where module_load looks? */
bool module_is_there(const char *name);

/* Load libbanyan_<name>.so, once a process, from BANYAN_MODULE_PATH, else from beside libbanyan.so,
 * else from its folder "banyan". UNSUPPORTED says what is missing. Any thread. */
banyan_status module_load(const char *name, const module_tables **tables);

#endif
