#include <stdio.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "world/net/endpoint.h"
#include "world/world.h"

/* Ask this long before the answer is needed. */
#define LEAD_NS (500 * NS_PER_MS)
/* Shorter waits are not reported to peers. */
#define KNOWN_AFTER_NS (20 * NS_PER_MS)
#define NAP_NS (100 * NS_PER_MS)
/* Time that a rank whose wait failed waits for the other ranks' reports. */
#define IN_VAIN_NS NS_PER_S
/* A device's wait that began this much later than the previous one is a new wait. */
#define KNOWN_ANEW_NS (NS_PER_S / 2)
/* A device's threads may wait for several ranks. The wait reported first counts until it has not
 * been reported for this long. */
#define KEPT_NS NS_PER_S
/* Time to wait for an answer after a device's wait has failed. */
#define ANSWER_NS (100 * NS_PER_MS)

static uint64_t next_log(uint64_t now)
{
    return now + log_wait_period_ns();
}

static uint64_t control_wait_earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void plan_question(control_wait *wait, uint64_t now)
{
    uint64_t next = control_wait_earlier(wait->log_ns, wait->ends_ns);
    uint64_t left = next > now ? next - now : 0;
    wait->ask_ns = next - control_wait_earlier(LEAD_NS, left / 4);
}

control_wait control_wait_begin(banyan_world *world)
{
    control_wait wait = {.world = world};
    control_wait_restart(&wait);
    return wait;
}

void control_wait_restart(control_wait *wait)
{
    const banyan_world *world = wait->world;
    uint64_t now = time_now_ns();
    wait->began_ns = now;
    wait->timeout_ns = banyan_world_timeout_ns(world);
    wait->option = world->call_option;
    wait->ends_ns = world->opens_until_ns ? world->opens_until_ns : now + wait->timeout_ns;
    if (world->in_vain)
        wait->ends_ns = control_wait_earlier(wait->ends_ns, now + IN_VAIN_NS);
    wait->log_ns = next_log(now);
    plan_question(wait, now);
    control_wait_end(wait);
}

void control_wait_is_idle_for(control_wait *wait, uint64_t idle_ns)
{
    uint64_t now = time_now_ns();
    wait->began_ns = now - control_wait_earlier(idle_ns, now);
    wait->ends_ns = now + wait->timeout_ns - control_wait_earlier(idle_ns, wait->timeout_ns);
}

void control_wait_end(control_wait *wait)
{
    if (!wait->is_known)
        return;
    pthread_mutex_lock(&wait->world->endpoint->reactor.lock);
    late_end(&wait->world->context->waiting);
    pthread_mutex_unlock(&wait->world->endpoint->reactor.lock);
    wait->is_known = false;
}

bool control_wait_speaks(const control_wait *wait)
{
    return time_now_ns() >= control_wait_earlier(wait->log_ns, wait->ends_ns);
}

bool control_wait_is_long(const control_wait *wait)
{
    return time_now_ns() >= wait->began_ns + KNOWN_AFTER_NS;
}

const char *control_own_name(const banyan_world *world, char name[CONTROL_RANK_BYTES])
{
    return context_rank_text(world->context, world->rank, name);
}

static const char *control_wait_in_call(const banyan_world *world, char text[80])
{
    snprintf(text, 80, "%s%.70s", world->call ? " in " : "", world->call ? world->call : "");
    return text;
}

/* True if this rank logs a wait. When a whole node waits for one rank, only the node's first rank
 * logs it, and the ranks that wait for the late rank itself. */
static bool speaks_for_node(const banyan_world *world, const struct waiting *waiting)
{
    return world->local_rank == 0 || late_rank(world->endpoint, waiting) == waiting->rank;
}

static void control_wait_write_line(const control_wait *wait, const struct waiting *waiting,
                                    const char *text, uint64_t now, char line[WORLD_LINE_BYTES])
{
    const banyan_world *world = wait->world;
    char call[80], own[CONTROL_RANK_BYTES], late[ENDPOINT_RANK_TEXT_BYTES + 64] = "", end[80];
    if (waiting->active) {
        char name[ENDPOINT_RANK_TEXT_BYTES];
        snprintf(late, sizeof late, "; %s %s",
                 endpoint_rank_text(world->endpoint, world->context,
                                    late_rank(world->endpoint, waiting), name),
                 late_how(waiting));
    }
    if (wait->timeout_ns == BANYAN_FOREVER_NS)
        snprintf(end, sizeof end, "it has no deadline");
    else
        snprintf(end, sizeof end, "the deadline is in %.1f s",
                 wait->ends_ns > now ? (double)(wait->ends_ns - now) / 1e9 : 0.0);
    snprintf(line, WORLD_LINE_BYTES, "%s has waited %.1f s%s %s%s; %s (%s)",
             control_own_name(world, own), (double)(now - wait->began_ns) / 1e9,
             waiting == &world->context->waiting ? control_wait_in_call(world, call)
                                                 : " on its device",
             text, late, end, wait->option ? wait->option : "BANYAN_TIMEOUT");
}

uint64_t world_wait_due(control_wait *wait, uint64_t number, int job_rank, const char *text,
                        char line[WORLD_LINE_BYTES])
{
    banyan_world *world = wait->world;
    struct waiting *waiting = late_wait(world->context, number);
    uint64_t now = time_now_ns();
    line[0] = '\0';
    if (job_rank >= 0)
        late_begin(world->context, number, job_rank);
    if (now >= wait->ask_ns) {
        late_ask(world->endpoint, world->context, waiting, false);
        wait->ask_ns = UINT64_MAX;
    }
    if (now >= wait->log_ns) {
        if (speaks_for_node(world, waiting))
            control_wait_write_line(wait, waiting, text, now, line);
        wait->log_ns = next_log(now);
        plan_question(wait, now);
    }
    return control_wait_earlier(control_wait_earlier(wait->ask_ns, wait->log_ns), wait->ends_ns);
}

/* Write the late rank. With the lock held. */
static void write_late(const banyan_world *world, const struct waiting *waiting, int rank,
                       char *text, size_t bytes)
{
    char name[ENDPOINT_RANK_TEXT_BYTES];
    int late = waiting->active ? late_rank(world->endpoint, waiting)
                               : context_job_rank(world->context, rank);
    snprintf(text, bytes, "; %s %s",
             endpoint_rank_text(world->endpoint, world->context, late, name), late_how(waiting));
}

/* Write "; rank 3 (rank 7 of the job, pid 12 on node x) has not come": the late rank, as far as is
 * known, in a wait for `rank`. */
static void control_name_late(banyan_world *world, int rank, char *text, size_t bytes)
{
    pthread_mutex_lock(&world->endpoint->reactor.lock);
    write_late(world, &world->context->waiting, rank, text, bytes);
    pthread_mutex_unlock(&world->endpoint->reactor.lock);
}

static banyan_status time_out(const control_wait *wait, int rank, const char *text)
{
    banyan_world *world = wait->world;
    char call[80], own[CONTROL_RANK_BYTES], late[ENDPOINT_RANK_TEXT_BYTES + 64] = "";
    if (rank >= 0)
        control_name_late(world, rank, late, sizeof late);
    return error_set(BANYAN_ERR_TIMEOUT, "%s waited %.1f s%s %s%s; %s" TIMEOUT_SETS,
                     control_own_name(world, own), (double)(time_now_ns() - wait->began_ns) / 1e9,
                     control_wait_in_call(world, call), text, late, timeout_name(wait->option));
}

banyan_status control_wait_on(control_wait *wait, int rank, const char *text, uint64_t *nap_ns)
{
    banyan_world *world = wait->world;
    if (interrupt_requested())
        banyan_world_abort(world, INTERRUPT_TEXT);
    RETURN_IF_FAILED(control_check(world));
    uint64_t now = time_now_ns(), next_ns = wait->began_ns + KNOWN_AFTER_NS;
    char own_text[48], line[WORLD_LINE_BYTES] = "";
    if (!text) {
        snprintf(own_text, sizeof own_text, "for rank %d", rank);
        text = own_text;
    }
    if (now >= wait->ends_ns)
        return time_out(wait, rank, text);
    if (wait->is_known && wait->rank == rank && now < wait->due_ns) {
        next_ns = wait->due_ns;
    } else if (now >= next_ns) {
        pthread_mutex_lock(&world->endpoint->reactor.lock);
        wait->is_known = true;
        wait->rank = rank;
        next_ns = wait->due_ns = world_wait_due(
            wait, NO_NUMBER, rank >= 0 ? context_job_rank(world->context, rank) : -1, text, line);
        pthread_mutex_unlock(&world->endpoint->reactor.lock);
        if (line[0])
            log_warn("%s", line);
    }
    *nap_ns = control_wait_earlier(NAP_NS, next_ns > now ? next_ns - now : 1);
    return BANYAN_OK;
}

static void end_device_wait(control_wait *wait)
{
    struct context *context = wait->world->context;
    pthread_mutex_lock(&wait->world->endpoint->reactor.lock);
    if (context->device_owner == wait) {
        late_end(&context->on_device);
        context->device_owner = NULL;
    }
    pthread_mutex_unlock(&wait->world->endpoint->reactor.lock);
    wait->is_known = false;
}

/* The device has its own clock: the elapsed time that it reports counts. */
static void begin_device_wait(control_wait *wait, uint64_t now, uint64_t waited_ns)
{
    wait->began_ns = now > waited_ns ? now - waited_ns : 0;
    wait->ends_ns = wait->began_ns + wait->timeout_ns;
    wait->log_ns = wait->began_ns + log_wait_period_ns();
    plan_question(wait, now);
    wait->is_known = true;
}

void control_device_waits(control_wait *wait, int rank, uint64_t waited_ns, const char *text)
{
    struct context *context = wait->world->context;
    uint64_t now = time_now_ns();
    char line[WORLD_LINE_BYTES];
    bool is_other = wait->is_known && rank != -1 && rank != wait->rank;
    bool is_new = wait->is_known && now - waited_ns > wait->began_ns + KNOWN_ANEW_NS;
    if (is_other && now < wait->reported_ns + KEPT_NS)
        return;
    if (wait->is_known && (rank == -1 || is_other || is_new))
        end_device_wait(wait);
    if (rank == -1)
        return;
    if (!wait->is_known)
        begin_device_wait(wait, now, waited_ns);
    wait->rank = rank;
    wait->reported_ns = now;
    pthread_mutex_lock(&wait->world->endpoint->reactor.lock);
    if (!context->device_owner && rank >= 0)
        context->device_owner = wait;
    bool counts = context->device_owner == wait;
    world_wait_due(wait, DEVICE_NUMBER, counts ? context_job_rank(context, rank) : -1, text, line);
    pthread_mutex_unlock(&wait->world->endpoint->reactor.lock);
    if (line[0])
        log_warn("%s", line);
}

void control_device_late(banyan_world *world, int rank, char *text, size_t bytes)
{
    struct context *context = world->context;
    struct waiting *waiting = &context->on_device;
    pthread_mutex_t *lock = &world->endpoint->reactor.lock;
    uint64_t until_ns = time_now_ns() + ANSWER_NS;
    pthread_mutex_lock(lock);
    int job_rank = context_job_rank(context, rank);
    bool begins = !waiting->active;
    if (begins)
        late_begin(context, DEVICE_NUMBER, job_rank);
    if (waiting->rank == job_rank && waiting->late < 0)
        late_ask(world->endpoint, context, waiting, false);
    struct timespec until = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
    while (waiting->rank == job_rank && waiting->late < 0 && time_now_ns() < until_ns)
        pthread_cond_timedwait(&context->changed, lock, &until);
    if (waiting->rank == job_rank)
        write_late(world, waiting, rank, text, bytes);
    else
        snprintf(text, bytes, "%s", "");
    if (begins)
        late_end(waiting);
    pthread_mutex_unlock(lock);
}

module_wait banyan_module_wait_begin(banyan_world *world)
{
    return control_wait_begin(world);
}

banyan_status banyan_module_wait_on(module_wait *wait, int rank, const char *text)
{
    uint64_t nap_ns;
    return control_wait_on(wait, rank, text, &nap_ns);
}

void banyan_module_wait_end(module_wait *wait)
{
    control_wait_end(wait);
}

void banyan_module_device_waits(module_wait *wait, int rank, uint64_t waited_ns, const char *text)
{
    control_device_waits(wait, rank, waited_ns, text);
}
