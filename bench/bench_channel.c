/* Bandwidth of channels that move, mark and reduce bytes, beside memcpy of as many bytes. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "channel/multi_copy.h"
#include "channel/packet.h"
#include "channel/port.h"
#include "channel/reduce.h"
#include "core/deadline.h"
#include "memory/stream.h"

/* All buffers of a measurement together: in the second-level cache, and beyond any cache. */
#define IN_CACHE ((size_t)256 << 10)
#define OUT_OF_CACHE ((size_t)768 << 20)
#define PIECE ((size_t)1 << 20)
#define MOST_SOURCES 8

static char *memory;

struct job {
    void (*run)(const struct job *job);
    size_t bytes; /* of one buffer */
    uint32_t sources;
    reduce_fn reduce;
    size_t elem_bytes;
};

static char *buffer(const struct job *job, uint32_t index)
{
    return memory + job->bytes * index;
}

/* Loops are timed by their core's time, so that other work on the core does not count; work of
 * another thread, by the clock. */
static uint64_t core_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * NS_PER_S + (uint64_t)used.tv_nsec;
}

/* Return the best of some runs, each long enough for the clock. */
static double seconds_by(uint64_t (*clock_ns)(void), const struct job *job)
{
    int times = job->bytes * (job->sources + 1) > ((size_t)16 << 20) ? 1 : 50;
    double best = 1e30;
    job->run(job);
    for (int i = 0; i < (times == 1 ? 3 : 15); i++) {
        uint64_t start = clock_ns();
        for (int k = 0; k < times; k++)
            job->run(job);
        double seconds = (double)(clock_ns() - start) / (double)NS_PER_S / times;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static double seconds_of(const struct job *job)
{
    return seconds_by(core_ns, job);
}

/* Return the bytes read and written per second, in GB. */
static double speed_of(const struct job *job)
{
    return (double)job->bytes * (job->sources + 1) / seconds_of(job) / 1e9;
}

static void run_memcpy(const struct job *job)
{
    memcpy(buffer(job, 1), buffer(job, 0), job->bytes);
}

/* Copy as reductions are called: piece by piece, each smaller than those that memcpy streams. */
static void run_memcpy_in_pieces(const struct job *job)
{
    for (size_t at = 0; at < job->bytes; at += PIECE) {
        size_t some = job->bytes - at < PIECE ? job->bytes - at : PIECE;
        memcpy(buffer(job, 1) + at, buffer(job, 0) + at, some);
    }
}

static void run_stream(const struct job *job)
{
    stream_past_cache(buffer(job, 1), buffer(job, 0), job->bytes);
    stream_fence();
}

static double memcpy_speed(size_t total)
{
    struct job copy = {.run = run_memcpy_in_pieces, .bytes = total / 2, .sources = 1};
    return speed_of(&copy);
}

static void run_reduce(const struct job *job)
{
    const void *sources[MOST_SOURCES];
    for (uint32_t i = 0; i < job->sources; i++)
        sources[i] = buffer(job, i + 1);
    job->reduce(buffer(job, 0), sources, job->sources, job->bytes / job->elem_bytes);
}

static void measure_reduce(DLDataType dtype, banyan_reduce_op op, const char *op_name)
{
    printf("%-8s %-4s", banyan_dtype_name(dtype), op_name);
    for (int out = 0; out < 2; out++) {
        size_t total = out ? OUT_OF_CACHE : IN_CACHE;
        double limit = memcpy_speed(total);
        printf("  |%7.1f", limit);
        for (uint32_t sources = 2; sources <= MOST_SOURCES; sources *= 2) {
            struct job job = {.run = run_reduce,
                              .bytes = total / (sources + 1) / 64 * 64,
                              .sources = sources,
                              .reduce = reduce_find(dtype, op),
                              .elem_bytes = banyan_dtype_bytes(dtype)};
            double speed = speed_of(&job);
            printf(" %6.1f %4.0f%%", speed, 100 * speed / limit);
        }
    }
    printf("\n");
}

static void measure_reductions(void)
{
    static const DLDataType dtypes[] = {BANYAN_F32,     BANYAN_F16,     BANYAN_BF16,
                                        BANYAN_F8_E4M3, BANYAN_F8_E5M2, BANYAN_I32,
                                        BANYAN_U32,     BANYAN_I64,     BANYAN_U8};
    static const char *const ops[] = {"sum", "min", "max"};
    printf("Reductions: GB/s read and written, with 2, 4 and 8 sources, and share of memcpy\n");
    printf("%-13s  |%-43s |%s\n", "", " memcpy and 256 KiB in all", " memcpy and 768 MiB in all");
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        for (banyan_reduce_op op = BANYAN_SUM; op <= BANYAN_MAX; op++)
            measure_reduce(dtypes[i], op, ops[op]);
    }
}

static void run_memcpy_each(const struct job *job)
{
    for (uint32_t i = 1; i <= job->sources; i++)
        memcpy(buffer(job, i), buffer(job, 0), job->bytes);
}

static void copy_to_all(const struct job *job, multi_copy_way way)
{
    void *destinations[MOST_SOURCES];
    for (uint32_t i = 0; i < job->sources; i++)
        destinations[i] = buffer(job, i + 1);
    multi_copy_bytes(destinations, job->sources, buffer(job, 0), job->bytes, way);
}

static void run_copies(const struct job *job)
{
    copy_to_all(job, MULTI_COPY_PLAIN);
}

static void run_copies_past_cache(const struct job *job)
{
    copy_to_all(job, MULTI_COPY_PAST_CACHE);
}

static void measure_copies(void)
{
    static void (*const runs[])(const struct job *) = {run_memcpy_each, run_copies,
                                                       run_copies_past_cache};
    printf("\nOne to many, 64 MiB each: GB/s written\n%12s %12s %8s %11s\n", "destinations",
           "memcpy each", "multi-copy", "past cache");
    for (uint32_t count = 1; count <= MOST_SOURCES; count += count == 1 ? 2 : 4) {
        printf("%12u", count);
        for (int i = 0; i < 3; i++) {
            struct job job = {.run = runs[i], .bytes = (size_t)64 << 20, .sources = count};
            printf(" %*.1f",
                   i == 0   ? 12
                   : i == 1 ? 8
                            : 11,
                   (double)job.bytes * count / seconds_of(&job) / 1e9);
        }
        printf("\n");
    }
}

static void run_packets_write(const struct job *job)
{
    packets_write(memory + job->bytes, memory, job->bytes, 1);
}

static void run_packets_read(const struct job *job)
{
    if (packets_read(memory, memory + job->bytes, job->bytes, 1) != job->bytes)
        abort();
}

static void run_packets_forward(const struct job *job)
{
    if (packets_forward(memory + 3 * job->bytes, 1, memory + job->bytes, job->bytes, 1) !=
        job->bytes)
        abort();
}

static void measure_packets(void)
{
    static const size_t sizes[] = {64, 1024, 8192, 65536, 1048576};
    static const struct {
        const char *name;
        void (*run)(const struct job *job);
    } jobs[] = {
        {"write", run_packets_write}, {"read", run_packets_read}, {"forward", run_packets_forward}};
    printf("\nPackets: GB/s of data, and share of memcpy\n%10s %8s", "bytes", "memcpy");
    for (int i = 0; i < 3; i++)
        printf(" %15s", jobs[i].name);
    printf("\n");
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct job copy = {.run = run_memcpy, .bytes = sizes[s], .sources = 1};
        double limit = (double)sizes[s] / seconds_of(&copy) / 1e9;
        printf("%10zu %8.1f", sizes[s], limit);
        for (int i = 0; i < 3; i++) {
            struct job job = {.run = jobs[i].run, .bytes = sizes[s], .sources = 1};
            double speed = (double)sizes[s] / seconds_of(&job) / 1e9;
            printf(" %9.1f %4.0f%%", speed, 100 * speed / limit);
        }
        printf("\n");
    }
}

static wake_up own;
static port_queue *queue;

static void post(const port_request *request)
{
    while (!port_post(queue, request))
        spin_pause();
}

static void run_put(const struct job *job)
{
    port_request put = {.kind = PORT_PUT,
                        .destination = buffer(job, 1),
                        .source = buffer(job, 0),
                        .bytes = job->bytes};
    uint64_t puts = job->bytes < 65536 ? 16 : 1;
    for (uint64_t i = 0; i < puts; i++)
        post(&put);
    while (port_done(queue) != port_posted(queue))
        spin_pause();
}

static void measure_puts(void)
{
    static const size_t sizes[] = {4096, 65536, 1048576, (size_t)64 << 20, OUT_OF_CACHE / 2};
    printf("\nPuts through the proxy: GB/s of data; 16 posted at a time below 64 KiB\n");
    printf("%10s %8s %8s %8s %6s\n", "bytes", "memcpy", "stream", "put", "");
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct job copy = {.run = run_memcpy, .bytes = sizes[s], .sources = 1};
        struct job stream = {.run = run_stream, .bytes = sizes[s], .sources = 1};
        struct job put = {.run = run_put, .bytes = sizes[s], .sources = 1};
        double limit = (double)sizes[s] / seconds_by(time_now_ns, &copy) / 1e9;
        double streamed = (double)sizes[s] / seconds_by(time_now_ns, &stream) / 1e9;
        double puts = sizes[s] < 65536 ? 16 : 1;
        double speed = puts * (double)sizes[s] / seconds_by(time_now_ns, &put) / 1e9;
        printf("%10zu %8.1f %8.1f %8.1f %5.0f%%\n", sizes[s], limit, streamed, speed,
               100 * speed / (limit > streamed ? limit : streamed));
    }
}

#define ROUNDS 100000

static counter there, back;

static void *answer(void *argument)
{
    (void)argument;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        while (counter_read(&there) < i)
            spin_pause();
        counter_add(&back, 1);
    }
    return NULL;
}

/* A post and the signal back move one cache line each way, like two threads' counters. */
static void measure_signals(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer, NULL) != 0)
        abort();
    uint64_t start = time_now_ns();
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        counter_add(&there, 1);
        while (counter_read(&back) < i)
            spin_pause();
    }
    double limit_ns = (double)(time_now_ns() - start) / ROUNDS;
    pthread_join(thread, NULL);
    static counter signalled;
    port_request signal = {.kind = PORT_SIGNAL, .signal = &signalled, .peer = &own};
    start = time_now_ns();
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        post(&signal);
        while (counter_read(&signalled) < i)
            spin_pause();
    }
    double signal_ns = (double)(time_now_ns() - start) / ROUNDS;
    start = time_now_ns();
    for (uint64_t i = 0; i < ROUNDS; i++)
        post(&signal);
    while (counter_read(&signalled) < 2 * ROUNDS)
        spin_pause();
    double posted_ns = (double)(time_now_ns() - start) / ROUNDS;
    printf(
        "\nSignals through the proxy: %.0f ns from the post to the signal, %.0f ns each in a row; "
        "two counters there and back %.0f ns\n",
        signal_ns, posted_ns, limit_ns);
}

static bool measure_ports(void)
{
    port_proxy *proxy;
    if (port_proxy_create(&own, false, &proxy) != BANYAN_OK)
        return false;
    bool made = port_queue_create(proxy, &queue) == BANYAN_OK;
    if (made) {
        measure_puts();
        measure_signals();
        port_queue_destroy(queue);
    }
    port_proxy_destroy(proxy);
    return made;
}

/* Fill with values like those of weights, in any type. */
static void fill(void)
{
    uint16_t *halves = (uint16_t *)memory;
    uint32_t state = 1;
    for (size_t i = 0; i < OUT_OF_CACHE / 2; i++) {
        state = state * 1664525 + 1013904223;
        halves[i] = (uint16_t)((state >> 16 & 0x83ff) + 0x3a00);
    }
}

int main(void)
{
    memory = aligned_alloc(64, OUT_OF_CACHE);
    if (!memory)
        return 1;
    fill();
    measure_reductions();
    measure_copies();
    measure_packets();
    bool ok = measure_ports();
    free(memory);
    return ok ? 0 : 1;
}
