/* Joining worlds that were started apart: the time of banyan_world_connect while the other side
 * waits, beside that of opening a world of as many ranks; and of many worlds that ask at once.
 * usage: bench_connect */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define SECRET "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
#define TURNS 21
#define CROWD 64
/* Joining costs at most this many times as much as opening: it is an opening, and a few messages
 * before it. */
#define GOAL 2.0

/* In memory that all processes share. */
struct stage {
    char address[64];
    _Atomic int arrived[3 * TURNS + 4];
    banyan_unique_id ids[2 + TURNS];
    double connect_ms[TURNS], open_ms[TURNS], crowd_ms;
};

/* Wait until `count` processes have come. */
static void meet(_Atomic int *arrived, int count)
{
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < count)
        usleep(200);
}

static banyan_world *open_world(int rank, int size, banyan_unique_id *id, _Atomic int *ready,
                                int count)
{
    banyan_world *world;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    if (rank == 0)
        need(banyan_unique_id_create(id));
    meet(ready, count);
    options.rank = rank;
    options.world_size = size;
    options.unique_id = id;
    need(banyan_world_open(&options, &world));
    return world;
}

static banyan_listener *listen_at(banyan_world *world, struct stage *stage)
{
    banyan_listener *listener;
    need(banyan_world_listen(world, "127.0.0.1:0", SECRET, NULL, &listener));
    if (banyan_world_rank(world) == 0)
        strcpy(stage->address, banyan_listener_address(listener));
    return listener;
}

/* ---- two worlds of equal size ---- */

/* Ranks 0 to size - 1 listen, the others connect. */
static void run_rank(struct stage *stage, int number, int size)
{
    int side = number / size, all = 2 * size;
    banyan_listener *listener = NULL;
    banyan_world *world =
        open_world(number % size, size, &stage->ids[side], &stage->arrived[3 * TURNS], all);
    if (side == 0)
        listener = listen_at(world, stage);
    meet(&stage->arrived[3 * TURNS + 1], all);
    for (int turn = 0; turn < TURNS; turn++) {
        banyan_world *joined = NULL;
        meet(&stage->arrived[turn], all);
        double began_ms = now_s() * 1e3;
        need(side == 0 ? banyan_listener_accept(listener, BANYAN_FOREVER_NS, &joined)
                       : banyan_world_connect(world, stage->address, SECRET, NULL, &joined));
        if (number == size)
            stage->connect_ms[turn] = now_s() * 1e3 - began_ms;
        need(banyan_world_close(joined));
    }
    banyan_listener_close(listener);
    for (int turn = 0; turn < TURNS; turn++) {
        meet(&stage->arrived[TURNS + turn], all);
        double began_ms = now_s() * 1e3;
        banyan_world *opened =
            open_world(number, all, &stage->ids[2 + turn], &stage->arrived[2 * TURNS + turn], all);
        if (number == 0)
            stage->open_ms[turn] = now_s() * 1e3 - began_ms;
        need(banyan_world_close(opened));
    }
    need(banyan_world_close(world));
}

/* ---- many worlds at once ---- */

/* Rank `number` 0 listens alone; the others are worlds of one rank. */
static void run_crowd(struct stage *stage, int number, int count)
{
    banyan_world *world, *joined;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = 0;
    options.world_size = 1;
    need(banyan_world_open(&options, &world));
    banyan_listener *listener = number == 0 ? listen_at(world, stage) : NULL;
    meet(&stage->arrived[0], count);
    double began_ms = now_s() * 1e3;
    for (int i = 0; i < (number == 0 ? count - 1 : 1); i++) {
        need(number == 0 ? banyan_listener_accept(listener, BANYAN_FOREVER_NS, &joined)
                         : banyan_world_connect(world, stage->address, SECRET, NULL, &joined));
        need(banyan_world_close(joined));
    }
    if (number == 0)
        stage->crowd_ms = now_s() * 1e3 - began_ms;
    banyan_listener_close(listener);
    need(banyan_world_close(world));
}

static struct stage *run(void (*rank)(struct stage *stage, int number, int argument), int count,
                         int argument)
{
    struct stage *stage =
        mmap(NULL, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    for (int number = 0; number < count; number++) {
        if (fork() != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rank(stage, number, argument);
        _exit(0);
    }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed += status != 0;
    if (failed > 0)
        exit(1);
    return stage;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values)
{
    qsort(values, TURNS, sizeof *values, compare);
    return values[TURNS / 2];
}

int main(void)
{
    int missed = 0;
    printf("%-12s %14s %16s %8s   (medians of %d, one machine)\n", "ranks", "connect (ms)",
           "open world (ms)", "ratio", TURNS);
    for (int size = 2; size <= 8; size *= 4) {
        struct stage *stage = run(run_rank, 2 * size, size);
        double connect_ms = median(stage->connect_ms), open_ms = median(stage->open_ms);
        bool is_missed = connect_ms > GOAL * open_ms;
        missed += is_missed;
        printf("%2d + %-7d %14.2f %16.2f %8.2f%s\n", size, size, connect_ms, open_ms,
               connect_ms / open_ms, is_missed ? "   missed: at most 2.00" : "");
    }
    double crowd_ms = run(run_crowd, CROWD + 1, CROWD + 1)->crowd_ms;
    printf(
        "%d worlds of one rank ask at once: all were accepted and left in %.0f ms, %.2f ms each\n",
        CROWD, crowd_ms, crowd_ms / CROWD);
    return missed > 0;
}
