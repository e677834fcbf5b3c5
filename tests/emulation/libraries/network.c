#include "network.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROOM 4096
#define LATE_NS 500000L
#define APART_NS 20000L

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    network_put puts[ROOM];
    size_t count;
    bool has_thread;
    uint64_t random;
} network = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .random = 0x9E3779B97F4A7C15u,
};

static uint64_t draw(void)
{
    network.random ^= network.random << 13;
    network.random ^= network.random >> 7;
    network.random ^= network.random << 17;
    return network.random >> 8;
}

static void nap(long ns)
{
    if (ns > 0)
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* The data has been read: the sender may overwrite it once the signal has come. */
static void carry(const network_put *put, long before_ns, long between_ns)
{
    char *read = malloc(put->bytes);
    if (!read)
        abort();
    nap(before_ns);
    memcpy(read, put->from, put->bytes);
    __atomic_add_fetch(put->unplaced, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(put->word, put->value, __ATOMIC_SEQ_CST);
    nap(between_ns);
    memcpy(put->to, read, put->bytes);
    __atomic_sub_fetch(put->unplaced, 1, __ATOMIC_SEQ_CST);
    free(read);
}

static void *carry_main(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&network.lock);
    for (;;) {
        while (network.count == 0)
            pthread_cond_wait(&network.changed, &network.lock);
        size_t i = draw() % network.count;
        network_put put = network.puts[i];
        network.puts[i] = network.puts[--network.count];
        pthread_cond_broadcast(&network.changed);
        long before_ns = draw() % 16 == 0 ? LATE_NS : 0;
        long between_ns = draw() % 8 == 0 ? APART_NS : 0;
        pthread_mutex_unlock(&network.lock);
        carry(&put, before_ns, between_ns);
        pthread_mutex_lock(&network.lock);
    }
    return NULL;
}

void network_take(const network_put *put)
{
    pthread_t thread;
    pthread_mutex_lock(&network.lock);
    if (!network.has_thread && pthread_create(&thread, NULL, carry_main, NULL) != 0)
        abort();
    network.has_thread = true;
    while (network.count == ROOM)
        pthread_cond_wait(&network.changed, &network.lock);
    network.puts[network.count++] = *put;
    pthread_cond_broadcast(&network.changed);
    pthread_mutex_unlock(&network.lock);
}
