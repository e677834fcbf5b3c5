#include "common/many_layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LINE_BYTES 256
#define TRANSPOSED_MOST ((uint64_t)16 << 20)
#define STEEPEST 16.0

static uint64_t random_next(uint64_t *state)
{
    uint64_t mixed = *state += UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ mixed >> 31;
}

static uint64_t random_below(uint64_t *state, uint64_t end)
{
    return random_next(state) % end;
}

/* Log-uniform where `steepness` is 0; the steeper, the fewer are large. */
static double size_at(const many_options *of, double steepness, double place)
{
    double ratio = (double)of->most_bytes / (double)of->least_bytes;
    double tail = 1 - place * (1 - pow(ratio, -steepness));
    return (double)of->least_bytes * fmin(pow(tail, -1 / steepness), ratio);
}

static double total_at(const many_options *of, double steepness, const double *places, size_t count)
{
    double total = 0;
    for (size_t i = 0; i < count; i++)
        total += size_at(of, steepness, places[i]);
    return total;
}

/* Find the steepness at which all sizes together have the wanted bytes. */
static double find_steepness(const many_options *of, const double *places, size_t count)
{
    double low = 1e-3, high = STEEPEST;
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;
        if (total_at(of, middle, places, count) > (double)of->total_bytes)
            low = middle;
        else
            high = middle;
    }
    return high;
}

enum shape { DENSE, STRIDED_SOURCE, STRIDED_DESTINATION, STRIDED_BOTH, TRANSPOSED };

/* Half of them are dense. */
static enum shape draw_shape(uint64_t *state, uint64_t bytes)
{
    static const enum shape shapes[] = {
        DENSE, DENSE, DENSE, DENSE, STRIDED_SOURCE, STRIDED_DESTINATION, STRIDED_BOTH, TRANSPOSED};
    enum shape drawn = shapes[random_below(state, sizeof(shapes) / sizeof(shapes[0]))];
    return drawn == TRANSPOSED && bytes > TRANSPOSED_MOST ? STRIDED_BOTH : drawn;
}

/* Draw a pitch: rows are aligned to lines except in one matrix of sixteen. */
static uint64_t draw_pitch(uint64_t *state, uint64_t inner, uint32_t elem_bytes)
{
    uint64_t line = 64 / elem_bytes;
    uint64_t pitch = (inner + line - 1) / line * line + random_below(state, 8) * line;
    return pitch + (random_below(state, 16) == 0);
}

static void draw_matrix(uint64_t *state, uint64_t bytes, many_transfer *of)
{
    static const uint32_t lengths[] = {64, 256, 1000, 2048, 4096, 16384};
    enum shape shape = draw_shape(state, bytes);
    uint32_t length = lengths[random_below(state, sizeof(lengths) / sizeof(lengths[0]))];
    of->elem_bytes = UINT32_C(1) << random_below(state, 3);
    if (shape == DENSE || length > bytes)
        length = (uint32_t)(bytes / of->elem_bytes * of->elem_bytes);
    of->columns = length / of->elem_bytes;
    of->rows = (bytes + length / 2) / length;
    of->destination.transposed = shape == TRANSPOSED;
    bool sparse = shape == STRIDED_SOURCE || shape == STRIDED_BOTH;
    of->source.pitch = sparse ? draw_pitch(state, of->columns, of->elem_bytes) : of->columns;
    uint64_t inner = shape == TRANSPOSED ? of->rows : of->columns;
    bool dense = shape == DENSE || shape == STRIDED_SOURCE;
    of->destination.pitch = dense ? inner : draw_pitch(state, inner, of->elem_bytes);
}

static void place(uint64_t *state, const many_transfer *of, bool is_source, many_place *placed,
                  uint64_t *used)
{
    placed->at = (*used + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    placed->at += random_below(state, 16) == 0 ? of->elem_bytes : 0;
    many_area area = many_area_of(of, is_source, NULL);
    *used = placed->at + ((area.outer - 1) * area.pitch + area.inner) * of->elem_bytes;
}

static uint64_t hash_name(int rank, size_t number)
{
    char name[64];
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    int length = snprintf(name, sizeof name, "rank.%d.tensor.%zu", rank, number);
    for (int i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * UINT64_C(0x100000001B3);
    return hash;
}

/* Add transfers to all other ranks in turn; to itself in a world of one. */
static void add(const many_options *options, many_layout *made, uint64_t *state, int rank,
                size_t number, uint64_t bytes)
{
    int others = options->ranks - 1;
    int step = others > 0 ? 1 + (int)(number % (size_t)others) : 0;
    many_transfer *of = &made->list[made->count++];
    *of = (many_transfer){
        .from = rank, .to = (rank + step) % options->ranks, .name = hash_name(rank, number)};
    draw_matrix(state, bytes, of);
    place(state, of, true, &of->source, &made->source_bytes[of->from]);
    place(state, of, false, &of->destination, &made->destination_bytes[of->to]);
    uint64_t moved = of->rows * of->columns * of->elem_bytes;
    made->bytes += moved;
    made->sent_bytes[of->from] += moved;
    made->received_bytes[of->to] += moved;
}

bool many_layout_make(const many_options *options, many_layout *made)
{
    size_t ranks = (size_t)options->ranks, count = ranks * options->count;
    double *places = calloc(count, sizeof *places);
    *made = (many_layout){.list = calloc(count, sizeof *made->list),
                          .source_bytes = calloc(4 * ranks, sizeof *made->source_bytes)};
    if (!places || !made->list || !made->source_bytes) {
        free(places);
        many_layout_free(made);
        return false;
    }
    made->destination_bytes = made->source_bytes + ranks;
    made->sent_bytes = made->source_bytes + 2 * ranks;
    made->received_bytes = made->source_bytes + 3 * ranks;
    uint64_t state = options->seed;
    for (size_t i = 0; i < count; i++)
        places[i] = (double)random_below(&state, UINT64_C(1) << 53) / 0x1p53;
    places[0] = 0;
    places[count - 1] = 1;
    double steepness = find_steepness(options, places, count);
    for (size_t i = 0; i < count; i++)
        add(options, made, &state, (int)(i / options->count), i % options->count,
            (uint64_t)size_at(options, steepness, places[i]));
    free(places);
    return true;
}

void many_layout_free(many_layout *old)
{
    free(old->list);
    free(old->source_bytes);
    *old = (many_layout){0};
}

many_area many_area_of(const many_transfer *of, bool is_source, char *memory)
{
    const many_place *side = is_source ? &of->source : &of->destination;
    many_area area = {.data = memory ? memory + side->at : NULL,
                      .name = of->name,
                      .outer = of->rows,
                      .inner = of->columns,
                      .pitch = side->pitch,
                      .outer_step = of->columns,
                      .inner_step = 1,
                      .elem_bytes = of->elem_bytes};
    if (side->transposed) {
        area.outer = of->columns;
        area.inner = of->rows;
        area.outer_step = 1;
        area.inner_step = of->columns;
    }
    return area;
}

DLTensor many_tensor(const many_transfer *of, bool is_source, char *memory, DLDevice device,
                     int64_t dims[4])
{
    const many_place *side = is_source ? &of->source : &of->destination;
    dims[0] = (int64_t)of->rows;
    dims[1] = (int64_t)of->columns;
    dims[2] = side->transposed ? 1 : (int64_t)side->pitch;
    dims[3] = side->transposed ? (int64_t)side->pitch : 1;
    return (DLTensor){.data = memory,
                      .device = device,
                      .ndim = 2,
                      .dtype = of->elem_bytes == 1   ? BANYAN_U8
                               : of->elem_bytes == 2 ? BANYAN_BF16
                                                     : BANYAN_U32,
                      .shape = dims,
                      .strides = dims + 2,
                      .byte_offset = side->at};
}
