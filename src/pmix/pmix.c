/* The process's rank and job from PMIx, which mpirun and srun offer to processes they start. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <pmix.h>

#include "core/module.h"

#define DEFAULT_TIMEOUT_S 600
#define FOREVER_S 1000000000

static pid_t initialized_by; /* 0: not initialized yet */
static pmix_proc_t self;
/* Number of broadcasts so far; each has its own key. Equal on all ranks, since a broadcast is
 * collective. */
static unsigned broadcast_count;

static banyan_status pmix_failed(pmix_status_t status, const char *call)
{
    return banyan_error_set(BANYAN_ERR_SYSTEM, "PMIx rank %u of job %s: %s: %s", self.rank,
                            self.nspace, call, PMIx_Error_string(status));
}

static int timeout_s(void)
{
    const char *text = getenv("BANYAN_TIMEOUT");
    if (!text || !*text)
        return DEFAULT_TIMEOUT_S;
    double seconds = strtod(text, NULL);
    if (seconds == 0 || seconds > FOREVER_S)
        return FOREVER_S;
    return seconds >= 1 ? (int)seconds : 1;
}

/* Query a number about a process, or about the whole job. */
static banyan_status get_number(const pmix_proc_t *of, const char *key, int *number)
{
    pmix_value_t *value = NULL;
    pmix_status_t status = PMIx_Get(of, key, NULL, 0, &value);
    if (status != PMIX_SUCCESS)
        return pmix_failed(status, key);
    uint64_t wide = UINT64_MAX;
    if (value->type == PMIX_UINT32)
        wide = value->data.uint32;
    else if (value->type == PMIX_UINT16)
        wide = value->data.uint16;
    unsigned type = value->type;
    PMIX_VALUE_RELEASE(value);
    if (wide > INT32_MAX)
        return banyan_error_set(BANYAN_ERR_FORMAT,
                                "PMIx rank %u of job %s: %s is not a count (PMIx type %u)",
                                self.rank, self.nspace, key, type);
    *number = (int)wide;
    return BANYAN_OK;
}

static void leave_at_exit(void)
{
    if (getpid() == initialized_by)
        PMIx_Finalize(NULL, 0);
}

/* PMIx stays initialized until the process exits: it cannot be initialized again after it was
 * finalized, and a process that ends without finalizing counts as failed. */
static banyan_status initialize_once(void)
{
    if (initialized_by != 0)
        return BANYAN_OK;
    pmix_status_t status = PMIx_Init(&self, NULL, 0);
    if (status != PMIX_SUCCESS)
        return banyan_error_set(BANYAN_ERR_NOT_FOUND, "no PMIx server answers: %s",
                                PMIx_Error_string(status));
    initialized_by = getpid();
    atexit(leave_at_exit);
    return BANYAN_OK;
}

static banyan_status identity_open(module_identity *identity)
{
    banyan_status result = initialize_once();
    if (result != BANYAN_OK)
        return result;
    module_identity found = {.rank = (int)self.rank};
    snprintf(found.job, sizeof found.job, "%s", self.nspace);
    pmix_proc_t job;
    PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
    result = get_number(&job, PMIX_JOB_SIZE, &found.world_size);
    if (result == BANYAN_OK)
        result = get_number(&self, PMIX_LOCAL_RANK, &found.local_rank);
    if (result == BANYAN_OK)
        result = get_number(&job, PMIX_LOCAL_SIZE, &found.local_size);
    if (result == BANYAN_OK)
        *identity = found;
    return result;
}

/* A fence with our own deadline, since not every server supports one. The fence may complete after
 * the deadline, so its memory is never freed. */
struct fence {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    pmix_status_t status;
};

static void fence_ended(pmix_status_t status, void *context)
{
    struct fence *fence = context;
    pthread_mutex_lock(&fence->lock);
    fence->status = status;
    fence->done = true;
    pthread_cond_signal(&fence->ended);
    pthread_mutex_unlock(&fence->lock);
}

static bool fence_wait(struct fence *fence, int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    int late = 0;
    pthread_mutex_lock(&fence->lock);
    while (!fence->done && late == 0)
        late = pthread_cond_timedwait(&fence->ended, &fence->lock, &until);
    bool done = fence->done;
    pthread_mutex_unlock(&fence->lock);
    return done;
}

/* Wait until every rank of the job has arrived and has the data that the others put. */
static banyan_status fence_all(void)
{
    struct fence *fence = malloc(sizeof *fence);
    if (!fence)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %zu bytes for a PMIx fence",
                                sizeof *fence);
    *fence = (struct fence){.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
    bool collect = true;
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    pmix_status_t status = PMIx_Fence_nb(NULL, 0, &info, 1, fence_ended, fence);
    if (status == PMIX_SUCCESS && !fence_wait(fence, timeout_s()))
        return banyan_error_set(
            BANYAN_ERR_TIMEOUT,
            "PMIx rank %u of job %s waited %d s for the other ranks; " TIMEOUT_HINT, self.rank,
            self.nspace, timeout_s());
    if (status == PMIX_SUCCESS)
        status = fence->status;
    free(fence);
    return status == PMIX_SUCCESS ? BANYAN_OK : pmix_failed(status, "PMIx_Fence");
}

static banyan_status put_bytes(const char *key, const void *data, size_t bytes)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
    value.data.bo.bytes = (char *)data;
    value.data.bo.size = bytes;
    pmix_status_t status = PMIx_Put(PMIX_GLOBAL, key, &value);
    if (status == PMIX_SUCCESS)
        status = PMIx_Commit();
    return status == PMIX_SUCCESS ? BANYAN_OK : pmix_failed(status, "PMIx_Put");
}

static banyan_status get_bytes(const char *key, void *data, size_t bytes)
{
    pmix_proc_t zero;
    PMIX_LOAD_PROCID(&zero, self.nspace, 0);
    pmix_value_t *value = NULL;
    pmix_status_t status = PMIx_Get(&zero, key, NULL, 0, &value);
    if (status != PMIX_SUCCESS)
        return pmix_failed(status, "PMIx_Get");
    banyan_status result = BANYAN_OK;
    if (value->type == PMIX_BYTE_OBJECT && value->data.bo.size == bytes)
        memcpy(data, value->data.bo.bytes, bytes);
    else
        result = banyan_error_set(BANYAN_ERR_MISMATCH,
                                  "PMIx rank %u of job %s: rank 0 did not give %zu bytes",
                                  self.rank, self.nspace, bytes);
    PMIX_VALUE_RELEASE(value);
    return result;
}

static banyan_status identity_broadcast(void *data, size_t bytes)
{
    char key[64];
    snprintf(key, sizeof key, "banyan.broadcast.%u", broadcast_count++);
    banyan_status status = self.rank == 0 ? put_bytes(key, data, bytes) : BANYAN_OK;
    banyan_status met = fence_all();
    if (status == BANYAN_OK)
        status = met;
    if (status != BANYAN_OK || self.rank == 0)
        return status;
    return get_bytes(key, data, bytes);
}

static const module_identity_ops identity_ops = {
    .open = identity_open,
    .broadcast_from_zero = identity_broadcast,
};

static const module_tables tables = {
    .abi_version = MODULE_ABI_VERSION,
    .name = "pmix",
    .identity = &identity_ops,
};

BANYAN_API bool banyan_module_entry(uint32_t abi_version, const module_tables **out, char *reason,
                                    size_t reason_bytes);
bool banyan_module_entry(uint32_t abi_version, const module_tables **out, char *reason,
                         size_t reason_bytes)
{
    if (abi_version != MODULE_ABI_VERSION) {
        snprintf(reason, reason_bytes, "it is made for module ABI %d, this is %u",
                 MODULE_ABI_VERSION, abi_version);
        return false;
    }
    *out = &tables;
    return true;
}
