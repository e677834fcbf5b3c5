/* Progress. UCX acts only inside its calls: the thread that drives the world makes progress while
 * it waits, and the service thread does so the rest of the time. */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ucx/ucx.h"

/* The service takes over after this time without progress by the other thread. */
#define PARKED_MS 1
#define NAP_MS 10

size_t ucx_turn(ucx *of)
{
    if (!of->worker)
        return 0;
    size_t events = ucx_calls.ucp_worker_progress(of->worker);
    if (of->questions) {
        ucx_answer_questions(of);
        events++;
    }
    return events + ucx_messages_reply(of);
}

static void ucx_door_ring(const ucx *of)
{
    uint64_t one = 1;
    ssize_t written = write(of->door, &one, sizeof one);
    (void)written; /* a full counter wakes the service, too */
}

static void door_take(const ucx *of)
{
    uint64_t count;
    ssize_t taken = read(of->door, &count, sizeof count);
    (void)taken;
}

/* Leave progress to the thread that drives the world as long as it makes any. */
static void service_park(ucx *of)
{
    atomic_store(&of->is_parked, true);
    for (uint64_t seen = ~atomic_load(&of->turns); atomic_load(&of->is_driven);) {
        uint64_t turns = atomic_load(&of->turns);
        if (turns == seen)
            break;
        seen = turns;
        struct pollfd door = {of->door, POLLIN, 0};
        if (poll(&door, 1, PARKED_MS) > 0)
            break;
    }
    atomic_store(&of->is_parked, false);
}

static void *ucx_serve(void *argument)
{
    ucx *of = argument;
    struct pollfd wakes[] = {{of->event, POLLIN, 0}, {of->door, POLLIN, 0}};
    while (!atomic_load(&of->stop)) {
        pthread_mutex_lock(&of->lock);
        size_t events = 0;
        for (size_t some; (some = ucx_turn(of)) > 0;)
            events += some;
        ucs_status_t armed = ucx_calls.ucp_worker_arm(of->worker);
        pthread_mutex_unlock(&of->lock);
        if (events > 0)
            of->host->notify(of->host->context);
        ucx_report_fault(of);
        if (armed == UCS_ERR_BUSY)
            continue;
        poll(wakes, 2, armed == UCS_OK ? -1 : NAP_MS);
        service_park(of);
        if (wakes[1].revents != 0)
            door_take(of);
    }
    return NULL;
}

banyan_status ucx_service_start(ucx *of)
{
    ucs_status_t status = ucx_calls.ucp_worker_get_efd(of->worker, &of->event);
    if (status != UCS_OK)
        return ucx_failed(of, "ucp_worker_get_efd", status);
    of->door = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (of->door < 0)
        return banyan_error_set(BANYAN_ERR_SYSTEM, "ucx: rank %d cannot make an eventfd (error %d)",
                                of->rank, errno);
    int error = pthread_create(&of->service, NULL, ucx_serve, of);
    if (error != 0)
        return banyan_error_set(BANYAN_ERR_SYSTEM, "ucx: rank %d cannot start a thread (error %d)",
                                of->rank, error);
    of->is_served = true;
    return BANYAN_OK;
}

void ucx_service_stop(ucx *of)
{
    if (of->is_served) {
        atomic_store(&of->stop, true);
        atomic_store(&of->is_driven, false);
        ucx_door_ring(of);
        pthread_join(of->service, NULL);
        of->is_served = false;
    }
    if (of->door >= 0)
        close(of->door);
    of->door = -1;
}

void ucx_rest(void *state)
{
    ucx *of = state;
    atomic_store(&of->is_driven, false);
    if (atomic_load(&of->is_parked))
        ucx_door_ring(of);
}
