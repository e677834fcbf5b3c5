/* How fast copies that fit caches are, by how far the destination lies behind the source in their
 * pages: beside memcpy, and beside memcpy where both lie alike, which is the limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "memory/stream.h"

#define ROOM ((size_t)2 << 20)
#define BATCHES 40
#define BATCH_BYTES ((size_t)1 << 20)

typedef void (*copy_fn)(void *destination, const void *source, size_t bytes);

static void by_memcpy(void *destination, const void *source, size_t bytes)
{
    memcpy(destination, source, bytes);
}

static void by_stream(void *destination, const void *source, size_t bytes)
{
    stream_copy(destination, source, bytes);
}

/* GB/s in the fastest of several batches. */
static double rate(copy_fn copy, char *to, const char *from, size_t bytes)
{
    double best = 0;
    for (int batch = 0; batch < BATCHES; batch++) {
        size_t repeats = BATCH_BYTES / bytes;
        uint64_t start = time_now_ns();
        for (size_t i = 0; i < repeats; i++)
            copy(to, from, bytes);
        double now = (double)(repeats * bytes) / (double)(time_now_ns() - start);
        best = now > best ? now : best;
    }
    return best;
}

int main(void)
{
    static const size_t behind[] = {1, 8, 15, 16}, sizes[] = {4096, 16384, 65536, 262144};
    char *from = aligned_alloc(4096, ROOM), *to = aligned_alloc(4096, ROOM);
    if (!from || !to)
        return 1;
    memset(from, 1, ROOM);
    memset(to, 2, ROOM);
    printf("copies on one core, GB/s\n%10s %8s %10s %10s %10s %10s\n", "bytes", "behind", "memcpy",
           "banyan", "limit", "of limit");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t b = 0; b < sizeof behind / sizeof *behind; b++) {
            double plain = rate(by_memcpy, to + behind[b], from, sizes[s]);
            double ours = rate(by_stream, to + behind[b], from, sizes[s]);
            double limit = rate(by_memcpy, to, from, sizes[s]);
            printf("%10zu %8zu %10.1f %10.1f %10.1f %8.0f %%\n", sizes[s], behind[b], plain, ours,
                   limit, 100 * ours / limit);
        }
    }
    free(from);
    free(to);
    return 0;
}
