#include "cuda/copy/nccl/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/module.h"
#include "cuda/memory/memory.h"
#include "cuda/pipeline/kernel.h"
#include "cuda/runtime/foreign.h"
#include "cuda/runtime/launch.h"

#define POLL_US 20
#define POLLS_A_CHECK 50
#define CLOSE_NS UINT64_C(5000000000)

/* Call it with the lock held. Ends everything that is queued on the device. */
static void nccl_session_give_up(nccl_session *session, const char *reason)
{
    if (!session->comm)
        return;
    snprintf(session->reason, sizeof session->reason, "%s", reason);
    nccl.ncclCommAbort(session->comm);
    session->comm = NULL;
}

/* Call it with the lock held. Returns NCCL_SUCCESS, NCCL_IN_PROGRESS or an error. */
static int state_of(const nccl_session *session)
{
    int state = NCCL_SUCCESS;
    int result = nccl.ncclCommGetAsyncError(session->comm, &state);
    return result == NCCL_SUCCESS ? state : result;
}

/* Process exit destroys NCCL while services may be open: from then on no thread may poll it. */
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
static bool exiting;

static void stop_looking(void)
{
    pthread_mutex_lock(&looking);
    exiting = true;
    pthread_mutex_unlock(&looking);
}

static void stop_looking_at_exit(void)
{
    atexit(stop_looking);
}

static banyan_status too_late(const nccl_session *session, const char *call, uint64_t waited_ns)
{
    return banyan_error_set(
        BANYAN_ERR_TIMEOUT,
        "nccl: rank %d waited %.1f s for %s to end (NCCL does not say for which "
        "rank it waits); %s" TIMEOUT_SETS,
        session->rank, (double)waited_ns * 1e-9, call, timeout_name(session->waiting.option));
}

/* Called by the watch: fail if the device has been between two marks for too long. */
static banyan_status look_at_marks(nccl_session *session)
{
    uint64_t passed = __atomic_load_n(session->marks, __ATOMIC_ACQUIRE), now = module_now_ns();
    if (passed != session->seen || passed % 2 == 0) {
        session->seen = passed;
        session->seen_ns = now;
        banyan_module_device_waits(&session->waiting, -1, 0, NULL);
    } else {
        banyan_module_device_waits(&session->waiting, MODULE_SOME_RANK, now - session->seen_ns,
                                   "for NCCL's groups of a run (NCCL does not say for which rank)");
    }
    if (now - session->seen_ns <= session->waiting.timeout_ns)
        return BANYAN_OK;
    return too_late(session, "NCCL's groups of a run", now - session->seen_ns);
}

static banyan_status check_partners(const nccl_session *session)
{
    RETURN_IF_FAILED(banyan_world_check(session->world));
    return session->direct ? banyan_copy_service_check(session->direct) : BANYAN_OK;
}

static bool look_at_session(nccl_session *session)
{
    banyan_status status = check_partners(session);
    if (status == BANYAN_OK)
        status = look_at_marks(session);
    pthread_mutex_lock(&session->lock);
    if (status == BANYAN_OK && session->comm) {
        int state = state_of(session);
        if (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS)
            status = nccl_failed(state, "a group", session->rank);
    }
    if (status != BANYAN_OK)
        nccl_session_give_up(session, banyan_last_error());
    bool goes_on = session->comm != NULL;
    pthread_mutex_unlock(&session->lock);
    return goes_on;
}

static bool nccl_session_look(void *argument)
{
    pthread_mutex_lock(&looking);
    bool goes_on = !exiting && look_at_session(argument);
    pthread_mutex_unlock(&looking);
    return goes_on;
}

banyan_status nccl_session_check(nccl_session *session)
{
    banyan_status status = check_partners(session);
    if (status != BANYAN_OK)
        return status;
    pthread_mutex_lock(&session->lock);
    if (!session->comm)
        status = banyan_error_set(BANYAN_ERR_ABORTED, "nccl: rank %d gave its communicator up: %s",
                                  session->rank, session->reason);
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* Poll a call, under the lock: NCCL_IN_PROGRESS, or it has ended with `*status`. */
static int nccl_session_settled(nccl_session *session, const char *call, banyan_status *status)
{
    pthread_mutex_lock(&session->lock);
    int state = session->comm ? state_of(session) : NCCL_SUCCESS;
    if (!session->comm)
        *status = banyan_error_set(BANYAN_ERR_ABORTED, "nccl: rank %d gave its communicator up: %s",
                                   session->rank, session->reason);
    else if (state != NCCL_SUCCESS && state != NCCL_IN_PROGRESS)
        *status = nccl_failed(state, call, session->rank);
    pthread_mutex_unlock(&session->lock);
    return state;
}

/* Wait for the call. NCCL does not report the rank it waits for. */
static banyan_status nccl_session_settle(nccl_session *session, const char *call,
                                         uint64_t timeout_ns)
{
    module_wait wait = banyan_module_wait_begin(session->world);
    banyan_status status = BANYAN_OK, ended = BANYAN_OK;
    char text[120];
    snprintf(text, sizeof text, "for %s to end (NCCL, which does not say for which rank it waits)",
             call);
    if (timeout_ns < wait.ends_ns - wait.began_ns)
        wait.ends_ns = wait.began_ns + timeout_ns;
    for (unsigned polls = 1;
         ended == BANYAN_OK && nccl_session_settled(session, call, &status) == NCCL_IN_PROGRESS;
         polls++) {
        if (polls % POLLS_A_CHECK == 0)
            ended = session->starting ? banyan_world_check(session->starting) : BANYAN_OK;
        if (ended == BANYAN_OK && polls % POLLS_A_CHECK == 0)
            ended = banyan_module_wait_on(&wait, -1, text);
        usleep(POLL_US);
    }
    banyan_module_wait_end(&wait);
    return ended == BANYAN_OK ? status : ended;
}

static banyan_status nccl_session_share_id(nccl_session *session, nccl_unique_id *id)
{
    struct {
        int result;
        nccl_unique_id id;
    } given = {0};
    if (session->rank == 0)
        given.result = nccl.ncclGetUniqueId(&given.id);
    banyan_status status = banyan_world_broadcast(session->starting, &given, sizeof given, 0);
    if (status == BANYAN_OK && given.result != NCCL_SUCCESS)
        status = nccl_failed(given.result, "ncclGetUniqueId", 0);
    *id = given.id;
    return status;
}

static banyan_status connect_ranks(nccl_session *session)
{
    nccl_unique_id id;
    nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    RETURN_IF_FAILED(nccl_session_share_id(session, &id));
    int result = nccl.ncclCommInitRankConfig(&session->comm, banyan_world_size(session->world), id,
                                             session->rank, &config);
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        return nccl_failed(result, "ncclCommInitRankConfig", session->rank);
    return nccl_session_settle(session, "ncclCommInitRankConfig",
                               banyan_world_timeout_ns(session->world));
}

static banyan_status open_marks(nccl_session *session)
{
    void *here, *there, *passed;
    RETURN_IF_FAILED(driver_kernel(gpu_pipeline_kernel_symbol(), session->device, &session->mark));
    RETURN_IF_FAILED(pinned_alloc(session->device, sizeof *session->marks, &here, &there));
    session->marks = here;
    session->device_marks = there;
    RETURN_IF_FAILED(bytes_alloc(session->device, sizeof *session->passed, &passed));
    session->passed = passed;
    return bytes_fill(passed, 0, sizeof *session->passed);
}

static banyan_status nccl_session_start(nccl_session *session)
{
    banyan_status status = foreign_split(session->world, &session->starting);
    if (status == BANYAN_OK)
        status = open_marks(session);
    if (status == BANYAN_OK)
        status = connect_ranks(session);
    if (status != BANYAN_OK && session->starting) {
        error_kept kept = error_keep(status);
        (void)banyan_world_abort(session->starting, kept.message);
        status = error_again(&kept);
    }
    (void)banyan_world_close(session->starting);
    session->starting = NULL;
    return status;
}

banyan_status nccl_session_open(banyan_world *world, int device, banyan_copy_service *direct,
                                nccl_session *session)
{
    *session = (nccl_session){
        .world = world, .rank = banyan_world_rank(world), .device = device, .direct = direct};
    session->waiting = banyan_module_wait_begin(world);
    pthread_mutex_init(&session->lock, NULL);
    banyan_status status = nccl_session_start(session);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, stop_looking_at_exit);
    if (status == BANYAN_OK)
        status = watch_start(nccl_session_look, session, &session->watching);
    if (status != BANYAN_OK)
        nccl_session_close(session);
    return status;
}

/* Close in order while all ranks are present; else at once. */
void nccl_session_close(nccl_session *session)
{
    watch_end(session->watching);
    if (session->comm && banyan_world_check(session->world) == BANYAN_OK &&
        state_of(session) == NCCL_SUCCESS) {
        int result = nccl.ncclCommFinalize(session->comm);
        if ((result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) &&
            nccl_session_settle(session, "ncclCommFinalize", CLOSE_NS) == BANYAN_OK) {
            nccl.ncclCommDestroy(session->comm);
            session->comm = NULL;
        }
    }
    if (session->comm)
        nccl.ncclCommAbort(session->comm);
    session->comm = NULL;
    bytes_free(session->device, session->passed);
    pinned_free(session->marks);
    pthread_mutex_destroy(&session->lock);
}

static int queue_message(const nccl_session *session, const nccl_message *message, void *stream)
{
    if (message->is_send)
        return nccl.ncclSend(message->data, message->bytes, NCCL_BYTES, message->peer,
                             session->comm, stream);
    return nccl.ncclRecv(message->data, message->bytes, NCCL_BYTES, message->peer, session->comm,
                         stream);
}

banyan_status nccl_session_mark(nccl_session *session, void *stream)
{
    gpu_pipeline_args args = {
        .task = PIPELINE_SIGNAL, .their_word = session->device_marks, .count = session->passed};
    return launch_kernel(session->device, session->mark, LAUNCH_ONE, &args, stream);
}

/* Always end a group that was begun: NCCL counts them for each thread. */
static int queue_group(const nccl_session *session, const nccl_message *messages, size_t count,
                       void *stream)
{
    int result = nccl.ncclGroupStart();
    for (size_t i = 0; i < count && (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS); i++)
        result = queue_message(session, &messages[i], stream);
    int ended = nccl.ncclGroupEnd();
    return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS ? ended : result;
}

typedef int (*nccl_queue)(const nccl_session *session, const void *what, void *stream);

/* No other host call uses the communicator meanwhile. */
static banyan_status queue_alone(nccl_session *session, nccl_queue queue, const void *what,
                                 const char *name, void *stream)
{
    uint64_t timeout_ns = banyan_world_timeout_ns(session->world);
    banyan_status status = nccl_session_settle(session, "what came before", timeout_ns);
    if (status != BANYAN_OK)
        return status;
    pthread_mutex_lock(&session->lock);
    int result = session->comm ? queue(session, what, stream) : NCCL_SUCCESS;
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        status = nccl_failed(result, name, session->rank);
    pthread_mutex_unlock(&session->lock);
    if (status != BANYAN_OK)
        return status;
    return nccl_session_settle(session, name, timeout_ns);
}

typedef struct nccl_messages {
    const nccl_message *first;
    size_t count;
} nccl_messages;

static int queue_messages(const nccl_session *session, const void *what, void *stream)
{
    const nccl_messages *messages = what;
    return queue_group(session, messages->first, messages->count, stream);
}

banyan_status nccl_session_group(nccl_session *session, const nccl_message *messages, size_t count,
                                 void *stream)
{
    nccl_messages all = {messages, count};
    return queue_alone(session, queue_messages, &all, "a group of sends and receives", stream);
}

static int queue_collective(const nccl_session *session, const void *argument, void *stream)
{
    const nccl_collective *what = argument;
    switch (what->kind) {
    case NCCL_ALLREDUCE:
        return nccl.ncclAllReduce(what->from, what->to, what->count, what->type, NCCL_SUM,
                                  session->comm, stream);
    case NCCL_ALLGATHER:
        return nccl.ncclAllGather(what->from, what->to, what->count, what->type, session->comm,
                                  stream);
    default:
        return nccl.ncclReduceScatter(what->from, what->to, what->count, what->type, NCCL_SUM,
                                      session->comm, stream);
    }
}

banyan_status nccl_session_collective(nccl_session *session, const nccl_collective *what,
                                      void *stream)
{
    return queue_alone(session, queue_collective, what, "a collective", stream);
}
