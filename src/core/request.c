#include "core/request.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/threads/thread.h"

struct banyan_request {
    pthread_t thread;
    banyan_status (*work)(void *context);
    void *context;
    atomic_bool done;
    error_kept kept; /* once done */
};

static void *request_main(void *argument)
{
    banyan_request *request = argument;
    request->kept = error_keep(request->work(request->context));
    atomic_store_explicit(&request->done, true, memory_order_release);
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
    pthread_join(request->thread, NULL);
    banyan_status status = error_again(&request->kept);
    free(request);
    return status;
}
