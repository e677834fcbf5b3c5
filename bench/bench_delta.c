/* Speed of finding, packing, checking and applying the changes of a version, on one core, beside
 * the memory's. Find: compare with the kept copy; the limit is memcmp of equal memory, which reads
 * the same. Pack: write the changes of one box. Wire: bytes that travel, in parts of 3 bytes for
 * each changed element. Commit: exchange the changes with the elements; the limit is one memcpy of
 * as many bytes as the lines of 64 bytes have in which something changes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "publish/delta/changes.h"
#include "publish/delta/stream.h"

#define ELEMS ((size_t)1 << 27)
#define BYTES (ELEMS * 2)
#define REPEATS 3
#define LINE_ELEMS 32

static const double shares[] = {0.001, 0.01, 0.03, 0.1, 0.5, 1};

static uint16_t *before, *after, *kept, *engine;
static uint64_t *map;

static double seconds_since(uint64_t start_ns)
{
    return (double)(time_now_ns() - start_ns) / (double)NS_PER_S;
}

static void least(double *best, double seconds)
{
    if (*best == 0 || seconds < *best)
        *best = seconds;
}

/* Change random elements; return the number of lines in which one has changed. */
static size_t change(double share)
{
    uint64_t state = 7, limit = (uint64_t)(share * 0x1p32);
    size_t lines = 0, last = SIZE_MAX;
    for (size_t i = 0; i < ELEMS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bool changes = state >> 32 < limit;
        after[i] = before[i] ^ (uint16_t)(changes ? 1 + (state >> 20 & 0xff) : 0);
        if (!changes)
            continue;
        lines += i / LINE_ELEMS != last;
        last = i / LINE_ELEMS;
    }
    return lines;
}

/* False if a goal is missed. */
static bool measure(double share)
{
    double compare_s = 0, find_s = 0, pack_s = 0, check_s = 0, commit_s = 0, copy_s = 0;
    size_t lines = change(share);
    strided_view live = strided_view_dense(after, 2, ELEMS),
                 served = strided_view_dense(engine, 2, ELEMS);
    const uint64_t *maps[] = {map};
    delta_source source = {.box = strided_view_dense(kept, 2, ELEMS),
                           .memory = (const char *)kept,
                           .maps = maps,
                           .map_count = 1};
    bytes_writer stream = {0};
    uint64_t changed = 0, blocks = delta_blocks(ELEMS);
    for (int i = 0; i < REPEATS; i++) {
        memcpy(kept, before, BYTES);
        memset(map, 0, changes_words(ELEMS) * sizeof *map);
        uint64_t start_ns = time_now_ns();
        changed = changes_find(&live, kept, map);
        least(&find_s, seconds_since(start_ns));
        stream.count = 0;
        start_ns = time_now_ns();
        delta_write(&source, 0, blocks, &stream);
        least(&pack_s, seconds_since(start_ns));
        start_ns = time_now_ns();
        bool valid = delta_check(stream.data, stream.count, ELEMS, 2, 0, blocks, &changed, NULL);
        least(&check_s, seconds_since(start_ns));
        memcpy(engine, before, BYTES);
        start_ns = time_now_ns();
        delta_swap(&served, 0, blocks, stream.data);
        least(&commit_s, seconds_since(start_ns));
        start_ns = time_now_ns();
        bool arrived = memcmp(engine, after, BYTES) == 0;
        least(&compare_s, seconds_since(start_ns));
        if (stream.failed || !valid || !arrived) {
            fprintf(stderr, "the changes have not arrived\n");
            exit(1);
        }
        start_ns = time_now_ns();
        memcpy(engine, before, lines * 2 * LINE_ELEMS);
        least(&copy_s, seconds_since(start_ns));
    }
    double wire = (double)stream.count / (3 * (double)changed);
    printf("%7.1f %% %9.2f %9.2f %8.0f %% %9.2f %9.2f %9.2f %9.2f %9.2f\n", 100 * share,
           2e-9 * BYTES / compare_s, 2e-9 * BYTES / find_s, 100 * compare_s / find_s,
           1e-9 * BYTES / pack_s, wire, 1e3 * check_s, 1e3 * commit_s, commit_s / copy_s);
    bytes_writer_free(&stream);
    return share != 0.03 || (compare_s / find_s >= 0.8 && wire <= 1.25);
}

int main(void)
{
    bool met = true;
    uint64_t state = 1;
    before = malloc(BYTES);
    after = malloc(BYTES);
    kept = malloc(BYTES);
    engine = malloc(BYTES);
    map = calloc(changes_words(ELEMS), sizeof *map);
    if (!before || !after || !kept || !engine || !map)
        return 1;
    for (size_t i = 0; i < ELEMS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        before[i] = (uint16_t)(state >> 40);
    }
    printf("%zu million elements of bf16, one core\n", ELEMS >> 20);
    printf("%9s %9s %9s %10s %9s %9s %9s %9s %9s\n", "changed", "memcmp", "find GB/s", "of memcmp",
           "pack GB/s", "wire", "check ms", "commit ms", "of limit");
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        met &= measure(shares[i]);
    printf("goals at 3 %%: find at least 80 %% of memcmp, wire at most 1.25: %s\n",
           met ? "met" : "MISSED");
    free(before);
    free(after);
    free(kept);
    free(engine);
    free(map);
    return met ? 0 : 1;
}
