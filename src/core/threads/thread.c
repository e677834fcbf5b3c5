#include "core/threads/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/interrupt.h"

banyan_status thread_start(pthread_t *thread, void *(*run)(void *), void *argument, bool detached)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t started;
    int error = pthread_create(&started, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return error_set(BANYAN_ERR_SYSTEM, "cannot start a thread: %s", strerror(error));
    if (detached)
        pthread_detach(started);
    else
        *thread = started;
    return BANYAN_OK;
}

void futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / NS_PER_S),
        .tv_nsec = (long)(timeout_ns % NS_PER_S),
    };
    syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

struct banyan_request {
    pthread_t thread;
    banyan_status (*work)(void *context);
    void *context;
    atomic_bool interrupted; /* by the waiter; the thread's own waits see it */
    _Atomic uint32_t done;
    error_kept kept; /* once done */
};

static void *request_main(void *argument)
{
    banyan_request *request = argument;
    interrupt_also(&request->interrupted);
    request->kept = error_keep(request->work(request->context));
    atomic_store_explicit(&request->done, 1, memory_order_release);
    futex_wake_all(&request->done);
    return NULL;
}

banyan_status request_start(banyan_status (*work)(void *context), void *context,
                            banyan_request **request)
{
    banyan_request *started = calloc(1, sizeof *started);
    if (!started)
        return error_no_memory(sizeof *started, "a request");
    started->work = work;
    started->context = context;
    banyan_status status = thread_start(&started->thread, request_main, started, false);
    if (status != BANYAN_OK) {
        free(started);
        return status;
    }
    *request = started;
    return BANYAN_OK;
}

banyan_status banyan_request_test(banyan_request *request, bool *done)
{
    *done = atomic_load_explicit(&request->done, memory_order_acquire);
    return *done ? error_again(&request->kept) : BANYAN_OK;
}

banyan_status banyan_request_wait(banyan_request *request)
{
    while (!atomic_load_explicit(&request->done, memory_order_acquire)) {
        futex_wait(&request->done, 0, interrupt_left(NS_PER_S));
        if (interrupt_requested())
            atomic_store(&request->interrupted, true);
    }
    pthread_join(request->thread, NULL);
    banyan_status status = error_again(&request->kept);
    free(request);
    return status;
}
