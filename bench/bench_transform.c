/* Speed of format changes on one core, beside memcpy of as many bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/deadline.h"
#include "reshard/run/convert.h"
#include "reshard/transform/mxfp8.h"

#define ELEMS ((size_t)1 << 25)
#define REPEATS 5

static char *source, *destination;
static uint8_t *elements, *scales;

struct job {
    const char *name;
    size_t bytes_in, bytes_out; /* of an element */
    void (*run)(void);
};

#define DEFINE_CAST(name, to, from)                                                                \
    static void name(void)                                                                         \
    {                                                                                              \
        convert_run(destination, to, source, from, ELEMS);                                         \
    }

DEFINE_CAST(f32_to_bf16, BANYAN_BF16, BANYAN_F32)
DEFINE_CAST(f32_to_f16, BANYAN_F16, BANYAN_F32)
DEFINE_CAST(bf16_to_f32, BANYAN_F32, BANYAN_BF16)
DEFINE_CAST(f16_to_f32, BANYAN_F32, BANYAN_F16)
DEFINE_CAST(bf16_to_f16, BANYAN_F16, BANYAN_BF16)
DEFINE_CAST(f16_to_bf16, BANYAN_BF16, BANYAN_F16)

static void bf16_to_mxfp8(void)
{
    mxfp8_quantize(BANYAN_MXFP8_ROUND_UP, source, BANYAN_BF16, (int64_t)ELEMS, elements, scales);
}

static void mxfp8_to_bf16(void)
{
    mxfp8_dequantize(elements, scales, (int64_t)ELEMS, destination, BANYAN_BF16);
}

static const struct job jobs[] = {
    {"f32 -> bf16", 4, 2, f32_to_bf16},     {"f32 -> f16", 4, 2, f32_to_f16},
    {"bf16 -> f32", 2, 4, bf16_to_f32},     {"f16 -> f32", 2, 4, f16_to_f32},
    {"bf16 -> f16", 2, 2, bf16_to_f16},     {"f16 -> bf16", 2, 2, f16_to_bf16},
    {"bf16 -> mxfp8", 2, 1, bf16_to_mxfp8}, {"mxfp8 -> bf16", 1, 2, mxfp8_to_bf16},
};

static double best_seconds(void (*run)(void))
{
    double best = 1e30;
    for (int i = 0; i < REPEATS; i++) {
        uint64_t start = time_now_ns();
        run();
        double seconds = (double)(time_now_ns() - start) / (double)NS_PER_S;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static size_t copied_bytes;

static void copy_bytes(void)
{
    memcpy(destination, source, copied_bytes);
}

/* Values as weights have them: a few binades around 2^-6. */
static void fill(void)
{
    uint16_t *halves = (uint16_t *)source;
    uint32_t state = 1;
    for (size_t i = 0; i < ELEMS * 2; i++) {
        state = state * 1664525 + 1013904223;
        halves[i] = (uint16_t)((state >> 16 & 0x83ff) + 0x3a00);
    }
    memset(destination, 1, ELEMS * 4);
    memset(elements, 1, ELEMS);
    memset(scales, 1, ELEMS / MXFP8_BLOCK);
}

int main(void)
{
    source = malloc(ELEMS * 4);
    destination = malloc(ELEMS * 4);
    elements = malloc(ELEMS);
    scales = malloc(ELEMS / MXFP8_BLOCK);
    if (!source || !destination || !elements || !scales)
        return 1;
    fill();
    printf("%zu million elements, one core; GB/s of bytes read and written\n", ELEMS >> 20);
    printf("%-14s %8s %8s %9s\n", "", "GB/s", "memcpy", "of memcpy");
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        const struct job *job = &jobs[i];
        double bytes = (double)ELEMS * (double)(job->bytes_in + job->bytes_out);
        copied_bytes = ELEMS * (job->bytes_in + job->bytes_out) / 2;
        double speed = bytes / best_seconds(job->run) / 1e9;
        double limit = bytes / best_seconds(copy_bytes) / 1e9;
        printf("%-14s %8.2f %8.2f %8.0f%%\n", job->name, speed, limit, 100 * speed / limit);
    }
    free(source);
    free(destination);
    free(elements);
    free(scales);
    return 0;
}
