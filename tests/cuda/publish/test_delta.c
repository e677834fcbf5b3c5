/* Changes on a device: found, written and exchanged with the results of the host, bit by bit, for
 * tensors and boxes of any strides and alignment, elements of any size, any share of changes and
 * several maps. Nothing beside them changes. */
#include "publish/delta/example.h"

#include "core/module.h"
#include "publish/delta/changes.h"
#include "publish/delta/device.h"
#include "support/gpu/gpu.h"
#include "support/gpu/gpu_stream.h"

#define MARGIN 256
#define TENSORS 3
#define BOXES 5
#define VERSIONS 2

static const uint64_t shares[] = {0, 1, 30, 300, 1000};

struct bench_of {
    const delta_device_ops *ops;
    void *engine, *stream;
    DLDevice device;
    random_state random;
};

/* Device memory with a margin of poison before and behind it. */
struct guarded {
    unsigned char *base, *at;
    size_t bytes;
};

static struct guarded guarded_make(DLDevice device, size_t bytes, size_t offset, const void *from)
{
    struct guarded made = {.bytes = bytes};
    made.base = gpu_plain_alloc(device, bytes + offset + 2 * MARGIN);
    made.at = made.base + MARGIN + offset;
    gpu_poison(made.base, bytes + offset + 2 * MARGIN);
    if (from && bytes > 0)
        gpu_copy(made.at, from, bytes);
    return made;
}

/* Check the poison around the memory, and compare its contents. */
static void guarded_check(const struct guarded *made, const void *expected, const char *what)
{
    unsigned char poison, *all = gpu_read(made->at - MARGIN, made->bytes + 2 * MARGIN);
    unsigned char *one = gpu_read(made->base, 1);
    poison = *one;
    for (size_t i = 0; i < MARGIN; i++)
        CHECK(all[i] == poison && all[MARGIN + made->bytes + i] == poison,
              "something beside %s was written", what);
    for (size_t i = 0; i < made->bytes; i++)
        CHECK(all[MARGIN + i] == ((const unsigned char *)expected)[i],
              "byte %zu of %zu of %s differs", i, made->bytes, what);
    free(one);
    free(all);
}

static void guarded_free(DLDevice device, struct guarded *made)
{
    gpu_plain_free(device, made->base);
}

/* A tensor, its copies here and there, and its maps. */
struct pair {
    struct example example;
    size_t bytes, words;
    unsigned char *old, *kept;
    uint64_t *maps[VERSIONS];
    struct guarded live_there, kept_there, maps_there[VERSIONS];
};

static void pair_make(struct bench_of *of, struct pair *made)
{
    make_example(&of->random, &made->example);
    made->bytes = made->example.elems * made->example.elem_bytes;
    made->words = changes_words(made->example.elems);
    CHECK_OK(strided_view_of(&made->example.tensor, &made->example.view));
    made->old = malloc(made->bytes);
    made->kept = malloc(made->bytes);
    pack(&made->example, made->old);
    memcpy(made->kept, made->old, made->bytes);
    size_t offset = below(&of->random, 3) == 0 ? made->example.elem_bytes : 0;
    made->live_there =
        guarded_make(of->device, made->example.buffer_bytes, offset, made->example.buffer);
    made->kept_there = guarded_make(of->device, made->bytes, 0, made->old);
    for (int v = 0; v < VERSIONS; v++) {
        made->maps[v] = calloc(made->words, sizeof *made->maps[v]);
        made->maps_there[v] = guarded_make(of->device, 8 * made->words, 0, NULL);
    }
}

static void pair_free(const struct bench_of *of, struct pair *made)
{
    guarded_free(of->device, &made->live_there);
    guarded_free(of->device, &made->kept_there);
    for (int v = 0; v < VERSIONS; v++) {
        guarded_free(of->device, &made->maps_there[v]);
        free(made->maps[v]);
    }
    free(made->old);
    free(made->kept);
    free(made->example.buffer);
}

/* ---- find ---- */

static void find_version(struct bench_of *of, struct pair *pairs, int v)
{
    struct delta_compare compared[TENSORS];
    uint64_t expected[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        struct pair *pair = &pairs[t];
        change(&of->random, &pair->example, shares[below(&of->random, 5)]);
        expected[t] = changes_find(&pair->example.view, pair->kept, pair->maps[v]);
        /* The work that the stream has comes before. */
        gpu_copy(pair->live_there.at, pair->example.buffer, pair->example.buffer_bytes);
        compared[t] = (struct delta_compare){.live = pair->example.view,
                                             .kept = pair->kept_there.at,
                                             .map = (uint64_t *)(void *)pair->maps_there[v].at,
                                             .changed = 77};
        compared[t].live.data = (char *)pair->live_there.at;
    }
    CHECK_OK(of->ops->find(of->engine, compared, TENSORS, of->stream));
    for (int t = 0; t < TENSORS; t++) {
        struct pair *pair = &pairs[t];
        CHECK(compared[t].changed == expected[t], "%lu elements differ, not %lu",
              (unsigned long)expected[t], (unsigned long)compared[t].changed);
        guarded_check(&pair->maps_there[v], pair->maps[v], "a map");
        guarded_check(&pair->kept_there, pair->kept, "a copy");
        guarded_check(&pair->live_there, pair->example.buffer, "a tensor");
    }
}

/* ---- write ---- */

/* A box of a dense copy of a tensor, here and there. */
struct box {
    delta_source here, there;
    const uint64_t *maps_there[VERSIONS];
};

static void box_make(struct bench_of *of, const struct pair *pair, struct box *made)
{
    const struct example *example = &pair->example;
    int64_t shape[3], strides[3], stride = 1, offset = 0;
    bool all = below(&of->random, 3) == 0;
    for (int d = example->ndim - 1; d >= 0; d--) {
        int64_t start = all ? 0 : (int64_t)below(&of->random, (uint64_t)example->shape[d]);
        int64_t most = example->shape[d] - start;
        shape[d] = all ? most : 1 + (int64_t)below(&of->random, (uint64_t)most);
        strides[d] = stride;
        offset += start * stride;
        stride *= example->shape[d];
    }
    if (example->ndim > 1 && below(&of->random, 3) == 0) { /* dimensions in another order */
        int64_t kept = shape[0];
        shape[0] = shape[1];
        shape[1] = kept;
        kept = strides[0];
        strides[0] = strides[1];
        strides[1] = kept;
    }
    DLTensor tensor = example->tensor;
    tensor.data = pair->kept + (size_t)offset * example->elem_bytes;
    tensor.shape = shape;
    tensor.strides = strides;
    size_t first = below(&of->random, VERSIONS);
    made->here = (delta_source){.memory = (const char *)pair->kept,
                                .maps = (const uint64_t *const *)pair->maps + first,
                                .map_count = VERSIONS - first,
                                .whole = below(&of->random, 6) == 0};
    CHECK_OK(strided_view_of(&tensor, &made->here.box));
    made->there = made->here;
    for (int v = 0; v < VERSIONS; v++)
        made->maps_there[v] = (const uint64_t *)(const void *)pair->maps_there[v].at;
    made->there.memory = (const char *)pair->kept_there.at;
    made->there.box.data = (char *)pair->kept_there.at + (size_t)offset * example->elem_bytes;
    made->there.maps = made->maps_there + first;
}

/* Memory that receives elements: rows of columns. */
struct receiver {
    int64_t rows, columns, apart, gap; /* of elements of a row, and behind a row */
};

/* Exchange a stream with the elements of a receiver, here and there, and back. */
static void swap_stream(struct bench_of *of, const struct receiver *to, size_t elem_bytes,
                        const bytes_writer *stream, uint64_t first, uint64_t count)
{
    uint64_t elems = (uint64_t)(to->rows * to->columns);
    uint64_t changed, *ends = calloc(count + 1, sizeof *ends);
    int64_t pitch = to->columns * to->apart + to->gap;
    size_t bytes = (size_t)(to->rows * pitch) * elem_bytes;
    unsigned char *memory = malloc(bytes), *before = malloc(bytes), *values = malloc(stream->count);
    fill_random(&of->random, memory, bytes);
    memcpy(before, memory, bytes);
    memcpy(values, stream->data, stream->count);
    DLTensor tensor = {.data = memory,
                       .device = {kDLCPU, 0},
                       .ndim = 2,
                       .dtype = {kDLUInt, 8, (uint16_t)elem_bytes},
                       .shape = (int64_t[]){to->rows, to->columns},
                       .strides = (int64_t[]){pitch, to->apart}};
    strided_view view, view_there;
    CHECK_OK(strided_view_of(&tensor, &view));
    CHECK(delta_check(values, stream->count, elems, elem_bytes, first, count, &changed, ends));
    struct guarded memory_there = guarded_make(of->device, bytes, 0, memory);
    struct guarded values_there =
        guarded_make(of->device, stream->count, below(&of->random, 5), values);
    view_there = view;
    /* The boxes may be those of other memory. */
    ptrdiff_t shift = 4096 * (ptrdiff_t)below(&of->random, 3);
    view_there.data = (char *)memory_there.at - shift;
    struct delta_part part = {
        .first = first, .count = count, .stream = values_there.at, .ends = ends};
    void *staged = NULL;
    CHECK_OK(of->ops->stage(of->engine, &view_there, 1, &part, 1, &staged));
    delta_swap(&view, first, count, values);
    CHECK_OK(of->ops->swap(staged, 0, 1, shift, below(&of->random, 2), of->stream));
    CHECK_OK(of->ops->wait(of->engine, of->stream));
    guarded_check(&memory_there, memory, "a receiver");
    guarded_check(&values_there, values, "exchanged values");
    CHECK_OK(of->ops->swap(staged, 0, 1, shift, false, of->stream));
    CHECK_OK(of->ops->wait(of->engine, of->stream));
    guarded_check(&memory_there, before, "a receiver that went back");
    guarded_check(&values_there, stream->data, "values that came back");
    of->ops->unstage(of->engine, staged);
    guarded_free(of->device, &memory_there);
    guarded_free(of->device, &values_there);
    free(memory);
    free(before);
    free(values);
    free(ends);
}

/* With elements at any places. */
static void swap_box(struct bench_of *of, const struct box *box, const bytes_writer *stream,
                     uint64_t first, uint64_t count)
{
    int64_t elems = (int64_t)box->here.box.elems;
    struct receiver to = {.columns = 1 + (int64_t)below(&of->random, 60),
                          .apart = 1 + (int64_t)below(&of->random, 3),
                          .gap = (int64_t)below(&of->random, 3)};
    while (elems % to.columns != 0)
        to.columns--;
    to.rows = elems / to.columns;
    swap_stream(of, &to, box->here.box.elem_bytes, stream, first, count);
}

/* With rows of whole sectors, of one row or of several. */
static void swap_sectors(struct bench_of *of)
{
    static const size_t sizes[] = {1, 2, 2, 4};
    static const uint64_t per_mille[] = {0, 1, 7, 30, 60, 125, 300, 600, 950, 1000};
    size_t elem_bytes = sizes[below(&of->random, 4)];
    int64_t in_sector = 32 / (int64_t)elem_bytes;
    struct receiver to = {.rows = 1 + (int64_t)below(&of->random, 4), .apart = 1};
    to.columns = in_sector * (1 + (int64_t)below(&of->random, 9000 / (uint64_t)in_sector));
    to.gap = to.rows > 1 ? in_sector * (int64_t)below(&of->random, 3) : 0;
    uint64_t elems = (uint64_t)(to.rows * to.columns), share = per_mille[below(&of->random, 10)];
    unsigned char *memory = malloc(elems * elem_bytes);
    uint64_t *map = calloc(changes_words(elems), sizeof *map);
    fill_random(&of->random, memory, elems * elem_bytes);
    for (uint64_t i = 0; i < elems; i++)
        if (below(&of->random, 1000) < share)
            map[i / 64] |= UINT64_C(1) << i % 64;
    delta_source source = {.box = strided_view_dense(memory, elem_bytes, elems),
                           .memory = (const char *)memory,
                           .maps = (const uint64_t *const[]){map},
                           .map_count = 1};
    uint64_t blocks = delta_blocks(elems), first = below(&of->random, blocks);
    uint64_t count = 1 + below(&of->random, blocks - first);
    bytes_writer stream = {0};
    delta_write(&source, first, count, &stream);
    swap_stream(of, &to, elem_bytes, &stream, first, count);
    bytes_writer_free(&stream);
    free(memory);
    free(map);
}

static void write_boxes(struct bench_of *of, const struct box *boxes)
{
    delta_source sources[BOXES];
    const uint64_t *block_bytes, *next;
    struct delta_piece pieces[BOXES];
    bytes_writer streams[BOXES] = {0};
    void *packing = NULL, *pinned = NULL;
    bool all_whole = true;
    size_t bytes = 0;
    for (int i = 0; i < BOXES; i++) {
        sources[i] = boxes[i].there;
        all_whole &= boxes[i].here.whole;
    }
    CHECK_OK(of->ops->pack_open(of->engine, sources, BOXES, &packing, &block_bytes));
    CHECK((block_bytes == NULL) == all_whole);
    next = block_bytes;
    for (int i = 0; i < BOXES; i++) {
        const delta_source *here = &boxes[i].here;
        uint64_t blocks = delta_blocks(here->box.elems);
        uint64_t first = below(&of->random, blocks), before = 0;
        uint64_t count = 1 + below(&of->random, blocks - first);
        for (uint64_t k = 0; k < blocks && block_bytes; k++, next++) {
            bytes_writer one = {0};
            delta_write(here, k, 1, &one);
            CHECK(*next == one.count, "block %lu has %zu bytes, measured as %lu", (unsigned long)k,
                  one.count, (unsigned long)*next);
            bytes_writer_free(&one);
        }
        delta_write(here, first, count, &streams[i]);
        before = bytes;
        bytes += streams[i].count;
        pieces[i] = (struct delta_piece){(size_t)i, first, count, before};
    }
    CHECK_OK(of->ops->host_alloc(of->engine, bytes + MARGIN, &pinned));
    memset(pinned, 0xA5, bytes + MARGIN);
    CHECK_OK(of->ops->pack(packing, pieces, BOXES, pinned, bytes));
    for (size_t i = 0; i < MARGIN; i++)
        CHECK(((unsigned char *)pinned)[bytes + i] == 0xA5,
              "something behind a stream was written");
    for (int i = 0; i < BOXES; i++) {
        const unsigned char *got = (const unsigned char *)pinned + pieces[i].at;
        for (size_t k = 0; k < streams[i].count; k++)
            CHECK(got[k] == streams[i].data[k], "byte %zu of %zu of stream %d differs", k,
                  streams[i].count, i);
        swap_box(of, &boxes[i], &streams[i], pieces[i].first, pieces[i].count);
        bytes_writer_free(&streams[i]);
    }
    of->ops->pack_close(packing);
    of->ops->host_free(of->engine, pinned);
}

/* ---- gather ---- */

static void gather_box(struct bench_of *of, const struct box *box)
{
    const strided_view *here = &box->here.box;
    uint64_t first = below(&of->random, here->elems);
    uint64_t count = 1 + below(&of->random, here->elems - first);
    size_t bytes = count * here->elem_bytes;
    unsigned char *expected = malloc(bytes), *got = malloc(bytes + 1);
    got[bytes] = 0x5A;
    strided_pack(expected, here, first, count);
    CHECK_OK(of->ops->gather(of->engine, &box->there.box, first, count, got));
    CHECK(memcmp(got, expected, bytes) == 0 && got[bytes] == 0x5A);
    free(expected);
    free(got);
}

static void play_rounds(banyan_world *world, void *context)
{
    const module_tables *tables;
    struct bench_of of = {.device = gpu_device_for(0),
                          .random = random_from(*(const uint64_t *)context)};
    (void)world;
    CHECK_OK(gpu_memory()->open(of.device.device_id));
    CHECK_OK(module_load("cuda", &tables));
    of.ops = tables->delta;
    CHECK_OK(of.ops->open(of.device.device_id, &of.engine));
    of.stream = gpu_stream_create(of.device);
    for (int round = 0; round < 24; round++) {
        static struct pair pairs[TENSORS];
        static struct box boxes[BOXES];
        for (int t = 0; t < TENSORS; t++)
            pair_make(&of, &pairs[t]);
        for (int v = 0; v < VERSIONS; v++)
            find_version(&of, pairs, v);
        for (int i = 0; i < BOXES; i++)
            box_make(&of, &pairs[below(&of.random, TENSORS)], &boxes[i]);
        write_boxes(&of, boxes);
        gather_box(&of, &boxes[0]);
        for (int i = 0; i < 4; i++)
            swap_sectors(&of);
        for (int t = 0; t < TENSORS; t++)
            pair_free(&of, &pairs[t]);
    }
    gpu_stream_destroy(of.device, of.stream);
    of.ops->close(of.engine);
}

static void a_device_finds_writes_and_exchanges_as_the_host(void **state)
{
    (void)state;
    uint64_t seed = random_seed();
    ranks_run(1, play_rounds, &seed);
}

int main(void)
{
    gpu_count();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_finds_writes_and_exchanges_as_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
