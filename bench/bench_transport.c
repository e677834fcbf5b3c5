/* Bandwidth of the shm transport, beside memcpy by the same processes together, and how
 * long a signal takes. usage: bench_transport [ranks [MiB [cma|staging]]] */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#include "core/deadline.h"
#include "core/error.h"
#include "core/threads/thread.h"
#include "memory/stream.h"

#define ROUNDS 6
#define RANKS_MAX 256

/* Totals of all ranks. Processor time shows the cost of a method on a machine with other work. */
struct speed {
    double bytes_per_s, cpu_ns_per_byte;
};

struct bench {
    banyan_world *world;
    banyan_transport *transport;
    int rank, size;
    size_t bytes;
    char *source, *destination; /* ordinary memory */
    banyan_memory *memory;      /* symmetric, as large */
    banyan_remote next_user, next_symmetric;
    banyan_iovec *rows;
    size_t row_count;
    struct speed limit;
};

typedef void (*bench_fn)(struct bench *b);

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static double sum_of_ranks(struct bench *b, uint64_t mine)
{
    uint64_t all[RANKS_MAX];
    double sum = 0;
    need(banyan_world_allgather(b->world, &mine, sizeof mine, all));
    for (int i = 0; i < b->size; i++)
        sum += (double)all[i];
    return sum;
}

/* The best round, from the first start to the last end. */
static struct speed speed_of(struct bench *b, bench_fn fn)
{
    struct speed best = {0};
    double bytes = (double)b->bytes * b->size;
    for (int round = 0; round < ROUNDS; round++) {
        need(banyan_world_barrier(b->world));
        uint64_t start_ns = time_now_ns(), start_cpu_ns = cpu_ns();
        fn(b);
        uint64_t took_cpu_ns = cpu_ns() - start_cpu_ns;
        need(banyan_world_barrier(b->world));
        double speed = bytes * 1e9 / (double)(time_now_ns() - start_ns);
        double cost = sum_of_ranks(b, took_cpu_ns) / bytes;
        if (round > 0 && speed > best.bytes_per_s)
            best.bytes_per_s = speed;
        if (round > 0 && (best.cpu_ns_per_byte == 0 || cost < best.cpu_ns_per_byte))
            best.cpu_ns_per_byte = cost;
    }
    return best;
}

static void report(struct bench *b, const char *name, struct speed speed)
{
    if (b->rank == 0)
        printf("%-52s %6.2f GB/s %4.0f %% of %.2f, %4.0f %% by processor time\n", name,
               speed.bytes_per_s / 1e9, 100 * speed.bytes_per_s / b->limit.bytes_per_s,
               b->limit.bytes_per_s / 1e9, 100 * b->limit.cpu_ns_per_byte / speed.cpu_ns_per_byte);
    fflush(stdout);
}

static void copy_whole(struct bench *b)
{
    memcpy(b->destination, b->source, b->bytes);
}

static void copy_streamed(struct bench *b)
{
    stream_past_cache(b->destination, b->source, b->bytes);
    stream_fence();
}

static void copy_rows(struct bench *b)
{
    for (size_t i = 0; i < b->row_count; i++)
        memcpy(b->rows[i].local, b->source + b->rows[i].offset, b->rows[i].bytes);
}

static void get_symmetric(struct bench *b)
{
    need(banyan_transport_get(b->transport, b->destination, &b->next_symmetric, b->bytes));
}

static void put_symmetric(struct bench *b)
{
    need(banyan_transport_put(b->transport, &b->next_symmetric, b->source, b->bytes));
}

static void get_user(struct bench *b)
{
    need(banyan_transport_get(b->transport, b->destination, &b->next_user, b->bytes));
}

static void put_user(struct bench *b)
{
    need(banyan_transport_put(b->transport, &b->next_user, b->source, b->bytes));
}

static void get_symmetric_rows(struct bench *b)
{
    need(banyan_transport_get_many(b->transport, &b->next_symmetric, b->rows, b->row_count));
}

static void get_user_rows(struct bench *b)
{
    need(banyan_transport_get_many(b->transport, &b->next_user, b->rows, b->row_count));
}

/* Find memcpy's best speed: the size from which it bypasses the caches differs between machines. */
static struct speed best_copy(struct bench *b)
{
    struct speed plain = speed_of(b, copy_whole), streamed = speed_of(b, copy_streamed);
    return plain.cpu_ns_per_byte < streamed.cpu_ns_per_byte ? plain : streamed;
}

/* Every other row of the peer's memory, then the rows between, to dense memory. */
static void make_rows(struct bench *b, size_t row_bytes)
{
    free(b->rows);
    b->row_count = b->bytes / row_bytes;
    b->rows = calloc(b->row_count, sizeof *b->rows);
    for (size_t i = 0; i < b->row_count; i++) {
        size_t half = b->row_count / 2;
        size_t row = i < half ? 2 * i : 2 * (i - half) + 1;
        b->rows[i] = (banyan_iovec){row * row_bytes, b->destination + i * row_bytes, row_bytes};
    }
}

static void open_memory(struct bench *b, bool huge)
{
    char *both =
        mmap(NULL, 2 * b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED)
        need(error_no_memory(2 * b->bytes, "the bench"));
    if (huge)
        madvise(both, 2 * b->bytes, MADV_HUGEPAGE);
    memset(both, b->rank + 1, 2 * b->bytes);
    b->source = both;
    b->destination = both + b->bytes;
    need(banyan_memory_alloc(b->world, b->bytes, &b->memory));
    memset(banyan_memory_local(b->memory), b->rank + 1, b->bytes);
}

static void share_memory(struct bench *b)
{
    struct {
        banyan_memory_handle user, symmetric;
    } mine, *all = calloc((size_t)b->size, sizeof *all);
    need(banyan_memory_register(b->world, b->source, b->bytes, &mine.user));
    need(banyan_memory_find(b->world, banyan_memory_local(b->memory), b->bytes, &mine.symmetric));
    need(banyan_world_allgather(b->world, &mine, sizeof mine, all));
    int next = (b->rank + 1) % b->size;
    b->next_user = (banyan_remote){all[next].user, 0};
    b->next_symmetric = (banyan_remote){all[next].symmetric, 0};
    free(all);
}

static void bench_user(struct bench *b, const char *memory)
{
    banyan_user_memory_path path;
    need(banyan_memory_user_path(b->world, &path));
    const char *way = path == BANYAN_USER_MEMORY_CMA ? "cma" : "staging";
    char name[128];
    snprintf(name, sizeof name, "get, %s, %s", memory, way);
    report(b, name, speed_of(b, get_user));
    snprintf(name, sizeof name, "put, %s, %s", memory, way);
    report(b, name, speed_of(b, put_user));
    for (size_t row_bytes = 16384; row_bytes >= 256; row_bytes /= 8) {
        make_rows(b, row_bytes);
        struct speed whole = b->limit;
        b->limit = speed_of(b, copy_rows);
        snprintf(name, sizeof name, "get rows of %zu bytes, %s, %s", row_bytes, memory, way);
        report(b, name, speed_of(b, get_user_rows));
        b->limit = whole;
    }
}

static void bench_symmetric(struct bench *b)
{
    report(b, "get, symmetric", speed_of(b, get_symmetric));
    report(b, "put, symmetric", speed_of(b, put_symmetric));
    for (size_t row_bytes = 16384; row_bytes >= 256; row_bytes /= 8) {
        char name[128];
        make_rows(b, row_bytes);
        struct speed whole = b->limit;
        b->limit = speed_of(b, copy_rows);
        snprintf(name, sizeof name, "get rows of %zu bytes, symmetric", row_bytes);
        report(b, name, speed_of(b, get_symmetric_rows));
        b->limit = whole;
    }
}

/* Two processes that hand a word back and forth directly. */
struct ball {
    _Alignas(64) _Atomic uint32_t at[2];
};

static double raw_round_trip_ns(struct ball *ball, int rank, uint32_t count, bool sleep)
{
    uint64_t start_ns = time_now_ns();
    for (uint32_t i = 1; i <= count; i++) {
        if (rank == 0) {
            atomic_store(&ball->at[1], i);
            if (sleep)
                futex_wake_all(&ball->at[1]);
        }
        for (uint32_t now; (now = atomic_load(&ball->at[rank])) < i;) {
            if (sleep)
                futex_wait(&ball->at[rank], now, NS_PER_S);
            else
                spin_pause();
        }
        if (rank == 1) {
            atomic_store(&ball->at[0], i);
            if (sleep)
                futex_wake_all(&ball->at[0]);
        }
    }
    return (double)(time_now_ns() - start_ns) / count;
}

static double signal_round_trip_ns(struct bench *b, uint32_t first, uint64_t *done, uint64_t count)
{
    int peer = b->rank ^ 1;
    uint64_t start_ns = time_now_ns();
    for (uint64_t i = 0; i < count; i++) {
        ++*done;
        if (b->rank % 2 == 0)
            need(banyan_transport_signal(b->transport, peer, first, 1));
        need(banyan_transport_wait(b->transport, first, *done, peer, "ping-pong"));
        if (b->rank % 2 == 1)
            need(banyan_transport_signal(b->transport, peer, first, 1));
    }
    return (double)(time_now_ns() - start_ns) / (double)count;
}

static void bench_signals(struct bench *b, struct ball *balls)
{
    uint32_t first;
    uint64_t done = 0, count = 20000;
    bool crowded = b->size > (int)sysconf(_SC_NPROCESSORS_ONLN);
    need(banyan_transport_signals_alloc(b->transport, 1, &first));
    if (b->size % 2 != 0)
        return;
    need(banyan_world_barrier(b->world));
    double raw = raw_round_trip_ns(&balls[b->rank / 2], b->rank % 2, (uint32_t)count, crowded);
    need(banyan_world_barrier(b->world));
    double took = signal_round_trip_ns(b, first, &done, count);
    need(banyan_world_barrier(b->world));
    if (b->rank == 0)
        printf("%-52s %6.2f us   a bare %s takes %.2f us\n",
               "signal round trip, all ranks in pairs", took / 1e3,
               crowded ? "futex" : "spin on a word", raw / 1e3);
    fflush(stdout);
}

struct run {
    const char *path; /* BANYAN_USER_MEMORY; NULL: as measured */
    bool huge, first;
};

static void run_rank(int rank, int size, size_t bytes, const banyan_unique_id *id,
                     const struct run *run, struct ball *balls)
{
    struct bench b = {.rank = rank, .size = size, .bytes = bytes};
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = size;
    options.unique_id = id;
    need(banyan_world_open(&options, &b.world));
    need(banyan_transport_open(b.world, "shm", &b.transport));
    open_memory(&b, run->huge);
    share_memory(&b);
    b.limit = best_copy(&b);
    if (run->first) {
        report(&b, "memcpy or streaming by all ranks, the limit", b.limit);
        bench_signals(&b, balls);
        bench_symmetric(&b);
    }
    bench_user(&b, run->huge ? "huge pages" : "ordinary memory");
    need(banyan_world_barrier(b.world));
    free(b.rows);
    munmap(b.source, 2 * b.bytes);
    banyan_memory_free(b.memory);
    banyan_transport_close(b.transport);
    need(banyan_world_close(b.world));
}

static int run_all(int size, size_t bytes, const struct run *run, struct ball *balls)
{
    banyan_unique_id id;
    need(banyan_unique_id_create(&id));
    if (run->path)
        setenv("BANYAN_USER_MEMORY", run->path, 1);
    else
        unsetenv("BANYAN_USER_MEMORY");
    memset(balls, 0, sizeof *balls * (size_t)size);
    for (int rank = 0; rank < size; rank++) {
        if (fork() == 0) {
            run_rank(rank, size, bytes, &id, run, balls);
            fflush(NULL);
            _exit(0);
        }
    }
    int failed = 0;
    for (int status; wait(&status) > 0;)
        failed |= status;
    return failed != 0;
}

int main(int argc, char **argv)
{
    int size = argc > 1 ? atoi(argv[1]) : 2;
    size_t bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 128) << 20;
    if (size < 1 || size > RANKS_MAX || bytes == 0) {
        fprintf(stderr, "usage: bench_transport [ranks [MiB [cma|staging]]]\n");
        return 2;
    }
    struct ball *balls = mmap(NULL, sizeof *balls * (size_t)size, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct run runs[] = {
        {.path = NULL, .first = true},
        {.path = "cma"},
        {.path = "staging"},
        {.path = "cma", .huge = true},
        {.path = "staging", .huge = true},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs && !failed; i++) {
        if (argc < 4 || (runs[i].path && strcmp(runs[i].path, argv[3]) == 0))
            failed = run_all(size, bytes, &runs[i], balls);
    }
    return failed;
}
