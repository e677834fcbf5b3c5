/* The library's threads: a program's signals are delivered only to its own threads. */
#include <signal.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/interrupt.h"
#include "core/threads/thread.h"
#include "support/test.h"

static bool takes_signals(void)
{
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    return !sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGUSR1);
}

static void *look(void *argument)
{
    *(bool *)argument = takes_signals();
    return NULL;
}

static banyan_status look_on_request(void *context)
{
    (void)look(context);
    return BANYAN_OK;
}

static void threads_take_no_signals(void **state)
{
    pthread_t thread;
    bool takes = true;
    (void)state;
    CHECK_OK(thread_start(&thread, look, &takes, false));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(!takes);
    CHECK(takes_signals(), "the caller's own thread does not any more");
}

static void requests_take_no_signals(void **state)
{
    banyan_request *request;
    bool takes = true;
    (void)state;
    CHECK_OK(request_start(look_on_request, &takes, &request));
    CHECK_OK(banyan_request_wait(request));
    CHECK(!takes);
}

/* True in the thread that asks for it alone, as Python's main thread. */
static _Thread_local bool wants_interrupt;

static bool wants(void *context)
{
    (void)context;
    return wants_interrupt;
}

static banyan_status wait_for_interrupt(void *context)
{
    uint64_t end = deadline_after(20 * NS_PER_S);
    while (!interrupt_requested()) {
        if (time_now_ns() > end)
            return banyan_error_set(BANYAN_ERR_TIMEOUT, "no interrupt came");
        usleep(1000);
    }
    *(bool *)context = true;
    return BANYAN_OK;
}

static void interrupts_of_a_waiter_reach_the_work(void **state)
{
    banyan_request *request;
    bool reached = false;
    (void)state;
    banyan_interrupt_set(wants, NULL);
    CHECK_OK(request_start(wait_for_interrupt, &reached, &request));
    wants_interrupt = true;
    CHECK_OK(banyan_request_wait(request));
    CHECK(reached);
    wants_interrupt = false;
    banyan_interrupt_set(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_take_no_signals),
        cmocka_unit_test(requests_take_no_signals),
        cmocka_unit_test(interrupts_of_a_waiter_reach_the_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
