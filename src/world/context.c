#include "world/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"

static void queue_init(struct message_queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void queue_push(struct message_queue *queue, struct message *message)
{
    message->next = NULL;
    *queue->last = message;
    queue->last = &message->next;
}

/* Remove the message at `*at` from the queue. */
static struct message *queue_remove(struct message_queue *queue, struct message **at)
{
    struct message *message = *at;
    *at = message->next;
    if (!*at)
        queue->last = at;
    message->next = NULL;
    return message;
}

static void context_queue_free(struct message_queue *queue)
{
    while (queue->first)
        message_free(queue_remove(queue, &queue->first));
}

void message_free(struct message *message)
{
    if (message->fd >= 0)
        close(message->fd);
    free(message->data);
    free(message);
}

struct context *context_create(uint64_t id)
{
    struct context *context = calloc(1, sizeof *context);
    if (!context)
        return NULL;
    context->id = id;
    for (int i = 0; i < CONTEXT_BUCKETS; i++)
        queue_init(&context->buckets[i]);
    queue_init(&context->exchanged);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&context->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return context;
}

void context_destroy(struct context *context)
{
    for (int i = 0; i < CONTEXT_BUCKETS; i++)
        context_queue_free(&context->buckets[i]);
    context_queue_free(&context->exchanged);
    pthread_cond_destroy(&context->changed);
    array_free(&context->given_up);
    array_free(&context->waiting.askers);
    array_free(&context->on_device.askers);
    free(context->job_ranks);
    free(context->reason);
    free(context);
}

int context_rank_of(const struct context *context, int job_rank)
{
    if (!context->job_ranks)
        return job_rank;
    for (int rank = 0; rank < context->size; rank++) {
        if (context->job_ranks[rank] == job_rank)
            return rank;
    }
    return -1;
}

const char *context_ranks_text(int rank, int job_rank, char text[CONTEXT_RANK_BYTES])
{
    if (job_rank == rank)
        snprintf(text, CONTEXT_RANK_BYTES, "rank %d", rank);
    else
        snprintf(text, CONTEXT_RANK_BYTES, "rank %d (rank %d of the job)", rank, job_rank);
    return text;
}

const char *context_rank_text(const struct context *context, int rank,
                              char text[CONTEXT_RANK_BYTES])
{
    bool is_known = context->open && rank >= 0 && rank < context->size;
    return context_ranks_text(rank, is_known ? context_job_rank(context, rank) : rank, text);
}

bool context_names_rank(const char *message)
{
    int rank, at = 0;
    if (sscanf(message, "rank %d (%n", &rank, &at) != 1 || at == 0)
        return false;
    return strncmp(message + at, "rank ", 5) == 0 || strncmp(message + at, "pid ", 4) == 0;
}

static struct message_queue *bucket_of(struct context *context, int source, uint64_t tag)
{
    uint64_t hash = ((uint64_t)source * UINT64_C(0x9e3779b97f4a7c15)) ^ tag;
    hash *= UINT64_C(0xbf58476d1ce4e5b9);
    return &context->buckets[(hash >> 32) % CONTEXT_BUCKETS];
}

/* Return the first range that ends at the number or above it. */
static size_t find_range(const struct context *context, uint64_t number)
{
    size_t at = context->given_up.count;
    while (at > 0 && context->given_up.data[at - 1].end >= number)
        at--;
    return at;
}

bool context_gave_up(const struct context *context, uint64_t number)
{
    for (size_t i = find_range(context, number); i < context->given_up.count; i++) {
        const struct number_range *range = &context->given_up.data[i];
        if (number >= range->first && number < range->end)
            return true;
    }
    return false;
}

static void drop_messages(struct context *context, uint64_t number)
{
    for (int i = 0; i < CONTEXT_BUCKETS; i++) {
        for (struct message **at = &context->buckets[i].first; *at;) {
            if ((*at)->kind == WIRE_COLLECTIVE && (*at)->tag >> NUMBER_SHIFT == number)
                message_free(queue_remove(&context->buckets[i], at));
            else
                at = &(*at)->next;
        }
    }
}

bool context_give_up(struct context *context, uint64_t number, int late)
{
    size_t at = find_range(context, number), count = context->given_up.count;
    struct number_range *ranges = context->given_up.data;
    if (at < count && ranges[at].end == number) {
        ranges[at].end++;
    } else {
        if (!array_reserve(&context->given_up, 1))
            return false;
        ranges = context->given_up.data;
        memmove(&ranges[at + 1], &ranges[at], (count - at) * sizeof *ranges);
        ranges[at] = (struct number_range){number, number + 1};
        context->given_up.count++;
    }
    context->given_up_for = late;
    drop_messages(context, number);
    pthread_cond_broadcast(&context->changed);
    return true;
}

void context_deliver(struct context *context, struct message *message)
{
    if (message->kind == WIRE_COLLECTIVE &&
        context_gave_up(context, message->tag >> NUMBER_SHIFT)) {
        message_free(message);
        return;
    }
    queue_push(message->kind == WIRE_EXCHANGE ? &context->exchanged
                                              : bucket_of(context, message->source, message->tag),
               message);
    pthread_cond_broadcast(&context->changed);
}

struct message *context_take(struct context *context, uint32_t kind, int source, uint64_t tag)
{
    struct message_queue *queue = bucket_of(context, source, tag);
    for (struct message **at = &queue->first; *at; at = &(*at)->next) {
        if ((*at)->kind == kind && (*at)->source == source && (*at)->tag == tag)
            return queue_remove(queue, at);
    }
    return NULL;
}

struct message *context_take_exchanged(struct context *context, uint64_t tag)
{
    struct message *taken = NULL;
    for (struct message **at = &context->exchanged.first; *at;) {
        if ((*at)->tag != tag) {
            at = &(*at)->next;
            continue;
        }
        struct message *message = queue_remove(&context->exchanged, at);
        message->next = taken;
        taken = message;
    }
    return taken;
}

void context_end(struct context *context, banyan_status status, const char *reason)
{
    if (atomic_load(&context->ended) != BANYAN_OK)
        return;
    context->reason = strdup(reason);
    context->ended_ns = time_now_ns();
    atomic_store(&context->ended, (int)status);
    pthread_cond_broadcast(&context->changed);
}
