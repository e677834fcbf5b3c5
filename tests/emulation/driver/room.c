#include "room.h"

#include <pthread.h>

#include "state.h"

#define ROOM (EMULATED_MULTIPROCESSORS * EMULATED_BLOCKS_A_MULTIPROCESSOR)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned taken[EMULATED_DEVICES_MAX];

static bool fits(int device, unsigned blocks)
{
    return blocks > ROOM || taken[device] + blocks <= ROOM;
}

static void add(int device, unsigned blocks)
{
    taken[device] += blocks > ROOM ? 0 : blocks;
}

void room_take(int device, unsigned blocks)
{
    pthread_mutex_lock(&lock);
    while (!fits(device, blocks))
        pthread_cond_wait(&changed, &lock);
    add(device, blocks);
    pthread_mutex_unlock(&lock);
}

bool room_try(int device, unsigned blocks)
{
    pthread_mutex_lock(&lock);
    bool there = fits(device, blocks);
    if (there)
        add(device, blocks);
    pthread_mutex_unlock(&lock);
    return there;
}

void room_give(int device, unsigned blocks)
{
    pthread_mutex_lock(&lock);
    taken[device] -= blocks > ROOM ? 0 : blocks;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
